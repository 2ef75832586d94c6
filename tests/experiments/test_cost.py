"""What updates cost a device: the counts that are committed, and that nothing waits for the device."""

import pandas as pd
import pytest
import torch
from torch import nn

from experiments.benchmarks import cost
from experiments.benchmarks.counting import Cost, measure
from explore import registry

COMMITTED = pd.read_csv(cost.RESULTS / "cost.csv")
CASES = [(net, posterior) for net in cost.PROBLEMS for posterior in cost.POSTERIORS[net]]
LARGE = ("ResNet-18", "ViT-tiny")


def test_every_posterior_but_those_that_run_on_the_host_or_need_all_examples_is_counted():
    missing = {*registry.names("posteriors")} - {*cost.TABLE} - {"hmc", "gp"}
    assert not missing, f"give {missing} a row in TABLE of experiments/benchmarks/cost.py, and run it"


@pytest.mark.parametrize(
    ("net", "posterior"),
    [pytest.param(*case, marks=pytest.mark.slow if case[0] in LARGE else ()) for case in CASES],
)
def test_costs_are_those_that_are_committed(net, posterior):
    """Where this fails on purpose, `python -m experiments.benchmarks.cost` writes the new ones."""
    own = COMMITTED[(COMMITTED.net == net) & (COMMITTED.posterior == posterior)]
    expected = {row.what: Cost(row.operations, row.flops, row.uploads, row.bytes) for row in own.itertuples()}
    assert dict(cost.counts(net, posterior)) == expected


ONCE = COMMITTED[COMMITTED.what == "update"].set_index(["net", "posterior"])
SGD = ONCE.flops.xs("map", level="posterior")  # forward and backward


@pytest.mark.parametrize(
    ("net", "posterior", "operations", "ratio"),
    [
        ("13-50-1", "noisy-kfac", 150, None),
        ("ResNet-18", "noisy-kfac", None, 1.9),
        ("ResNet-18", "noisy-ekfac", None, 1.9),
        ("ResNet-18", "vogn", None, 1.35),
        ("ResNet-18", "bbb", None, 2.2),
        ("ResNet-18", "whvi", 3000, None),
        ("ResNet-18", "slang", 2650, None),
        ("ViT-tiny", "noisy-kfac", None, 1.2),
        ("ViT-tiny", "vogn", None, 1.1),
    ],
)
def test_an_update_may_not_cost_more(net, posterior, operations, ratio):
    """Whatever is committed: operations, or products in those of plain gradient descent."""
    found = ONCE.loc[net, posterior]
    assert operations is None or found.operations <= operations
    assert ratio is None or found.flops <= ratio * SGD[net]


@pytest.mark.parametrize("net", LARGE)
@pytest.mark.parametrize("posterior", ["noisy-kfac", "noisy-ekfac"])
def test_statistics_and_factors_may_not_add_more(net, posterior):
    """At the papers' intervals, every 10th and 200th step, at most 1.3 times plain gradient descent."""
    own = COMMITTED[(COMMITTED.net == net) & (COMMITTED.posterior == posterior)].set_index("what").flops
    averaged, factored = own["update, statistics"], own["update, statistics and factors"]
    assert (averaged - own["update"]) / 10 + (factored - averaged) / 200 <= 1.3 * SGD[net]


def test_an_epoch_has_its_steps_at_their_intervals():
    times = {"update": 1.0, "update, statistics": 2.0, "update, statistics and factors": 5.0}
    assert cost.epoch("LeNet-5", "noisy-kfac", times) == pytest.approx(50_000 / 128 * (1 + 1 / 10 + 3 / 200))
    assert cost.epoch("13-50-1", "map", {"update": 1.0}) == 45.5


def test_nothing_is_copied_to_the_device():
    assert (COMMITTED.uploads == 0).all()


def test_counts_by_hand():
    a, b = torch.empty(2, 3, 4, device="meta"), torch.empty(2, 4, 5, device="meta")
    assert measure(lambda: torch.bmm(a, b).relu().view(-1)) == Cost(
        2, 2 * 2 * 3 * 4 * 5, 0, 4 * (24 + 40 + 30 + 2 * 30)
    )
    assert measure(lambda: torch.zeros(3).add(1)) == Cost(0, 0, 0, 0)  # on the host
    assert measure(lambda: a * torch.ones(())) == Cost(1, 0, 0, 4 * (24 + 1 + 24))
    assert measure(lambda: torch.ones(4).to("meta")) == Cost(1, 0, 1, 4 * (4 + 4))
    assert measure(lambda: a.mul(a)).bytes == 4 * (24 + 24)  # read once
    assert measure(lambda: torch.empty(1, 4, device="meta").expand(3, 4).add(1)).bytes == 4 * (4 + 4 + 12)
    assert measure(lambda: torch.tensor([1.0, 2.0], device="meta")).uploads == 1
    assert measure(lambda: torch.as_tensor(1.0, device="meta")).uploads == 1
    assert measure(lambda: a.new_tensor([1.0])).uploads == 1
    assert measure(lambda: a[:, torch.tensor([0, 1])]).uploads == 1
    assert measure(lambda: (torch.full((2,), 1.0, device="meta"), a[:, torch.tensor([1]).to("meta")])).uploads == 1
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
