"""A net by slots against torch's own functional call, and what it refuses."""

import copy
import pickle
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explore import registry
from explore.core import linalg
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.nets.fates import ENTRIES, SLOTS
from explore.nets.net import Net, mlp
from explore.nets.slots.convolution import Patches
from explore.nets.slots.dense import LinearSlot
from explore.nets.zoo import lenet5, resnet18, vgg16
from tests import oracles


class Residual(nn.Module):
    """A block as image networks have it: activations in place, and a sum in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 2, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.second(self.relu(self.first(x)))
        y += x
        return self.relu(y)


class Positions(nn.Module):
    """A Linear applied at every step of a sequence."""

    def __init__(self):
        super().__init__()
        self.step, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.step(x).tanh().sum(1))


MODULES = {
    "mlp": (mlp(3, [5, 4], 2), (3,)),
    "one-layer": (nn.Linear(3, 2), (3,)),
    "one-output": (mlp(3, [5, 4], 1), (3,)),
    "one-output-conv": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 1)), (1, 4, 5)
    ),
    "no-bias": (nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)), (3,)),
    "positions": (Positions(), (6, 3)),
    "conv": (
        nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(inplace=True), Residual(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2),
        ),
        (1, 4, 5),
    ),
    "geometry": (
        nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False),
            nn.Tanh(),
            nn.Conv2d(3, 2, 2, stride=2),
            nn.Flatten(),
        ),
        (2, 6, 5),
    ),
    "passed over": (
        nn.Sequential(nn.Conv2d(2, 3, 1, 2), nn.Tanh(), nn.Conv2d(3, 2, 1, (1, 2), (0, 1), bias=False), nn.Flatten()),
        (2, 6, 5),
    ),
}  # fmt: skip
R, S, B = 2, 3, 4


@pytest.fixture(params=MODULES)
def case(request):
    """(module, net, weights, x), in float64."""
    module, shape = MODULES[request.param]
    rng, module = Rng(0, dtype=torch.float64), copy.deepcopy(module).double()
    net = Net(module)
    return module, net, net.glorot(R, rng, S), rng.normal(R, B, *shape)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_output_equals_functional_call(case):
    module, net, weights, x = case
    expected = oracles.run(module, weights, x)
    close(net.output(weights, x), expected)
    close(net.forward(weights, x)[0], expected)


@torch.no_grad()
@pytest.mark.parametrize("narrow", [2, 100], ids=["turned", "as it is"])
def test_one_replica_predicts_what_it_does_beside_others(case, narrow, monkeypatch):
    monkeypatch.setattr(linalg, "NARROW", narrow)
    _, net, weights, x = case
    close(net.output(tuple(w[:1] for w in weights), x[:1]), net.output(weights, x)[:1])


def test_one_set_of_matrices_does_what_it_does_beside_others(case):
    """Its images lie with channels last."""
    _, net, weights, x = case
    (every, of_all), (alone, of_one) = net.forward(weights, x), net.forward([w[:1, :1] for w in weights], x[:1])
    close(alone, every[:1, :1])
    for one, taps in zip(of_one(alone.cos()), of_all(every.cos()), strict=True):
        close((one.inputs, one.grads), (taps.inputs[:1, :1], taps.grads[:1, :1]))
        close((one.gradients(), one.gradient()), (taps.gradients()[:1, :1], taps.gradients()[:1, 0]))


class Viewing(nn.Sequential):
    def forward(self, x):
        x = super().forward(x)
        return x.view(len(x), -1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_forward_may_view_images_as_vectors(layout):
    module, x = nn.Sequential(nn.Conv2d(2, 3, 2), Viewing(nn.Tanh())), Rng(0).normal(B, 2, 4, 3)
    x = x.contiguous(memory_format=layout).unsqueeze(0)
    net, plain = Net(module), Net(nn.Sequential(module[0], nn.Tanh(), nn.Flatten()))
    weights = net.glorot(1, Rng(1), 1)
    assert torch.allclose(net.output(weights, x), plain.output(weights, x))
    assert net._layout == torch.contiguous_format and plain._layout == torch.channels_last


@torch.no_grad()
@pytest.mark.parametrize("widths", [[3, 5, 1], [3, 1], [3, 1, 2]], ids=str)
@pytest.mark.parametrize("narrow", [2, 100], ids=["turned", "as it is"])
def test_one_output_is_predicted_as_a_row_or_a_column(widths, narrow, monkeypatch):
    monkeypatch.setattr(linalg, "NARROW", narrow)
    rng, module = Rng(0, dtype=torch.float64), mlp(widths[0], widths[1:-1], widths[-1])
    net = Net(module)
    weights, x = net.glorot(1, rng, S), rng.normal(1, B, 3)
    close(net.output(weights, x), oracles.run(module.double(), weights, x))


def test_pullback_gives_every_examples_weight_gradient(case):
    module, net, weights, x = case
    jacobian = oracles.jacobians(module, weights, x, net.shapes)
    out, pullback = net.forward(weights, x)
    for dout in (torch.ones_like(out), out.cos()):  # a second pullback serves other targets
        taps = pullback(dout)
        gradients = oracles.flat(tuple(torch.einsum("rsbti,rsbto->rsbio", t.inputs, t.grads) for t in taps))
        close(gradients, torch.einsum("rsbo,rsbow->rsbw", dout, jacobian))


@pytest.mark.parametrize("bias", [True, False])
def test_patches_and_their_gradient_are_those_of_unfold(bias):
    slot, rng = (
        SLOTS[nn.Conv2d](nn.Conv2d(2, 3, (3, 2), (2, 1), (1, 2), (1, 2), bias=bias), "0"),
        Rng(0, dtype=torch.float64),
    )
    x = rng.normal(R * B, 2, 6, 5).requires_grad_()
    expected = F.unfold(x, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)).mT
    if bias:
        expected = torch.cat([expected, torch.ones_like(expected[..., :1])], 2)
    ours = Patches.apply(x, slot).permute(1, 2, 0)  # as other devices have them
    for found in (ours, slot.examples(x, (R, 1, B)).flatten(0, 2), slot.examples(x.detach(), (R, 1, B)).flatten(0, 2)):
        assert torch.equal(found, expected)
    close(*(torch.autograd.grad((p * expected.detach().cos()).sum(), x)[0] for p in (ours, expected)))


@pytest.mark.parametrize("bias", [True, False])
def test_patches_are_a_copy_even_of_single_pixels(bias):
    slot, x = SLOTS[nn.Conv2d](nn.Conv2d(2, 3, 1, bias=bias), "0"), Rng(0).normal(B, 2, 6, 5)
    before = x.clone()
    slot.examples(x, (1, 1, B)).zero_()
    assert torch.equal(x, before)


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("replicas", [1, R])  # of one replica a convolution's are not made by patches
def test_weight_gradients_are_sums_over_examples_and_positions(case, replicas, layout):
    _, net, weights, x = case
    x = x[:replicas] if layout == "contiguous" else x[:replicas].movedim(2, -1).contiguous().movedim(-1, 2)
    out, pullback = net.forward(tuple(w[:replicas] for w in weights), x)
    for taps in pullback(out.cos()):
        each = torch.einsum("rsbti,rsbto->rsio", taps.inputs, taps.grads)
        close(taps.gradients(), each)
        close(taps.gradient(), each.sum(1))


def test_the_gradient_of_a_kernel_of_one_pixel_stays_in_its_memory():
    """That of torch's convolution did not, with these shapes: it killed the process."""
    net, rng = Net(nn.Sequential(nn.Conv2d(3, 8, 1, 2), nn.Flatten(), nn.Linear(2048, 2))), Rng(0)
    x = rng.normal(1, 8, 3, 32, 32)
    for _ in range(50):
        weights = tuple(w.requires_grad_() for w in net.glorot(1, rng, 1))
        theirs = torch.autograd.grad(net.output(weights, x).sin().sum(), weights)
        out, pullback = net.forward(weights, x)
        for taps, other in zip(pullback(out.cos()), theirs, strict=True):
            torch.testing.assert_close(taps.gradient(), other.squeeze(1), rtol=1e-3, atol=1e-3)


