"""The slots for convolutions. Positions are pixels, and inputs are patches, computed only where needed.

A layer of C channels in g groups has one matrix [(g I), O / g] with I = places * C / g + 1 (the bias): each group is a
block of rows, and acts at positions of its own. Conv1d layers are those of images with one row. A transposed
convolution is one of spread-out inputs with a reversed kernel.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight, conv3d_weight

from explore.core.shapes import Taps
from explore.nets.slots.base import Lead, WeightSlot
from explore.nets.slots.patches import patch_products

FEWEST_CHANNELS, FEWEST_EXAMPLES = 8, 32  # from which the second moment is computed without patches
Sizes = tuple[int, ...]
"""A number per image axis: height and width, after the depth if there is one."""


class ConvSlot(WeightSlot):
    """A slot for a convolution of images or volumes."""

    def __init__(self, layer: Any, name: str):
        super().__init__(layer, name)
        self.flat = len(layer.kernel_size) == 1  # a sequence is an image with one row
        self.kernel, self.step, self.spread = (
            self._sizes(size, 1) for size in (layer.kernel_size, layer.stride, layer.dilation)
        )
        self.around = self._around(layer)  # zeros, or copies, before and after each axis
        symmetric = all(before == after >= 0 for before, after in self.around)
        self.native = symmetric and layer.padding_mode == "zeros"  # whether a convolution pads by itself
        self.pad: Sizes = tuple(before if self.native else 0 for before, _ in self.around)
        self.one = layer.bias is not None
        self.has_bias = self.one and layer.groups == 1
        self.fan_in = layer.in_channels // layer.groups * math.prod(self.kernel) + self.one
        self.inputs, self.outputs = layer.groups * self.fan_in, layer.out_channels // layer.groups

    def _sizes(self, sizes: Sizes, one: int) -> Sizes:
        return (one, *sizes) if self.flat else tuple(sizes)

    def _around(self, layer: Any) -> tuple[tuple[int, int], ...]:
        """Return the padding before and after each image axis."""
        if layer.padding == "same":
            whole = [d * (k - 1) for d, k in zip(self.spread, self.kernel, strict=True)]
            return tuple((n // 2, n - n // 2) for n in whole)
        sizes = (0,) * len(self.kernel) if layer.padding == "valid" else self._sizes(layer.padding, 0)
        return tuple((n, n) for n in sizes)

    def values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return _matrix(tensors["weight"].unflatten(0, (self.groups, -1)), tensors.get("bias"))

    def tensors(self, values: Tensor) -> dict[str, Tensor]:
        w = values.unflatten(0, (self.groups, -1)).mT  # [g, O, I]
        kernel = self._kernel((w[..., :-1] if self.one else w).unflatten(2, (-1, *self.kernel_size)))
        return {"weight": kernel, "bias": w[..., -1].flatten()} if self.one else {"weight": kernel}

    def _kernel(self, w: Tensor) -> Tensor:
        """Return the layer's kernel, from one [g, O, C, ...] for each group."""
        return w.flatten(0, 1)

    def misfit(self, shape: torch.Size) -> str:
        axes = len(self.kernel) - self.flat
        fits = len(shape) == axes + 1 and shape[0] == self.in_channels and min(self.sides(self.prepared(shape))) > 0
        sizes = {1: "length", 2: "height, width", 3: "depth, height, width"}[axes]
        return "" if fits else f"images [{self.in_channels}, {sizes}] no smaller than its kernel"

    def _computed(self, a: Tensor, per: int) -> Tensor:
        h = super()._computed(self.prepare(a), per)
        return h.squeeze(2) if self.flat else h

    def prepared(self, shape: torch.Size) -> torch.Size:
        """Return the shape of an example after `prepare`."""
        if self.native:
            return torch.Size((shape[0], 1, *shape[1:])) if self.flat else shape
        return self.prepare(torch.empty(1, *shape, device="meta")).shape[1:]

    def prepare(self, a: Tensor) -> Tensor:
        """Return the images on which the convolution itself acts, with the padding that it has no setting for."""
        if not self.native:
            used = self.around[1:] if self.flat else self.around
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            a = F.pad(a, [n for pair in reversed(used) for n in pair], mode)
        return a.unsqueeze(2) if self.flat else a

    def apply_matrix(self, a: Tensor) -> Tensor:
        """Convolve with one group per replica and sample of the inputs: [(R S B), C, ...] -> [(R S B), O, ...]."""
        return self._convolved(a, self._values.flatten(0, 1), self._lead_in[0] * self._lead_in[1])

    def apply_callable(self, a: Tensor, per: int) -> Tensor:
        """Apply a callable layer by one kernel per example if faster, else by `through` (if R = 1), else to patches."""
        of_examples = getattr(self._values, "of_examples", None)
        if of_examples and self._values.samples == 1 and per == 1 and self._by_examples(a):
            return self._convolved(a, of_examples().flatten(0, 1), len(a))
        through = getattr(self._values, "through", None)
        if through is None or per > 1 or self.groups > 1:
            return super().apply_callable(a, per)
        if self._lead_in[0] > 1:  # convolutions with several groups can be slower than products with patches
            shape = self.in_channels, math.prod(self.kernel)
            return self.fold(self._values(self.examples(a, self._lead_in), shape), a)

        def product(x: Tensor, matrices: Tensor) -> Tensor:
            return self.positions(self._convolved(x, matrices, len(matrices)), (1, -1, self._lead_in[2]))

        return self.fold(through(a, product), a)

    def _by_examples(self, a: Tensor) -> bool:
        """Return whether a convolution with one group per example is faster than products with patches."""
        return a.is_cpu and math.prod(self.sides(a.shape)) >= self.outputs

    def _convolved(self, a: Tensor, matrices: Tensor, lots: int) -> Tensor:
        """Convolve with K matrices [K, I, O] in G `lots`, K a multiple of G: [(G B), C, ...] -> [(K B), O, ...]."""
        w = matrices.unflatten(1, (self.groups, -1)).mT.unflatten(0, (lots, -1)).transpose(1, 2)  # [G, g, K / G, O, I]
        kernel = (w[..., :-1] if self.one else w).reshape(-1, a.shape[1] // self.groups, *self.kernel)
        bias = w[..., -1].reshape(-1) if self.one else None
        z, step, pad = self._in_lots(a, lots)
        convolve: Any = F.conv2d if len(self.kernel) == 2 else F.conv3d
        h = convolve(z, kernel, bias, step, pad, self.spread, lots * self.groups)
        h = h.unflatten(1, w.shape[:4]).movedim(0, 3)  # [G, g, K / G, B, O, ...]
        return h.transpose(1, 2).transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def _in_lots(self, a: Tensor, lots: int) -> tuple[Tensor, Sizes, Sizes]:
        """Return images, stride and padding for a convolution in G `lots`: [(G B), C, ...] -> [B, (G C), ...].

        On CPUs, for a 1x1 kernel with a stride, remove the skipped pixels and return stride 1: otherwise, the weight
        gradient in torch 2.13 would write out of bounds (channels-last layout, 2 to 7 channels).
        """
        z = a.unflatten(0, (lots, -1)).transpose(0, 1).flatten(1, 2)
        if self.kernel != (1, 1) or self.step == (1, 1) or not z.is_cpu:
            return z, self.step, self.pad
        down, across = self.pad
        z = F.pad(z, (across, across, down, down)) if down or across else z
        return z[..., :: self.step[0], :: self.step[1]], (1, 1), (0, 0)

    def examples(self, a: Tensor, lead: Lead, part: slice = slice(None)) -> Tensor:
        """Return the patches of the images `a` for a slice of examples: [(R S B), C, ...] -> [R, S, B, T, I]."""
        a = a.unflatten(0, lead)[:, :, part]
        lead = (a.shape[0], a.shape[1], a.shape[2])
        a = a.flatten(0, 2)
        if not (a.requires_grad and torch.is_grad_enabled()) or len(self.kernel) == 3:
            patches = self.patches(a).permute(1, 2, 0)
        else:
            patches = Patches.apply(a, self).permute(1, 2, 0)
        if self.groups > 1:  # each group at positions of its own, in rows of its own
            blocks = patches.unflatten(2, (self.groups, 1, -1)) * torch.eye(self.groups).to(a)[..., None]
            patches = blocks.flatten(3).flatten(1, 2)
        return patches.unflatten(0, lead)

    def patches(self, a: Tensor) -> Tensor:
        """Return patches, [N, C, ...] -> [(g I), N, T], by one strided copy, several times as fast as `F.unfold`."""
        sides = self.sides(a.shape)
        a = self._padded(a)
        count, channels = a.shape[:2]
        example, channel, *pixel = a.stride()
        inner = [n * d for n, d in zip(pixel, self.spread, strict=True)]
        outer = [n * s for n, s in zip(pixel, self.step, strict=True)]
        windows = a.as_strided(
            (channels, *self.kernel, count, *sides), (channel, *inner, example, *outer), a.storage_offset()
        )
        if not self.one:  # always a copy, not a view: callers may modify it in place
            return windows.clone(memory_format=torch.contiguous_format).view(self.inputs, count, -1)
        if a.requires_grad and torch.is_grad_enabled():
            each = windows.reshape(self.groups, self.fan_in - 1, count, -1)
            return F.pad(each, (0, 0, 0, 0, 0, 1), value=1.0).flatten(0, 1)
        patches = a.new_empty(self.groups, self.fan_in, count, math.prod(sides))
        patches[:, :-1].view(self.groups, channels // self.groups, *windows.shape[1:]).copy_(
            windows.unflatten(0, (self.groups, -1))
        )
        patches[:, -1] = 1
        return patches.flatten(0, 1)

    def _padded(self, a: Tensor) -> Tensor:
        return F.pad(a, [n for size in reversed(self.pad) for n in (size, size)]) if any(self.pad) else a

    def taps_of(self, a: Tensor, lead: Lead) -> Callable[[Tensor], Taps]:
        # For several replicas, torch's gradient of a grouped convolution can be slower than products with patches.
        gradient = partial(self._weight_gradient, a, lead) if lead[0] == 1 or self.groups > 1 else None
        moment = partial(self._second_moment, a, lead) if self._by_offsets(lead) or self.groups > 1 else None
        each = partial(self._example_gradients, a) if lead[1] == 1 and self._by_examples(a) else None
        mean = partial(self._mean_patches, a, lead) if self.groups == 1 else None
        patches = partial(self.examples, a, lead)
        return partial(
            Taps, patches, weight_gradient=gradient, second_moment=moment, example_gradients=each, mean_inputs=mean
        )

    def _by_offsets(self, lead: Lead) -> bool:
        """Return whether `patch_products` applies (stride and dilation 1) and is fast (many channels and examples)."""
        simple = self.step == self.spread == (1, 1) and self.kernel != (1, 1) and self.groups == 1
        return simple and self.in_channels >= FEWEST_CHANNELS and lead[1] * lead[2] >= FEWEST_EXAMPLES

    def _second_moment(self, a: Tensor, lead: Lead) -> Tensor:
        """Sum p p^T over the patches p of an example, and average over examples: [(R S B), C, ...] -> [R, I, I]."""
        count = lead[1] * lead[2]
        if self.groups == 1:
            return patch_products(a.unflatten(0, lead).flatten(1, 2), self.kernel, self.pad, self.one) / count
        p = self.patches(a).unflatten(1, (lead[0], count)).unflatten(0, (self.groups, -1))  # [g, I, R, N, T]
        p = p.permute(2, 0, 1, 3, 4).flatten(3)
        return torch.stack([torch.block_diag(*blocks) for blocks in p @ p.mT / count])

    def _mean_patches(self, a: Tensor, lead: Lead) -> Tensor:
        """Average the patches over positions, one image axis after the other: [(R S B), C, ...] -> [R, S, B, I]."""
        sides = self.sides(a.shape)
        a = self._padded(a)
        for axis in reversed(range(len(sides))):  # kernel places replace this image axis
            windows = a.unfold(axis + 2, self.step[axis] * (sides[axis] - 1) + 1, self.spread[axis])
            a = windows.narrow(axis + 2, 0, self.kernel[axis])[..., :: self.step[axis]].sum(-1)
        mean = a.flatten(1) / math.prod(sides)
        return (F.pad(mean, (0, 1), value=1.0) if self.has_bias else mean).unflatten(0, lead)

    def _weight_gradient(self, a: Tensor, lead: Lead, grads: Tensor, each: bool) -> Tensor:
        """Return the sum of (patch of `a`) g^T over B and T (without `each`, also over S), [R, S or 1, I, O]."""
        replicas, sets = lead[0], lead[1]
        if not each:  # treat samples as more examples
            grads = grads.sum(1, keepdim=True) if sets < grads.shape[1] else grads.flatten(1, 2).unsqueeze(1)
            sets = 1
        lots, groups = replicas * sets, self.groups
        z, step, pad = self._in_lots(a, lots)
        g = grads.unflatten(3, (-1, groups)).unflatten(1, (sets, -1))  # [R, L, S / L, B, T, g, O]
        shape = g.shape
        g = g.permute(3, 0, 1, 5, 2, 6, 4)  # [B, R, L, g, S / L, O, T]
        g = g.reshape(shape[3], -1, *self.sides(a.shape))
        size = [g.shape[1], self.in_channels // groups, *self.kernel]
        weight: Any = conv2d_weight if len(self.kernel) == 2 else conv3d_weight
        w = weight(z, size, g, step, pad, self.spread, lots * groups)
        parts = (replicas, sets, groups, shape[2], self.outputs)
        rows = [w.reshape(*parts, -1).mT]  # reshape: kernels have the images' memory layout
        if self.one:
            rows.append(g.sum((0, *range(2, g.dim()))).view(*parts[:4], 1, -1))
        return torch.cat(rows, 4).transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _example_gradients(self, a: Tensor, grads: Tensor) -> Tensor:
        """Return the sum of (patch of `a`) g^T over T, [R, B, I, O]; `a` is [(R B), C, ...], g [R, 1, B, T, O]."""
        examples = grads.flatten(0, 2)[None, :, None]  # treat each example as a sample
        return self._weight_gradient(a, (1, len(a), 1), examples, True)[0].unflatten(0, (len(grads), -1))

    def positions(self, g: Tensor, lead: Lead) -> Tensor:
        """Unfold gradients: [(R S B), O, ...] -> [R, S, B, T, O], with the groups of a pixel after one another."""
        g = g.unflatten(1, (self.groups, -1)).flatten(3)  # [(R S B), g, O, T]
        return g.permute(0, 3, 1, 2).flatten(1, 2).unflatten(0, lead)

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """Fold pre-activations: [R, S, B, T, O] -> [(R S B), O, ...]."""
        h = h.flatten(0, 2).unflatten(1, (-1, self.groups)).permute(0, 2, 3, 1).flatten(1, 2)
        return h.unflatten(-1, self.sides(a.shape))

    def sides(self, shape: torch.Size) -> Sizes:
        """Return the sizes of the output for images of this shape."""
        axes = zip(shape[-len(self.kernel) :], self.kernel, self.step, self.pad, self.spread, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)


def _matrix(kernels: Tensor, bias: Tensor | None) -> Tensor:
    """Return the matrix of a layer from the kernels of its groups, [g, O, C, ...], and its bias."""
    rows = kernels.flatten(2)
    if bias is not None:
        rows = torch.cat([rows, bias.view(len(kernels), -1, 1)], 2)
    return rows.mT.flatten(0, 1)


class Patches(torch.autograd.Function):
    """A version of `ConvSlot.patches` for images, with a faster gradient than torch has for a strided copy."""

    @staticmethod
    def forward(ctx, a, slot):  # type: ignore[no-untyped-def]
        ctx.slot, ctx.shape = slot, a.shape
        return slot.patches(a)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        slot, height_width = ctx.slot, ctx.shape[-2:]
        patches = grad.unflatten(0, (slot.groups, -1))[:, : slot.fan_in - slot.one].flatten(0, 1).transpose(0, 1)
        return F.fold(patches, height_width, slot.kernel, slot.spread, slot.pad, slot.step), None


class TransposedSlot(ConvSlot):
    """A slot for a transposed convolution: inputs are spread out, with zeros between, and the kernel is reversed."""

    def __init__(self, layer: Any, name: str):
        super().__init__(layer, name)
        self.apart, self.step = self.step, (1,) * len(self.step)
        self.native, self.pad = False, (0,) * len(self.kernel)

    def _around(self, layer: Any) -> tuple[tuple[int, int], ...]:
        sizes = zip(self.spread, self.kernel, super()._around(layer), self._sizes(layer.output_padding, 0), strict=True)
        return tuple((d * (k - 1) - pad, d * (k - 1) - pad + more) for d, k, (pad, _), more in sizes)

    def values(self, tensors: Mapping[str, Tensor]) -> Tensor:
        w = tensors["weight"].unflatten(0, (self.groups, -1)).transpose(1, 2)  # [g, O, C, ...]
        return _matrix(w.flip(tuple(range(3, w.dim()))), tensors.get("bias"))

    def _kernel(self, w: Tensor) -> Tensor:
        return w.transpose(1, 2).flatten(0, 1).flip(tuple(range(2, w.dim() - 1)))

    def prepare(self, a: Tensor) -> Tensor:
        a = a.unsqueeze(2) if self.flat else a
        sizes = [(n - 1) * s + 1 for n, s in zip(a.shape[2:], self.apart, strict=True)]
        wide = a.new_zeros(*a.shape[:2], *sizes)
        places: Any = (..., *(slice(None, None, s) for s in self.apart))
        wide[places] = a
        return F.pad(wide, [n for pair in reversed(self.around) for n in pair])
