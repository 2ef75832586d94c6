"""A replica has failed wherever in its state a number is not finite."""

import pytest
import torch

from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.inference.updates.steps import settle
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp


@pytest.mark.parametrize("name", [n for n in registry.names("posteriors") if n != "hmc"])
def test_a_number_that_is_not_finite_fails_its_replica_alone(name):
    posterior = registry.build(registry.find("posteriors", name), Net(mlp(2, [4], 3)), Gaussian(), {})
    state = posterior.init(12, 3, Rng(0, dtype=torch.float64))
    paths = [path for path, leaf in tree.leaves(state) if leaf.dim() and leaf.is_floating_point()]
    assert paths
    for broken in paths:
        leaves = dict(tree.leaves(tree.map_tensors(torch.clone, state)))
        leaves[broken][(1, *[-1] * (leaves[broken].dim() - 1))] = torch.nan
        values = iter(leaves.values())
        settled = settle(tree.map_tensors(lambda _, values=values: next(values), state), state)
        assert settled.common.alive.tolist() == [True, False, True], broken
        assert all(leaf.isfinite().all() for _, leaf in tree.leaves(settled)), broken
