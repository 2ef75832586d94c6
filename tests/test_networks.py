"""The image networks, and batch normalisation in `Net`, against torch's own modules."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.nets import zoo
from explore.nets.net import Net

# Weights and biases by hand. ResNet-18: He et al. with 1000 classes, and the CIFAR version's well-known count; LeNet-5
# on one channel of 28 x 28 is the classic 61706; AlexNet without its large dense layers has 2.47 million.
COUNTS: list[tuple[Any, dict[str, Any], int]] = [
    (zoo.lenet5, dict(in_channels=1, size=28), 61_706),
    (zoo.lenet5, {}, 62_006),
    (zoo.alexnet, {}, 2_472_266),
    (zoo.alexnet_dense, {}, 23_272_266),  # of which WHVI's paper leaves a tenth
    (zoo.vgg16, {}, 3_682_730),
    (zoo.vgg16, dict(batch_norm=True), 3_682_730 + 2 * (2 * 32 + 2 * 64 + 3 * 128 + 6 * 256)),
    (zoo.resnet18, {}, 11_173_962),
    (zoo.resnet18, dict(stem="imagenet", classes=1000), 11_689_512),
]


@pytest.mark.parametrize(("build", "arguments", "count"), COUNTS)
def test_parameters_and_shapes(build, arguments, count):
    module = build(**arguments)
    assert sum(p.numel() for p in module.parameters()) == count
    size, channels = arguments.get("size", 32), arguments.get("in_channels", 3)
    out = module.eval()(torch.zeros(2, channels, size, size))
    assert out.shape == (2, arguments.get("classes", 10))
    net = Net(module)
    scales_and_shifts = sum(2 * norm.channels for norm in net.norms)
    assert net.weights + scales_and_shifts == count


def test_larger_images():
    for build, size in ((zoo.alexnet, 64), (zoo.alexnet_dense, 64), (zoo.vgg16, 64), (zoo.resnet18, 40)):
        arguments: dict[str, Any] = {} if build is zoo.resnet18 else {"size": size}
        assert build(classes=3, **arguments).eval()(torch.zeros(1, 3, size, size)).shape == (1, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: zoo.lenet5(size=30), "28 or 32"),
        (lambda: zoo.alexnet(size=28), "at least 29"),
        (lambda: zoo.alexnet_dense(size=14), "at least 15"),
        (lambda: zoo.vgg16(size=31), "at least 32"),
        (lambda: zoo.resnet18(stem="small"), "cifar, imagenet"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(InputError, match=message):
        build()


class Unordered(nn.Module):
    """Norms first, over positions and behind a dense layer; without scale and shift; defined in another order."""

    def __init__(self):
        super().__init__()
        self.late = nn.BatchNorm1d(3, momentum=0.3, eps=1e-2)
        self.first, self.plain = nn.BatchNorm1d(2), nn.BatchNorm1d(4, affine=False)
        self.conv, self.dense, self.head = nn.Linear(2, 4), nn.Linear(20, 3), nn.Linear(3, 2)

    def forward(self, x):  # [B, 2, 5]
        h = self.conv(self.first(x).mT).mT
        return self.head(self.late(self.dense(self.plain(h).relu().flatten(1))).tanh())


NETS = {
    "norm-first": (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), (3,)),
    "dense": (
        nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2)),
        (3,),
    ),
    "unordered": (Unordered(), (2, 5)),
    "resnet": (zoo.resnet18(2, 3, width=2), (2, 8, 8)),
    "imagenet-stem": (zoo.resnet18(1, 2, stem="imagenet", width=2), (1, 16, 16)),
    "vgg": (zoo.vgg16(1, 2, batch_norm=True, widths=(2, 2, 2, 2, 2)), (1, 32, 32)),
}
R, S, B = 2, 3, 6


class Case:
    """Modules with random parameters, one for each replica and sample, and the same values as layers of a `Net`."""

    def __init__(self, name):
        module, shape = NETS[name]
        rng = Rng(3, dtype=torch.float64)
        self.modules = [[copy.deepcopy(module).double() for _ in range(S)] for _ in range(R)]
        self.net, self.x = Net(module), rng.normal(R, B, *shape)
        for replica in self.modules:
            for m in replica:
                for p in m.parameters():
                    p.data = rng.normal(*p.shape) / max(2, p[0].numel()) ** 0.5 + (0.7 if p.dim() == 1 else 0.0)
                for n in self.norms(m):
                    n.running_mean.copy_(0.3 * rng.normal(n.num_features))
                    n.running_var.copy_(rng.uniform(n.num_features) + 0.5)
        self.layers = (*self.stacked(self.matrices), *self.stacked(self.values))

    def stacked(self, read):
        """[R, S, ...] of what `read` gives for one module."""
        found = [[read(m) for m in replica] for replica in self.modules]
        return tuple(
            torch.stack([torch.stack(row) for row in zip(*rows, strict=True)]) for rows in self._by_item(found)
        )

    def _by_item(self, found):
        return [[[found[r][s][i] for r in range(R)] for s in range(S)] for i in range(len(found[0][0]))]

    @staticmethod
    def norms(module):
        return [n for n in module.modules() if isinstance(n, nn.BatchNorm1d | nn.BatchNorm2d)]

    @staticmethod
    def matrices(module, read=lambda p: p.detach()):
        found = []
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                w = read(layer.weight).flatten(1).T
                found.append(w if layer.bias is None else torch.cat([w, read(layer.bias)[None]]))
        return found

    def values(self, module):
        found = []
        for n in self.norms(module):
            one = torch.ones(n.num_features, dtype=torch.float64)
            points = (n.weight.detach(), n.bias.detach()) if n.affine else (one, 0 * one)
            found.append(torch.stack([*points, n.running_mean, n.running_var]))
        return found

    def each(self, function):
        """[R, S, ...] of a function of a module and its replica's inputs."""
        rows = zip(self.modules, self.x, strict=True)
        return torch.stack([torch.stack([function(m, x) for m in replica]) for replica, x in rows])


