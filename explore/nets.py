"""Any torch module of Linear and Conv2d layers, run for R replicas and S weight samples at once.

`Net(module)` keeps a private copy of the user's module with a `Slot` where each Linear or Conv2d stood. The module
itself runs once, on inputs whose R, S and B are folded into one batch axis; a slot unfolds them, applies its R x S
weight matrices, and folds back. So activations, pooling, reshaping and residual sums are the user's own code,
and no vmap, functional_call or backward hook is involved.

All samples of a replica see the same inputs. Where the net starts with a layer, that layer is given them once, not S
times: its matrices become one [I, S O] matrix, and its taps have a sample axis of 1.

A weight matrix is [I, O] with the bias as its last row (y = [a; 1] W), for a convolution I = C_in * kh * kw + 1.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from explore.errors import InputError
from explore.rng import Rng
from explore.shapes import Taps

Layer = Tensor | Callable[[Tensor], Tensor]
"""A [R, S, I, O] matrix, or a callable a [R, S or 1, B, T, I] -> pre-activation [R, S, B, T, O]."""
Pullback = Callable[[Tensor], tuple[Taps, ...]]


class Net:
    """A network without weights of its own: they come with every call.

    Args:
        module: a module that maps [B, ...] to [B, O], built of Linear and Conv2d layers and anything without
            parameters. It is copied (in eval mode) and never touched.

    Attributes:
        shapes: (I, O) of each layer, in the order of `module.modules()`.
        biases: whether each layer has a bias, the last row of its matrix.

    Raises:
        InputError: for a layer that holds parameters or buffers and is neither Linear nor Conv2d.
    """

    def __init__(self, module: nn.Module):
        root = nn.Sequential(copy.deepcopy(module)).eval()
        self._slots: list[_Slot] = []
        self._replace(root, "", set())
        if not self._slots:
            raise InputError("the network has no Linear or Conv2d layer")
        first: nn.Module = root
        while type(first) is nn.Sequential and len(first):  # a subclass may use its input elsewhere too
            first = first[0]
        self._shared = first is self._slots[0]
        self._module = root
        self.shapes = tuple((s.inputs, s.outputs) for s in self._slots)
        self.biases = tuple(s.bias for s in self._slots)
        self.weights = sum(i * o for i, o in self.shapes)

    def _replace(self, parent: nn.Module, path: str, seen: set[int]) -> None:
        # Not named_children(): it passes over a module's second appearance, which must be refused.
        for name, child in parent._modules.items():
            if child is None:
                continue
            where = f"{path}.{name}" if path else ""  # the root Sequential has no name of its own
            where = where or "0"
            label = where.removeprefix("0.")
            held = [*child.parameters(recurse=False), *child.buffers(recurse=False)]
            if any(id(t) in seen for t in held):
                raise InputError(f"layer {label!r} shares its weights with another one; give each its own")
            seen.update(map(id, held))
            # Without parameters too, batch normalisation would mix replicas, samples and examples.
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                raise InputError(f"layer {label!r} ({type(child).__name__}) is not supported: it mixes examples")
            if isinstance(child, nn.Linear | nn.Conv2d):
                slot = _LinearSlot(child, label) if isinstance(child, nn.Linear) else _ConvSlot(child, label)
                self._slots.append(slot)
                setattr(parent, name, slot)
            elif held:
                raise InputError(
                    f"layer {label!r} ({type(child).__name__}) is not supported; "
                    "layers with parameters must be Linear or Conv2d"
                )
            else:
                self._replace(child, where, seen)

    @property
    def width(self) -> int:
        """Numbers that the widest layer held for one example of one sample in the last pass."""
        return max(slot.width for slot in self._slots)

    def glorot(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]:
        """Initial weights, one [R, (samples,) I, O] matrix a layer: Glorot uniform, the bias row included."""
        return tuple((2 * rng.uniform(replicas, *samples, i, o) - 1) * math.sqrt(6 / (i + o)) for i, o in self.shapes)

    def forward(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """The output, and its pullback to every layer's pre-activation.

        Args:
            layers: one `Layer` a layer.
            x: [R, B, ...] inputs.
            samples: S, needed only where every layer is a callable.

        Returns:
            (out [R, S, B, O], pullback). `pullback(dout [R, S, B, O])` gives one `Taps` a layer, with the
            gradient of sum(dout * out); it may be called again, with other targets.
        """
        with torch.enable_grad():
            out, calls = self._run(layers, x, samples, taps=True)
        inputs: list[Tensor] = []

        def pullback(dout: Tensor) -> tuple[Taps, ...]:
            grads = torch.autograd.grad(out, [tap for _, tap in calls], dout, retain_graph=True)
            if not inputs:
                inputs.extend(s.examples(a.detach()) for s, (a, _) in zip(self._slots, calls, strict=True))
            return tuple(Taps(a, s.positions(g)) for s, a, g in zip(self._slots, inputs, grads, strict=True))

        return out.detach(), pullback

    def output(self, layers: Sequence[Layer], x: Tensor, samples: int | None = None) -> Float[Tensor, "R S B O"]:
        """The output alone; differentiable in the layers where these require it."""
        return self._run(layers, x, samples, taps=False)[0]

    def _run(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None, taps: bool
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        if len(layers) != len(self._slots):
            raise ValueError(f"{len(layers)} weight matrices for {len(self._slots)} layers")
        replicas, batch = x.shape[:2]
        samples = next((w.shape[1] for w in layers if isinstance(w, Tensor)), samples)
        if samples is None:
            raise ValueError("the number of samples is needed where no layer is a matrix")
        if self._shared:
            folded = x.flatten(0, 1)
        else:
            # repeat, not expand: with S = 1 that would be a view, and the module may work in place.
            folded = x.unsqueeze(1).repeat(1, samples, *[1] * (x.dim() - 1)).flatten(0, 2)
        calls: list[tuple[Tensor, Tensor]] = []
        try:
            for i, (slot, layer) in enumerate(zip(self._slots, layers, strict=True)):
                slot.begin(layer, (replicas, samples, batch), 1 if self._shared and i == 0 else samples, taps)
            out = self._module(folded)
            calls = [slot.call() for slot in self._slots] if taps else []
        finally:
            for slot in self._slots:
                slot.end()
        if out.dim() != 2:
            raise InputError(f"the network must map [B, ...] to [B, outputs]; it gave {out.dim()} axes")
        return out.unflatten(0, (replicas, samples, batch)), calls


class _Slot(nn.Module, ABC):
    """Stands where a layer stood; holds its geometry, and its weights only while a call lasts."""

    inputs: int
    outputs: int
    width: int  # numbers that the last call held for one example of one sample
    _layer: Any
    _call: tuple[Tensor, Tensor] | None

    def __init__(self, name: str, bias: bool):
        super().__init__()
        self.name, self.bias = name, bias
        self.end()

    def begin(self, layer: Layer, lead: tuple[int, int, int], shared: int, taps: bool) -> None:
        """Hold a layer for one pass over [R, S, B] examples; the inputs come for S samples, or once for all."""
        self._layer, self._lead, self._taps = layer, lead, taps
        self._lead_in = (lead[0], shared, lead[2])

    def end(self) -> None:
        self._layer, self._call, self._used = None, None, False

    def call(self) -> tuple[Tensor, Tensor]:
        """(input, tap) of the call that just ran."""
        if self._call is None:
            raise InputError(f"layer {self.name!r} was not used in the forward pass")
        if self._call[0]._version != self._version:  # the gradient would be paired with the wrong input
            raise InputError(f"the input of layer {self.name!r} is changed in place after its use; write x = x + y")
        return self._call

    def forward(self, a: Tensor) -> Tensor:
        if self._used:
            raise InputError(f"layer {self.name!r} is used twice in one forward pass; give each use its own layer")
        self._used = True
        h = self.apply_matrix(a) if isinstance(self._layer, Tensor) else self.apply_callable(a)
        self.width = a[0].numel() + h[0].numel()
        if not self._taps:
            return h
        # A sum, not h itself: what follows may change its input in place (ReLU(inplace=True), x += y).
        tap = torch.zeros_like(h, requires_grad=True)
        self._call, self._version = (a, tap), a._version
        return h + tap

    @abstractmethod
    def apply_matrix(self, a: Tensor) -> Tensor:
        """The pre-activation, folded."""

    @abstractmethod
    def examples(self, a: Tensor) -> Tensor:
        """The layer's folded input as [R, S or 1, B, T, I]."""

    @abstractmethod
    def positions(self, g: Tensor) -> Tensor:
        """A gradient of the folded pre-activation as [R, S, B, T, O]."""

    @abstractmethod
    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """A pre-activation [R, S, B, T, O] in the shape that the module expects of this layer."""

    def apply_callable(self, a: Tensor) -> Tensor:
        return self.fold(self._layer(self.examples(a)), a)

    def _with_one(self, a: Tensor) -> Tensor:
        return F.pad(a, (0, 1), value=1.0) if self.bias else a