def test_sequence_names_what_runs_in_order_and_looks_into_no_custom_module():
    nested = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2)))
    assert Net(nested).sequence == (nn.Linear, nn.Tanh, nn.Linear)
    assert Net(nn.Sequential(Residual(), nn.Flatten())).sequence == (Residual, nn.Flatten)
    assert Net(nn.Conv2d(1, 2, 2)).sequence == (nn.Conv2d,)


def test_output_is_differentiable_in_the_weights(case):
    module, net, weights, x = case
    weights = tuple(w.requires_grad_() for w in weights)
    ours = torch.autograd.grad(net.output(weights, x).cos().sum(), weights)
    theirs = torch.autograd.grad(oracles.run(module, weights, x).cos().sum(), weights)
    close(ours, theirs)


def test_callable_layers_equal_matrices(case):
    _, net, weights, x = case
    calls = [lambda a, w=w: a @ w.unsqueeze(2) for w in weights]
    close(net.output(calls, x, samples=S), net.output(weights, x))
    close(net.output([weights[0], *calls[1:]], x, samples=S), net.output(weights, x))
    (out, pullback), (same, same_pullback) = net.forward(calls, x, samples=S), net.forward(weights, x)
    close(*([(t.inputs, t.grads) for t in taps] for taps in (pullback(out.cos()), same_pullback(same.cos()))))


