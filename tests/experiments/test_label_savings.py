"""Simulated campaigns: where curves cross, and the process that they are compared with."""

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from experiments.label_savings import gp, run

LABELS = np.array([10, 15, 20])


@pytest.mark.parametrize(
    ("curve", "level", "found"),
    [([4, 2, 1], 3, 12.5), ([4, 2, 1], 2, 15), ([4, 2, 1], 5, 10), ([4, 2, 1], 0.5, np.inf), ([4, 2, 5], 3, 12.5)],
)
def test_a_curve_crosses_a_level_between_its_points(curve, level, found):
    assert run.crossing(LABELS, np.array(curve, float), level) == found


def test_labels_are_counted_to_the_last_error_of_random_choice():
    rule, control = np.array([[4.0, 3, 0], [4, 1, 0]]), np.array([[4.0, 4, 3], [4, 4, 1]])
    assert run.at_end(LABELS, rule, control) == (15, 20)


def test_a_trial_that_never_finds_a_good_value_counts_as_a_round_more(monkeypatch):
    monkeypatch.setitem(run.FUNCTIONS, "plain", lambda rng: (None, np.array([1.0, 10])))
    values = np.array([[1, 9.6, 9.6], [1, 1, 1]])
    assert run.to_best("plain")(LABELS, values) == ((15 + 20 + run.K) / 2,)


@pytest.mark.parametrize(("name", "optimum"), [("hartmann-3", 3.86278), ("hartmann-6", 3.32237)])
def test_hartmann_functions_stay_below_their_known_maximum(name, optimum):
    x, y = run.FUNCTIONS[name](np.random.default_rng(0))
    assert x.shape == (1000, int(name[-1])) and 0.5 * optimum < y.max() < optimum
    best = {"hartmann-3": [0.114614, 0.555649, 0.852547],
            "hartmann-6": [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]}[name]  # fmt: skip

    class There:
        def random(self, shape):
            return np.broadcast_to(best, shape)

    assert run.FUNCTIONS[name](There())[1] == pytest.approx(optimum, abs=1e-4)


def test_expected_improvement_is_its_integral():
    found = gp.improvement(np.array([0.3]), np.array([0.7]), 0.5)
    assert found == pytest.approx(quad(lambda f: max(0, f - 0.5) * norm.pdf(f, 0.3, 0.7), -8, 8, points=[0.5])[0])


def test_a_batch_of_the_process_has_no_twins_and_a_campaign_labels_each_point_once():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (40, 2))
    y = x[:, :1] + x[:, 1:] ** 2
    have = [list(points) for points, _ in gp.campaign(x, y, np.arange(6), np.arange(6, 40), 3, 4, maximise=False)]
    assert [len(set(points)) for points in have] == [6, 10, 14] and have[-1][:6] == list(range(6))


def test_the_table_has_labels_beside_those_of_random_choice():
    curves = {"epig": [[4.0, 2, 1]] * 2, "random": [[4.0, 3, 2]] * 2}
    rows = pd.concat([run.lines(arm, c, "rmse").assign(method="noisy-kfac") for arm, c in curves.items()])
    cells = next(run.needed(rows, "rmse", "boston"))
    assert cells == ["boston", "noisy-kfac", "epig", "15.0", "20.0", "75 ± 0 %"]
