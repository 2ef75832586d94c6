"""The fast form of plain dense networks against the general one."""

import pytest
import torch
from torch import nn

from explore.core.rng import Rng
from explore.nets.dense import output_of
from explore.nets.net import Net, mlp

RNG = Rng(0, dtype=torch.float64)
MODULES = {
    "relu": mlp(3, [5, 4], 2),
    "nested, others": nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Sequential(nn.Identity(), nn.Linear(4, 5)), nn.Sigmoid(),
        nn.Linear(5, 1),
    ),
    "one layer": nn.Linear(3, 2),
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_outputs_and_gradients_are_those_of_the_net(module):
    net = Net(module)
    fast, x = output_of(net), RNG.normal(2, 7, 3)
    weights = tuple(w.requires_grad_() for w in net.glorot(2, RNG, 4))
    out, expected = fast(weights, x), net.output(weights, x)
    assert fast != net.output
    torch.testing.assert_close(out, expected)
    along = RNG.normal(*out.shape)
    found, wanted = (torch.autograd.grad((o * along).sum(), weights) for o in (out, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.GELU()),
        nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(3, 2), nn.Tanh()),
    ],
)
def test_other_networks_keep_their_own_form(module):
    net = Net(module)
    assert output_of(net) == net.output


def test_inputs_with_positions_keep_their_own_form():
    net = Net(mlp(3, [4], 2))
    weights, x = net.glorot(1, RNG, 2), RNG.normal(1, 5, 6, 3)
    with pytest.raises(Exception, match="must map"):  # one output per position
        output_of(net)(weights, x)