def test_the_module_is_copied_and_left_alone(case):
    module = case[0]
    before, training = copy.deepcopy(module.state_dict()), module.training
    net = Net(module)
    net.output(net.glorot(1, Rng(0, dtype=torch.float64), 1), case[3][:1])
    assert module.training == training and not any(m._forward_hooks for m in module.modules())
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_shapes_and_initial_range():
    net = Net(mlp(3, [5], 2))
    assert net.shapes == ((4, 5), (6, 2)) and net.weights == 32
    first, second = net.glorot(50, Rng(0), 20)
    assert first.shape == (50, 20, 4, 5) and second.shape == (50, 20, 6, 2)
    # Uniform on +- sqrt(6 / (I + O)), the bias row included.
    for w, bound in ((first, (6 / 9) ** 0.5), (second, (6 / 8) ** 0.5)):
        assert w.abs().max() <= bound and w[:, :, -1].abs().max() > 0.99 * bound
        assert float(w.var()) == pytest.approx(bound**2 / 3, rel=0.05)


def test_the_printed_net_says_where_posteriors_begin():
    text = repr(Net(mlp(3, [5], 2)))
    assert "the module's are not used" in text and "Linear(in_features=3, out_features=5" in text
    assert "from which posteriors start" in repr(Net(mlp(3, [5], 2), trained=True))


NORMED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch-norm": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)), (1, 4, 5)
    ),
    "not-affine": (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Tanh(), nn.Linear(4, 2)), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("module, shape", (MODULES | NORMED).values(), ids=MODULES | NORMED)
def test_a_trained_net_begins_as_the_module_stands(module, shape):
    torch.manual_seed(0)
    module = copy.deepcopy(module).double()
    rng = Rng(0, dtype=torch.float64)
    x = rng.normal(R, B, *shape)
    module.train()(3 * x.flatten(0, 1) + 1)  # statistics that are not those of a fresh module
    for p in module.parameters():
        nn.init.normal_(p)
    expected = module.eval()(x.flatten(0, 1)).unflatten(0, (R, B)).detach()
    net, text = Net(module, trained=True), repr(Net(module))
    with torch.no_grad():
        for t in (*module.parameters(), *module.buffers()):
            t.zero_()  # what becomes of the module afterwards changes nothing
    norms = (v.expand(-1, S, -1, -1) for v in net.initial_norms(R, rng))
    found = net.output((*net.initial(R, rng, S), *norms), x)
    close(found, expected.unsqueeze(1).expand_as(found))
    fitted = registry.posterior("map", net, "gaussian")
    state = fitted.init(10, R, rng)
    close(net.output(fitted.sample(state, 1, rng), x)[:, 0], expected)
    assert repr(Net(module)) == text


