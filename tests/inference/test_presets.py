"""Settings by the number of rows: no cliff between two numbers, no cap on small noise, and more rows are no worse."""

import math

import numpy as np
import pytest
import torch

from explore import registry
from explore.core.rng import Rng
from explore.inference import presets
from explore.inference.predict import Predictor
from explore.learning.fit import last_epoch
from explore.learning.scaling import Standardiser
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

ROWS = range(5, 1200)
GRADUAL = ("noisy-kfac", "noisy-ekfac", "block-tridiagonal", "ensemble", "map", "mc-dropout")
DRAWS, TEST, COLUMNS = 6, 200, 5
FUNCTIONS = {  # of five columns, with the deviation of the noise
    "sine": (0.1, lambda x: np.sin(5 * x[..., :1])),
    "step": (0.1, lambda x: np.sign(x[..., :1] + 0.3 * x[..., 1:2])),
    "additive": (0.1, lambda x: np.sin(4 * x[..., :1]) + 2 * x[..., 1:2] ** 2 + x[..., 2:3] + abs(2 * x[..., 3:4])),
    "linear": (0.5, lambda x: 1.5 * x[..., :1] - x[..., 1:2] + 0.5 * x[..., 4:]),
}


@pytest.mark.parametrize("units", [10, 25, 50])
@pytest.mark.parametrize("name", GRADUAL)
def test_one_row_more_changes_settings_little(name, units):
    cls = registry.find("posteriors", name)
    every = [presets.recommended_settings(cls, n, units=units) for n in ROWS]
    for old, new in zip(every[:-1], every[1:], strict=True):
        for before, after in ((old.settings, new.settings), (old.noise, new.noise)):
            assert before.keys() == after.keys()
            for key, value in before.items():
                if value != after[key]:
                    assert not isinstance(value, bool | str)
                    apart = abs(after[key] - value)
                    small = apart < 1e-3 or abs(math.log(after[key] / value)) < 0.12
                    assert small or apart == 1, (key, value)
    known = registry.settings_in(cls, "default")
    assert [one.settings == known for one in every] == [one.preset == "default" for one in every]
    assert any(one.preset == "default" for one in every)
    assert every[0] == presets.recommended_settings(cls, 1, units=units)
    assert every[-1].noise == {"prior_shape": 1.0, "prior_rate": 0.01}


def test_settings_between_two_anchors():
    anchors = {10: {"a": 1.0, "n": 4, "s": "x"}, 1000: {"a": 0.01, "n": 16, "s": "x"}}
    assert presets.between(anchors, 100) == {"a": pytest.approx(0.1), "n": 8, "s": "x"}
    assert presets.between(anchors, 10) == presets.between(anchors, 3) == anchors[10]
    assert presets.between(anchors, 1000) == presets.between(anchors, 10**6) == anchors[1000]


@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-ekfac", "block-tridiagonal"])
@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic"])
def test_many_columns_narrow_the_prior_alone(name, likelihood):
    cls = registry.find("posteriors", name)
    few, limit, wide = (presets.recommended_settings(cls, 3000, n, likelihood=likelihood) for n in (3, 16, 32))
    assert few == limit and few.settings["prior_variance"] > 0
    narrower = {"prior_variance": pytest.approx(few.settings["prior_variance"] / 2**1.5, rel=0.01)}
    assert wide.settings == few.settings | narrower


