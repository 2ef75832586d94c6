"""Categorical likelihood for any number of classes, with one output per class: its logit."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.nets.protocols import Noise, Parameterless


@dataclass(frozen=True)
class Categorical(Parameterless):
    """Categorical likelihood for the classes 0..O-1 with probabilities softmax(out); y is [R, 1 or S, B] int64."""

    discrete: ClassVar[bool] = True
    scaling: ClassVar[str] = "none"

    def mean(self, out: Tensor) -> Float[Tensor, "R S B C"]:
        return out.softmax(-1)

    def log_prob(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B"]:
        y = y.expand(out.shape[:-1])
        return out.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def score(self, noise: Noise, out: Tensor, y: Tensor) -> Float[Tensor, "R S B O"]:
        # Not F.one_hot, which reads the values of y, for which a GPU would be waited for.
        classes = torch.arange(out.shape[-1], device=out.device)
        return (y.unsqueeze(-1) == classes).to(out) - out.softmax(-1)

    def sample(self, noise: Noise, out: Tensor, rng: Rng) -> Tensor:
        # Invert the cumulative distribution; rounding may leave its end below the uniform number.
        steps = out.softmax(-1).cumsum(-1)
        return (rng.uniform(*out.shape[:-1], 1) > steps).sum(-1).clamp_max(out.shape[-1] - 1)

    def fisher_root(self, noise: Noise, out: Tensor) -> Float[Tensor, "K R S B O"]:
        """Return sqrt(p_c) times the gradient of log p_c in `out`, for each class c with probability p_c; K is O."""
        p = out.softmax(-1)
        units = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)[:, None, None, None]
        return p.movedim(-1, 0).unsqueeze(-1).sqrt() * (units - p)

    def entropy(self, noise: Noise, out: Tensor) -> Float[Tensor, "R S B"]:
        return torch.special.entr(out.softmax(-1)).sum(-1)
