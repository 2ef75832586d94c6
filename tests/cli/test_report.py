"""Conclusions from a result."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from explore.cli.active import report
from explore.cli.compare import report as compare
from explore.cli.estimate import Estimate
from explore.cli.report.drawing import band


def learning_curves(*rounds, metric="rmse", trials=None):
    """A metric by arm, from its values in each round: those of the rule, then those of the control."""
    trials = trials or len(rounds[0]) // 2
    rows = [
        {"labels": 20 + i, "arm": ("rule", "random")[r // trials], "trial": r % trials + 1, metric: value}
        for i, values in enumerate(rounds)
        for r, value in enumerate(values)
    ]
    return {metric: report.curves(pd.DataFrame(rows), metric)}


@pytest.mark.parametrize(
    ("active", "random", "start"),
    [
        ([1.0, 2.0, 3.0], [2.0, 3.1, 4.0], "rule beat random by more than 2 s.e.: test RMSE differs by -1.033 ± 0.033"),
        ([1.0, 2.0, 3.0, 4.0], [2.0, 2.1, 4.0, 4.0], "rule beat random, but by no more than 2 s.e.: "),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], "Warning: rule is not better than random: "),
        ([2.0, 3.1, 4.0], [1.0, 2.0, 3.0], "Warning: rule is not better than random: test RMSE differs by 1.033"),
        ([float("nan"), 2.0, 3.0], [2.0, 3.0, 4.0], "Warning: rule is not better than random: "),
        ([1.0], [2.0], "rule beat random in a single trial: "),
        ([1.0], [], "No comparison with random choice"),
    ],
)
def test_verdict(active, random, start):
    assert report.verdict(learning_curves([*active, *random], trials=len(active))).startswith(start)


def test_the_area_decides():
    arms = learning_curves([3.0, 4.0, 3.0, 4.0], [1.0, 2.0, 2.0, 3.1], [2.0, 2.0, 1.0, 2.5])
    means = [(0 - 1.0 + 1.0) / 3, (0 - 1.1 - 0.5) / 3]  # of each trial, over rounds
    area = {"mean": sum(means) / 2, "se": abs(means[0] - means[1]) / 2}
    assert report.summary(arms)["paired_auc_difference"] == pytest.approx(area)
    assert report.verdict(arms) == (
        "rule beat random, but by no more than 2 s.e.: test RMSE differs by -0.267 ± 0.267 on average over the "
        "learning curve, and by 0.250 ± 0.750 at 22 labels. 2 trials are few; use --trials 10 or more."
    )
    assert report.table(arms["rmse"]).iloc[-1][["labels", "difference"]].tolist() == ["mean", "-0.267 ± 0.267"]
    won = learning_curves([3.0, 4.0, 3.0, 4.0], [1.0, 2.0, 2.0, 3.1], [2.0, 2.0, 2.0, 1.9])
    assert report.verdict(won).startswith("rule beat random by more than 2 s.e.: ")
    assert report.verdict(won).endswith("2 trials are few; use --trials 10 or more.")
    lost = learning_curves([3.0, 4.0, 3.0, 4.0], [3.0, 4.0, 2.0, 3.1], [1.0, 1.0, 1.5, 1.5])
    assert report.verdict(lost).startswith("Warning: rule is not better than random: ")


def test_classification_speaks_of_the_error_rate():
    arms = learning_curves([0.1, 0.2, 0.3, 0.5], metric="error")
    assert "test error rate differs by -0.250 ± 0.050 at 20 labels" in report.verdict(arms)
    summary = report.summary(arms)
    assert summary["error"]["active"] == pytest.approx({"mean": 0.15, "se": 0.05})
    assert summary["paired_difference"] == pytest.approx({"mean": -0.25, "se": 0.05})


def test_small_numbers_keep_their_figures():
    table = report.table(learning_curves([0.0120, 0.0124, 0.02, 0.02])["rmse"])
    assert table.iloc[0].tolist() == ["20", "0.0122 ± 0.0002", "0.0200 ± 0.0000", "-0.0078 ± 0.0002"]


def test_curves_of_several_lengths_have_a_row_for_every_number_of_labels():
    short, long = (learning_curves(*[[value, value]] * n)["rmse"]["rule"] for n, value in ((1, 1.0), (2, 3.0)))
    table = report.table({"short": short, "long": long})
    assert table.to_numpy().tolist() == [["20", "1.000", "3.000"], ["21", "", "3.000"], ["mean", "1.000", "3.000"]]


def test_posteriors_are_compared_on_the_splits_that_they_share():
    values = {"a": [1.0, 2.0, 3.0], "b": [3.0, 3.0], "failed": [1.0, np.nan, 0.0]}
    results = {
        name: pd.DataFrame({"rmse": rmse, "seconds": 1.0}, range(1, len(rmse) + 1)) for name, rmse in values.items()
    }
    winner, differences = compare.differences(results, "rmse")
    assert winner == "a" and differences["b"].tolist() == [2.0, 1.0]
    assert compare.tables(results, False)["rmse"].to_numpy().tolist() == [
        ["a", "2.000 ± 0.577", "best", "1.0"], ["b", "3.000 ± 0.000", "1.500 ± 0.500", "1.0"],
        ["failed", "nan", "nan", "1.0"],
    ]  # fmt: skip


def test_no_minus_before_zero():
    assert Estimate(-1e-7, 1e-7).text(3) == "0.000 ± 0.000"


@pytest.mark.parametrize(("partial", "mean"), [(False, [2.0, np.nan]), (True, [2.0, 5.0])])
def test_a_curve_has_a_gap_where_a_trial_has_no_number(partial, mean):
    """Two trials, of which the second one lacks the last number."""
    axes = Figure().add_subplot()
    band(axes, pd.DataFrame([[1.0, 3.0], [5.0, np.nan]], [1, 2]), "arm", partial=partial)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), mean)
