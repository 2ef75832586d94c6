"""Any torch module of Linear, Conv2d and BatchNorm layers, run for R replicas and S weight samples at once.

`Net(module)` keeps a private copy of the user's module with a `Slot` where each of these layers stood. The module
itself runs once, on inputs whose R, S and B are folded into one batch axis; a slot unfolds them, applies its R x S
weight matrices, and folds back. So activations, pooling, reshaping and residual sums are the user's own code,
and no vmap, functional_call or backward hook is involved.

All samples of a replica see the same inputs. Where the net starts with a layer, that layer is given them once, not S
times: its matrices become one [I, S O] matrix, and its taps have a sample axis of 1.

A weight matrix is [I, O] with the bias as its last row (y = [a; 1] W), for a convolution I = C_in * kh * kw + 1.

A batch normalisation has no weights with a distribution: its scale, shift, running mean and variance are a tensor
[R, S, 4, C] behind the matrices. `forward` and `output` evaluate with the running statistics; `train_forward` and
`train_output` normalise the examples of every replica and sample by their own batch, and tell its statistics. Then a
tap behind a normalisation is the gradient of the summed log-likelihood: an example's target pulls on all others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.errors import InputError
from explore.rng import Rng
from explore.shapes import LayerTaps, NormTaps, Taps
from explore.slots import ConvSlot, Lead, LinearSlot, NormSlot, WeightSlot
from explore.slots import Layer as Layer

Pullback = Callable[[Tensor], LayerTaps]


class Net:
    """A network without weights of its own: they come with every call.

    Args:
        module: a module that maps [B, ...] to [B, O], built of Linear, Conv2d, BatchNorm1d and BatchNorm2d layers
            and anything without parameters. It is copied (in eval mode) and never touched.

    Attributes:
        shapes: (I, O) of each layer, in the order of `module.modules()`.
        biases: whether each layer has a bias, the last row of its matrix.
        convolutions: whether each layer is a convolution.
        sequence: the kinds of module that run one after the other; what is no plain nn.Sequential counts as one.
        norms: the batch normalisations.

    Raises:
        InputError: for any other layer that holds parameters or buffers.
    """

    def __init__(self, module: nn.Module):
        root = nn.Sequential(copy.deepcopy(module)).eval()
        self._slots: list[WeightSlot] = []
        self._norms: list[NormSlot] = []
        self.sequence = tuple(_kinds(root))
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
        self.convolutions = tuple(isinstance(s, ConvSlot) for s in self._slots)
        self.norms = tuple(slot.norm for slot in self._norms)
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
            if isinstance(child, nn.Linear | nn.Conv2d):
                slot = LinearSlot(child, label) if isinstance(child, nn.Linear) else ConvSlot(child, label)
                self._slots.append(slot)
                setattr(parent, name, slot)
            elif isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                self._norms.append(NormSlot(child, label))
                setattr(parent, name, self._norms[-1])
            # Without parameters too, a batch normalisation would mix replicas and samples.
            elif held or isinstance(child, nn.BatchNorm3d | nn.SyncBatchNorm):
                raise InputError(
                    f"layer {label!r} ({type(child).__name__}) is not supported; "
                    "layers with parameters must be Linear, Conv2d, BatchNorm1d or BatchNorm2d"
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

    def unit_norms(self, replicas: int, rng: Rng) -> tuple[Float[Tensor, "R 1 4 _C"], ...]:
        """Batch normalisations before any data: scale 1, shift 0, running mean 0 and variance 1."""
        start = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=rng.dtype, device=rng.device)
        return tuple(start[None, None, :, None].repeat(replicas, 1, 1, norm.channels) for norm in self.norms)

    def forward(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """The output, and its pullback to every layer's pre-activation.

        Args:
            layers: one `Layer` a layer, then the batch normalisations.
            x: [R, B, ...] inputs.
            samples: S, needed only where no layer says it.

        Returns:
            (out [R, S, B, O], pullback). `pullback(dout [R, S, B, O])` gives one `Taps` a layer, with the
            gradient of sum(dout * out); it may be called again, with other targets.
        """
        return self._forward(layers, x, samples, train=False)

    def train_forward(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], Pullback]:
        """As `forward`, normalised by the batch; the pullback gives the `norms` of the taps too."""
        return self._forward(layers, x, samples, train=True)

    def output(self, layers: Sequence[Layer], x: Tensor, samples: int | None = None) -> Float[Tensor, "R S B O"]:
        """The output alone; differentiable in the layers where these require it."""
        return self._run(layers, x, samples)[0]

    def train_output(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None = None
    ) -> tuple[Float[Tensor, "R S B O"], tuple[Float[Tensor, "R S 2 _C"], ...]]:
        """The output normalised by the batch, and what each normalisation saw: mean and unbiased variance."""
        done = self._run(layers, x, samples, train=True)
        return done.out, done.statistics

    def _forward(self, layers: Sequence[Layer], x: Tensor, samples: int | None, train: bool) -> tuple[Tensor, Pullback]:
        points: list[Tensor] = []  # what is differentiated besides the taps
        with torch.enable_grad():
            if train:
                points = [v.detach().requires_grad_() for v in layers[len(self._slots) :] if isinstance(v, Tensor)]
                layers = [*layers[: len(self._slots)], *points]
            done = self._run(layers, x, samples, taps=True, train=train)
        wanted = [*(tap for _, tap in done.calls), *points]
        inputs: list[Tensor | Callable[[slice], Tensor]] = []

        def pullback(dout: Tensor) -> LayerTaps:
            grads = torch.autograd.grad(done.out, wanted, dout, retain_graph=True)
            if not inputs:
                calls = zip(self._slots, done.calls, done.leads, strict=True)
                inputs.extend(slot.inputs_of(a.detach(), lead) for slot, (a, _), lead in calls)
            r, s, b = dout.shape[:3]
            found = zip(self._slots, inputs, grads[: len(inputs)], strict=True)
            taps = LayerTaps(Taps(a, slot.positions(g, (r, s, b))) for slot, a, g in found)
            seen = zip(done.statistics, grads[len(inputs) :], strict=True)
            taps.norms = tuple(NormTaps(statistics, g[:, :, :2]) for statistics, g in seen)
            return taps

        return done.out.detach(), pullback

    def _run(
        self, layers: Sequence[Layer], x: Tensor, samples: int | None, taps: bool = False, train: bool = False
    ) -> _Pass:
        count = len(self._slots)
        if len(layers) != count + len(self._norms):
            also = f" and {len(self._norms)} batch normalisations" if self._norms else ""
            raise InputError(f"{len(layers)} weight matrices for {count} layers{also}")
        replicas, batch = x.shape[:2]
        samples = count_samples(layers, samples)
        if self._shared:
            folded = x.flatten(0, 1)
        else:
            # repeat, not expand: with S = 1 that would be a view, and the module may work in place.
            folded = x.unsqueeze(1).repeat(1, samples, *[1] * (x.dim() - 1)).flatten(0, 2)
        lead = (replicas, samples, batch)
        leads = [lead] * count
        if self._shared:
            leads[0] = (replicas, 1, batch)
        try:
            for slot, layer, lead_in in zip(self._slots, layers[:count], leads, strict=True):
                slot.begin(layer, lead, lead_in, taps)
            for norm, values in zip(self._norms, layers[count:], strict=True):
                norm.begin(values, lead, train)
            out = self._module(folded)
            calls = [slot.call() for slot in self._slots] if taps else []
            statistics = tuple(norm.call() for norm in self._norms) if train else ()
        finally:
            for each in (*self._slots, *self._norms):
                each.end()
        if out.dim() != 2:
            raise InputError(f"the network must map [B, ...] to [B, outputs]; it gave {out.dim()} axes")
        return _Pass(out.unflatten(0, lead), calls, leads, statistics)


def _kinds(module: nn.Module) -> Iterator[type[nn.Module]]:
    if type(module) is not nn.Sequential:
        yield type(module)
        return
    for child in module:
        yield from _kinds(child)


class _Pass(NamedTuple):
    """What a run of the module gave."""

    out: Float[Tensor, "R S B O"]
    calls: list[tuple[Tensor, Tensor]]  # the input and the tap of each layer
    leads: list[Lead]  # R, S or 1, and B of each layer's input
    statistics: tuple[Tensor, ...]  # what each normalisation saw


def count_samples(layers: Sequence[Layer], default: int | None = None) -> int:
    """S, as the layers say it: where none does, the default."""
    known = (w.shape[1] if isinstance(w, Tensor) else getattr(w, "samples", None) for w in layers)
    samples = next((s for s in known if s is not None), default)
    if samples is None:
        raise ValueError("the number of samples is needed where no layer says it")
    return samples


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """A plain ReLU network: inputs -> hidden... -> outputs."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for i, o in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
