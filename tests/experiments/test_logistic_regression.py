"""The exact variational optimum against brute force, and the experiment around it."""

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from scipy import integrate, optimize, special

from experiments.logistic_regression import exact
from experiments.logistic_regression.run import main
from explore.core.rng import Rng
from explore.testing import oracles
from tests.pictures import shares

PRIOR = torch.tensor([2.0, 0.01], dtype=torch.float64)


def problem():
    noise = Rng(3, dtype=torch.float64)
    x = torch.cat([2 * noise.uniform(2, 9, 1) - 1, torch.ones(2, 9, 1, dtype=torch.float64)], 2)
    return exact.Problem(x, torch.where(noise.uniform(2, 9) < 0.4, -1.0, 1.0).double(), PRIOR)


def grid(mean, root):
    """Weights [n, 2] and the mass of N(mean, root root^T) around each."""
    t = np.linspace(-7, 7, 61)
    points = np.stack(np.meshgrid(t, t), -1).reshape(-1, 2)
    mass = np.exp(-0.5 * (points**2).sum(1))
    return mean + points @ root.T, mass / mass.sum()


def bound(q, x, y):
    mean, root = q
    weights, mass = grid(mean, root)
    log_likelihood = special.log_expit(y * (weights @ x.T)).sum(1)
    prior = torch.zeros(2).double(), (1 / PRIOR).diag()
    return mass @ log_likelihood - float(oracles.kl(torch.as_tensor(mean), torch.as_tensor(root @ root.T), *prior))


@pytest.mark.parametrize("factorised", [False, True])
def test_the_optimum_is_that_of_brute_force(factorised):
    ours, own = exact.optimum(problem(), factorised), problem()
    for r in range(2):

        def unpack(p):
            root = np.diag(np.exp(p[2:4]))
            root[1, 0] = 0 if factorised else p[4]
            return p[:2], root

        x, y = own.x[r].numpy(), own.y[r].numpy()
        found = optimize.minimize(lambda p, x=x, y=y: -bound(unpack(p), x, y), np.zeros(5), options={"gtol": 1e-6})
        mean, root = unpack(found.x)
        np.testing.assert_allclose(ours.mean[r], mean, rtol=1e-3)
        np.testing.assert_allclose(ours.covariance[r], root @ root.T, rtol=2e-3, atol=1e-12)
        np.testing.assert_allclose(exact.elbo(ours, own)[r], -found.fun, rtol=1e-6)
        weights, mass = grid(mean, root)
        nll = -np.log(mass @ special.expit(y * (weights @ x.T))).mean()
        np.testing.assert_allclose(exact.negative_log_likelihood(ours, own.x, own.y)[r], nll, rtol=1e-4)


@pytest.mark.parametrize("factorised", [False, True])
def test_natural_gradient_steps_end_in_the_same_place(factorised):
    ours, own = exact.optimum(problem(), factorised), problem()
    assert exact.residual(ours, own, factorised).max() < 1e-6
    precision = PRIOR.diag().repeat(2, 1, 1)
    q = exact.Normal(torch.zeros(2, 2).double(), precision.inverse())
    assert exact.residual(q, own, factorised).min() > 0.1
    for _ in range(200):
        gradient, target = exact.conditions(q, own)
        target = torch.diag_embed(target.diagonal(dim1=1, dim2=2)) if factorised else target
        precision = 0.7 * precision + 0.3 * target
        covariance = precision.inverse()
        q = exact.Normal(q.mean + 0.3 * (covariance @ gradient.unsqueeze(-1)).squeeze(-1), covariance)
    torch.testing.assert_close(q.mean, ours.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(q.covariance, ours.covariance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("deviation", [0.01, 1.0, 25.0])
def test_quadrature(deviation):
    m, v = torch.tensor([[-3.0, 0.2, 40.0]]).double(), torch.full((1, 3), deviation**2).double()
    for f, reference in ((torch.sigmoid, special.expit), (torch.nn.functional.logsigmoid, special.log_expit)):
        expected = [
            integrate.quad(
                lambda t, a=a: reference(a + deviation * t) * np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi),  # noqa: B023
                -12, 12, points=sorted({-8.0, min(8.0, max(-8.0, -a / deviation)), 8.0}), limit=500, epsabs=1e-12,
            )[0]
            for a in m[0].tolist()
        ]  # fmt: skip
        np.testing.assert_allclose(exact.expect(f, m, v)[0], expected, rtol=1e-7, atol=1e-10)


def test_symmetric_kl():
    noise = Rng(5, dtype=torch.float64)
    a, b = (
        exact.Normal(noise.normal(2, 3), root @ root.mT + torch.eye(3).double())
        for root in (noise.normal(2, 3, 3), noise.normal(2, 3, 3))
    )
    torch.testing.assert_close(exact.symmetric_kl(a, b), (oracles.kl(*a, *b) + oracles.kl(*b, *a)) / 2)


# The experiment --------------------------------------------------------------------------------------------


def csv(folder, classes):
    noise = np.random.default_rng(0)
    x = noise.normal(size=(64, 2))
    label = np.digitize(x @ [2.0, -1.0] + noise.logistic(size=64), np.arange(1, classes) * 2)  # the first is frequent
    pd.DataFrame({"a": 100 * x[:, 0], "b": x[:, 1] - 7, "label": label}).to_csv(folder / "own.csv", index=False)
    return ["--data", str(folder / "own.csv"), "--target", "label", "--out", str(folder / "out")]


def test_the_posteriors_end_near_the_optimum(tmp_path):
    # A narrow prior, but a bias far from 0, for which it does not hold.
    settings = ["--prior-precision", "30", "--splits", "2", "--epochs", "600", "--methods", "slang-10,full-hessian"]
    done = CliRunner().invoke(main, csv(tmp_path, 2) + settings, catch_exceptions=False)
    assert done.exit_code == 0
    kl = pd.read_csv(tmp_path / "out" / "own.csv").groupby("method")["kl"].max()
    assert 0 < kl["full-hessian"] < 0.05 and 0 < kl["slang-10"] < 0.05
    assert min(shares(tmp_path / "out" / "own.png", "navy", panels=2)) > 0.2  # slang-10's means and variances
    assert (tmp_path / "out" / "own.md").read_text().count("\n") == 6


@pytest.mark.parametrize(
    ("classes", "extra", "message"),
    [
        (3, [], "3 classes; logistic regression takes two"),
        (2, ["--methods", "slang-3"], "unknown method 'slang-3'; allowed: full-ef"),
        (2, ["--target", "nothing"], "no target 'nothing'"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, classes, extra, message):
    done = CliRunner().invoke(main, [*csv(tmp_path, classes), *extra])
    assert done.exit_code == 2 and message in done.output and done.output.count("\n") == 1
