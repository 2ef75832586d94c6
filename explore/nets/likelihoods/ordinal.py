"""Ordinal likelihood for ordered classes, with one output: a latent score.

The classes 0 to C - 1 have cumulative probabilities with cut points theta_1 < ... < theta_(C-1),

    p(y < c) = sigmoid(theta_c - f),

the proportional-odds model (McCullagh, Regression Models for Ordinal Data, 1980). For a class between the cut points a
and b, the score is sigmoid(a - f) + sigmoid(b - f) - 1.

The cut points are point estimates with prior N(logit(c / C), s^2), around equally probable classes. Each batch moves
them so that the mean probability of y < c approaches the share of examples with y < c:

    theta_c <- theta_c + rate g / h,    g = N / lambda E (1[y < c] - p_c) - (theta_c - logit(c / C)) / s^2,
    h = N / lambda E p_c (1 - p_c) + 1 / s^2,    p_c = p(y < c)

(N: number of examples; lambda: weight of the KL). This is a Newton step for the logistic regression of 1[y < c].
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import Checked, InputError
from explore.core.linalg import over
from explore.core.rng import Rng
from explore.nets.likelihoods.categorical import Categorical
from explore.nets.protocols import Noise

GAP = 1e-3  # smallest distance of cut points
LONGEST = 0.5  # step of a cut point


@dataclass(frozen=True)
class Ordinal(Checked):
    """Ordinal likelihood for the classes 0 to `classes` - 1; y is [R, 1 or S, B] int64. Noise is theta, [R, S, C - 1].

    `mean` takes the prior's cut points, and that of `given(noise)` those in `noise`.
    """

    classes: int = 3  # C
    cuts: tuple[float, ...] = ()  # known cut points, ascending, instead of estimates
    prior_spread: float = 3.0  # s
    rate: float = 0.01  # fraction of a full step for each batch

    discrete: ClassVar[bool] = True
    scaling: ClassVar[str] = "none"
    prefix = "likelihood."
    ranges = {"classes": "[2, 1000]", "prior_spread": "(0, inf)", "rate": "(0, 1]"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuts and (len(self.cuts) != self.classes - 1 or list(self.cuts) != sorted(set(self.cuts))):
            raise InputError(f"likelihood.cuts is {self.cuts}; it must be {self.classes - 1} ascending numbers")

    @property
    def prior_cuts(self) -> tuple[float, ...]:
        return self.cuts or tuple(math.log(c / (self.classes - c)) for c in range(1, self.classes))

    def given(self, noise: Noise) -> Any:
        return Given(**vars(self), noise=noise)

    def mean(self, out: Tensor) -> Float[Tensor, "R S B C"]:
        return self._log_classes(out.new_tensor(self.prior_cuts)[None, None], out).exp()

    def init(self, outputs: int, replicas: int, rng: Rng) -> Float[Tensor, "R _c"]:
        return torch.tensor(self.prior_cuts, dtype=rng.dtype, device=rng.device).repeat(replicas, 1)

    def sample_noise(self, phi: Tensor, samples: int, rng: Rng) -> Float[Tensor, "R S _c"]:
        return phi.unsqueeze(1).expand(-1, samples, -1)

    def expected(self, phi: Tensor) -> Float[Tensor, "R 1 _c"]:
        return phi.unsqueeze(1)

    def log_prob(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        return Categorical().log_prob(None, self._log_classes(noise, out), y)

    def score(self, noise: Tensor, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        scores = self._scores(noise, out)
        return scores.gather(-1, y.expand(scores.shape[:-1]).unsqueeze(-1))

    def sample(self, noise: Tensor, out: Tensor, rng: Rng) -> Tensor:
        return Categorical().sample(None, self._log_classes(noise, out), rng)

    def fisher_root(self, noise: Tensor, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Return the root of the mean squared score over the classes; K is 1."""
        squares = self._log_classes(noise, out).exp() * self._scores(noise, out).square()
        return squares.sum(-1, keepdim=True).sqrt().unsqueeze(0)

    def entropy(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B"]:
        return Categorical().entropy(None, self._log_classes(noise, out))

    def kl(self, phi: Tensor) -> Float[Tensor, " R"]:
        """Return the fall of the log prior density from its maximum, since the cut points are point estimates."""
        return ((phi - phi.new_tensor(self.prior_cuts)) / self.prior_spread).square().sum(1) / 2

    def update(self, phi: Tensor, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Tensor:
        if self.cuts:
            return phi
        weight, prior = n_data / over(kl_weight, phi), self.prior_spread**-2
        p = (phi[:, None, None] - out).sigmoid()
        below = (y.unsqueeze(-1) <= torch.arange(self.classes - 1, device=y.device)).to(p)
        gradient = weight * (below - p).mean((1, 2)) - prior * (phi - phi.new_tensor(self.prior_cuts))
        curvature = weight * (p * (1 - p)).mean((1, 2)) + prior
        moved = phi + (self.rate * gradient / curvature).clamp(-LONGEST, LONGEST)
        least = GAP * torch.arange(self.classes - 1, device=phi.device).to(phi)
        return (moved - least).cummax(1).values + least

    def _log_classes(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B C"]:
        """Return log(sigmoid(b - f) - sigmoid(a - f)) = log(sigmoid(b - f) sigmoid(f - a) (1 - exp(a - b)))."""
        if out.shape[-1] != 1:
            raise InputError(f"Ordinal expects a network with one output; got {out.shape[-1]}")
        gap = F.pad((-noise.diff(dim=-1).exp().reciprocal()).log1p(), (1, 1)).unsqueeze(2)
        theta = noise.unsqueeze(2)
        return F.pad(F.logsigmoid(theta - out), (0, 1)) + F.pad(F.logsigmoid(out - theta), (1, 0)) + gap

    def _scores(self, noise: Tensor, out: Tensor) -> Float[Tensor, "R S B C"]:
        """Return the score of each class."""
        p = (noise.unsqueeze(2) - out).sigmoid()
        return F.pad(p, (1, 0)) + F.pad(p, (0, 1), value=1.0) - 1


@dataclass(frozen=True)
class Given(Ordinal):
    """An ordinal likelihood whose `mean` takes the cut points in `noise`."""

    noise: Any = None

    def mean(self, out: Tensor) -> Float[Tensor, "R S B C"]:
        return self._log_classes(self.noise, out).exp()
