"""The base classes of slots."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from explore.core.errors import InputError
from explore.core.shapes import Taps
from explore.nets.protocols import Layer

Lead = tuple[int, int, int]
"""The sizes R, S and B of the unfolded batch axis."""


ADVICE = "call the layer, or leave it out by bayesian="


class Layout(NamedTuple):
    """Where the examples are in the input of one call of a layer."""

    axis: int | None = 0  # None: on no axis, since all examples have the same input
    per: int = 1  # neighbouring rows on this axis that belong to one example


class Use(NamedTuple):
    """One call of a weight layer in a pass, for the taps."""

    inputs: Tensor  # with the examples on the first axis
    taps: Sequence[Tensor]  # whose concatenation is the pre-activation, for which gradients are taken
    lead: Lead  # of the inputs; S = 1 if samples share them
    per: int  # rows per example, which B includes
    out: Tensor  # what the module gets, the pre-activation or a copy
    versions: tuple[int, int]  # of `inputs` and `out`, to notice later changes in place


class Mode(NamedTuple):
    """How slots run in one forward pass."""

    lead: Lead
    taps: bool = False  # whether to record calls
    train: bool = False  # whether batch norm uses the statistics of the batch
    early: bool = False  # whether inputs that no weights have changed yet are given once for all samples
    last: int = 0  # number of last layers whose calls are recorded; 0: all
    probe: bool = False  # whether to apply one set of weights to everything, and record shapes


def called(name: str) -> str:
    """Format a layer's name for messages; "" is the network itself."""
    return f"layer {name!r}" if name else "the network"


