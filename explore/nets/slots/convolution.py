"""The slot for Conv2d layers, and fast second moments of their patches."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from explore.core.errors import InputError
from explore.core.shapes import Taps
from explore.nets.slots.base import Lead, WeightSlot

FEWEST_CHANNELS, FEWEST_EXAMPLES = 8, 32  # from which the second moment is computed without patches


class ConvSlot(WeightSlot, nn.Conv2d):
    """A slot for a Conv2d layer."""

    def __init__(self, layer: nn.Conv2d, name: str):
        super().__init__(layer, name)
        allowed = {"groups": layer.groups == 1, "padding_mode": layer.padding_mode == "zeros"}
        allowed["padding"] = not isinstance(layer.padding, str)
        if wrong := [f"{key}={getattr(layer, key)!r}" for key, right in allowed.items() if not right]:
            allowed_settings = "groups=1, padding_mode='zeros' and numeric padding"
            raise InputError(f"{self.called} has {' and '.join(wrong)}; Conv2d layers need {allowed_settings}")
        self.pad: tuple[int, ...] = layer.padding  # type: ignore[assignment]
        self.inputs = self.in_channels * self.kernel_size[0] * self.kernel_size[1] + self.has_bias
        self.outputs = self.out_channels

    def misfit(self, shape: torch.Size) -> str:
        fits = len(shape) == 3 and shape[0] == self.in_channels and min(self._output_size(shape)) > 0
        return "" if fits else f"images [{self.in_channels}, height, width] no smaller than its kernel"

    def apply_matrix(self, a: Tensor) -> Tensor:
        """Convolve with one group per replica and sample of the inputs: [(R S B), C, H, W] -> [(R S B), O, H', W']."""
        return self._convolved(a, self._layer.flatten(0, 1), self._lead_in[0] * self._lead_in[1])

    def apply_callable(self, a: Tensor) -> Tensor:
        """Apply a callable layer by one kernel per example if faster, else by `through` (if R = 1), else to patches."""
        of_examples = getattr(self._layer, "of_examples", None)
        if of_examples and self._layer.samples == 1 and self._by_examples(a):
            return self._convolved(a, of_examples().flatten(0, 1), len(a))
        through = getattr(self._layer, "through", None)
        if through is None:
            return super().apply_callable(a)
        if self._lead_in[0] > 1:  # convolutions with several groups can be slower than products with patches
            shape = self.in_channels, math.prod(self.kernel_size)
            return self.fold(self._layer(self.examples(a, self._lead_in), shape), a)

        def product(x: Tensor, matrices: Float[Tensor, "K I O"]) -> Float[Tensor, "1 _S B T O"]:
            return self.positions(self._convolved(x, matrices, len(matrices)), (1, -1, self._lead_in[2]))

        return self.fold(through(a, product), a)

    def _by_examples(self, a: Tensor) -> bool:
        """Return whether a convolution with one group per example is faster than products with patches."""
        return a.is_cpu and math.prod(self._output_size(a.shape)) >= self.outputs

    def _convolved(self, a: Tensor, matrices: Float[Tensor, "K I O"], groups: int) -> Tensor:
        """Convolve with K matrices in G `groups`, K a multiple of G: [(G B), C, H, W] -> [(K B), O, H', W']."""
        w = matrices.transpose(1, 2)
        kernel = (w[..., :-1] if self.has_bias else w).reshape(len(w) * self.outputs, a.shape[1], *self.kernel_size)
        bias = w[..., -1].reshape(-1) if self.has_bias else None
        z, stride, pad = self._grouped(a, groups)
        h = F.conv2d(z, kernel, bias, stride, pad, self.dilation, groups)
        return h.unflatten(1, (len(w), self.outputs)).transpose(0, 1).flatten(0, 1)

    def _grouped(self, a: Tensor, groups: int) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
        """Return images, stride and padding for a convolution in G `groups`: [(G B), C, H, W] -> [B, (G C), H, W].

        On CPUs, for a 1x1 kernel with a stride, remove the skipped pixels and return stride 1: otherwise, the weight
        gradient in torch 2.13 would write out of bounds (channels-last layout, 2 to 7 channels).
        """
        z = a.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)
        if self.kernel_size != (1, 1) or self.stride == (1, 1) or not z.is_cpu:
            return z, self.stride, self.pad
        down, across = self.pad
        z = F.pad(z, (across, across, down, down)) if down or across else z
        return z[..., :: self.stride[0], :: self.stride[1]], (1, 1), (0, 0)

    def examples(self, a: Tensor, lead: Lead, part: slice = slice(None)) -> Tensor:
        """Return the patches of the images `a` for a slice of examples: [(R S B), C, H, W] -> [R, S, B, T, I]."""
        a = a.unflatten(0, lead)[:, :, part]
        lead = (a.shape[0], a.shape[1], a.shape[2])
        a = a.flatten(0, 2)
        if not (a.requires_grad and torch.is_grad_enabled()):
            patches = self._patches(a)
        elif a.is_cpu:  # where products are slightly faster in this layout
            patches = F.unfold(a, self.kernel_size, self.dilation, self.pad, self.stride)
            return self._with_one(patches.transpose(1, 2)).unflatten(0, lead)
        else:
            patches = Patches.apply(a, self)
        return patches.permute(1, 2, 0).unflatten(0, lead)

    def _patches(self, a: Tensor) -> Tensor:
        """Return patches, [N, C, H, W] -> [I, N, T], by a single strided copy, several times as fast as `F.unfold`."""
        (height, width), (down, across) = self._output_size(a.shape), self.pad
        a = F.pad(a, (across, across, down, down)) if down or across else a
        count, channels = a.shape[:2]
        example, channel, row, column = a.stride()
        steps = (channel, row * self.dilation[0], column * self.dilation[1], example, row * self.stride[0])
        windows = a.as_strided(
            (channels, *self.kernel_size, count, height, width), (*steps, column * self.stride[1]), a.storage_offset()
        )
        if not self.has_bias:  # always a copy, not a view: callers may modify it in place
            return windows.clone(memory_format=torch.contiguous_format).view(self.inputs, count, height * width)
        patches = a.new_empty(self.inputs, count, height * width)
        patches[:-1].view_as(windows).copy_(windows)
        patches[-1] = 1
        return patches

    def taps_of(self, a: Tensor, lead: Lead) -> Callable[[Tensor], Taps]:
        # For several replicas, torch's gradient of a grouped convolution can be slower than products with patches.
        gradient = partial(self._weight_gradient, a, lead) if lead[0] == 1 else None
        moment = partial(self._second_moment, a, lead) if self._by_offsets(lead) else None
        each = partial(self._example_gradients, a) if lead[1] == 1 and self._by_examples(a) else None
        patches, mean = partial(self.examples, a, lead), partial(self._mean_patches, a, lead)
        return partial(
            Taps, patches, weight_gradient=gradient, second_moment=moment, example_gradients=each, mean_inputs=mean
        )

    def _by_offsets(self, lead: Lead) -> bool:
        """Return whether `patch_products` applies (stride and dilation 1) and is fast (many channels and examples)."""
        simple = self.stride == (1, 1) and self.dilation == (1, 1) and self.kernel_size != (1, 1)
        return simple and self.in_channels >= FEWEST_CHANNELS and lead[1] * lead[2] >= FEWEST_EXAMPLES

    def _second_moment(self, a: Tensor, lead: Lead) -> Tensor:
        """Sum p p^T over the patches p of an example, and average over examples: [(R S B), C, H, W] -> [R, I, I]."""
        x = a.unflatten(0, lead).flatten(1, 2)
        return patch_products(x, self.kernel_size, self.pad, self.has_bias) / x.shape[1]

    def _mean_patches(self, a: Tensor, lead: Lead) -> Tensor:
        """Average the patches over positions, one image axis after the other: [(R S B), C, H, W] -> [R, S, B, I]."""
        (height, width), (down, across) = self._output_size(a.shape), self.pad
        a = F.pad(a, (across, across, down, down)) if down or across else a
        for axis, size in ((3, width), (2, height)):  # kernel places replace this image axis
            places, stride = self.kernel_size[axis - 2], self.stride[axis - 2]
            windows = a.unfold(axis, stride * (size - 1) + 1, self.dilation[axis - 2])  # may have one place too many
            a = windows.narrow(axis, 0, places)[..., ::stride].sum(-1)
        return self._with_one(a.flatten(1) / (height * width)).unflatten(0, lead)

    def _weight_gradient(self, a: Tensor, lead: Lead, grads: Tensor, each: bool) -> Tensor:
        """Return the sum of (patch of `a`) g^T over B and T (without `each`, also over S), [1, S or 1, I, O]."""
        if not each:  # treat samples as more examples
            shared = lead[1] < grads.shape[1]
            grads = grads.sum(1, keepdim=True) if shared else grads.flatten(1, 2).unsqueeze(1)
            lead = (1, 1, len(a))
        samples = grads.shape[1]
        z, stride, pad = self._grouped(a, lead[1])
        g = grads[0].transpose(2, 3).transpose(0, 1).flatten(1, 2).unflatten(2, self._output_size(a.shape))
        size = [samples * self.outputs, self.in_channels, *self.kernel_size]
        w = conv2d_weight(z, size, g, stride, pad, self.dilation, lead[1])
        rows = [w.reshape(samples, self.outputs, -1).mT]  # reshape: kernels have the images' memory layout
        if self.has_bias:
            rows.append(g.sum((0, 2, 3)).view(samples, 1, -1))
        return torch.cat(rows, 1).unsqueeze(0)

    def _example_gradients(self, a: Tensor, grads: Tensor) -> Tensor:
        """Return the sum of (patch of `a`) g^T over T, [R, B, I, O]; `a` is [(R B), C, H, W], g [R, 1, B, T, O]."""
        examples = grads.flatten(0, 2)[None, :, None]  # treat each example as a sample
        return self._weight_gradient(a, (1, len(a), 1), examples, True)[0].unflatten(0, (len(grads), -1))

    def positions(self, g: Tensor, lead: Lead) -> Tensor:
        """Unfold gradients: [(R S B), O, H', W'] -> [R, S, B, T, O]."""
        return g.flatten(2).transpose(1, 2).unflatten(0, lead)

    def fold(self, h: Tensor, a: Tensor) -> Tensor:
        """Fold pre-activations: [R, S, B, T, O] -> [(R S B), O, H', W']."""
        return h.flatten(0, 2).transpose(1, 2).unflatten(-1, self._output_size(a.shape))

    def _output_size(self, shape: torch.Size) -> tuple[int, int]:
        spans = zip(shape[-2:], self.kernel_size, self.stride, self.pad, self.dilation, strict=True)
        height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans)
        return height, width


class Patches(torch.autograd.Function):
    """An autograd version of `ConvSlot._patches`, with a faster gradient than torch has for a strided copy."""

    @staticmethod
    def forward(ctx, a, slot):  # type: ignore[no-untyped-def]
        ctx.slot, ctx.shape = slot, a.shape
        return slot._patches(a)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        slot, height_width = ctx.slot, ctx.shape[-2:]
        patches = grad[: slot.inputs - slot.has_bias].transpose(0, 1)  # [N, I, T]
        return F.fold(patches, height_width, slot.kernel_size, slot.dilation, slot.pad, slot.stride), None


# The second moment of patches ------------------------------------------------------------------------------

Pair = tuple[int, ...]
"""Two numbers, vertical and horizontal."""


def patch_products(
    x: Float[Tensor, "R N C height width"], kernel: Pair, pad: Pair, one: bool
) -> Float[Tensor, "R I I"]:
    """Return the sum of p p^T over N and positions, for patches p of x with stride 1; `one` appends a 1 to each p.

    For two places u, v of the kernel, an entry is the sum of x_c(t + u) x_c'(t + v) over positions t. With s = t + u
    and d = v - u, it is the sum of x_c(s) x_c'(s + d) over a box of s. So one product of shifted images is enough for
    each d, and d and -d share one.
    """
    r, n, c, h, w = x.shape
    places = kernel[0] * kernel[1]
    sides = tuple(size + 2 * p - k + 1 for size, p, k in zip((h, w), pad, kernel, strict=True))
    # Zeros after the last pixel, so that all shifted images have as many rows as their factors.
    images = x.new_zeros(h * w + kernel[1] - 1, r, c, n)
    images[: h * w].unflatten(0, (h, w)).copy_(x.permute(3, 4, 0, 2, 1))
    sums = dict(_blocks(images, (h, w), kernel, pad, sides))
    zero = x.new_zeros(r, c, c)
    blocks = [
        sums[i, j] if (i, j) in sums else sums[j, i].mT if (j, i) in sums else zero
        for i, j in product(range(places), repeat=2)
    ]
    whole = x.new_empty(r, c * places + one, c * places + one)
    inner = whole[:, : c * places, : c * places].unflatten(2, (c, places)).unflatten(1, (c, places))
    inner.permute(2, 4, 0, 1, 3).copy_(torch.stack(blocks).unflatten(0, (places, places)))
    if one:
        summed = x.sum(1)
        down, across = (
            [_box(size, place, p, side) for place in range(k)]
            for size, k, p, side in zip((h, w), kernel, pad, sides, strict=True)
        )
        edge = [summed[:, :, slice(*i), slice(*j)].sum((2, 3)) for i in down for j in across]
        whole[:, -1, :-1] = whole[:, :-1, -1] = torch.stack(edge, 2).flatten(1)
        whole[:, -1, -1] = n * sides[0] * sides[1]
    return whole


def _box(size: int, place: int, pad: int, side: int, apart: int = 0) -> Pair:
    """Return the range [start, stop) of s in `patch_products`, on one axis, for u = `place` and d = `apart`."""
    first = place - pad
    start = max(0, first, -apart)
    return start, max(start, min(size, first + side, size - apart))


def _blocks(
    images: Float[Tensor, "P R C N"], size: Pair, kernel: Pair, pad: Pair, sides: Pair
) -> Iterator[tuple[Pair, Float[Tensor, "R C C"]]]:
    """Yield ((i, j), block of `patch_products`) for kernel places i <= j, which are numbered row by row."""
    (h, w), (high, wide) = size, kernel
    r, c = images.shape[1:3]
    for down in range(min(high, h)):
        for across in range(max(1 - wide, 1 - w) if down else 0, min(wide, w)):
            # Shifts that wrap around to the next row are in no box.
            shift, count = down * w + across, (h - down) * w
            image, shifted = images[:count], images[shift : shift + count]
            each = torch.bmm(image.flatten(0, 1), shifted.flatten(0, 1).mT).view(h - down, -1)
            over_rows: dict[Pair, Tensor] = {}
            sums: dict[tuple[Pair, Pair], Tensor] = {}
            for i, j in product(range(high - down), range(max(0, -across), min(wide, wide - across))):
                box = rows, columns = _box(h, i, pad[0], sides[0], down), _box(w, j, pad[1], sides[1], across)
                if rows not in over_rows:
                    over_rows[rows] = each[slice(*rows)].sum(0).view(w, -1)
                if box not in sums:
                    sums[box] = over_rows[rows][slice(*columns)].sum(0).view(r, c, c)
                yield (i * wide + j, (i + down) * wide + j + across), sums[box]
