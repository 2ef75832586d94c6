"""Networks that run a torch module of Linear, Conv2d and BatchNorm layers for R replicas and S weight samples at once.

`Net(module)` copies the module and replaces each of these layers by a `Slot`. The module runs once, on inputs whose
axes R, S and B are folded into one batch axis. A slot unfolds them, applies its R x S weight matrices, and folds back.
All samples of a replica have the same inputs, so the first layer applies one [I, S O] matrix to them.

A weight matrix is [I, O] with the bias as its last row (y = [a; 1] W); for a convolution, I = C_in * kh * kw + 1. The
argument `layers` has one such tensor [R, S, I, O] per layer, and then one tensor [R, S, 4, C] per batch-norm layer:
scale, shift, running mean and running variance. `forward` and `output` use the running statistics. `train_forward` and
`train_output` normalise each replica and sample by the statistics of the batch, and return these statistics. Since this
mixes examples, the taps of earlier layers are then gradients of the log-likelihood summed over the batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.errors import InputError, listed, raised
from explore.core.rng import Rng
from explore.core.shapes import LayerTaps, NormTaps, Taps
from explore.nets.modules import Buffers, check, without_chance
from explore.nets.protocols import Layers, Network, Pullback, count_samples
from explore.nets.slots.base import Lead, LinearSlot, Norm1dSlot, Norm2dSlot, NormSlot, WeightSlot
from explore.nets.slots.convolution import ConvSlot

SLOTS: dict[type[nn.Module], Any] = {
    nn.Linear: LinearSlot, nn.Conv2d: ConvSlot, nn.BatchNorm1d: Norm1dSlot, nn.BatchNorm2d: Norm2dSlot
}  # fmt: skip


class Net(Network):
    """A network that takes its weights as arguments in every call.

    Args:
        module: maps [B, ...] to [B, O], each example independently; it may consist of Linear, Conv2d, BatchNorm1d and
            BatchNorm2d layers and anything without parameters. `Net` copies it (in eval mode) and never changes it.
        amp: whether to use bfloat16 products (torch's autocast). Outputs, taps and curvature keep the inputs' dtype.
        trained: whether posteriors start from the module's weights and batch-norm tensors; else from random weights.
        outputs: O; None: the number of outputs of the last layer.
    """

    def __init__(self, module: nn.Module, amp: bool = False, trained: bool = False, outputs: int | None = None):
        check(module)
        self.amp, self.trained = amp, trained
        self._matrices: list[Tensor] = []  # weights of a trained module
        self._statistics: list[Tensor] = []
        root = self._module = nn.Sequential(copy.deepcopy(module)).eval()
        self._slots: list[WeightSlot] = []
        self._norms: list[NormSlot] = []
        self.text = repr(module)  # its architecture
        self._checked = False  # whether `check` has passed
        self._layout = torch.contiguous_format  # memory layout of images if R and S are 1
        self.sequence = tuple(_kinds(root))
        self._replace(root)
        self._buffers = Buffers(root)
        if not self._slots:
            raise InputError("the network has no Linear or Conv2d layer")
        first: nn.Module = root
        while type(first) is nn.Sequential and len(first):  # a subclass may also use its input elsewhere
            first = first[0]
        self._shared = first is self._slots[0]
        self.shapes = tuple((s.inputs, s.outputs) for s in self._slots)
        self.biases = tuple(s.has_bias for s in self._slots)
        self.convolutions = tuple(isinstance(s, ConvSlot) for s in self._slots)
        self.norms = tuple(slot.norm for slot in self._norms)
        self.weights = sum(i * o for i, o in self.shapes)
        self.outputs = self.shapes[-1][1] if outputs is None else outputs
        if not all(bool(t.isfinite().all()) for t in (*self._matrices, *self._statistics)):
            raise InputError("the module has NaN or infinite weights; leave trained=True out of Net")

    def _replace(self, root: nn.Sequential) -> None:
        for path, layer in list(root.named_modules()):
            if type(layer) not in SLOTS:
                continue
            slot: Any = SLOTS[type(layer)](layer, path.removeprefix("0").removeprefix("."))
            is_norm = isinstance(slot, NormSlot)
            (self._norms if is_norm else self._slots).append(slot)
            if self.trained:
                (self._statistics if is_norm else self._matrices).append(slot.values(layer))
            parent, _, name = path.rpartition(".")
            setattr(root.get_submodule(parent), name, slot)

    def __repr__(self) -> str:
        unused = "initialised by posteriors (the module's are not used)"
        begun = "from which posteriors start" if self.trained else unused
        return f"Net of {self.weights} weights, {begun}:\n{self.text}"

    @property
    def width(self) -> int:
        """Number of inputs plus outputs of the widest layer in the last pass, per example and sample."""
        return max(slot.width for slot in self._slots)

    def glorot(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]:
        """Draw Glorot-uniform weights and biases: one [R, (samples,) I, O] tensor per layer, the bias row last."""
        return tuple((2 * rng.uniform(replicas, *samples, i, o) - 1) * math.sqrt(6 / (i + o)) for i, o in self.shapes)

    def initial(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]:
        """Return the weights that posteriors start from: the module's weights if `trained`, else `glorot` weights."""
        if not self.trained:
            return self.glorot(replicas, rng, *samples)
        return tuple(w.to(rng.device, rng.dtype).repeat(replicas, *samples, 1, 1) for w in self._matrices)

    def initial_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]:
        """Return the batch-norm tensors that posteriors start from: the module's if `trained`, else `unit_norms`."""
        if not self.trained:
            return self.unit_norms(replicas, rng)
        return tuple(v.to(rng.device, rng.dtype).repeat(replicas, 1, 1, 1) for v in self._statistics)

    def unit_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]:
        """Return batch-norm tensors for a new network: scale 1, shift 0, running mean 0 and running variance 1."""
        start = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=rng.dtype, device=rng.device)
        return tuple(start[None, None, :, None].repeat(replicas, 1, 1, norm.channels) for norm in self.norms)

    def forward(
        self, layers: Layers, x: Tensor, samples: int | None = None, last: int = 0
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """Return the output [R, S, B, O] and its pullback, which returns gradients with respect to all pre-activations.

        `layers` contains one `Layer` per layer, then one tensor per batch-norm layer. `samples` is S, required if no
        layer specifies S. `pullback(dout [R, S, B, O])` returns one `Taps` per layer, with the gradient of sum(dout *
        out). The pullback may be called repeatedly. If `last` is not 0, it returns taps of so many last layers only.
        """
        return self._forward(layers, x, samples, train=False, last=last)

    def train_forward(
        self, layers: Layers, x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """Return the same as `forward`, but use batch statistics. The taps from the pullback also have `norms`."""
        return self._forward(layers, x, samples, train=True)

    def output(self, layers: Layers, x: Tensor, samples: int | None = None) -> Float[Tensor, "R S B O"]:
        """Return only the output, differentiable with respect to all tensors in `layers` that require gradients."""
        return self._run(layers, x, samples).out

    def train_output(
        self, layers: Layers, x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], tuple[Float[Tensor, "R S 2 _C"], ...]]:
        """Return the output in training mode, and the mean and unbiased variance of each batch-norm layer's inputs."""
        done = self._run(layers, x, samples, train=True)
        return done.out, done.statistics

    def _forward(
        self, layers: Layers, x: Tensor, samples: int | None, train: bool, last: int = 0
    ) -> tuple[Tensor, Pullback]:
        points: list[Tensor] = []  # batch-norm tensors, for which gradients are needed as for the taps
        with torch.enable_grad():
            if train:
                points = [v.detach().requires_grad_() for v in layers[len(self._slots) :] if isinstance(v, Tensor)]
                layers = [*layers[: len(self._slots)], *points]
            done = self._run(layers, x, samples, taps=True, train=train)
        slots, inner = self._slots[-last:], done.calls[-last:]
        wanted = [*(tap for _, tap in inner), *points]
        makers: list[Callable[[Tensor], Taps]] = []

        # With one output, all gradients of an example are multiples of the output's: one backward pass is enough.
        one: list[Tensor] = []
        single = done.out.shape[-1] == 1 and not self._norms  # batch-norm layers mix examples

        def gradients(dout: Tensor) -> Sequence[Tensor]:
            return torch.autograd.grad(done.out, wanted, dout, retain_graph=not single)

        def pullback(dout: Tensor) -> LayerTaps:
            if not makers:
                calls = zip(slots, inner, done.leads[-last:], strict=True)
                makers.extend(slot.taps_of(a.detach().to(dout), lead) for slot, (a, _), lead in calls)
            if single and not one:
                one.extend(gradients(torch.ones_like(done.out)))
            grads = one if single else gradients(dout)
            r, s, b = dout.shape[:3]
            of_layers = zip(slots, makers, (g.to(dout) for g in grads[: len(makers)]), strict=True)
            positions = [(make, slot.positions(g, (r, s, b))) for slot, make, g in of_layers]
            taps = LayerTaps(make(g * dout.unsqueeze(-1) if single else g) for make, g in positions)
            of_norms = zip(done.statistics, grads[len(makers) :], strict=True)
            taps.norms = tuple(NormTaps(statistics, g[:, :, :2]) for statistics, g in of_norms)
            return taps

        return done.out.detach(), pullback

    def _run(self, layers: Layers, x: Tensor, samples: int | None, taps: bool = False, train: bool = False) -> _Pass:
        if x.dim() < 2 or not x.shape[1]:
            raise InputError(f"inputs must have shape [replicas, examples, ...]; got {list(x.shape)}")
        if not self._checked and x.shape[1] > 1:
            self.check(x.detach())
        return self._pass(layers, x, samples, taps, train)

    def _pass(self, layers: Layers, x: Tensor, samples: int | None, taps: bool = False, train: bool = False) -> _Pass:
        count = len(self._slots)
        if len(layers) != count + len(self._norms):
            also = f" and {len(self._norms)} batch normalisations" if self._norms else ""
            raise InputError(f"expected {count} weight matrices{also}; got {len(layers)} tensors in all")
        replicas, batch = x.shape[:2]
        samples = count_samples(layers, samples)
        folded = self._folded(x, samples)
        self._buffers.move(x)
        lead = (replicas, samples, batch)
        leads = [lead] * count
        if self._shared:
            leads[0] = (replicas, 1, batch)
        try:
            for slot, layer, lead_in in zip(self._slots, layers[:count], leads, strict=True):
                slot.begin(layer, lead, lead_in, taps)
            for norm, values in zip(self._norms, layers[count:], strict=True):
                norm.begin(values, lead, train)
            with torch.autocast(x.device.type, torch.bfloat16) if self.amp else nullcontext():
                out = self._module(folded)
            calls = [slot.call() for slot in self._slots] if taps else []
            statistics = tuple(norm.call() for norm in self._norms) if train else ()
        except InputError:
            raise
        except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:  # from user code
            shape, reason = list(folded.shape), str(error) or type(error).__name__
            advice = "it must call its layers, not read their weights"
            raise InputError(f"forward() failed on an input of shape {shape} ({reason}); {advice}") from error
        finally:
            for each in (*self._slots, *self._norms):
                each.end()
        _check_output(out, math.prod(lead))
        out = (out.to(x.dtype) if self.amp else out).unflatten(0, lead)
        return _Pass(out, calls, leads, statistics)

    def _folded(self, x: Tensor, samples: int) -> Tensor:
        """Fold R, S and B into one batch axis; omit S if the first layer can apply all samples to the same inputs."""
        if self._shared:
            folded = x.flatten(0, 1)
        else:
            # repeat, not expand: with S = 1, that would return a view, and the module may modify it in place.
            folded = x.unsqueeze(1).repeat(1, samples, *[1] * (x.dim() - 1)).flatten(0, 2)
        if folded.dim() == 4:
            one = len(x) * samples == 1  # else slots would copy to another layout
            folded = folded.contiguous(memory_format=self._layout if one else torch.contiguous_format)
        return folded

    def check(self, x: Float[Tensor, "R B ..."]) -> None:
        """Raise InputError if forward() mixes examples, draws random numbers, skips layers or fails on one example."""
        rng = Rng(0, x.device, x.dtype if x.is_floating_point() else torch.get_default_dtype())
        norms = (norm.repeat(1, 2, 1, 1) for norm in self.unit_norms(1, rng))
        layers, x = (*self.glorot(1, rng, 2), *norms), x[:1, :: x.shape[1] - 1]  # the first and the last
        self._buffers.move(x)
        with torch.enable_grad(), without_chance(), self._buffers.unchanged():
            alone = self._pass(layers, x[:, 1:], None).out
            self._module.train()
            try:
                among = self._pass(layers, x, None, taps=True)
            finally:
                self._module.eval()
            if not among.out.requires_grad:
                raise InputError("the output does not depend on the weights: forward() uses detach() or no_grad()")
            # The output of the last example must depend on its own taps and on no other example's.
            taps = torch.autograd.grad(among.out[:, 1, 1].sum(), [tap for _, tap in among.calls], allow_unused=True)
        if unused := [slot.called for slot, tap in zip(self._slots, taps, strict=True) if tap is None]:
            raise InputError(f"the output does not depend on {listed(unused)}; remove unused layers from the network")
        # On a GPU half of the digits may differ, as the order of summation depends on the shape.
        tolerance = 30 * torch.finfo(alone.dtype).eps ** 0.5 * among.out.abs().max()
        differs = bool(((among.out[:, :, 1:] - alone).abs() > tolerance).any())
        if differs or any(tap is not None and bool(tap[:-1].any()) for tap in taps):
            raise InputError("the output for an example depends on the rest of its batch, or on train() or eval()")
        self._check_alone([layer[:, :1] for layer in layers], x)
        self._checked = True

    def _check_alone(self, layers: Layers, x: Tensor) -> None:
        """Raise InputError if forward() fails on a single example; then choose the memory layout for convolutions."""
        try:
            self._pass(layers, x[:, 1:], None)
        except Exception as error:
            raise InputError(f"the network fails on a batch of one ({raised(error)}); use flatten(1)") from error
        if any(self.convolutions):
            self._layout = torch.channels_last
            try:
                self._pass(layers, x, None)
            except RuntimeError:  # from view() in the module's forward()
                self._layout = torch.contiguous_format


def _check_output(out: object, count: int) -> None:
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != count:
        result = list(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise InputError(f"the network must map {count} examples to one tensor [{count}, outputs]; got {result}")


def _kinds(module: nn.Module) -> Iterator[type[nn.Module]]:
    if type(module) is not nn.Sequential:
        yield type(module)
        return
    for child in module:
        yield from _kinds(child)


class _Pass(NamedTuple):
    out: Float[Tensor, "R S B O"]
    calls: list[tuple[Tensor, Tensor]]  # the input and the tap of each layer
    leads: list[Lead]  # R, S or 1, and B of each layer's input
    statistics: tuple[Tensor, ...]  # mean and variance of each batch-norm layer's inputs


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """Build a plain ReLU network: inputs -> hidden... -> outputs."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for i, o in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
