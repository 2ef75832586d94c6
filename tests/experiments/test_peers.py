"""Other libraries on the same splits: the scores of a mixture by hand, and methods that need no other environment."""

import contextlib
import io
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import norm

from experiments.peers import methods, run, trained


def test_scores():
    found = methods.Prediction(np.array([[0.0, 1.0], [1.0, 2.0]]), np.array([[1.0], [2.0]]))
    y = np.array([0.5, 9.0])
    scores = methods.scores(found, y, 10.0)
    density = (norm.pdf(y, found.mean[0], 1.0) + norm.pdf(y, found.mean[1], 2.0)) / 2
    assert scores["log_likelihood"] == pytest.approx(np.log(density / 10).mean())
    assert scores["rmse"] == pytest.approx(10 * np.sqrt((0.0 + 7.5**2) / 2))
    assert scores["coverage_95"] == 0.5  # of deviations 0 and 7.5, where the total one is sqrt(2.5 + 0.25)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("torch ensemble", {"epochs": 150, "lr": 0.01}),
        ("Gaussian process", {}),
        ("gradient boosting", {"trees": 50, "lr": 0.1, "least": 0.05}),
    ],
)
def test_methods_learn_a_line(method, settings):
    torch.manual_seed(0)
    x = torch.linspace(-1.5, 1.5, 200)[:, None]
    y = x[:, 0] + 0.1 * torch.randn(200)
    found = methods.METHODS[method](x, y, x[::7], **settings)
    assert np.abs(found.mean.mean(0) - x[::7, 0].numpy()).max() < 0.3
    assert 0.04 < np.sqrt(np.square(found.std).mean()) < 0.25


@pytest.fixture
def one_process(monkeypatch):
    """Of all methods only the first runs in another process; the others run in this one, by the same command line."""
    start, calls = subprocess.run, itertools.count()

    def started(command, **options):
        if not command[1].endswith("methods.py") or next(calls) == 0:
            return start(command, **options)
        monkeypatch.setattr(sys, "argv", command[1:])
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            methods.main()
        return SimpleNamespace(stdout=shown.getvalue())

    monkeypatch.setattr(subprocess, "run", started)


def test_run_chooses_on_validation_parts_and_is_not_repeated(tmp_path, monkeypatch, one_process):
    grid = [{"trees": t, "lr": 0.5, "least": 0.1} for t in (1, 20)]
    monkeypatch.setattr(run, "METHODS", {"gradient boosting": grid, "Gaussian process": [{}]})
    monkeypatch.setattr(run, "SPLITS", {"yacht": 2})
    ours = pd.DataFrame({"dataset": "yacht", "candidate": "noisy-kfac", "split": [1, 2, 3], "log_likelihood": -1.0,
                         "rmse": 0.5, "coverage_95": 0.9, "cpu": 6.0})  # fmt: skip
    monkeypatch.setattr(run, "OURS", tmp_path / "ours.csv")
    ours.to_csv(run.OURS, index=False)
    options = ["--python", sys.executable, "--datasets", "yacht", "--methods", "gradient boosting", "--out", tmp_path]
    threads = torch.get_num_threads()
    for _ in range(2):
        done = CliRunner().invoke(run.main, [str(o) for o in options], catch_exceptions=False)
        assert done.exit_code == 0
    torch.set_num_threads(threads)
    assert done.stderr == ""
    chosen = pd.read_csv(tmp_path / "choose.csv")
    assert chosen.split.tolist() == [21, 21]
    report = pd.read_csv(tmp_path / "report.csv")
    best = str(chosen.settings[chosen.log_likelihood.argmax()])
    assert report.split.tolist() == [1, 2] and set(report.settings) == {best}
    assert json.loads(best) == grid[1]
    table = (tmp_path / "table.md").read_text()
    assert (
        "| noisy-kfac | -1.000 ± 0.000 |" in table and "| noisy-kfac | 2.00 |" in table
    )  # seconds of 6 for three splits


def test_posteriors_around_a_network_begin_at_it(tmp_path, monkeypatch):
    monkeypatch.setattr(trained, "SPLITS", {"yacht": 2})
    monkeypatch.setattr(trained, "METHODS", ("noisy-kfac", "noisy-kfac, anew"))
    made = pd.DataFrame(trained.lines("yacht", list(trained.METHODS), epochs=60, lr=0.01))
    rmse = made.pivot(index="split", columns="method", values="rmse")
    assert (rmse["noisy-kfac"] < 2 * rmse[trained.MODULE]).all() and (
        rmse["noisy-kfac, anew"] > 2 * rmse["noisy-kfac"]
    ).all()
    done = CliRunner().invoke(trained.main, ["--datasets", "yacht", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0 and "| noisy-kfac, anew |" in (tmp_path / "trained.md").read_text()