@pytest.fixture(params=NETS)
def case(request):
    return Case(request.param)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def gradients(taps):
    return tuple(torch.einsum("rsbti,rsbto->rsio", t.inputs.expand(-1, S, -1, -1, -1), t.grads) for t in taps)


def test_evaluation_equals_torch(case):
    expected = case.each(lambda m, x: m.eval()(x))
    close(case.net.output(case.layers, case.x), expected.detach())
    out, pullback = case.net.forward(case.layers, case.x)
    close(out, expected.detach())
    expected.cos().sum().backward()
    taps = pullback(-out.sin())
    close(gradients(taps), case.stacked(lambda m: case.matrices(m, lambda p: p.grad)))
    assert taps.norms == ()


def test_training_equals_torch(case):
    before = case.stacked(case.values)
    expected = case.each(lambda m, x: m.train()(x))
    expected.cos().sum().backward()

    out, pullback = case.net.train_forward(case.layers, case.x)
    close(out, expected.detach())
    close(
        case.net.output(case.layers, case.x), case.net.forward(case.layers, case.x)[0]
    )  # a pass leaves nothing behind
    taps = pullback(-out.sin())
    close(gradients(taps), case.stacked(lambda m: case.matrices(m, lambda p: p.grad)))

    plain, statistics = case.net.train_output(case.layers, case.x)
    close(plain, out)
    close(statistics, tuple(t.statistics for t in taps.norms))
    after, described = case.stacked(case.values), case.norms(case.modules[0][0])
    for i, (norm, t) in enumerate(zip(described, taps.norms, strict=True)):
        close(torch.lerp(before[i][:, :, 2:], t.statistics, norm.momentum), after[i][:, :, 2:])
        if norm.affine:
            grads = [
                [(lambda n: torch.stack([n.weight.grad, n.bias.grad]))(case.norms(m)[i]) for m in row]
                for row in case.modules
            ]
            close(t.grads, torch.stack([torch.stack(row) for row in grads]))


def test_a_tap_behind_a_norm_is_the_gradient_of_the_whole_batch():
    case = Case("dense")
    out, pullback = case.net.train_forward(case.layers, case.x)
    only = torch.zeros_like(out)
    only[:, :, 0] = 1  # the first example's output depends on all examples' first layer
    first, last = pullback(only)
    assert (first.grads[:, :, 1:].abs().amax((2, 3, 4)) > 1e-6).all()
    assert last.grads[:, :, 1:].abs().max() == 0


def test_output_in_training_mode_is_differentiable_in_the_norms():
    case = Case("resnet")
    layers = tuple(v.clone().requires_grad_() for v in case.layers)
    out, _ = case.net.train_output(layers, case.x)
    found = torch.autograd.grad(out.cos().sum(), layers)
    same, pullback = case.net.train_forward(case.layers, case.x)
    taps = pullback(-same.sin())
    close(found[: len(taps)], gradients(taps))
    close(tuple(g[:, :, :2] for g in found[len(taps) :]), tuple(t.grads for t in taps.norms))


