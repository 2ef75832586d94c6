"""Batch normalisations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explore.core.errors import InputError
from explore.nets.protocols import Layer, Norm
from explore.nets.slots.base import Lead, Slot


class NormSlot(Slot):
    """A batch normalisation: of every replica's and sample's examples by themselves, so R and S stand in channels."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, name: str):
        super().__init__(layer, name)
        if not layer.track_running_stats or layer.momentum is None:
            raise InputError(
                f"{self.called}: batch normalisations must have track_running_stats=True and a momentum in numbers"
            )
        self.norm = Norm(layer.num_features, layer.affine, layer.momentum, layer.eps)

    @staticmethod
    def values(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Tensor:
        """A copy of the scale, shift, running mean and variance that a layer has, [4, C]."""
        mean, variance = layer.running_mean, layer.running_var
        assert mean is not None and variance is not None
        affine = (layer.weight, layer.bias) if layer.affine else (torch.ones_like(mean), torch.zeros_like(mean))
        return torch.stack([*affine, mean, variance]).detach()

    def begin(self, layer: Layer, lead: Lead, train: bool) -> None:
        """Hold scale, shift, running mean and variance for one pass over [R, S, B] examples."""
        self._layer, self._lead, self._lead_in, self._train = layer, lead, lead, train

    def misfit(self, shape: torch.Size) -> str:
        return "" if shape and shape[0] == self.norm.channels else f"{self.norm.channels} channels"

    def _run(self, a: Tensor) -> Tensor:
        r, s, b = self._lead
        scale, shift, mean, variance = self._layer.movedim(2, 0).flatten(1)  # [(R S C)] each
        z = a.unflatten(0, (r * s, b)).transpose(0, 1).flatten(1, 2)  # [B, (R S C), ...]
        if self._train:
            if b * z[0, 0].numel() < 2:
                raise InputError(f"{self.called}: one number a channel cannot be normalised; give more examples")
            # With a momentum of 1 these become the batch's own.
            mean, variance = mean.detach().clone(), variance.detach().clone()
        h = F.batch_norm(z, mean, variance, scale, shift, self._train, 1.0, self.norm.eps)
        self._call = torch.stack([mean, variance], 1).unflatten(0, (r, s, -1)).transpose(2, 3) if self._train else None
        return h.unflatten(1, (r * s, -1)).transpose(0, 1).flatten(0, 1)


class Norm1dSlot(NormSlot, nn.BatchNorm1d):
    """A BatchNorm1d layer."""


class Norm2dSlot(NormSlot, nn.BatchNorm2d):
    """A BatchNorm2d layer."""
