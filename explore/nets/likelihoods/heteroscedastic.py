"""Gaussian likelihood for real numbers, with noise that depends on the input.

For M targets a network has 2 M outputs: the means f, then the logarithmic deviations g relative to a common level tau,

    y_m ~ N(f_m(x), exp(2 s_m(x)) / tau_m),    s = spread g, but within -L and L (`limit`),    tau_m ~ Gamma(a, b)

The prior of the weights draws s to 0, a constant noise, so `spread` is the prior's scale of log deviations. Near a
bound that flattens gradually, such as that of tanh, the Fisher information of g vanishes: steps of natural gradients
grow, and so do the variances of weights. At this bound, information and score are those within it, but no step leads
outwards.

Where a network fits rounded targets exactly, the density at them has no bound. A target rounded to multiples of r is
known up to r / 2, so training takes the mean log density over this cell: r^2 / 12 is added to each squared residual.

The exact gradient of the mean, exp(-2 s) tau (y - f), almost vanishes where the noise is large, and a mean that was
never learnt there looks like noise. Training multiplies it by exp(2 beta s) (Seitzer et al., On the Pitfalls of
Heteroscedastic Uncertainty Estimation with Probabilistic Neural Networks, 2022, equation 5).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError, check_range
from explore.nets.likelihoods.gaussian import Gaussian, residual_of


@dataclass(frozen=True)
class Heteroscedastic(Gaussian):
    """Gaussian likelihood with noise that depends on the input, on standardised targets."""

    beta: float = 0.75  # how far training weighs examples equally in the mean: 0, by the likelihood; 1, equally
    spread: float = 1.0  # log deviation per unit of a network output
    limit: float = 3.0  # L: bound on the log deviation relative to the common level
    resolution: tuple[float, ...] = ()  # r: distance between possible values of each target; (): targets are exact

    ranges = {"beta": "[0, 1]", "spread": "(0, inf)", "limit": "(0, 20]"}
    outputs_per_target: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for resolution in self.resolution:
            check_range("likelihood.resolution", resolution, "[0, 10]")

    @property
    def exact(self) -> Any:
        """The likelihood of predictions, which are densities at a value and not over a cell."""
        return replace(self, resolution=())

    def mean(self, out: Tensor) -> Float[Tensor, "R S B M"]:
        if out.shape[-1] % 2:
            needs = "Heteroscedastic expects two network outputs per target, all means and then all log deviations"
            raise InputError(f"{needs}; got {out.shape[-1]} outputs")
        return out[..., : out.shape[-1] // 2]

    @property
    def _most(self) -> float:
        """The network output at the limit."""
        return self.limit / self.spread

    def log_deviation(self, out: Tensor) -> Float[Tensor, "R S B M"]:
        """Return s, the logarithm of the standard deviation relative to the common level."""
        return self.spread * out[..., out.shape[-1] // 2 :].clamp(-self._most, self._most)

    def precision(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B M"]:
        return noise.unsqueeze(2) * (-2 * self.log_deviation(out)).exp()

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        residual, precision = residual_of(y, self.mean(out)), self.precision(noise, out)
        excess = precision * self._over_cells(residual.square()) - 1
        raw = out[..., out.shape[-1] // 2 :]
        return torch.cat([precision * residual, self.spread * excess.masked_fill(raw.abs() > self._most, 0)], -1)

    def training_score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        """Return the score for training: beyond the limit, that at the limit, if it leads back there."""
        mean, raw = out.chunk(2, -1)
        of_mean, of_raw = self.score(noise, torch.cat([mean, raw.clamp(-self._most, self._most)], -1), y).chunk(2, -1)
        outwards = (raw.abs() > self._most) & (of_raw * raw > 0)
        return torch.cat([of_mean, of_raw.masked_fill(outwards, 0)], -1)

    def training_weights(self, out: Tensor) -> Float[Tensor, "R S B O"]:
        """Return factors on the score in training, up to one constant per output: exp(2 beta s) for the means."""
        weight = (2 * self.beta * self.log_deviation(out)).exp()
        return torch.cat([weight, torch.ones_like(weight)], -1)

    def fisher_root(self, noise: Tensor, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Return, for each mean, sqrt(precision) and, for each log deviation, sqrt(2) spread, times unit vectors."""
        of_mean = self.precision(noise, out).sqrt()
        roots = torch.cat([of_mean, torch.full_like(of_mean, math.sqrt(2) * self.spread)], -1)
        return roots * torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)[:, None, None, None]

    def squares(self, out: Tensor, y: Tensor) -> Float[Tensor, "R S B M"]:
        return self._over_cells(super().squares(out, y)) * (-2 * self.log_deviation(out)).exp()

    def _over_cells(self, squares: Float[Tensor, "R S B M"]) -> Float[Tensor, "R S B M"]:
        """Return the means of squared residuals over the cells of rounded targets."""
        if not self.resolution:
            return squares
        if len(self.resolution) != squares.shape[-1]:
            count = f"likelihood.resolution has {len(self.resolution)} values"
            raise InputError(f"{count}, but there are {squares.shape[-1]} targets. Give one for each")
        # Not a tensor of the resolutions: copying it to a GPU cannot be recorded in a graph.
        each = zip(squares.unbind(-1), self.resolution, strict=True)
        return torch.stack([of_target + r**2 / 12 for of_target, r in each], -1)