def test_a_module_that_has_broken_is_no_start():
    module = nn.Linear(3, 2)
    nn.init.constant_(module.weight, torch.nan)
    with pytest.raises(InputError, match="NaN or infinite weights; leave trained=True out"):
        Net(module, trained=True)
    Net(module)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.layer(x))


class TwoInputs(Twice):
    def forward(self, x, z):  # type: ignore[override]
        return self.layer(x) + z


class Unused(Twice):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)


class Overwritten(Twice):
    def forward(self, x):
        x = x.relu()
        x += self.layer(x)
        return x


class Late(Twice):
    """Changes a pre-activation in place, from some pass on."""

    late = ""

    def forward(self, x):
        h = self.layer(x)
        h = self.layer(h.add_(1.0) if self.late == "first" else h + 1.0)
        return h.add_(1.0) if self.late == "last" else h + 1.0


def test_only_modules_that_change_pre_activations_get_copies():
    x, rng = torch.ones(1, 4, 3), Rng(0)
    for change in (nn.ReLU(inplace=True), nn.ReLU()):
        net = Net(nn.Sequential(nn.Linear(3, 3), change, nn.Linear(3, 3)))
        net.forward(net.glorot(1, rng, 1), x)
        assert [slot.copies for slot in net._slots] == [change.inplace, False]
    net = Net(Late())
    weights = net.glorot(1, rng, 1)
    net.forward(weights, x)
    for late in ("first", "last"):
        vars(net._module[0])["late"] = late
        with pytest.raises(InputError, match="in place .*write x = x"):
            net.forward(weights, x)
    net.output(weights, x)  # no taps that could be wrong


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile itself
def test_a_compiled_module_is_refused():
    with pytest.raises(InputError, match="compiled modules; pass module._orig_mod"):
        Net(torch.compile(nn.Linear(3, 4)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)), "track_running_stats=True"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None)), "a numeric momentum"),
        (nn.ReLU(), "no layer that can have a distribution: Linear, Embedding, Conv1d"),
        (nn.Linear(3, 4).requires_grad_(False), "no layer that can have a distribution"),
        (nn.Sequential(nn.LSTM(3, 4)), "no layer that can have a distribution"),
        (nn.Sequential(nn.LazyLinear(3)), r"'0' \(LazyLinear\) is a lazy layer .*; run the module on one example"),
    ],
)
def test_unsupported_modules(module, message):
    with pytest.raises(InputError, match=message):
        Net(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Unused(), "'spare' was not used"),
        (Overwritten(), "the input of layer 'layer' is modified in place"),
    ],
)
def test_unsupported_forward_passes(module, message):
    net = Net(module)
    with pytest.raises(InputError, match=message):
        net.forward(net.glorot(1, Rng(0), 1), torch.ones(1, 2, 3))


class Reading(nn.Module):
    """A forward that does something with its layers besides calling them."""

    def __init__(self, read):
        super().__init__()
        self.conv, self.norm, self.fc, self.read = nn.Conv2d(1, 2, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 3), read

    def forward(self, x):
        self.read(self)
        return self.fc(self.norm(self.conv(x)).flatten(1))

    def output(self):
        net, rng = Net(self), Rng(0)
        return net.output((*net.glorot(1, rng, 1), *net.unit_norms(1, rng)), rng.normal(1, 2, 1, 3, 3))


