"""Networks that run any torch module for R replicas and S weight samples at once.

`Net(module)` copies the module and replaces each layer whose weights have a distribution by a `Slot`. The module runs
once, on inputs whose axes R, S and B are folded into one batch axis. A slot unfolds them, applies its R x S weight
matrices, and folds back. Inputs that no weights have changed yet are the same for all samples: where the module allows
it, they are computed once.

A weight matrix is [I, O] with the bias as its last row (y = [a; 1] W); for a convolution, I = C_in * places + 1. The
argument `layers` has one such tensor [R, S, I, O] per layer, then one tensor [R, S, 4, C] per batch-norm layer (scale,
shift, running mean and running variance), and then one tensor [R, S or 1, ...] per other parameter that is trained, a
point estimate. Parameters with requires_grad=False stay as they are.

`forward` and `output` use the running statistics. `train_forward` and `train_output` normalise each replica and sample
by the statistics of the batch, return these statistics, and run the module's own dropout. Since batch statistics mix
examples, the taps of earlier layers are then gradients of the log-likelihood summed over the batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.errors import InputError, listed
from explore.core.rng import Rng
from explore.core.shapes import LayerTaps, NormTaps
from explore.nets import fates
from explore.nets.passes import Pass, Passes, Root
from explore.nets.protocols import Layers, Network, Point, Pullback
from explore.nets.rewriting import restored, rewritten, shown_name
from explore.nets.slots.base import WeightSlot
from explore.nets.slots.convolution import ConvSlot
from explore.nets.slots.dense import Entries, OwnEntries
from explore.nets.slots.norms import STATISTICS
from explore.nets.taps import Calls


class Net(Passes, Network):
    """A network that takes its weights as arguments in every call.

    Args:
        module: maps [B, ...] to [B, O], each example independently. `Net` copies it and never changes it.
        amp: whether to use bfloat16 products (torch's autocast). Outputs, taps and curvature keep the inputs' dtype.
        trained: whether posteriors start from the module's weights and batch-norm tensors; else from random weights.
        outputs: O; None: the number of outputs of the last layer.
        bayesian: which layers get a distribution: "all" that can, the "last", names with wildcards, types, or a
            function of name and layer. Other parameters are trained as point estimates, unless they are frozen.
        output: the key, attribute or position of the output in what the module returns; None: all, or its `logits`.
    """

    def __init__(
        self, module: nn.Module, amp: bool = False, trained: bool = False, outputs: int | None = None,
        bayesian: fates.Bayesian = "all", output: str | int | None = None,
    ):  # fmt: skip
        fates.check(module)
        self.amp, self.trained, self.text, self._source = amp, trained, repr(module), module
        root = Root(copy.deepcopy(module)).eval()
        chosen = fates.fates(root, bayesian)
        first: nn.Module = root[0]
        while type(first) is nn.Sequential and len(first):  # a subclass may also use its input elsewhere
            first = first[0]
        early, kinds = any(first is group.layer for group in chosen.weights[:1]), tuple(_kinds(root[0]))
        layers = (chosen.weights, chosen.norms, chosen.affine)
        slots, norms, affine = (fates.replaced(root, groups) for groups in layers)
        entries = fates.replaced(root, chosen.entries, fates.ENTRIES)
        own = [OwnEntries(shown_name(key), t) for key, t in chosen.own.items()]
        slots = [*slots[:-1], *entries, *own, *slots[-1:]]  # the last one is that of the output
        self._origins = chosen.origins
        points = {slot.named(key): slot._parameters[key] for slot in affine for key in slot.keys}
        points |= {shown_name(key): t for key, t in chosen.points.items()}
        self.points = tuple(Point(name, tuple(t.shape)) for name, t in points.items())
        by_name = dict(zip(chosen.own, own, strict=True))
        super().__init__(root, slots, norms, affine, tuple(chosen.points), by_name, early, output)
        whole = all(isinstance(m, WeightSlot) for m in root.modules() if isinstance(m, nn.Linear))
        self.sequence = kinds if whole and not chosen.points and not own else (type(root[0]),)
        self.shapes = tuple((s.inputs, s.outputs) for s in slots)
        self.biases = tuple(s.has_bias for s in slots)
        self.entries, self.apart = tuple(isinstance(s, Entries) for s in slots), bool(own)
        self.convolutions = tuple(isinstance(s, ConvSlot) for s in slots)
        self.norms = tuple(slot.norm for slot in norms)
        self.weights = sum(i * o for i, o in self.shapes)
        if outputs is None and isinstance(slots[-1], Entries):
            raise InputError("no layer with weights has a distribution: pass the number of outputs, outputs=")
        self.outputs = self.shapes[-1][1] if outputs is None else outputs
        a, b = len(slots), len(slots) + len(norms)
        with torch.no_grad():
            # Of an untrained module, only what is no weight of a layer is used.
            self._start = [
                t.clone(memory_format=torch.contiguous_format)
                if trained or i >= b or (i < a and isinstance(slots[i], Entries)) else t.new_zeros(())
                for i, t in enumerate(self.values(self._source))
            ]  # fmt: skip
        if not all(bool(t.isfinite().all()) for t in self._start):
            raise InputError("the module has NaN or infinite weights; leave trained=True out of Net")

    def __repr__(self) -> str:
        unused = "initialised by posteriors (the module's are not used)"
        begun = "from which posteriors start" if self.trained else unused
        estimated = sum(math.prod(point.shape) for point in self.points)
        counts = ((estimated, "trained as point estimates"), (self.frozen, "frozen"))
        more = " and ".join(f"{n} {what}" for n, what in counts if n)
        return f"Net of {self.weights} weights, {begun}{f'; besides, {more}' if more else ''}:\n{self.text}"

    @property
    def width(self) -> int:
        """Number of inputs plus outputs of the widest layer in the last pass, per example and sample."""
        return max(slot.width for slot in self._slots)

    def packed(self, batch: Any) -> Tensor:
        """Return a batch of inputs as one tensor [B, ...]; a dict or tuple, for several inputs, as rows of numbers."""
        return self.inputs.packed(batch)

    def module(self, layers: Layers, sample: int = 0, into: nn.Module | None = None) -> nn.Module:
        """Return a copy of the module, or `into`, with the weights of the first replica and one sample in `layers`."""
        module, values = into or copy.deepcopy(self._source), self.tensors(layers, sample)
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if missing := [name for name in values if name not in own]:
            advice = "pass the module of the network, or a copy of it"
            raise InputError(f"the module has no parameter {missing[0]!r}; {advice}")
        with torch.no_grad():
            for name, value in values.items():
                own[name].copy_(value)
        return module

    def tensors(self, layers: Layers, sample: int = 0) -> dict[str, Tensor]:
        """Return `layers`, or only those with a distribution, as tensors of the module; the inverse of `values`."""
        places: tuple[Any, ...] = (*self._slots, *self._norms, *self.points)
        values: dict[str, Tensor] = {}
        for place, layer in zip(places, layers, strict=False):
            if not isinstance(layer, Tensor):
                raise InputError(f"the weights of {place.called} are not a matrix, so that no module can hold them")
            one = layer[0, min(sample, layer.shape[1] - 1)]
            if isinstance(place, Point):
                values[place.name] = one
            else:
                values |= {place.named(key): t for key, t in place.tensors(one).items()}
        return restored(values, self._origins)

    def values(self, tensors: nn.Module | Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Return what `layers` have for one sample, as functions of the parameters and buffers of a like module."""
        if isinstance(tensors, nn.Module):
            parameters = tensors.named_parameters(remove_duplicate=False)
            tensors = {**dict(parameters), **dict(tensors.named_buffers())}
        named = rewritten(tensors, self._origins)
        values = []
        for slot in (*self._slots, *self._norms):
            names = {key: slot.named(key) for key in getattr(slot, "sizes", STATISTICS)}
            values.append(slot.values({key: named[name] for key, name in names.items() if name in named}))
        return (*values, *(named[point.name] for point in self.points))

    def glorot(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]:
        """Draw Glorot-uniform weights and biases: one [R, (samples,) I, O] tensor per layer, the bias row last.

        Parameters that are no weights of a layer start from their values in the module.
        """
        drawn: list[Tensor] = []
        for i, slot in enumerate(self._slots):
            if isinstance(slot, Entries):
                drawn += _repeated([self._start[i]], rng, replicas, *samples)
            else:
                bound = math.sqrt(6 / (slot.fan_in + slot.outputs))
                drawn.append((2 * rng.uniform(replicas, *samples, slot.inputs, slot.outputs) - 1) * bound)
        return tuple(drawn)

    def initial(self, replicas: int, rng: Rng, *samples: int) -> tuple[Tensor, ...]:
        """Return the weights that posteriors start from: the module's weights if `trained`, else `glorot` weights."""
        if not self.trained:
            return self.glorot(replicas, rng, *samples)
        return _repeated(self._start[: len(self._slots)], rng, replicas, *samples)

    def initial_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]:
        """Return the batch-norm tensors that posteriors start from: the module's if `trained`, else `unit_norms`."""
        if not self.trained:
            return self.unit_norms(replicas, rng)
        return _repeated(self._start[len(self._slots) :][: len(self.norms)], rng, replicas, 1)

    def unit_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]:
        """Return batch-norm tensors for a new network: scale 1, shift 0, running mean 0 and running variance 1."""
        start = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=rng.dtype, device=rng.device)
        return tuple(start[None, None, :, None].repeat(replicas, 1, 1, norm.channels) for norm in self.norms)

    def initial_points(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 ..."], ...]:
        """Return the values in the module of the parameters that are trained as point estimates."""
        return _repeated(self._start[len(self._slots) + len(self.norms) :], rng, replicas, 1)

    def forward(
        self, layers: Layers, x: Tensor, samples: int | None = None, last: int = 0
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """Return the output [R, S, B, O] and its pullback, which returns gradients with respect to all pre-activations.

        `layers` contains one `Layer` per layer, then one tensor per batch-norm layer and per point estimate. `samples`
        is S, required if no layer specifies S. `pullback(dout [R, S, B, O])` returns one `Taps` per layer, with the
        gradient of sum(dout * out). The pullback may be called repeatedly. If `last` is not 0, it returns taps of so
        many last layers only.
        """
        return self._forward(layers, x, samples, last=last)

    def train_forward(
        self, layers: Layers, x: Tensor, samples: int | None = None, seed: int = 0
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """Return the same as `forward`, but in training mode. Taps of the pullback also have `norms` and `points`.

        `seed` determines the module's own random numbers, such as those of dropout.
        """
        return self._forward(layers, x, samples, train=True, seed=seed)

    def traced(self, layers: Layers, x: Tensor, seed: int = 0) -> tuple[Pass, Calls]:
        """Run one sample of one replica as `train_forward` does, differentiable with respect to all `layers`.

        Also return the calls of the layers with a distribution.
        """
        if self.apart:
            names = listed([slot.called for slot in self._entries.values()])
            raise InputError(f"optimisers support no distribution over {names}; leave it out by bayesian=")
        done = self._run(layers, x, None, taps=True, train=True, seed=seed)
        return done, Calls(self._slots, done.calls)

    def output(self, layers: Layers, x: Tensor, samples: int | None = None) -> Float[Tensor, "R S B O"]:
        """Return only the output, differentiable with respect to all tensors in `layers` that require gradients."""
        return self._run(layers, x, samples).out

    def train_output(
        self, layers: Layers, x: Tensor, samples: int | None = None, seed: int = 0
    ) -> tuple[Float[Tensor, "R S B O"], tuple[Float[Tensor, "R _S 2 _C"], ...]]:
        """Return the output in training mode, and the mean and unbiased variance of each batch-norm layer's inputs."""
        done = self._run(layers, x, samples, train=True, seed=seed)
        return done.out, done.statistics

    def _forward(
        self, layers: Layers, x: Tensor, samples: int | None, train: bool = False, last: int = 0, seed: int = 0
    ) -> tuple[Tensor, Pullback]:
        points: list[Tensor] = []  # tensors without a distribution, for which gradients are needed as for the taps
        with torch.enable_grad():
            if train:
                points = [v.detach().requires_grad_() for v in layers[len(self._slots) :] if isinstance(v, Tensor)]
                layers = [*layers[: len(self._slots)], *points]
            done = self._run(layers, x, samples, taps=True, train=train, seed=seed, last=last)
        calls = Calls(self._slots[-last:], done.calls[-last:])
        wanted = [*calls.taps, *points]

        # With one output, all gradients of an example are multiples of the output's: one backward pass is enough.
        one: list[Tensor] = []
        single = done.out.shape[-1] == 1 and not points and not self._norms  # batch norm mixes examples

        def gradients(dout: Tensor) -> Sequence[Tensor]:
            keep = not single
            return torch.autograd.grad(done.out, wanted, dout, keep, allow_unused=True, materialize_grads=True)

        def pullback(dout: Tensor) -> LayerTaps:
            if single and not one:
                one.extend(gradients(torch.ones_like(done.out)))
            grads = iter(one if single else gradients(dout))
            taps = calls.pulled(grads, dout, dout.unsqueeze(-1) if single else None)
            left = list(grads)
            of_norms = zip(done.statistics, left, strict=False)
            taps.norms = tuple(NormTaps(statistics, g[:, :, :2]) for statistics, g in of_norms)
            taps.points = tuple(left[len(done.statistics) :])
            return taps

        return done.out.detach(), pullback


def _repeated(values: Sequence[Tensor], rng: Rng, *lead: int) -> tuple[Tensor, ...]:
    return tuple(v.to(rng.device, rng.dtype).repeat(*lead, *[1] * v.dim()) for v in values)


def _kinds(module: nn.Module) -> Iterator[type[nn.Module]]:
    if type(module) is not nn.Sequential:
        yield type(module)
        return
    for child in module:
        yield from _kinds(child)


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """Build a plain ReLU network: inputs -> hidden... -> outputs."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for i, o in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
