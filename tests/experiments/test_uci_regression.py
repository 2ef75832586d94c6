"""UCI regression: the protocol of each arm, its likelihoods by hand, and a small run that is not repeated."""

import math

import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from experiments.uci_regression import pbp, run
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.learning import compare
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.map import MAP


@pytest.mark.parametrize(
    ("dataset", "arm", "full", "epochs", "splits", "settings"),
    [
        ("boston", "noisy-kfac", False, 1000, 20, {"preset": "paper"}),
        ("kin8nm", "noisy-kfac", False, 100, 5, {"preset": "paper-batch-100"}),
        ("kin8nm", "noisy-ekfac", True, 1000, 20, {"preset": "paper-batch-100"}),
        ("protein", "noisy-kfac", True, 500, 5, {"preset": "paper-protein"}),
        ("yacht", "slang", False, 120, 20, {"preset": "uci", "lr": 0.08, "beta": 0.08, "prior_variance": 1.0}),
        ("yacht", "vogn", False, 100, 5, {"preset": "uci"}),
        ("power", "bbb", False, 100, 5, {"batch_size": 100} | run.BBB),
    ],
)
def test_protocol(dataset, arm, full, epochs, splits, settings):
    assert run.planned(dataset, arm, "50", "paper", full) == (dataset, arm, "50", "paper", epochs, splits)
    assert run.settings(arm, dataset) == settings


def test_likelihoods():
    """Of two nets with a known noise: the Gaussian with both moments, and the mean of both log-densities."""
    noise = Gaussian(noise_std=0.5)
    posterior = MAP(net=Net(mlp(1, [2], 1)), likelihood=noise)
    layers = posterior.init(4, 1, Rng(0)).weights
    predictor = Predictor(posterior.net, noise, tuple(torch.cat([w, 2 * w], 1) for w in layers), noise.sample_noise(
        posterior.init(4, 1, Rng(0)).common.noise, 2, Rng(0)))  # fmt: skip
    x, y = torch.tensor([[[0.5], [1.0]]]), torch.tensor([[[0.3], [-0.2]]])
    out = torch.cat([o for _, o in predictor.outputs(x)], 2)  # [1, 2, 2, 1]
    parts = compare.Splits(x, y, x, y, scale=torch.tensor([[3.0]]))
    found = run.likelihoods(predictor, parts)
    normal = torch.distributions.Normal
    mean, total = out.mean(1), out.var(1) + 0.25
    expected = normal(mean, total.sqrt()).log_prob(y).mean() - math.log(3)
    torch.testing.assert_close(found["moment_log_likelihood"], expected[None])
    expected = normal(out, 0.5).log_prob(y.unsqueeze(1)).mean() - math.log(3)
    torch.testing.assert_close(found["gibbs_log_likelihood"], expected[None])


def test_the_papers_cells_stand_below_ours():
    runs = pd.DataFrame({"dataset": "boston", "arm": "bbb", "hidden": "50", "prior": "paper", "epochs": 9, "splits": 2,
                         "cpu": 7.0, **{tag: [1.0, 3.0] for tag in run.METRICS}})  # fmt: skip
    cells = {"value": [5.0, 3.0], "source": ["A", "B (preprint v1)"]}
    paper = pd.DataFrame({"arm": "bbb", "dataset": "boston", "hidden": "50", "metric": "rmse", "se": 0.0} | cells)
    text = run.tables(runs, paper)
    published = "| bbb: paper | 5.000 ± 0.000 (-3.0) |\n| bbb: preprint v1 | 3.000 ± 0.000 (-1.0) |"
    assert f"| bbb | 2.000 ± 1.000 |\n{published}" in text
    assert "| bbb | 2 x 9, 7 |" in text
    assert "| bbb | 2.000 ± 1.000† |" in run.tables(runs.assign(splits=5, epochs=100), paper)
    text = run.tables(runs.assign(prior="free"), paper)
    assert ": paper |" not in text


def test_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SHORT", (2, 2))
    threads = torch.get_num_threads()
    for arms in ("vogn", "vogn,map"):
        options = ["--datasets", "yacht", "--arms", arms, "--out", str(tmp_path)]
        done = CliRunner().invoke(run.main, options, catch_exceptions=False)
        assert done.exit_code == 0
    torch.set_num_threads(threads)
    assert done.output.startswith("yacht map ")  # what is there is not run again
    found = pd.read_csv(tmp_path / "runs.csv")
    assert found.arm.tolist() == ["vogn"] * 2 + ["map"] * 2 and found.gibbs_log_likelihood.notna().all()
    curves = pd.read_csv(tmp_path / "curves.csv")
    assert curves.epoch.tolist() == [1, 2, 1, 2]
    assert (tmp_path / "curves.png").stat().st_size > 1000 and "| vogn |" in (tmp_path / "table.md").read_text()


def test_probabilistic_back_propagation_matches_moments():
    """Moments of a rectified Gaussian against quadrature, and a linear model's first example against Bayes' rule."""
    mean, variance = torch.tensor([-1.3, 0.2, 2.0]).double(), torch.tensor([0.5, 1.7, 0.1]).double()
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    values = (mean[:, None] + variance.sqrt()[:, None] * z).clamp_min(0)
    weight = torch.exp(-0.5 * z.square())
    weight /= weight.sum()
    first = (values * weight).sum(1)
    torch.testing.assert_close(pbp.rectified(mean, variance), (first, (values.square() * weight).sum(1) - first**2))
    model = pbp.PBP(1, [2, 1], Rng(0))
    prior, covariance = model.means[0][0, 0], model.variances[0][0, 0].diag()
    x, y = torch.tensor([[[0.7, -1.2]]]).double(), torch.tensor([[0.4]]).double()
    row = torch.tensor([0.7, -1.2, 1.0]).double() / math.sqrt(3)
    gain = covariance @ row / (row @ covariance @ row + 6 / 5)  # the mean of the noise's variance is 6/5
    model.absorb(x, y)
    torch.testing.assert_close(model.means[0][0, 0], prior + gain * (0.4 - row @ prior))
    torch.testing.assert_close(model.variances[0][0, 0], (covariance - torch.outer(gain, row @ covariance)).diagonal())
