"""Posteriors whose state is a set of draws of the weights, with unknown noise precisions integrated out.

Precisions tau_o ~ Gamma(a0, b0) of a Gaussian likelihood have the closed form

    log p(D | w) = -a sum_o log b_o(w) + constant,    a = a0 + N / 2,  b_o(w) = b0 + (N/B) |y_o - f_o(x; w)|^2 / 2
    tau_o | w, D ~ Gamma(a, b_o(w))

for a batch D of B examples that count as N examples.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import State, Weights
from explore.inference.base import Predictive
from explore.nets.likelihoods.gaussian import Gamma
from explore.nets.protocols import Noise, Phi, is_gaussian, width


@dataclass(frozen=True, kw_only=True)
class SampledPosterior(Predictive):
    """The base class of samplers. Their states have draws `weights` [R, S, I, O], the chain index varying fastest.

    `state.scales` [R, S, M] has 1 / b(w) of each draw, 0 before any data; None without unknown noise.
    """

    likelihood: Any  # see `check_supported`
    warmup: int = 100  # updates before the draws that are kept
    chains: int = 4  # C

    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_supported()
        if self.draws < 4:
            least = f"at least {self.before + 4}: {self.before} before the draws, and 4 draws"
            raise InputError(f"epochs is {self.epochs}; it must be {least}")

    @abstractmethod
    def check_supported(self) -> None:
        """Raise InputError for a network or likelihood that is not supported."""

    @property
    def before(self) -> int:
        """The number of updates before the first draw that is kept."""
        return self.warmup

    @property
    def draws(self) -> int:
        """The number of draws kept per chain."""
        return self.epochs - self.before

    @property
    def scales_unknown(self) -> bool:
        """Whether the noise has a precision that is integrated out."""
        return is_gaussian(self.likelihood) and self.likelihood.noise_std is None

    def sample(self, state: State, n: int, rng: Rng) -> Weights:
        """Return n random draws without replacement, or all draws in order if there are at most n."""
        return some(state.weights, n, rng)

    def joint_sample(self, state: State, n: int, rng: Rng) -> tuple[Weights, Noise]:
        """Return draws as in `sample`, each with a noise precision tau ~ Gamma(a, b(w)) per target.

        The module docstring defines a and b. Before any data, tau is drawn from the prior.
        """
        if state.scales is None:
            layers = some(state.weights, n, rng)
            return layers, self.likelihood.sample_noise(state.common.noise, layers[0].shape[1], rng)
        *weights, scale = some((*state.weights, state.scales), n, rng)
        informed = scale > 0
        shape = torch.where(informed, self.noise_shape(float(state.common.n_data)), self.likelihood.prior_shape)
        return tuple(weights), rng.gamma(shape.to(scale)) * torch.where(informed, scale, 1 / self.likelihood.prior_rate)

    def noise_shape(self, n_data: float) -> float:
        """Return a = a0 + N / 2, the shape of the Gamma posterior over noise precisions, where N is `n_data`."""
        return float(self.likelihood.prior_shape + 0.5 * n_data)

    def noise_rate(self, out: Tensor, y: Tensor, copies: float) -> Float[Tensor, "R S M"]:
        """Return b(w) from the outputs and targets of B examples, each of which counts as `copies` = N / B."""
        rate: Tensor = self.likelihood.prior_rate + 0.5 * copies * self.likelihood.squares(out, y).sum(2)
        return rate

    def unknown_scales(self, like: Float[Tensor, "R S"]) -> Float[Tensor, "R S M"] | None:
        """Return the scales of draws before any data; None without unknown noise."""
        if not self.scales_unknown:
            return None
        return like.new_zeros(*like.shape, width(self.likelihood, self.net.outputs))

    def agreement(self, state: State, x: Float[Tensor, "R P ..."]) -> Float[Tensor, "R 2"]:
        """Return split R-hat and the effective number of draws of predictions at x, medians over the P points."""
        predicted = self.likelihood.mean(self.net.output(state.weights, x))[..., 0]  # [R, S, P]
        of_points = [t.unflatten(1, (self.draws, self.chains)) for t in predicted.unbind(2)]
        measured = (torch.stack(list(map(f, of_points))) for f in (split_r_hat, effective_sample_size))
        return torch.stack([values.median(0).values for values in measured], 1)

    def kept(self, old: Tensor, new: Tensor, draw: int) -> Tensor:
        """Replace the draws numbered `draw` of all chains: [R, S, ...] and [R, C, ...] -> [R, S, ...]."""
        slot = draw % self.draws
        return old.slice_scatter(new, 1, slot * self.chains, (slot + 1) * self.chains)


def some(draws: tuple[Tensor, ...], n: int, rng: Rng) -> tuple[Tensor, ...]:
    """Select n random entries along axis 1, the same in each tensor; return all if there are at most n."""
    replicas, count = draws[0].shape[:2]
    if n >= count:
        return draws
    chosen = rng.permutation(replicas, count)[:, :n]
    return tuple(t.take_along_dim(chosen.view(*chosen.shape, *[1] * (t.dim() - 2)), 1) for t in draws)


def mixture_of_gammas(shape: float, scales: Float[Tensor, "R S M"]) -> Phi:
    """Approximate the mixture of all Gamma(shape, rate 1 / scale_s), scale_s > 0, by one Gamma (moment matching)."""
    positive = (scales > 0).to(scales)
    share = positive / positive.sum(1, keepdim=True)
    scale = (share * scales).sum(1)
    spread = (share * (scales - scale.unsqueeze(1)).square()).sum(1)
    mean, variance = shape * scale, shape * scale.square() + shape * (shape + 1) * spread
    return Gamma(mean.square() / variance, mean / variance)


def split_r_hat(draws: Float[Tensor, "R D C"]) -> Float[Tensor, " R"]:
    """Return split R-hat of D draws from each of C chains, 1 if the chains agree (Gelman et al. 2013, eq. 11.4)."""
    half = draws.shape[1] // 2
    parts = torch.cat([draws[:, :half], draws[:, -half:]], 2)
    within = parts.var(1).mean(1).clamp_min(torch.finfo(parts.dtype).tiny)
    return ((half - 1) / half + parts.mean(1).var(1) / within).sqrt()


def effective_sample_size(draws: Float[Tensor, "R D C"]) -> Float[Tensor, " R"]:
    """Return the effective number of the D C draws for their mean (Gelman et al. 2013, eqs. 11.7 and 11.8)."""
    count, chains = draws.shape[1:]
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, 2 * count, 1)
    covariance = torch.fft.irfft(spectrum.abs().square(), 2 * count, 1)[:, :count] / count  # [R, D, C]
    within = covariance[:, 0].mean(1) * count / (count - 1)
    between = draws.mean(1).var(1) if chains > 1 else torch.zeros_like(within)
    total = (within * (count - 1) / count + between).clamp_min(torch.finfo(draws.dtype).tiny)
    correlation = 1 - (within.unsqueeze(1) - covariance.mean(2)) / total.unsqueeze(1)
    # Geyer (1992): sums of neighbouring pairs are positive and fall; the rest is noise.
    pairs = correlation[:, : count // 2 * 2].unflatten(1, (-1, 2)).sum(2)
    positive = (pairs > 0).cumprod(1) * pairs
    time = (2 * positive.cummin(1).values.sum(1) - 1).clamp_min(1 / torch.tensor(float(count * chains)).log10())
    return count * chains / time