def test_norms_start_as_the_identity():
    net = Net(zoo.resnet18(1, 2, width=2))
    values = net.unit_norms(4, Rng(0))
    assert [v.shape for v in values] == [(4, 1, 4, norm.channels) for norm in net.norms]
    assert all(torch.equal(v[1, 0, :, -1], torch.tensor([1.0, 0.0, 0.0, 1.0])) for v in values)


def test_wrong_calls():
    net, rng = Net(NETS["dense"][0]), Rng(0)
    with pytest.raises(
        InputError, match="expected 2 weight matrices, 1 batch normalisations and 0 point estimates; got 2"
    ):
        net.output(net.glorot(1, rng, 1), torch.ones(1, 2, 3))
    layers = (*net.glorot(1, rng, 1), *net.unit_norms(1, rng))
    with pytest.raises(InputError, match="'1': cannot normalise a single value per channel"):
        net.train_forward(layers, torch.ones(1, 1, 3))


def test_patches_of_one_layer_at_a_time_and_of_the_examples_asked_for():
    net, rng = Net(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 1, 2), nn.Flatten())), Rng(1)
    x = rng.normal(R, B, 2, 4, 4)
    out, pullback = net.forward(net.glorot(R, rng, S), x)
    taps = pullback(torch.ones_like(out))
    net.forward(net.glorot(1, rng, 1), x[:1, :2])  # taps belong to their own pass
    for t in taps:
        part = t.part(slice(1, 3))
        assert t.shape == (t.inputs.shape[4], t.grads.shape[4])
        assert torch.equal(part.inputs, t.inputs[:, :, 1:3]) and torch.equal(part.grads, t.grads[:, :, 1:3])
        assert t.inputs is not t.inputs  # nothing is kept


def named(in_channels, n_classes):
    return nn.Linear(in_channels, n_classes)


def with_default(classes, n_classes=4, *args, **kwargs):
    return nn.Linear(n_classes, classes)


def broken(classes):
    return nn.Linear(classes)  # type: ignore[call-arg]


def two_missing(width, depth, size):
    return nn.Linear(width, depth)


def unresolved(classes: "Missing", width: int = 3):  # type: ignore[name-defined]  # noqa: F821
    return nn.Linear(width, classes)


def several(classes, sizes=(4, 4), mixed=(1, "a"), nothing=None, **others):
    return nn.Linear(sizes[0], classes)


def test_images_that_are_not_square():
    """Networks that are called with one size do not take them."""
    module = zoo.build("resnet18", (1, 9, 12), 3, {"width": 2}).eval()
    assert module(torch.zeros(2, 1, 9, 12)).shape == (2, 3)
    with pytest.raises(InputError, match="9 x 12 pixels, but mlp needs square ones; use --net resnet18"):
        zoo.build("mlp", (1, 9, 12), 3, {})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (named, "named is called with in_channels, classes and size; give n_classes a default$"),
        (two_missing, "give width, depth a default$"),
        (broken, r"broken cannot be called with classes=10: .*missing 1 required positional argument: 'out_features'"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(function, message):
    with pytest.raises(InputError, match=message):
        zoo.build(f"{__name__}:{function.__name__}", (1, 8, 8), 10, {})


def test_arguments_of_a_function_of_ones_own():
    def made(name, **settings):
        return zoo.build(f"{__name__}:{name}", (1, 8, 8), 10, settings)

    assert made("with_default").in_features == 4
    assert made("named", n_classes=5).out_features == 5
    assert made("unresolved").out_features == 10
    known: dict[Any, dict[str, Any]] = {
        with_default: {"n_classes": int}, unresolved: {"width": int}, several: {"sizes": tuple[int, ...]},
    }  # fmt: skip
    for function, types in known.items():
        assert zoo.settings_of(function) == types  # of its default's type
    assert zoo.arguments(several) == {"sizes": (4, 4), "mixed": (1, "a"), "nothing": None}
    assert zoo.settings_of(zoo.vgg16)["batch_norm"] is bool
    with pytest.raises(InputError, match="cannot be called with classes=10, depth=2: .*unexpected keyword"):
        made("broken", depth=2)
    with pytest.raises(InputError, match="zip cannot be called; it must be a function of in_channels, classes, size"):
        zoo.build("builtins:zip", (1, 8, 8), 10, {})
