"""What a result says of itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from explore.cli.active import report
from explore.cli.active.experiment import Experiment
from explore.cli.report.drawing import band


def experiment(active, random, metric="rmse"):
    """One round of an experiment with these values of its metrics."""
    made = object.__new__(Experiment)
    made.arms = ["rule", "random"] if random else ["rule"]
    made.settings = cast(Any, SimpleNamespace(trials=len(active), posterior="p", acquisition="rule"))
    made.seconds = 1.0
    made.history = {
        metric: torch.tensor([[*active, *random]]),
        "log_likelihood": -torch.tensor([[*active, *random]]),
        "labels": torch.tensor([29]),
    }
    return made


@pytest.mark.parametrize(
    ("active", "random", "start"),
    [
        ([1.0, 2.0, 3.0], [2.0, 3.1, 4.0], "rule beat random by more than 2 s.e.: test RMSE differs by -1.033 ± 0.033"),
        ([1.0, 2.0, 3.0, 4.0], [2.0, 2.1, 4.0, 4.0], "rule did better than random, but by no more than 2 s.e.: "),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], "Warning: rule is not better than random: "),
        ([2.0, 3.1, 4.0], [1.0, 2.0, 3.0], "Warning: rule is not better than random: test RMSE differs by 1.033"),
        ([float("nan"), 2.0, 3.0], [2.0, 3.0, 4.0], "Warning: rule is not better than random: "),
        ([1.0], [2.0], "rule did better than random in the one trial: "),
        ([1.0], [], "No control arm"),
    ],
)
def test_verdict(active, random, start):
    assert report.verdict(experiment(active, random)).startswith(start)


def curve(*rounds):
    """Of two trials, active and random, by round."""
    made = experiment([1.0, 2.0], [1.0, 2.0])
    made.history = {"rmse": torch.tensor(rounds), "labels": torch.tensor(range(20, 20 + len(rounds)))}
    return made


def test_the_area_decides():
    made = curve([3.0, 4.0, 3.0, 4.0], [1.0, 2.0, 2.0, 3.1], [2.0, 2.0, 1.0, 2.5])
    means = [(0 - 1.0 + 1.0) / 3, (0 - 1.1 - 0.5) / 3]  # of each trial, over rounds
    area = {"mean": sum(means) / 2, "se": abs(means[0] - means[1]) / 2}
    assert report.summary(made, Path("runs/x"))["paired_auc_difference"] == pytest.approx(area)
    assert report.verdict(made) == (
        "rule did better than random, but by no more than 2 s.e.: test RMSE differs by -0.267 ± 0.267 in the mean over "
        "the learning curve, and by 0.250 ± 0.750 at 22 labels. Of 2 trials that says little; give --trials 10 or more."
    )
    ((_, table),) = report.tables(made)
    assert [str(list(column.cells)[-1]) for column in table.columns][::3] == ["mean", "-0.267 ± 0.267"]
    won = curve([3.0, 4.0, 3.0, 4.0], [1.0, 2.0, 2.0, 3.1], [2.0, 2.0, 2.0, 1.9])
    assert report.verdict(won).startswith("rule beat random by more than 2 s.e.: ")
    assert report.verdict(won).endswith(" Of 2 trials that says little; give --trials 10 or more.")
    lost = curve([3.0, 4.0, 3.0, 4.0], [3.0, 4.0, 2.0, 3.1], [1.0, 1.0, 1.5, 1.5])
    assert report.verdict(lost).startswith("Warning: rule is not better than random: ")


def test_classification_speaks_of_the_error_rate():
    made = experiment([0.1, 0.2], [0.3, 0.5], "error")
    assert "test error rate differs by -0.250 ± 0.050 at 29 labels" in report.verdict(made)
    found = report.summary(made, Path("runs/x"))
    assert found["error"]["active"] == pytest.approx({"mean": 0.15, "se": 0.05})
    assert found["paired_difference"] == pytest.approx({"mean": -0.25, "se": 0.05})


def test_small_numbers_keep_their_figures():
    (_, table), _ = report.tables(experiment([0.0120, 0.0124], [0.02, 0.02]))
    assert list(map(str, table.columns[1].cells)) == ["0.0122 ± 0.0002"]
    assert list(map(str, table.columns[3].cells)) == ["-0.0078 ± 0.0002"]


def test_no_minus_before_zero():
    assert report.Estimate(-1e-7, 1e-7).text(3) == "0.000 ± 0.000"


@pytest.mark.parametrize(("partial", "mean"), [(False, [2.0, np.nan]), (True, [2.0, 5.0])])
def test_a_curve_has_a_gap_where_a_trial_has_no_number(partial, mean):
    """Two trials, of which the second one lacks the last number."""
    axes = Figure().add_subplot()
    band(axes, [1, 2], np.array([[1.0, 3.0], [5.0, np.nan]]), "arm", partial=partial)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), mean)