class Slot(nn.Module, ABC):
    """A stand-in for a layer with parameters."""

    _values: Any
    _mode: Mode
    _lead_in: Lead  # of the inputs of the current call
    calls: list[Any]  # one entry per call in the last pass

    def __init__(self, layer: nn.Module, name: str):
        nn.Module.__init__(self)  # not that of the layer's class, which would create weights
        self.name, self.called = name, called(name)
        self.layouts: Sequence[Layout] = ()  # of the calls in a forward pass
        absent = {key: None for key, tensor in layer._parameters.items() if tensor is None}
        vars(self).update({key: getattr(layer, key) for key in layer.__constants__}, **absent)  # type: ignore[union-attr]
        held: Any = {key: Unreadable(t, self.called) for key, t in layer._parameters.items() if t is not None}
        self._parameters = held
        self.end()

    # A slot has neither parameters nor submodules, so skip the checks of nn.Module at every assignment.
    __setattr__ = object.__setattr__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in ("running_mean", "running_var", "num_batches_tracked"):
            raise InputError(f"{self.called}: forward() reads its {name}; call the layer instead")
        return super().__getattr__(name)  # an AttributeError, which torch and hasattr rely on

    def named(self, key: str) -> str:
        """Return the name in the network of a parameter or buffer of the layer."""
        return f"{self.name}.{key}" if self.name else key

    def extra_repr(self) -> str:
        return ""  # the method of the layer's class would read the bias

    def begin(self, values: Any, mode: Mode) -> None:
        """Set the weights for one pass."""
        self._values, self._mode, self.calls = values, mode, []

    def end(self) -> None:
        """Clear the weights and everything recorded in the last pass."""
        self.begin(None, Mode((1, 1, 1)))

    def made(self) -> list[Any]:
        """Return the records of the calls in the last pass; raise InputError if that pass did not use the layer."""
        if not self.calls:
            raise InputError(f"{self.called} was not used in the forward pass")
        return self.calls

    def forward(self, a: Tensor) -> Tensor:
        mode, axis = self._mode, 0
        r, s, b = mode.lead
        if mode.probe:
            self.calls.append(a.shape)
            self._lead_in = (1, 1, len(a))
            self._check(a)
            return self._computed(a, 1)
        layout = self.layouts[len(self.calls)] if len(self.calls) < len(self.layouts) else Layout()
        if layout.axis is None:
            one = a if a.shape[0] == 1 else a.unsqueeze(0)
            a = one.expand(r * b, *one.shape[1:])
        elif axis := layout.axis:
            a = a.movedim(axis, 0)
        self._lead_in = (r, s, b * layout.per)
        if len(a) != math.prod(self._lead_in):
            if len(a) != r * b * layout.per or not (mode.early or layout.axis is None):
                sizes = f"a batch of {len(a)}; expected {math.prod(self._lead_in)}"
                raise InputError(f"{self.called} received {sizes}: keep the examples on one axis")
            self._lead_in = (r, 1, b * layout.per)
        self._check(a)
        h = self._computed(a, layout.per)
        return h.movedim(0, axis) if axis else h

    def _check(self, a: Tensor) -> None:
        if wrong := self.misfit(a.shape[1:]):
            raise InputError(f"{self.called} expects {wrong}; got an example of shape {list(a.shape[1:])}")

    def with_samples(self, a: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs [(R S B), ...] and values [R, S, ...] that fit together.

        Inputs that all samples share, [(R B), ...], are repeated only if samples have values of their own.
        """
        r, s, b = self._lead_in
        if self._mode.probe:
            return a, values[:1, :1]
        if s == 1 < values.shape[1]:
            if values.stride(1) == 0:  # expanded
                return a, values[:, :1]
            a = a.unflatten(0, (r, 1, b)).expand(r, values.shape[1], b, *a.shape[1:]).flatten(0, 2)
        elif values.shape[1] < s:
            values = values.expand(r, s, *values.shape[2:])
        return a, values

    def misfit(self, shape: torch.Size) -> str:
        """Return the required shape of an example if `shape` is wrong, else ""."""
        return ""

    @abstractmethod
    def _computed(self, a: Tensor, per: int) -> Tensor: ...  # return the output, with the samples in its first axis


class Unreadable:
    """A parameter of a slot: it has a shape, a type and a device, but no values, which are sampled elsewhere."""

    requires_grad = False

    def __init__(self, tensor: Tensor, layer: str):
        self.shape, self.dtype, self.device, self._layer = tensor.shape, tensor.dtype, tensor.device, layer

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def numel(self) -> int:
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_layer" not in vars(self):
            raise AttributeError(name)
        raise InputError(f"forward() reads weights of {self._layer}, but these are sampled outside it; {ADVICE}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        every = (value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Unreadable))
        return next(every).values


class WeightSlot(Slot):
    """A slot for a layer with a weight matrix."""

    inputs: int
    outputs: int
    fan_in: int  # inputs of one output, which initial weights are scaled for
    width: int  # size of inputs plus outputs in the last call, per example and sample
    has_bias: bool  # whether the last row of the matrix is a bias
    copies = True  # whether the module gets copies of pre-activations, since it changes them in place

    def __init__(self, layer: nn.Module, name: str):
        super().__init__(layer, name)
        self.has_bias = getattr(layer, "bias", None) is not None

    @abstractmethod
    def values(self, tensors: Mapping[str, Tensor]) -> Tensor: ...  # the matrix [I, O] for parameters of the layer

    @abstractmethod
    def tensors(self, values: Tensor) -> dict[str, Tensor]: ...  # the layer's own parameters; the inverse of `values`

    def _computed(self, a: Tensor, per: int) -> Tensor:
        h = self.apply_matrix(a) if isinstance(self._values, Tensor) else self.apply_callable(a, per)
        if self._mode.probe:
            return h
        self.width = a[0].numel() + h[0].numel()
        if not self._mode.taps:
            self.calls.append(None)
            return h
        tap = h if h.requires_grad else h.detach().requires_grad_()
        # ReLU(inplace=True), or x += y, would change the tap. A view, since hooks on modules may not support leaves.
        out = tap.clone() if self.copies else tap.view_as(tap)
        self.calls.append(Use(a, [tap], self._lead_in, per, out, (a._version, out._version)))
        return out

    def made(self) -> list[Use]:
        calls = [call for call in super().made() if call is not None]
        changed = [call.inputs._version != call.versions[0] for call in calls]
        if any(changed) or (self.changes and not self.copies):  # gradients would meet the wrong values
            what = "input" if any(changed) else "output"
            raise InputError(f"the {what} of {self.called} is modified in place afterwards; write x = x + y")
        return calls

    @property
    def changes(self) -> bool:
        """Whether the module changed a pre-activation of the last pass in place."""
        return any(call is not None and call.out._version != call.versions[1] for call in self.calls)

    @property
    def lead(self) -> Lead:
        """The sizes of the output's first axis."""
        return self._lead_in[0], 1 if self._mode.probe else self._mode.lead[1], self._lead_in[2]

    @abstractmethod
    def apply_matrix(self, a: Tensor) -> Tensor: ...  # return the pre-activation, folded
    @abstractmethod
    def examples(self, a: Tensor, lead: Lead) -> Tensor: ...  # unfold the layer's input to [R, S or 1, B, T, I]
    @abstractmethod
    def fold(self, h: Tensor, a: Tensor) -> Tensor: ...  # fold a pre-activation [R, S, B, T, O] for the module

    def positions(self, g: Tensor, lead: Lead) -> Tensor:
        """Unfold gradients of pre-activations: [(R S B), ..., O] -> [R, S, B, T, O]."""
        return g.reshape(*lead, -1, g.shape[-1])

    def taps_of(self, a: Tensor, lead: Lead) -> Callable[[Tensor], Taps]:
        """Return a function that maps the pre-activation's gradients [R, S, B, T, O] to the `Taps`, for inputs `a`."""
        return partial(Taps, self.examples(a, lead))

    def apply_callable(self, a: Tensor, per: int) -> Tensor:
        h = self._values(by_example(self.examples(a, self._lead_in), per))
        return self.fold(h.unflatten(3, (per, -1)).flatten(2, 3) if per > 1 else h, a)


def by_example(a: Tensor, per: int) -> Tensor:
    """Make the rows of an example its positions: [R, S, (B per), T, n] -> [R, S, B, (per T), n]."""
    return a.unflatten(2, (-1, per)).flatten(3, 4) if per > 1 else a


def by_row(g: Tensor, per: int) -> Tensor:
    """Repeat the values of examples for each of their rows: [R, S, B, ...] -> [R, S, (B per), ...]."""
    return g.repeat_interleave(per, 2) if per > 1 else g


def joined(parts: Sequence[tuple[Taps, int]]) -> Taps:
    """Return the taps of one layer from those of its calls, each with its rows per example: calls become positions."""
    samples = max(taps.grads.shape[1] for taps, _ in parts)

    def inputs(examples: slice) -> Tensor:
        count = parts[0][0].grads.shape[2] // parts[0][1]
        first, last, _ = examples.indices(count)
        every = [by_example(taps.part(slice(per * first, per * last)).inputs, per) for taps, per in parts]
        if len({a.shape[1] for a in every}) > 1:
            every = [a.expand(-1, samples, -1, -1, -1) for a in every]
        return torch.cat(every, 3)

    def gradient(_: Tensor, each: bool) -> Tensor:
        every = [taps.gradients() if each else taps.gradient().unsqueeze(1) for taps, _ in parts]
        return torch.stack(every).sum(0)

    return Taps(inputs, torch.cat([by_example(taps.grads, per) for taps, per in parts], 3), gradient)


def tensors_of(layer: Any) -> dict[str, Tensor]:
    """Return the tensors of a callable layer by name."""
    values = layer._asdict() if hasattr(layer, "_asdict") else getattr(layer, "__dict__", {})
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def dtype_of(layer: Layer) -> torch.dtype:
    """Return the type of a layer's numbers, of a callable one from its first tensor."""
    tensors = [layer] if isinstance(layer, Tensor) else list(tensors_of(layer).values())
    return tensors[0].dtype if tensors else torch.get_default_dtype()
