# %% [markdown]
# # A network of your own
#
# You have a PyTorch module and a DataLoader, and want to know where its predictions can be trusted.
#
# Here a gauge measured the water level of a river for a year, but was broken in summer. Two posteriors around the same
# module say how sure they are about the missing weeks. It takes less than a minute.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import explore

# %% [markdown]
# ## The data
#
# The gauge measured on about 200 days, with an error of 15 cm. Nothing was measured between day 128 and day 237.

# %%
torch.manual_seed(0)


def level(day):  # in metres
    t = day / 182.5 - 1
    return 3 + torch.sin(3 * t) + 0.3 * torch.cos(6 * t)


day = 365 * torch.rand(300, 1)
day = day[(day < 128) | (day > 237)].unsqueeze(1)
measured = level(day) + 0.15 * torch.randn_like(day)

# %% [markdown]
# `explore.fit` takes the data as they are. So scale targets to mean 0 and standard deviation 1, as for any network.

# %%
mean, deviation = measured.mean(), measured.std()
targets = (measured - mean) / deviation
loader = DataLoader(TensorDataset(day / 182.5 - 1, targets), batch_size=32, shuffle=True)

# %% [markdown]
# ## The module
#
# Nothing in it is about `explore`. The weights of the three Linear layers get a distribution. The LayerNorm and the
# parameter `stretch` are trained as point estimates. `print(net)` counts both.


# %%
class Gauge(nn.Module):
    def __init__(self):
        super().__init__()
        self.stretch = nn.Parameter(torch.tensor(3.0))
        self.first, self.norm = nn.Linear(1, 50), nn.LayerNorm(50)
        self.second, self.last = nn.Linear(50, 50), nn.Linear(50, 1)

    def forward(self, t):
        hidden = torch.tanh(self.first(self.stretch * t))
        return self.last(torch.tanh(self.second(self.norm(hidden))))


net = explore.Net(Gauge())
print(net)

# %% [markdown]
# `Net(module, bayesian="last")` would give a distribution to the last layer only. `bayesian=` also takes names, types
# or a function.
#
# ## Two posteriors
#
# `laplace` trains the network and puts a Gaussian around its weights. `mc-dropout` trains with dropout and keeps it in
# predictions. `explore.fit` reads the loader, and `explore.predict` any batches of inputs.

# %%
days = torch.linspace(-30, 395, 426).unsqueeze(1)
predictions, states = {}, {}
for name in ("laplace", "mc-dropout"):
    posterior = explore.posterior(name, net, "gaussian")
    states[name] = posterior, explore.fit(posterior, loader)
    predictions[name] = explore.predict(*states[name], [days / 182.5 - 1])

# %% [markdown]
# A prediction has the mean, the variance over the weights, and the variance of the noise. More data lower the former,
# not the latter. All have a first axis for parallel fits, here of length 1.

# %%
print({name: tuple(value.shape) for name, value in predictions["laplace"]._asdict().items()})

# %% [markdown]
# Each sample of a posterior is an ordinary module. The Linear layers differ between samples, and the point estimates
# do not.

# %%
one, two = states["laplace"][0].sample_modules(states["laplace"][1], 2, explore.Rng(0))
print("last.weight  ", *(module.last.weight[0, :3].detach().numpy().round(2) for module in (one, two)))
print("stretch      ", *(round(module.stretch.item(), 3) for module in (one, two)))

# %% [markdown]
# ## Where there are no data
#
# Which share of the true levels lies in the 95 % interval of the mean?

# %%
broken = (days > 128) & (days < 237)
seen = (days > 0) & (days < 365) & ~broken
figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for axis, (name, predicted) in zip(axes, predictions.items(), strict=True):
    centre, spread = mean + deviation * predicted.mean[0], deviation * predicted.variance[0].sqrt()
    covered = (level(days) - centre).abs() < 1.96 * spread
    shares = [f"{covered[days_of].float().mean():.0%}" for days_of in (seen, broken)]
    print(f"{name:<12} measured weeks: {shares[0]}, missing weeks: {shares[1]}")

    low, high = centre - 1.96 * spread, centre + 1.96 * spread
    axis.fill_between(days[:, 0], low[:, 0], high[:, 0], alpha=0.3, label="95 % interval")
    axis.plot(days, centre, label="prediction")
    axis.plot(days, level(days), color="black", linestyle=":", label="true level")
    axis.plot(day, measured, ".", color="black", markersize=2, label="measured")
    axis.set(title=name, xlabel="day", ylim=(0, 6))
axes[0].set_ylabel("water level (m)")
axes[1].legend(loc="lower right")
plt.show()

# %% [markdown]
# Both fit the measured weeks. In the missing weeks `laplace` becomes uncertain, while `mc-dropout` stays almost as sure
# as elsewhere and is often wrong. After day 365 the level leaves both intervals: a posterior is only as good as its
# network and prior.
#
# Next: [which networks are taken, and training in your own loop](../networks.md), or
# [the posteriors](../posteriors.md). [`explore compare`](../compare.md) compares them on your data.
