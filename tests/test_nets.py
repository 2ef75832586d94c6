"""A net by slots against torch's own functional call, and what it refuses."""

import copy

import pytest
import torch
from torch import nn

from explore.errors import InputError
from explore.nets import Net, mlp
from explore.rng import Rng
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


def test_pullback_gives_every_examples_weight_gradient(case):
    module, net, weights, x = case
    jacobian = oracles.jacobians(module, weights, x, net.shapes)
    out, pullback = net.forward(weights, x)
    for dout in (torch.ones_like(out), out.cos()):  # a second pullback serves other targets
        taps = pullback(dout)
        gradients = oracles.flat(tuple(torch.einsum("rsbti,rsbto->rsbio", t.inputs, t.grads) for t in taps))
        close(gradients, torch.einsum("rsbo,rsbow->rsbw", dout, jacobian))


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


def test_dropout_is_off():
    net = Net(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)))
    weights, x = net.glorot(1, Rng(0), 1), torch.ones(1, 8, 3)
    assert torch.equal(net.output(weights, x), net.output(weights, x))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(self.layer(x))


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


SHARED = nn.Linear(3, 3)
TIED = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
TIED[1].weight = TIED[0].weight


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm3d(4)), r"'1' \(BatchNorm3d\) is not supported"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)), "track_running_stats=True"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None)), "a momentum in numbers"),
        (nn.Sequential(nn.Sequential(nn.LSTM(3, 4))), r"'0\.0' \(LSTM\) is not supported"),
        (nn.Sequential(SHARED, nn.ReLU(), SHARED), "'2' shares its weights"),
        (TIED, "'1' shares its weights"),
        (nn.ReLU(), "no Linear or Conv2d layer"),
        (nn.Conv2d(2, 2, 3, groups=2), "groups=1"),
        (nn.Conv2d(2, 2, 3, padding="same"), "padding given in numbers"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), "zero padding"),
    ],
)
def test_unsupported_modules(module, message):
    with pytest.raises(InputError, match=message):
        Net(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Twice(), "'layer' is used twice"),
        (Unused(), "'spare' was not used"),
        (Overwritten(), "the input of layer 'layer' is changed in place"),
    ],
)
def test_unsupported_forward_passes(module, message):
    net = Net(module)
    with pytest.raises(InputError, match=message):
        net.forward(net.glorot(1, Rng(0), 1), torch.ones(1, 2, 3))


def test_a_pass_that_failed_leaves_nothing_behind(case):
    _, net, weights, x = case
    before = net.output(weights, x)
    with pytest.raises(RuntimeError):
        net.forward(weights, x.float())
    assert torch.equal(net.output(weights, x), before)


def test_output_must_have_one_axis_an_example():
    net = Net(nn.Conv2d(1, 2, 2))
    with pytest.raises(InputError, match="gave 4 axes"):
        net.output(net.glorot(1, Rng(0), 1), torch.ones(1, 2, 1, 3, 3))


def test_wrong_calls():
    net = Net(mlp(3, [4], 1))
    with pytest.raises(ValueError, match="1 weight matrices for 2 layers"):
        net.output(net.glorot(1, Rng(0), 1)[:1], torch.ones(1, 2, 3))
    with pytest.raises(ValueError, match="number of samples"):
        net.output([lambda a: a, lambda a: a], torch.ones(1, 2, 3))
