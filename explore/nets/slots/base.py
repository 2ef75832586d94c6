"""The base class of slots, and the slots for Linear and BatchNorm layers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explore.core.errors import InputError
from explore.core.linalg import product
from explore.core.shapes import Taps
from explore.nets.modules import called
from explore.nets.protocols import Layer, Norm

Lead = tuple[int, int, int]
"""The sizes R, S and B of the unfolded batch axis."""
TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")  # tensors that a layer may have


class Slot(nn.Module, ABC):
    """A stand-in for a layer with parameters."""

    _layer: Any
    _call: Any
    _lead_in: Lead  # sizes for the inputs; S = 1 if samples share them

    def __init__(self, layer: nn.Module, name: str):
        nn.Module.__init__(self)  # not that of the layer's class, which would create weights
        self.called = called(name)
        absent = {key: None for key, tensor in layer._parameters.items() if tensor is None}
        vars(self).update({key: getattr(layer, key) for key in layer.__constants__}, **absent)  # type: ignore[union-attr]
        self._parameters = _Unreadable(self.called)
        self.end()

    # A slot has neither parameters nor submodules, so skip the checks of nn.Module at every assignment.
    __setattr__ = object.__setattr__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in TENSORS:
            why = f"forward() reads its {name}, but weights are sampled outside the layer"
            raise InputError(f"{self.called}: {why}; call the layer instead")
        return super().__getattr__(name)  # an AttributeError, which torch and hasattr rely on

    def extra_repr(self) -> str:
        return ""  # the method of the layer's class would read the bias

    def end(self) -> None:
        """Clear the weights and everything recorded in the last pass."""
        self._layer, self._call, self._used = None, None, False

    def forward(self, a: Tensor) -> Tensor:
        if self._used:
            raise InputError(f"{self.called} is used twice in one forward pass; use a separate layer for each")
        self._used = True
        if len(a) != math.prod(self._lead_in):
            sizes = f"a batch of {len(a)}; expected {math.prod(self._lead_in)}"
            raise InputError(f"{self.called} received {sizes}: keep the examples on the first axis")
        if wrong := self.misfit(a.shape[1:]):
            raise InputError(f"{self.called} expects {wrong}; got an example of shape {list(a.shape[1:])}")
        return self._run(a)

    def call(self) -> Any:
        """Return what was recorded in the last pass; raise InputError if that pass did not use the layer."""
        if not self._used:
            raise InputError(f"{self.called} was not used in the forward pass")
        return self._call

    @abstractmethod
    def misfit(self, shape: torch.Size) -> str: ...  # return "", or the required shape if this one is wrong
    @abstractmethod
    def _run(self, a: Tensor) -> Tensor: ...  # return the layer's output, folded


class _Unreadable(dict[str, Any]):
    """The parameters of a slot. Reading them raises InputError, because an empty list would cause silent errors."""

    def __init__(self, layer: str):
        super().__init__()
        self._layer = layer

    def items(self) -> Any:
        advice = "weights are sampled outside it; take device and dtype from the input, and call the layer instead"
        raise InputError(f"forward() reads the parameters of {self._layer}, but {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._layer,)  # else copying would call items()


class WeightSlot(Slot):
    """A slot for a layer with a weight matrix."""

    inputs: int
    outputs: int
    width: int  # size of inputs plus outputs in the last call, per example and sample

    def __init__(self, layer: nn.Linear | nn.Conv2d, name: str):
        super().__init__(layer, name)
        self.has_bias = layer.bias is not None

    @staticmethod
    def values(layer: nn.Linear | nn.Conv2d) -> Tensor:
        """Return a copy of a layer's weights, [I, O], with the bias as the last row."""
        columns = [layer.weight.detach().flatten(1), *([] if layer.bias is None else [layer.bias.detach()[:, None]])]
        return torch.cat(columns, 1).T.contiguous()

    def begin(self, layer: Layer, lead: Lead, lead_in: Lead, taps: bool) -> None:
        """Set the weights for one pass over [R, S, B] examples.

        `lead` is (R, S, B). `lead_in` is (R, S, B), or (R, 1, B) if all samples have the same inputs. `taps`: whether
        to record taps.
        """
        self._layer, self._lead, self._lead_in, self._taps = layer, lead, lead_in, taps

    def call(self) -> tuple[Tensor, Tensor]:
        """Return the layer's input and its pre-activation (the tap, for which gradients are taken) in the last pass."""
        call = super().call()
        if call[0]._version != self._version:  # the gradient would be paired with the wrong input
            raise InputError(f"the input of {self.called} is modified in place afterwards; write x = x + y")
        return call

    def _run(self, a: Tensor) -> Tensor:
        h = self.apply_matrix(a) if isinstance(self._layer, Tensor) else self.apply_callable(a)
        self.width = a[0].numel() + h[0].numel()
        if not self._taps:
            return h
        tap = h if h.requires_grad else h.detach().requires_grad_()
        self._call, self._version = (a, tap), a._version
        return tap.clone()  # later layers may change their input in place (ReLU(inplace=True), x += y)

    @abstractmethod
    def apply_matrix(self, a: Tensor) -> Tensor: ...  # return the pre-activation, folded
    @abstractmethod
    def examples(self, a: Tensor, lead: Lead) -> Tensor: ...  # unfold the layer's input to [R, S or 1, B, T, I]
    @abstractmethod
    def positions(self, g: Tensor, lead: Lead) -> Tensor: ...  # unfold a pre-activation's gradient to [R, S, B, T, O]
    @abstractmethod
    def fold(self, h: Tensor, a: Tensor) -> Tensor: ...  # fold a pre-activation [R, S, B, T, O] for the module

    def taps_of(self, a: Tensor, lead: Lead) -> Callable[[Tensor], Taps]:
        """Return a function that maps the pre-activation's gradients [R, S, B, T, O] to the `Taps`, for inputs `a`."""
        return partial(Taps, self.examples(a, lead))

    def apply_callable(self, a: Tensor) -> Tensor:
        return self.fold(self._layer(self.examples(a, self._lead_in)), a)

    def _with_one(self, a: Tensor) -> Tensor:
        return F.pad(a, (0, 1), value=1.0) if self.has_bias else a