SAMPLED = "but these are sampled outside it; call the layer, or leave it out by bayesian="


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda m: m.fc.weight + 1, r"forward\(\) failed .*; it must call its layers, not read their weights"),
        (lambda m: m.fc.weight.data, rf"^forward\(\) reads weights of layer 'fc', {SAMPLED}"),
        (lambda m: m.conv.bias.sum(), rf"^forward\(\) reads weights of layer 'conv', {SAMPLED}"),
        (lambda m: F.linear(torch.ones(3), m.fc.weight), rf"^forward\(\) reads weights of layer 'fc', {SAMPLED}"),
        (lambda m: m.norm.running_mean, r"^layer 'norm': forward\(\) reads its running_mean; call the layer"),
        (lambda m: sum(p.norm() for p in m.fc.parameters()), "weights of layer 'fc'"),
        (lambda m: m.fc.state_dict(), "weights of layer 'fc'"),
        (
            lambda m: next(iter([])),
            r"^forward\(\) failed on an input of shape \[2, 1, 3, 3\] \(StopIteration\); it must call",
        ),
        (lambda m: m.fc.scale, "has no attribute 'scale'"),
        (lambda m: m.fc(), r"missing 1 required positional argument: .*\); it must call its layers"),
    ],
)
def test_a_forward_that_does_more_than_to_call_its_layers_is_refused(read, message):
    with pytest.raises(InputError, match=message):
        Reading(read).output()


def test_a_forward_with_two_inputs_is_refused():
    net = Net(TwoInputs())
    with pytest.raises(InputError, match=r"missing 1 required .* 'z'\); it must call its layers"):
        net.output(net.glorot(1, Rng(0), 1), torch.ones(1, 2, 3))


def test_a_layer_has_its_class_and_geometry_in_a_forward():
    kept = {
        "conv": (
            "in_channels",
            "out_channels",
            "kernel_size",
            "stride",
            "padding",
            "dilation",
            "groups",
            "padding_mode",
        ),
        "norm": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
        "fc": ("in_features", "out_features"),
    }
    seen, kinds = [], (nn.Conv2d, nn.BatchNorm2d, nn.Linear)

    def geometry(module):
        return [getattr(module.get_submodule(layer), name) for layer, names in kept.items() for name in names]

    def read(module):
        assert [tuple(isinstance(m, kind) for kind in kinds) for m in module.children()] == [
            (True, False, False), (False, True, False), (False, False, True)
        ]  # fmt: skip
        assert not hasattr(module.fc, "in_channels") and "Linear" in repr(module)
        seen.append(geometry(module))

    module = Reading(read)
    assert module.output().shape == (1, 1, 2, 3)
    assert seen and all(found == geometry(module) for found in seen)
    assert LinearSlot(nn.Linear(3, 2, bias=False), "fc").bias is None


def test_a_net_can_be_copied_and_pickled(case):
    _, net, weights, x = case
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other.output(weights, x), net.output(weights, x))


@pytest.mark.parametrize("slot", [*SLOTS.values(), *ENTRIES.values()], ids=lambda slot: slot.__name__)
def test_a_pickle_finds_the_class_of_a_slot(slot):
    assert pickle.loads(pickle.dumps(slot)) is slot