class _LinearSlot(_Slot):
    def __init__(self, layer: nn.Linear, name: str):
        super().__init__(name, layer.bias is not None)
        self.inputs, self.outputs = layer.in_features + self.bias, layer.out_features

    def apply_matrix(self, a: Tensor) -> Tensor:
        """[(R S B), ..., C] -> [(R S B), ..., O]."""
        w, (r, s, b) = self._layer, self._lead
        if self._lead_in == self._lead:
            w = w.flatten(0, 1)  # [(R S), I, O]
            h = self._affine(a.reshape(r * s, -1, a.shape[-1]), w)
        else:
            h = self._affine(a.reshape(r, -1, a.shape[-1]), w.transpose(1, 2).flatten(2))  # [R, (B ...), (S O)]
            h = h.unflatten(2, (s, -1)).transpose(1, 2)
        return h.reshape(r * s * b, *a.shape[1:-1], self.outputs)

    def _affine(self, a: Tensor, w: Tensor) -> Tensor:
        return torch.baddbmm(w[:, -1:], a, w[:, :-1]) if self.bias else torch.bmm(a, w)

    def examples(self, a: Tensor) -> Tensor:
        """[(R S B), ..., C] -> [R, S, B, T, I]."""
        return self._with_one(a.reshape(*self._lead_in, -1, a.shape[-1]))

    def positions(self, g: Tensor) -> Tensor:
        """[(R S B), ..., O] -> [R, S, B, T, O]."""
        return g.reshape(*self._lead, -1, self.outputs)

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """[R, S, B, T, O] -> [(R S B), ..., O]."""
        return h.reshape(-1, *a.shape[1:-1], self.outputs)


