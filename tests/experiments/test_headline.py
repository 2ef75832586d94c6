"""The table of the headline: its counts and its differences, on made-up scores."""

import pandas as pd
import pytest

from experiments.headline import run
from experiments.tables import corrected


def test_a_rival_is_counted_by_corrected_tests():
    five = [1.0, 1.1, 0.9, 1.05, 0.95]
    scores = {("a", "five fits"): five, ("a", "rival"): [v - 1 + k / 100 for k, v in enumerate(five)],
              ("b", "five fits"): five, ("b", "rival"): [v + 1 - k / 100 for k, v in enumerate(five)],
              ("c", "five fits"): five, ("c", "rival"): five[::-1]}  # fmt: skip
    rows = pd.DataFrame(
        {"set": name, "method": method, "split": split, "log_likelihood": value, "rmse": value, "crps": value,
         "coverage_90": 0.9, "cpu": 1.0}
        for (name, method), values in scores.items()
        for split, value in enumerate(values, 1)
    )  # fmt: skip
    table = run.summary(rows)
    assert "| rival | 1, 1, 1 (b -0.98) | 1, 1, 1 (a -0.98) | 1, 1, 1 (a -0.98) |" in table
    assert "| rival | 0.980 ± 0.009* [0.980] | -0.980 ± 0.009* [-0.980] |" in table


def test_the_corrected_error_of_a_mean_is_larger():
    found = corrected(pd.Series([0.0, 1.0, 2.0]))
    assert (found.mean, found.significant) == (1.0, False)
    assert found.error == pytest.approx((1 / 3 + 1 / 9) ** 0.5)
