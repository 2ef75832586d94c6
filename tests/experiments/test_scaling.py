"""experiments/benchmarks/scaling: exponents, and what processes send each other."""

import pandas as pd
import pytest

from experiments.benchmarks import scaling
from explore.nets.net import Net, mlp

WEIGHTS = Net(mlp(100, [100, 100], 10)).weights


def test_the_exponent_of_a_power():
    values = pd.Series([1, 2, 4, 8])
    assert scaling.exponent(values, 3.0 * values**2.5) == pytest.approx(2.5)


def test_a_gradient_is_sent_once():
    """With two numbers, the mean loss and what the likelihood has learnt."""
    assert scaling.sent("map") == WEIGHTS + 2
    assert scaling.sent("vogn") == 2 * WEIGHTS + 2  # with the mean squares


def test_tables_have_every_axis():
    rows = [
        {"posterior": "map", "axis": axis, "value": value, "seconds": value / 1000, "flops": value**2, "operations": 1}
        for axis, values in scaling.AXES.items()
        for value in values
    ]
    several = {"posterior": "map", "sent": 7, "seconds_1": 0.002, "seconds_2": 0.001}
    several |= {f"estimate_{count}": 1e-6 for count in scaling.RANKS}
    text = scaling.tables(pd.DataFrame(rows), pd.DataFrame([several]))
    assert "| map | 100.0 | 0 | 1.00 / 2.00 | 1.00 / 2.00 | 1.00 / 2.00 | 1.00 / 2.00 | 1.00 / 2.00 |" in text
    assert "| map | 7 | 2.0 | 1.0 | 1 | 1 | 1 |" in text