class LinearSlot(WeightSlot, nn.Linear):
    """A slot for a Linear layer, applied at any number of positions."""

    def __init__(self, layer: nn.Linear, name: str):
        super().__init__(layer, name)
        self.inputs, self.outputs = self.in_features + self.has_bias, self.out_features

    def misfit(self, shape: torch.Size) -> str:
        return "" if shape and shape[-1] == self.in_features else f"{self.in_features} features"

    def apply_matrix(self, a: Tensor) -> Tensor:
        """Apply the weight matrices: [(R S B), ..., C] -> [(R S B), ..., O]."""
        w, (r, s, b) = self._layer, self._lead
        if r == 1 and not self._taps and not torch.is_grad_enabled():
            # The S matrices [S, I, O] share the inputs without a copy, and the output needs no transposition.
            h = self._affine(a.reshape(self._lead_in[1], -1, a.shape[-1]).expand(s, -1, -1), w[0])
        elif self._lead_in == self._lead:
            h = self._affine(a.reshape(r * s, -1, a.shape[-1]), w.flatten(0, 1))  # [(R S), I, O]
        else:
            h = self._affine(a.reshape(r, -1, a.shape[-1]), w.transpose(1, 2).flatten(2))  # [R, (B ...), (S O)]
            h = h.unflatten(2, (s, -1)).transpose(1, 2)
        return h.reshape(r * s * b, *a.shape[1:-1], w.shape[-1])

    def _affine(self, a: Tensor, w: Tensor) -> Tensor:
        return product(a, w[:, :-1], w[:, -1:]) if self.has_bias else product(a, w)

    def examples(self, a: Tensor, lead: Lead) -> Tensor:
        """Unfold inputs: [(R S B), ..., C] -> [R, S, B, T, I]."""
        return self._with_one(a.reshape(*lead, -1, a.shape[-1]))

    def positions(self, g: Tensor, lead: Lead) -> Tensor:
        """Unfold gradients: [(R S B), ..., O] -> [R, S, B, T, O]."""
        return g.reshape(*lead, -1, g.shape[-1])

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """Fold pre-activations: [R, S, B, T, O] -> [(R S B), ..., O]."""
        return h.reshape(-1, *a.shape[1:-1], self.outputs)


class NormSlot(Slot):
    """A slot for a BatchNorm layer. Each replica and sample is normalised separately: R and S become channels."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, name: str):
        super().__init__(layer, name)
        if not layer.track_running_stats or layer.momentum is None:
            raise InputError(f"{self.called} needs track_running_stats=True and a numeric momentum")
        self.norm = Norm(layer.num_features, layer.affine, layer.momentum, layer.eps)

    @staticmethod
    def values(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Tensor:
        """Return a copy of a layer's scale, shift, running mean and running variance, [4, C]."""
        mean, variance = layer.running_mean, layer.running_var
        assert mean is not None and variance is not None
        affine = (layer.weight, layer.bias) if layer.affine else (torch.ones_like(mean), torch.zeros_like(mean))
        return torch.stack([*affine, mean, variance]).detach()

    def begin(self, layer: Layer, lead: Lead, train: bool) -> None:
        """Set scale, shift, running mean and running variance for one pass over [R, S, B] examples."""
        self._layer, self._lead, self._lead_in, self._train = layer, lead, lead, train

    def misfit(self, shape: torch.Size) -> str:
        return "" if shape and shape[0] == self.norm.channels else f"{self.norm.channels} channels"

    def _run(self, a: Tensor) -> Tensor:
        r, s, b = self._lead
        scale, shift, mean, variance = self._layer.movedim(2, 0).flatten(1)  # [(R S C)] each
        z = a.unflatten(0, (r * s, b)).transpose(0, 1).flatten(1, 2)  # [B, (R S C), ...]
        if self._train:
            if b * z[0, 0].numel() < 2:
                raise InputError(f"{self.called}: cannot normalise a single value per channel; use a larger batch")
            # With a momentum of 1, F.batch_norm overwrites these with the statistics of the batch.
            mean, variance = mean.detach().clone(), variance.detach().clone()
        h = F.batch_norm(z, mean, variance, scale, shift, self._train, 1.0, self.norm.eps)
        self._call = torch.stack([mean, variance], 1).unflatten(0, (r, s, -1)).transpose(2, 3) if self._train else None
        return h.unflatten(1, (r * s, -1)).transpose(0, 1).flatten(0, 1)


class Norm1dSlot(NormSlot, nn.BatchNorm1d):
    """A slot for a BatchNorm1d layer."""


class Norm2dSlot(NormSlot, nn.BatchNorm2d):
    """A slot for a BatchNorm2d layer."""