class _ConvSlot(_Slot):
    def __init__(self, layer: nn.Conv2d, name: str):
        super().__init__(name, layer.bias is not None)
        if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise InputError(
                f"layer {name!r}: convolutions must have groups=1, zero padding and padding given in numbers"
            )
        self.kernel, self.stride = layer.kernel_size, layer.stride
        self.padding, self.dilation = layer.padding, layer.dilation
        self.inputs = layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1] + self.bias
        self.outputs = layer.out_channels

    def apply_matrix(self, a: Tensor) -> Tensor:
        """[(R S B), C, H, W] -> [(R S B), O, H', W'], as one convolution with a group for each R and S."""
        (r, s, b), groups = self._lead, self._lead_in[0] * self._lead_in[1]
        w = self._layer.flatten(0, 1).transpose(1, 2)  # [(R S), O, I]
        kernel = (w[..., :-1] if self.bias else w).reshape(r * s * self.outputs, a.shape[1], *self.kernel)
        bias = w[..., -1].reshape(-1) if self.bias else None
        z = a.unflatten(0, (groups, b)).transpose(0, 1).flatten(1, 2)  # [B, (R S C), H, W]
        h = F.conv2d(z, kernel, bias, self.stride, self.padding, self.dilation, groups)
        return h.unflatten(1, (r * s, self.outputs)).transpose(0, 1).flatten(0, 1)

    def examples(self, a: Tensor) -> Tensor:
        """[(R S B), C, H, W] -> patches [R, S, B, T, I]."""
        patches = F.unfold(a, self.kernel, self.dilation, self.padding, self.stride)
        return self._with_one(patches.transpose(1, 2)).unflatten(0, self._lead_in)

    def positions(self, g: Tensor) -> Tensor:
        """[(R S B), O, H', W'] -> [R, S, B, T, O]."""
        return g.flatten(2).transpose(1, 2).unflatten(0, self._lead)

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """[R, S, B, T, O] -> [(R S B), O, H', W']."""
        return h.flatten(0, 2).transpose(1, 2).unflatten(-1, self._output_size(a))

    def _output_size(self, a: Tensor) -> tuple[int, int]:
        spans = zip(a.shape[-2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans)
        return height, width


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """A plain ReLU network: inputs -> hidden... -> outputs."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for i, o in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
