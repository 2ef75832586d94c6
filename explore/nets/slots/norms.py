"""The slots for layers that normalise their inputs; their scales and shifts are point estimates."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explore.core.errors import InputError
from explore.nets.protocols import Norm
from explore.nets.slots.base import Slot

STATISTICS = ("weight", "bias", "running_mean", "running_var")


class NormSlot(Slot):
    """A slot for a BatchNorm layer. Each replica and sample is normalised separately: R and S become channels."""

    def __init__(self, layer: Any, name: str):
        super().__init__(layer, name)
        if not layer.track_running_stats or layer.momentum is None:
            raise InputError(f"{self.called} needs track_running_stats=True and a numeric momentum")
        self.norm = Norm(layer.num_features, layer.affine, layer.momentum, layer.eps)

    def values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the scale, shift, running mean and running variance, [4, C], of a layer with these tensors."""
        mean = tensors["running_mean"]
        unit = {"weight": torch.ones_like(mean), "bias": torch.zeros_like(mean)} | dict(tensors)
        return torch.stack([unit[key] for key in STATISTICS])

    def tensors(self, values: Tensor) -> dict[str, Tensor]:
        named = dict(zip(STATISTICS, values, strict=True))
        return named if self.norm.affine else {key: named[key] for key in ("running_mean", "running_var")}

    def misfit(self, shape: torch.Size) -> str:
        return "" if shape and shape[0] == self.norm.channels else f"{self.norm.channels} channels"

    def _computed(self, a: Tensor, per: int) -> Tensor:
        a, values = self.with_samples(a, self._values)
        r, s, b = values.shape[0], values.shape[1], self._lead_in[2]
        scale, shift, mean, variance = values.movedim(2, 0).flatten(1)  # [(R S C)] each
        z = a.unflatten(0, (r * s, b)).transpose(0, 1).flatten(1, 2)  # [B, (R S C), ...]
        if self._mode.train:
            if b * z[0, 0].numel() < 2:
                raise InputError(f"{self.called}: cannot normalise a single value per channel; use a larger batch")
            # With a momentum of 1, F.batch_norm overwrites these with the statistics of the batch.
            mean, variance = mean.detach().clone(), variance.detach().clone()
        h = F.batch_norm(z, mean, variance, scale, shift, self._mode.train, 1.0, self.norm.eps)
        if self._mode.train:
            self.calls.append(torch.stack([mean, variance], 1).unflatten(0, (r, s, -1)).transpose(2, 3))
        elif not self._mode.probe:
            self.calls.append(None)
        return h.unflatten(1, (r * s, -1)).transpose(0, 1).flatten(0, 1)

    def statistics(self) -> Tensor:
        """Return the mean and variance of the inputs in the last pass in training mode, averaged over calls."""
        calls = self.made()
        statistics: Tensor = calls[0] if len(calls) == 1 else torch.stack(calls).mean(0)
        return statistics


class AffineSlot(Slot):
    """A slot for a layer that normalises each example, and has a trained scale, and perhaps a shift, per feature."""

    def __init__(self, layer: nn.Module, name: str):
        super().__init__(layer, name)
        self.keys = tuple(key for key, t in layer._parameters.items() if t is not None)
        self._bare = copy.copy(layer)  # without scale and shift
        self._bare._parameters = dict.fromkeys(layer._parameters)
        self._by_channel = isinstance(layer, nn.GroupNorm)

    def _computed(self, a: Tensor, per: int) -> Tensor:
        self.calls.extend([] if self._mode.probe else [None])
        return self.applied(a, {key: v.unsqueeze(2) for key, v in zip(self.keys, self._values, strict=True)})

    def applied(self, a: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the output for parameters [R, S, B or 1, ...], of channels or of the last features."""
        h = None
        for key, values in parameters.items():
            a, v = self.with_samples(a, values)
            if h is None:
                h = self._bare.forward(a).unflatten(0, (len(v), -1, self._lead_in[2]))
            ones = [1] * (h.dim() - v.dim())
            v = v.view(*v.shape, *ones) if self._by_channel else v.view(*v.shape[:3], *ones, *v.shape[3:])
            h = h * v if key == "weight" else h + v
        assert h is not None
        return h.flatten(0, 2)
