"""What updates cost a device: the counts that are committed, and that nothing waits for the device."""

import pandas as pd
import pytest
import torch
from torch import nn

from experiments.benchmarks import cost
from explore import registry
from explore.testing.cost import Cost, measure

COMMITTED = pd.read_csv(cost.RESULTS / "cost.csv")
CASES = [(net, posterior) for net in cost.PROBLEMS for posterior in cost.POSTERIORS[net]]


def test_every_posterior_but_those_that_run_on_the_host_is_counted():
    assert {*registry.names("posteriors")} - {*cost.TABLE} == {"hmc"}


@pytest.mark.parametrize(
    ("net", "posterior"),
    [pytest.param(*case, marks=pytest.mark.slow if case[0] == "ResNet-18" else ()) for case in CASES],
)
def test_costs_are_those_that_are_committed(net, posterior):
    """Where this fails on purpose, `python -m experiments.benchmarks.cost` writes the new ones."""
    own = COMMITTED[(COMMITTED.net == net) & (COMMITTED.posterior == posterior)]
    expected = {row.what: Cost(row.operations, row.flops, row.uploads) for row in own.itertuples()}
    assert dict(cost.counts(net, posterior)) == expected


def test_counts_by_hand():
    a, b = torch.empty(2, 3, 4, device="meta"), torch.empty(2, 4, 5, device="meta")
    assert measure(lambda: torch.bmm(a, b).relu().view(-1)) == Cost(2, 2 * 2 * 3 * 4 * 5, 0)
    assert measure(lambda: torch.zeros(3).add(1)) == Cost(0, 0, 0)  # on the host
    assert measure(lambda: a * torch.ones(())) == Cost(1, 0, 0)
    assert measure(lambda: torch.ones(4).to("meta")) == Cost(1, 0, 1)
    square = torch.empty(2, 6, 6, device="meta")
    assert measure(lambda: torch.linalg.cholesky_ex(square)).flops == 2 * 6**3 // 3
    assert measure(lambda: torch.linalg.solve_triangular(square, square, upper=False)).flops == 2 * 6**3
    assert measure(lambda: torch.linalg.eigh(square)).flops == 9 * 2 * 6**3


def test_a_read_and_a_tensor_on_another_device_raise():
    x = torch.empty(3, device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        measure(lambda: bool(x.all()))
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        measure(lambda: x.cpu())
    with pytest.raises(RuntimeError, match="device"):
        measure(lambda: nn.functional.linear(torch.ones(2, 3), x))
