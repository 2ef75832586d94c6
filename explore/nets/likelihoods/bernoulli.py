"""Bernoulli likelihood for two classes, with one output: the logit of the second class."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.nets.protocols import Noise, Parameterless


@dataclass(frozen=True)
class Bernoulli(Parameterless):
    """Bernoulli likelihood for two classes, with one output: p(1) = sigmoid(out); y is [R, 1 or S, B] int64, 0 or 1."""

    discrete: ClassVar[bool] = True
    scaling: ClassVar[str] = "none"

    def mean(self, out: Tensor) -> Float[Tensor, "R S B C"]:
        """Return the probabilities of the classes 0 and 1."""
        if out.shape[-1] != 1:
            raise InputError(f"Bernoulli expects a network with one output; got {out.shape[-1]}")
        p = out.sigmoid()
        return torch.cat([1 - p, p], -1)

    def log_prob(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        return F.logsigmoid(out.squeeze(-1) * (2 * y - 1))

    def score(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        return y.unsqueeze(-1) - out.sigmoid()

    def sample(self, noise: Noise, out: Tensor, rng: Rng) -> Tensor:
        return (rng.uniform(*out.shape[:-1]) < out.squeeze(-1).sigmoid()).long()

    def fisher_root(self, noise: Noise, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Return the square root of the Fisher information of the logit, sqrt(p (1 - p)); K is 1."""
        return (out.sigmoid() * (-out).sigmoid()).sqrt().unsqueeze(0)

    def entropy(self, noise: Noise, out: Tensor) -> Float[Tensor, "R S B"]:
        return torch.special.entr(self.mean(out)).sum(-1)
