"""Forward passes of a module whose layers are slots, and the check that it keeps the examples of a batch apart."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from explore.core.errors import InputError, listed, raised
from explore.core.rng import Rng, forked
from explore.nets.inputs import Inputs, chosen_output
from explore.nets.modules import Buffers, chance
from explore.nets.protocols import Layer, Layers, Point, count_samples
from explore.nets.slots.base import Layout, Mode, Slot, Use, WeightSlot, dtype_of, tensors_of
from explore.nets.slots.convolution import ConvSlot
from explore.nets.slots.dense import OwnEntries
from explore.nets.slots.norms import AffineSlot, NormSlot

APART = "the output for an example depends on the rest of its batch, or on train() or eval()"
LEAVE_OUT = "remove unused layers from the network, or leave them out by bayesian="
FOREIGN = ("numpy.random", "random")


class Root(nn.Sequential):
    """The holder of a module, so that the module itself can be replaced."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self[0](*args, **kwargs)


class Pass(NamedTuple):
    """The results of a pass."""

    out: Float[Tensor, "R S B O"]
    calls: list[list[Use]]  # by layer; only with taps
    statistics: tuple[Tensor, ...]  # mean and variance of each batch-norm layer's inputs
    returned: Any = None  # what the module returns


class Passes:
    """The module of a `Net`, its slots, and what is known about how it calls them."""

    amp: bool
    points: tuple[Point, ...]

    def __init__(
        self, root: Root, slots: list[WeightSlot], norms: list[NormSlot], affine: list[AffineSlot],
        own: tuple[str, ...], entries: dict[str, OwnEntries], early: bool, output: str | int | None,
    ):  # fmt: skip
        self._module, self._slots, self._norms, self._affine = root, slots, norms, affine
        self._every: list[Slot] = [*slots, *norms, *affine]
        self._own = own  # names of the point estimates that the module's own code uses
        self._entries = entries  # slots of parameters that it uses and that have a distribution, by name
        self._early = early  # whether inputs that no weights have changed yet may be given once for all samples
        self.inputs, self._output = Inputs(), output
        self.frozen = 0  # number of frozen parameters
        for key, t in root.named_parameters():
            if isinstance(t, nn.Parameter):
                self.frozen += 0 if key in own or key in entries else t.numel()
                t.requires_grad_(False)
        self._buffers = Buffers(root, (*own, *entries))
        self.random = False  # whether training draws random numbers, such as dropout's
        self._checked, self._plain = False, False  # whether `check` has passed; whether all layouts are `Layout()`
        self._changed: set[str] = set()  # names of layers whose outputs the module changes in place
        self._known: dict[torch.Size, list[list[Layout]]] = {}  # layouts by slot, for each shape of the inputs
        self._layout = torch.contiguous_format  # memory layout of images if R and S are 1

    def _run(
        self,
        layers: Layers,
        x: Tensor,
        samples: int | None,
        taps: bool = False,
        train: bool = False,
        seed: int = 0,
        last: int = 0,
    ) -> Pass:
        if x.dim() < 2 or not x.shape[1]:
            raise InputError(f"inputs must have shape [replicas, examples, ...]; got {list(x.shape)}")
        self._learn_layouts(x, dtype := dtype_of(layers[0]))
        if not self._checked and x.shape[1] > 1:
            self.check(x.detach(), dtype)
        samples = count_samples(layers[: len(self._slots)], samples, equal=True)
        with self._training(seed, x.device) if train and self.random else nullcontext():
            mode = Mode((x.shape[0], samples, x.shape[1]), taps, train, self._early, last=last)
            return self._pass(layers, x, mode)

    def _own_values(self, layers: Layers) -> Sequence[Any]:
        return layers[len(layers) - len(self._own) :]

    def _pass(self, layers: Layers, x: Tensor, mode: Mode) -> Pass:
        """Run the module; for each value of the parameters that its own code uses, one after the other."""
        r, s, b = mode.lead
        members = s if self._entries else max([1, *(p.shape[1] for p in self._own_values(layers))])
        count = (r if self._own or self._entries else 1, members, b if self._entries and mode.taps else 1)
        if math.prod(count) == 1:
            return self._one_pass(layers, x, mode)
        part = mode._replace(lead=(1, s // members, b // count[2]))
        passes = []
        for i, j, k in itertools.product(*map(range, count)):
            values = [part_of(layer, i, j if members > 1 or self._entries else None) for layer in layers]
            passes.append(self._one_pass(values, x[i : i + 1, k : k + 1] if count[2] > 1 else x[i : i + 1], part))
        return joined(passes, count)

    def _one_pass(self, layers: Layers, x: Tensor, mode: Mode) -> Pass:
        def read() -> tuple[list[list[Use]], tuple[Tensor, ...]]:
            calls = [slot.made() for slot in self._slots if mode.taps]
            if not self._checked:
                self._changed |= {slot.name for slot in self._slots if slot.changes}
            return calls, tuple(slot.statistics() for slot in self._norms if mode.train)

        returned, out, (calls, statistics) = self._called(layers, x, mode, read)
        count = math.prod(mode.lead)
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != count:
            result = list(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}; choose by output="
            raise InputError(f"the network must map {count} examples to one tensor [{count}, outputs]; got {result}")
        out = (out.to(x.dtype) if self.amp and x.is_floating_point() else out).unflatten(0, mode.lead)
        return Pass(out, calls, statistics, returned)

    def _called(self, layers: Layers, x: Tensor, mode: Mode, read: Callable[[], Any]) -> tuple[Any, Any, Any]:
        """Call the module; return its value, the output in it, and `read()`, called before the slots forget."""
        folded = self._begun(layers, x, mode)
        own = {name: t[0, 0] for name, t in zip(self._own, self._own_values(layers), strict=True)}
        try:
            own |= {name: slot.parameter() for name, slot in self._entries.items()}
            args, kwargs = self.inputs.unpacked(folded)
            with torch.autocast(x.device.type, torch.bfloat16) if self.amp else nullcontext():
                out = functional_call(self._module, own, args, kwargs) if own else self._module(*args, **kwargs)
            return out, chosen_output(out, self._output), read()
        except InputError:
            raise
        except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:  # from user code
            shape, reason = list(folded.shape), str(error) or type(error).__name__
            advice = "it must call its layers, not read their weights"
            raise InputError(f"forward() failed on an input of shape {shape} ({reason}); {advice}") from error
        except RuntimeError as error:
            if "in-place operation" in str(error):
                what = "forward() modifies a pre-activation in place in some passes only"
                raise InputError(f"{what}; write x = x + y") from error
            if "indices" not in str(error) or not x.is_floating_point():
                raise
            raise InputError("the network looks up whole numbers; pass inputs through its method packed") from error
        finally:
            for slot in self._every:
                slot.end()

    def _begun(self, layers: Layers, x: Tensor, mode: Mode) -> Tensor:
        """Give the slots their values, and return the folded inputs."""
        count, points = len(self._slots), len(self.points)
        if len(layers) != count + len(self._norms) + points:
            also = f", {len(self._norms)} batch normalisations and {points} point estimates"
            more = also if self._norms or points else ""
            raise InputError(f"expected {count} weight matrices{more}; got {len(layers)} tensors in all")
        values = iter(layers)
        before = count - (mode.last or count)  # layers without taps
        for i, slot in enumerate((*self._slots, *self._norms)):
            slot.begin(next(values), mode._replace(taps=False) if i < before else mode)
        for affine in self._affine:
            affine.begin([next(values) for _ in affine.keys], mode)
        self._buffers.move(x.device, x.dtype if x.is_floating_point() else dtype_of(layers[0]))
        if mode.early:
            folded = x.flatten(0, 1)
        else:
            # repeat, not expand: with S = 1, that would return a view, and the module may modify it in place.
            folded = x.unsqueeze(1).repeat(1, mode.lead[1], *[1] * (x.dim() - 1)).flatten(0, 2)
        if folded.dim() == 4:
            one = len(x) * mode.lead[1] == 1  # else slots would copy to another layout
            folded = folded.contiguous(memory_format=self._layout if one else torch.contiguous_format)
        return folded

    @contextmanager
    def _training(self, seed: int, device: torch.device) -> Iterator[None]:
        """Run the module in training mode, with random numbers that depend on the seed alone."""
        with forked(seed, device):
            self._train(True)
            try:
                yield
            finally:
                self._train(False)

    def _train(self, training: bool) -> None:
        for module in self._module.modules():
            if not isinstance(module, _BatchNorm):  # a frozen one keeps its statistics
                module.training = training

    # What the module does with its inputs ------------------------------------------------------------------

    def _learn_layouts(self, x: Tensor, dtype: torch.dtype) -> None:
        """Find out where the inputs of the slots have their examples, from batches of two and of four."""
        if self._plain:
            return
        layouts = self._known.get(x.shape[2:])
        if layouts is None:
            one = x[:1, :1].detach()
            shapes = [self._probed(one.repeat(1, size, *[1] * (x.dim() - 2)), dtype) for size in (2, 4)]
            layouts = [
                [_layout(slot, *pair) for pair in zip(*of_slot, strict=True)]
                for slot, *of_slot in zip(self._every, *shapes, strict=True)
            ]
            self._known[x.shape[2:]] = layouts
            self._plain = all(layout == Layout() for of_slot in layouts for layout in of_slot)
        for slot, of_slot in zip(self._every, layouts, strict=True):
            slot.layouts = of_slot

    def _neutral(self, x: Tensor, samples: int, dtype: torch.dtype) -> Layers:
        """Return random weights, unit norms and the module's point estimates, for one replica."""
        net: Any = self
        rng = Rng(0, x.device, x.dtype if x.is_floating_point() else dtype)
        norms = (norm.repeat(1, samples, 1, 1) for norm in net.unit_norms(1, rng))
        return (*net.glorot(1, rng, samples), *norms, *net.initial_points(1, rng))

    def _probed(self, x: Tensor, dtype: torch.dtype) -> list[list[torch.Size]]:
        """Return the shapes of the inputs of every slot, by call."""
        mode = Mode((1, 1, x.shape[1]), early=True, probe=True)
        with torch.no_grad():
            return self._called(self._neutral(x, 1, dtype), x, mode, lambda: [slot.calls for slot in self._every])[2]

    def check(self, x: Tensor, dtype: torch.dtype = torch.float32) -> None:
        """Raise InputError if forward() mixes examples, is random, skips layers or fails on one example.

        If inputs x are whole numbers, weights have the given dtype.
        """
        x = x[:1, :: x.shape[1] - 1]  # the first and the last
        layers, two = self._neutral(x, 2, dtype), Mode((1, 2, 2), taps=True, early=self._early)
        with torch.enable_grad(), self._buffers.unchanged():
            with chance(x.device) as drawn:
                alone = self._pass(layers, x[:, 1:], Mode((1, 2, 1), early=self._early)).out
            if drawn:
                raise InputError(f"forward() draws random numbers from {drawn[0]}, not only in training; remove them")
            with self._training(0, x.device), chance(x.device) as drawn:
                among = self._pass(layers, x, two)
            if foreign := [name for name in drawn if name in FOREIGN]:
                raise InputError(f"forward() draws random numbers from {foreign[0]}; draw them from torch")
            self.random = bool(drawn)
            self._check_apart(among)
        with torch.no_grad():
            apart = self.random or self._entries  # the first pass then does not tell
            out = self._pass(layers, x, two._replace(taps=False)).out if apart else among.out.detach()
            self._check_equal(out[:, :, 1:], alone, out)
            self._check_alone([layer[:, :1] for layer in layers if isinstance(layer, Tensor)], x)
            self._early = self._early or self._is_early(layers, x, out)
        for slot in self._slots:
            slot.copies = slot.name in self._changed
        self._checked = True

    def _check_apart(self, among: Pass) -> None:
        """Raise InputError unless the output of the last example depends on all layers, and on no other example."""
        if not among.out.requires_grad:
            raise InputError("the output does not depend on the weights: forward() uses detach() or no_grad()")
        uses = [(slot, use) for slot, of_slot in zip(self._slots, among.calls, strict=True) for use in of_slot]
        every = [tap for _, use in uses for tap in use.taps]
        grads = iter(torch.autograd.grad(among.out[:, 1, 1].sum(), every, allow_unused=True))
        of_uses = [(slot, use, [next(grads) for _ in use.taps]) for slot, use in uses]
        used = {id(slot) for slot, _, parts in of_uses if any(g is not None for g in parts)}
        if unused := [slot.called for slot in self._slots if id(slot) not in used]:
            raise InputError(f"the output does not depend on {listed(unused)}; {LEAVE_OUT}")
        for _, use, parts in of_uses:
            whole = torch.cat([torch.zeros_like(t) if g is None else g for g, t in zip(parts, use.taps, strict=True)])
            if bool(whole[: -use.per].any()):
                raise InputError(APART)

    def _check_equal(self, among: Tensor, alone: Tensor, out: Tensor) -> None:
        # On a GPU half of the digits may differ, as the order of summation depends on the shape.
        if bool(((among - alone).abs() > 30 * torch.finfo(alone.dtype).eps ** 0.5 * out.abs().max()).any()):
            raise InputError(APART)

    def _is_early(self, layers: Layers, x: Tensor, out: Tensor) -> bool:
        """Return whether inputs given once for all samples lead to the same output."""
        try:
            self._check_equal(self._pass(layers, x, Mode((1, 2, 2), early=True)).out, out, out)
        except (InputError, RuntimeError):
            return False
        return True

    def _check_alone(self, layers: Layers, x: Tensor) -> None:
        """Raise InputError if forward() fails on a single example; then choose the memory layout for convolutions."""
        try:
            self._pass(layers, x[:, 1:], Mode((1, 1, 1), early=self._early))
        except Exception as error:
            raise InputError(f"the network fails on a batch of one ({raised(error)}); use flatten(1)") from error
        if any(isinstance(slot, ConvSlot) for slot in self._slots):
            self._layout = torch.channels_last
            try:
                self._pass(layers, x, Mode((1, 1, 2), early=self._early))
            except RuntimeError:  # from view() in the module's forward()
                self._layout = torch.contiguous_format


def _layout(slot: Slot, two: torch.Size, four: torch.Size) -> Layout:
    """Return where a call has its examples, from the shapes of its inputs for two examples and for four."""
    axes = [axis for axis, (a, b) in enumerate(zip(two, four, strict=True)) if a != b]
    if not axes:
        return Layout(None)
    if len(axes) > 1 or four[axes[0]] != 2 * two[axes[0]] or two[axes[0]] % 2:
        shapes = f"inputs of {list(two)} for two examples and {list(four)} for four"
        raise InputError(f"{slot.called} received {shapes}; keep the examples on one axis")
    return Layout(axes[0], two[axes[0]] // 2)


def joined(passes: Sequence[Pass], count: tuple[int, int, int]) -> Pass:
    """Return one pass from those of so many replicas, samples and examples, 1 where a pass has all of them."""
    replicas, members, examples = count
    calls = []
    for uses in zip(*(done.calls for done in passes), strict=True):  # of one layer
        each = []
        for same in zip(*uses, strict=True):
            first: Use = same[0]
            lead = (replicas, members if members > 1 else first.lead[1], first.lead[2] * examples)
            inputs, taps = torch.cat([use.inputs for use in same]), [tap for use in same for tap in use.taps]
            each.append(first._replace(inputs=inputs, taps=taps, lead=lead))
        calls.append(each)
    out, *statistics = (
        torch.cat(parts).unflatten(0, count).movedim(2, 3).flatten(1, 2).flatten(2, 3)
        for parts in zip(*((done.out, *done.statistics) for done in passes), strict=True)
    )
    return Pass(out, calls, tuple(statistics))


def part_of(layer: Layer, replica: int, sample: int | None) -> Layer:
    """Return a layer of one replica, and of one sample unless None; a callable layer has tensors [R, ...]."""
    if isinstance(layer, Tensor):
        one = layer[replica : replica + 1]
        return one if sample is None or one.shape[1] == 1 else one[:, sample : sample + 1]
    if sample is not None:
        shared = "a module's own parameters must be point estimates that all samples share"
        raise InputError(f"where weights differ between examples, {shared}")
    own = {name: t[replica : replica + 1] for name, t in tensors_of(layer).items()}
    if isinstance(layer, tuple):
        return layer._replace(**own)
    part = copy.copy(layer)
    vars(part).update(own)
    return part
