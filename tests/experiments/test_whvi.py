"""The experiments with WHVI: their metrics against the formulas written out, and small runs."""

import pandas as pd
import torch
from click.testing import CliRunner
from torch import nn

from experiments.driver import split
from experiments.whvi_toy import run as toy, sine
from experiments.whvi_uci import run as uci
from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.data import load
from explore.learning import compare
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net
from tests.pictures import shares


def test_metrics_are_those_of_the_paper():
    noise = Rng(0, dtype=torch.float64)
    x, y = noise.normal(2, 9, 3), noise.normal(2, 9, 1)
    scale = torch.tensor([[2.0], [5.0]], dtype=torch.float64)
    splits = compare.Splits(x[:, :4], y[:, :4], x[:, 4:], y[:, 4:], scale)
    posterior = registry.posterior("bbb", Net(nn.Linear(3, 1).double()), Gaussian(prior_shape=2.0, prior_rate=3.0))
    state = posterior.init(4, 2, noise)
    found = uci.scores(posterior, state, splits, noise, samples=6)

    (w,), tau = posterior.joint_sample(state, 6, noise.stream("test"))
    assert isinstance(w, torch.Tensor)
    for r in range(2):
        f = scale[r] * (w[r, :, :3, 0] @ x[r, 4:].T + w[r, :, 3])  # [S, P]
        target, variance = scale[r] * y[r, 4:, 0], (scale[r] ** 2 / tau[r])
        log_p = -0.5 * (2 * torch.pi * variance).log() - (target - f) ** 2 / (2 * variance)
        expected = {
            "rmse": ((target - f.mean(0)) ** 2).mean().sqrt(),
            "sample_rmse": ((target - f) ** 2).mean().sqrt(),
            "log_likelihood": log_p.exp().mean(0).log().mean(),
            "joint_log_likelihood": log_p.sum(1).exp().mean().log() / 5,
            "gibbs": -log_p.mean(),
        }
        for name, value in expected.items():
            torch.testing.assert_close(found[name][r], value)


def test_splits_left_out_are_the_first():
    every, rest = (split(load("boston"), part, Rng(0)) for part in (slice(0, 3), slice(1, 3)))
    for (_, whole), (path, part) in zip(tree.leaves(every), tree.leaves(rest), strict=True):
        torch.testing.assert_close(part, whole[1:], msg=path)


def test_uci(tmp_path):
    options = ["--datasets", "boston", "--posteriors", "whvi,mc-dropout", "--splits", "2", "--steps", "7"]
    done = CliRunner().invoke(uci.main, [*options, "--samples", "5", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    rows = pd.read_csv(tmp_path / "boston.csv")
    assert (rows["epochs"] == 1).all() and (rows["sample_rmse"] > rows["rmse"]).all()
    mean = rows.groupby("posterior")["rmse"].mean()
    text = (tmp_path / "table.md").read_text()
    again = [*options[:2], "--posteriors", "whvi", *options[4:], "--samples", "5", "--out", str(tmp_path)]
    assert CliRunner().invoke(uci.main, again, catch_exceptions=False).exit_code == 0
    timings = ["wall", "cpu"]
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "boston.csv").drop(columns=timings), rows.drop(columns=timings)
    )
    assert f"| {mean['whvi'] - mean['mc-dropout']:.3f} ± " in text and "3.14 (0.71)" in text


def test_unknown_names_are_one_sentence(tmp_path):
    done = CliRunner().invoke(uci.main, ["--posteriors", "whvi,nuts", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "unknown posterior 'nuts'; allowed: bbb" in done.output


def test_toy(monkeypatch, tmp_path):
    monkeypatch.setattr(sine, "UPDATES", (6, 6))
    done = CliRunner().invoke(toy.main, ["--samples", "5", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    lines = (tmp_path / "table.md").read_text().splitlines()[2:]
    counts = [line.split(" | ")[1:3] for line in lines]
    # With the noise, as the paper counts its first two.
    assert counts == [["1540", "1541"], ["4140", "4141"], ["33794", "33795"], ["16897", "16898"]]
    assert min(shares(tmp_path / "bands.png", "C0", panels=4)) > 0.6