class Forward(nn.Module):
    """A layer, and then any function of its output and of whether the module is training."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(3, 8), function

    def forward(self, x):
        return self.function(self.layer(x), self.training)


@pytest.mark.parametrize(
    "function",
    [
        lambda h, training: h - h.mean(0),
        lambda h, training: F.batch_norm(h, None, None, training=True),
        lambda h, training: F.batch_norm(h, torch.zeros(8), torch.ones(8), training=training),
        lambda h, training: (h @ h.T).softmax(1) @ h,  # attention over the batch
        lambda h, training: h.cumsum(0),
        lambda h, training: 2 * h if training else h,
        lambda h, training: h.sort(0).values,
    ],
)
def test_forwards_in_which_examples_meet_are_refused(function):
    net, rng = Net(Forward(function)), Rng(0)
    weights = net.glorot(R, rng, S)
    net.output(weights, rng.normal(R, 1, 3))  # one example meets no other
    for _ in range(2):
        with pytest.raises(InputError, match="depends on the rest of its batch"):
            net.output(weights, rng.normal(R, B, 3))


def attention(h, dropout):
    h = h.unflatten(1, (2, 4)).unsqueeze(1)
    return F.scaled_dot_product_attention(h, h, h, dropout_p=dropout).flatten(1)


@pytest.mark.parametrize(
    ("function", "source"),
    [
        (lambda h, training: F.dropout(h, 1e-9), "torch"),
        (lambda h, training: h if training else F.dropout(h, 1e-9), "torch"),
        (lambda h, training: h + 1e-12 * torch.randn_like(h), "torch"),
        (lambda h, training: attention(h, 1e-9), "torch"),
        (lambda h, training: h + 1e-12 * random.random(), "random"),
        (lambda h, training: h + 1e-12 * np.random.rand(), r"numpy\.random"),
    ],
)
def test_forwards_that_draw_random_numbers_are_refused_however_little_they_change(function, source, monkeypatch):
    monkeypatch.setattr(threading, "enumerate", lambda: [])  # other tests leave threads of Dask behind
    net, rng = Net(Forward(function)), Rng(0)
    with pytest.raises(InputError, match=f"draws random numbers from {source}, not only in training; remove them"):
        net.output(net.glorot(R, rng, S), rng.normal(R, B, 3))


def test_attention_and_dropout_that_drop_nothing_are_no_chance():
    net, rng = Net(Forward(lambda h, training: attention(F.dropout(h, 0.5, False), 0.0))), Rng(0)
    net.output(net.glorot(R, rng, S), rng.normal(R, B, 3))
    assert not net.random


def test_chance_in_training_is_found():
    net, rng = Net(Forward(lambda h, training: F.rrelu(h, training=training))), Rng(0)
    net.output(net.glorot(R, rng, S), rng.normal(R, B, 3))
    assert net.random


class Buffered(nn.Module):
    """Picks features by their numbers, scales them, and masks them, by buffers of three types."""

    def __init__(self, change=None):
        super().__init__()
        self.layer, self.change = nn.Linear(2, 3), change
        self.register_buffer("picked", torch.tensor([2, 0]))
        self.register_buffer("scale", torch.tensor([0.1, 3.0]))
        self.register_buffer("on", torch.tensor([True, False, True]))
        self.register_buffer("absent", None)

    def forward(self, x):
        if self.change:
            self.change(self)
        return self.layer(x[:, self.picked] * self.scale).where(self.on, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_of_any_type_stay_as_they_are(dtype):
    module, rng = Buffered(), Rng(0, dtype=dtype)
    net = copy.deepcopy(Net(module))
    (w,), x = net.glorot(R, rng, S), rng.normal(R, B, 4)
    for inputs, weights in ((x, w), (x.float(), w.float()), (x, w)):
        taken = inputs[..., [2, 0]] * module.get_buffer("scale").to(inputs)
        expected = (taken.unsqueeze(1) @ weights[:, :, :-1] + weights[:, :, -1:]) * module.get_buffer("on")
        torch.testing.assert_close(net.output((weights,), inputs), expected)
    assert (module.picked.dtype, module.scale.dtype, module.on.dtype) == (torch.int64, torch.float32, torch.bool)


@pytest.mark.parametrize(
    "change", [lambda m: m.scale.mul_(1), lambda m: setattr(m, "picked", m.picked.clone())], ids=["in place", "anew"]
)
def test_a_forward_that_changes_a_buffer_is_refused(change):
    net, rng = Net(Buffered(change)), Rng(0)
    with pytest.raises(InputError, match="changes the buffer '(scale|picked)'; buffers must stay fixed"):
        net.output(net.glorot(R, rng, S), rng.normal(R, B, 4))


def test_a_wrong_index_in_a_forward_is_one_sentence():
    net, rng = Net(Forward(lambda h, _: h[:, torch.zeros(8)])), Rng(0)
    with pytest.raises(InputError, match=r"failed on an input .*indices.*; it must call its layers"):
        net.output(net.glorot(R, rng, S), rng.normal(R, B, 3))


def test_examples_meet_before_the_first_layer():
    class Centred(nn.Sequential):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    net, rng = Net(Centred(nn.Linear(3, 2))), Rng(0)
    with pytest.raises(InputError, match="depends on the rest of its batch"):
        net.output(net.glorot(1, rng, 1), rng.normal(1, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("build", [lenet5, lambda: vgg16(batch_norm=True), resnet18])
def test_deep_nets_are_not_suspected(build, dtype):
    net, rng = Net(build()), Rng(0, dtype=dtype)
    net.output([*net.glorot(1, rng, 1), *net.unit_norms(1, rng)], 100 * rng.normal(1, 2, 3, 32, 32))


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (Forward(lambda h, _: (h, h)), (3,), "one tensor .*; got a tuple"),
        (Forward(lambda h, _: h.detach()), (3,), "does not depend on the weights"),
        (Forward(lambda h, _: h.sum(0, keepdim=True)), (3,), r"to one tensor \[2, outputs\]; got \[1, "),
        (nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 1)), (5, 3), r"to one tensor \[2, outputs\]; got \[10, 1\]"),
        (mlp(3, [4], 1), (2,), r"'0' expects 3 features; got an example of shape \[2\]"),
        (mlp(3, [4], 1), (), r"'0' expects 3 features; got an example of shape \[\]"),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 1)), (3,), r"'1' expects 5 features; .* \[4\]"),
        (nn.Conv2d(1, 2, 3), (2, 8, 8), r"expects images \[1, height, width\]"),
        (nn.Conv2d(1, 2, 3), (1, 2, 2), "no smaller than its kernel"),
        (nn.Conv2d(1, 2, 3), (3,), "expects images"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(3)), (3,), r"'1' expects 3 channels; .* \[4\]"),
    ],
)
def test_wrong_inputs_and_outputs(module, shape, message):
    net, rng = Net(module), Rng(0)
    with pytest.raises(InputError, match=message):
        net.output([*net.glorot(1, rng, 1), *net.unit_norms(1, rng)], rng.normal(1, 2, *shape))


def test_a_pass_that_failed_leaves_nothing_behind(case):
    _, net, weights, x = case
    before = net.output(weights, x)
    with pytest.raises(RuntimeError):
        net.forward(weights, x.float())
    assert torch.equal(net.output(weights, x), before)


def test_output_must_have_one_axis_an_example():
    net = Net(nn.Conv2d(1, 2, 2))
    with pytest.raises(InputError, match=r"got \[2, 2, 2, 2\]"):
        net.output(net.glorot(1, Rng(0), 1), torch.ones(1, 2, 1, 3, 3))


def test_wrong_calls():
    net = Net(mlp(3, [4], 1))
    with pytest.raises(ValueError, match="expected 2 weight matrices; got 1"):
        net.output(net.glorot(1, Rng(0), 1)[:1], torch.ones(1, 2, 3))
    with pytest.raises(ValueError, match="number of weight samples"):
        net.output([lambda a: a, lambda a: a], torch.ones(1, 2, 3))
    with pytest.raises(ValueError, match="layers have 1, 2 weight samples; expand all to the same number"):
        net.output([net.glorot(1, Rng(0), 1)[0], net.glorot(1, Rng(0), 2)[1]], torch.ones(1, 2, 3))


DENSE = nn.Sequential(nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))
IMAGES = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize(("module", "shape"), [(DENSE, (16,)), (IMAGES, (1, 4, 4))], ids=["dense", "images"])
def test_products_of_bfloat16_give_taps_of_single_precision(module, shape):
    """Near those of single precision, and neither equal nor of another type."""
    x, found = Rng(0).normal(1, 5, *shape), []
    for amp in (False, True):
        net = Net(module, amp)
        out, pullback = net.train_forward(net.glorot(1, Rng(1), 2), x)
        taps = pullback(torch.ones_like(out))
        found.append([out, *(part for t in taps for part in (t.inputs, t.grads))])
        assert all(t.dtype == torch.float32 for t in found[-1])
        assert net.output(net.glorot(1, Rng(1), 2), x).dtype == torch.float32
    for exact, near in zip(*found, strict=True):
        torch.testing.assert_close(near, exact, rtol=0.05, atol=0.05)
    assert not torch.equal(found[0][0], found[1][0])
