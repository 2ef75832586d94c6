"""What a result says of itself."""

from pathlib import Path

import pytest
import torch

from explore.cli import report
from explore.cli.experiment import Experiment


def experiment(active, random, metric="rmse"):
    """One round of an experiment with these values of its metrics."""
    made = object.__new__(Experiment)
    made.arms = ["rule", "random"] if random else ["rule"]
    made.settings = {"trials": len(active), "posterior": "p", "acquisition": "rule"}
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


def test_classification_speaks_of_the_error_rate():
    made = experiment([0.1, 0.2], [0.3, 0.5], "error")
    assert "test error rate differs by -0.250 ± 0.050 at 29 labels" in report.verdict(made)
    found = report.summary(made, 1.0, Path("runs/x"))
    assert found["error"]["active"] == pytest.approx({"mean": 0.15, "se": 0.05})
    assert found["paired_difference"] == pytest.approx({"mean": -0.25, "se": 0.05})


def test_small_numbers_keep_their_figures():
    (_, table), _ = report.tables(experiment([0.0120, 0.0124], [0.02, 0.02]))
    assert list(table.columns[1].cells) == ["0.0122 ± 0.0002"]
    assert list(table.columns[3].cells) == ["-0.0078 ± 0.0002"]


def test_no_minus_before_zero():
    assert report.Estimate(-1e-7, 1e-7).text(3) == "0.000 ± 0.000"