@pytest.mark.parametrize(
    ("name", "rows", "task", "preset"),
    [
        ("bbb", 63, "regression", "small"), ("bbb", 64, "regression", "hundreds"),
        ("bbb", 250, "regression", "default"), ("vogn", 64, "regression", "default"),
        ("noisy-kfac", 99, "classification", "small"), ("noisy-kfac", 100, "classification", "classes"),
        ("vogn", 100, "classification", "default"),
    ],
)  # fmt: skip
def test_of_other_posteriors_and_classes_it_is_a_preset(name, rows, task, preset):
    cls = registry.find("posteriors", name)
    assert presets.recommended_settings(cls, rows, task=task, units=10) == (
        preset, registry.settings_in(cls, preset), presets.noise_for(preset)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "consumer", "preset"),
    [
        ("noisy-kfac", "images", "image"), ("noisy-kfac", "pool of images", "small"), ("noisy-kfac", "vime", "vime"),
        ("map", "images", "default"), ("ensemble", "vime", "default"),
    ],
)  # fmt: skip
def test_a_consumer_has_a_preset_of_its_own_where_there_is_one(name, consumer, preset):
    cls = registry.find("posteriors", name)
    recommended = presets.recommended_settings(cls, 20, consumer=consumer)
    assert recommended[:2] == (preset, registry.settings_in(cls, preset))


def scores(name, rows, functions, columns=COLUMNS):
    """RMSE, and coverage and width of 90 % intervals, [functions, draws]; all of them side by side."""
    cls = registry.find("posteriors", name)
    chosen, rng, parts = presets.recommended_settings(cls, rows, units=10), Rng(0), []
    for noise, of in functions:
        drawn = np.random.default_rng(1)
        points = drawn.uniform(-1, 1, (DRAWS, TEST + 512, columns))
        parts.append((points, of(points) + noise * drawn.normal(size=(*points.shape[:2], 1))))
    inputs, targets = (torch.tensor(np.concatenate(part)) for part in zip(*parts, strict=True))
    here = slice(TEST, TEST + rows)
    of_x, of_y = Standardiser.fit(inputs[:, here]), Standardiser.fit(targets[:, here])
    x, y, unit = of_x.apply(inputs, torch.float32), of_y.apply(targets, torch.float32), of_y.scale[:, 0].float()
    posterior = registry.build(cls, Net(mlp(columns, [10], 1)), Gaussian(**chosen.noise), chosen.settings)
    state = last_epoch(posterior, x[:, here], y[:, here], rng.stream("fit")).state
    predictor = Predictor.sample(posterior, state, 50, rng.stream("test"))
    mean, variance, noise = predictor.label_moments(x[:, :TEST])
    half = 1.645 * (variance + noise).sqrt()
    error = y[:, :TEST] - mean
    rmse, width = (unit * v for v in (error.square().mean(1).sqrt(), 2 * half.mean(1)))
    found = rmse, (error.abs() <= half).float().mean(1), width
    return tuple(v.reshape(len(functions), DRAWS).numpy() for v in found)


@pytest.mark.parametrize("name", ["noisy-kfac", pytest.param("ensemble", marks=pytest.mark.slow)])
def test_a_row_more_is_no_worse(name):
    """With presets that began at 64 rows the RMSE of these draws rose by a half and by nine tenths."""
    before, after = (scores(name, rows, [FUNCTIONS["sine"]], 1)[0].mean() for rows in (63, 64))
    assert after < 1.2 * before


def test_little_noise_is_learnt_from_a_hundred_rows():
    """With the papers' prior the width was ten times that of the noise alone."""
    _, coverage, width = scores("noisy-kfac", 120, [(0.02, lambda x: np.sin(2 * x))], 1)
    assert 0.8 < coverage.mean() and width.mean() < 2.5 * 3.29 * 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("name", "measured"), [("noisy-kfac", (0, 2)), ("ensemble", (0,))])
def test_more_rows_are_no_worse(name, measured):
    """Within the noise of six draws: the error and, but for the ensemble, which is too sure of 16 rows, the width."""
    found = [scores(name, rows, FUNCTIONS.values()) for rows in (16, 32, 64, 128, 256, 512)]
    for which in measured:
        mean = np.array([scores[which].mean(1) for scores in found])  # [rows, functions]
        noise = np.array([scores[which].std(1, ddof=1) / DRAWS**0.5 for scores in found])
        assert (mean[1:] - 1.1 * mean[:-1] < 2 * np.hypot(noise[1:], noise[:-1])).all(), mean
        assert (mean[-1] < 0.8 * mean[0]).all(), mean
