"""Shared parts of likelihoods: `Parameterless`, for those without noise, and a check of logits."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.nets.protocols import Likelihood, Noise, Phi

__all__ = ["Parameterless", "check_logits"]


class Parameterless:
    """A likelihood without parameters of its own, such as one of classes or counts: phi and noise are empty."""

    def init(self, outputs: int, replicas: int, rng: Rng) -> Phi:
        return torch.zeros(replicas, dtype=rng.dtype, device=rng.device)

    def sample_noise(self, phi: Phi, samples: int, rng: Rng) -> Noise:
        return None

    def expected(self, phi: Phi) -> Noise:
        return None

    def kl(self, phi: Phi) -> Float[Tensor, " R"]:
        return torch.zeros_like(phi)

    def update(self, phi: Phi, out: Tensor, y: Tensor, n_data: float, kl_weight: float | Tensor) -> Phi:
        return phi


def check_logits(likelihood: Likelihood, out: Float[Tensor, "R S B O"]) -> None:
    """Refuse outputs that are probabilities; outputs at zero weights reveal a sigmoid too.

    Raises:
        InputError: for classes, where outputs are positive and add up to 1, or a single one is 1/2.
    """
    total = out.sum(-1) if out.shape[-1] > 1 else 2 * out.squeeze(-1)
    if likelihood.discrete and bool((out > 0).all()) and bool(((total - 1).abs() < 1e-4).all()):
        kind, end = type(likelihood).__name__, "softmax" if out.shape[-1] > 1 else "sigmoid"
        raise InputError(f"the network gives probabilities, where {kind} takes logits; leave out the {end} at its end")
