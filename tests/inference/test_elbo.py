"""The bound on the evidence and the training objective, of each posterior with a density."""

import pytest
import torch

from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.base import Variational
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

NAMES = [n for n in registry.names("posteriors") if issubclass(registry.find("posteriors", n), Variational)]
NET, N, S = Net(mlp(2, [4], 3)), 12, 6


def seeded(seed):
    return Rng(seed, dtype=torch.float64)


@pytest.mark.parametrize("part", [slice(N), slice(6)], ids=["whole", "half"])
@pytest.mark.parametrize("name", NAMES)
def test_elbo_counts_every_example_once(name, part):
    settings = {"kl_weight": 0.35, "augmentation": 3.0}
    posterior = registry.build(registry.find("posteriors", name), NET, Gaussian(noise_std=0.5), settings)
    x = seeded(0).normal(2, N, 2)
    state, whole = posterior.init(N, 2, seeded(1)), Batch(x, x[..., :1].sin().expand(-1, -1, 3))
    for i in range(3):
        state, _ = posterior.update(state, whole, seeded(2 + i))
    batch = tree.map_tensors(lambda t: t[:, part], whole)
    net, layers, _ = posterior.functions(state, S, seeded(9))
    out = net.output(layers, batch.x)
    fit = torch.distributions.Normal(out, 0.5).log_prob(batch.y.unsqueeze(1)).sum(3).mean((1, 2)) * N
    elbo, objective = (f(state, batch, seeded(9), samples=S) for f in (posterior.elbo, posterior.objective))
    torch.testing.assert_close(elbo, fit - posterior.kl_prior(state))  # a bound without kl_weight
    torch.testing.assert_close(objective, 3 * fit - 0.35 * posterior.kl_prior(state))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_elbo_has_a_gradient_by_the_state(name, trained):
    posterior = registry.build(registry.find("posteriors", name), NET, Gaussian(noise_std=0.5), {})
    x = seeded(0).normal(2, N, 2)
    state, batch = posterior.init(N, 2, seeded(1)), Batch(x, x[..., :1].sin().expand(-1, -1, 3))
    if trained:
        state, _ = posterior.update(state, batch, seeded(2))
    leaves = [t.clone().requires_grad_(t.dim() > 0) for t in tree.tensors(state) if t.is_floating_point()]
    remaining = iter(leaves)
    state = tree.map_tensors(lambda t: next(remaining) if t.is_floating_point() else t, state)
    inputs = [t for t in leaves if t.requires_grad]
    elbo = posterior.elbo(state, batch, seeded(3), samples=4).sum()
    gradients = torch.autograd.grad(elbo, inputs, allow_unused=True, materialize_grads=True)
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert not trained or any(g.abs().max() > 1e-3 for g in gradients)
