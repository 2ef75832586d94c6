"""The random-feature experiment: its functions, kernel and sparse process, and a small run."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from experiments.gp_random_features import functions, kernel as kernels, mean_field, run, sparse
from experiments.gp_random_features.functions import FUNCTIONS
from explore import registry
from explore.core.rng import Rng
from explore.nets.net import Net
from tests.pictures import shares

KERNEL = kernels.Kernel(1.7, (0.8, 2.0), 0.01)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def squared_exponential(a, b):
    differences = (a.unsqueeze(-2) - b.unsqueeze(-3)) / torch.tensor(KERNEL.scales, dtype=a.dtype)
    return KERNEL.variance * (-0.5 * differences.square().sum(-1)).exp()


@pytest.mark.parametrize(
    "name, value",
    [("borehole", 23.051317595826468), ("otl-circuit", 5.621897529377629), ("robot-arm", 0.64054208960073)],
)
def test_functions_agree_with_another_implementation(name, value):
    """The values are those of uqtestfuns 0.7.0 at the same point."""
    function = FUNCTIONS[name]
    unit = torch.arange(1, 9, dtype=torch.float64)[: len(function.low)] / 10
    torch.testing.assert_close(function(unit), torch.tensor(value, dtype=torch.float64))


def test_least_values_are_the_published_ones():
    least = tensor(0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573).requires_grad_()
    value = FUNCTIONS["hartman6"](least)
    (gradient,) = torch.autograd.grad(value, least)
    assert abs(value.item() + 3.32237) < 1e-5 and gradient.abs().max() < 1e-3
    rastrigin = FUNCTIONS["rastrigin5"]
    torch.testing.assert_close(rastrigin(tensor(*[0.5] * 5)), tensor(0.0)[0])
    # Its highest points in [-5.12, 5.12]^2 are at +-4.52299366 along both axes.
    torch.testing.assert_close(functions.rastrigin(tensor(4.52299366, -4.52299366)), tensor(80.70658039)[0])


def test_arms_stretch_and_close():
    turn = math.pi / 2
    stretched, square = tensor(1.3, 0, 0, 0, 0.1, 0.2, 0.3, 0.4), tensor(*[turn] * 4, 1, 1, 1, 1)
    torch.testing.assert_close(functions.robot_arm(torch.stack([stretched, square])), tensor(1.0, 0.0))


def test_features_have_the_kernel_as_their_mean():
    rng = Rng(0, dtype=torch.float64)
    x = rng.normal(1, 6, 2)
    found = KERNEL.features(x, rng.normal(1, 2, 200_000))
    torch.testing.assert_close(found @ found.mT, squared_exponential(x, x), rtol=0, atol=0.02)
    # That of a point with itself has no error.
    torch.testing.assert_close(found.square().sum(2), torch.full((1, 6), KERNEL.variance, dtype=x.dtype))


def test_exact_process_is_the_formula():
    rng = Rng(1, dtype=torch.float64)
    x, y, test_x = rng.normal(9, 2), rng.normal(9), rng.normal(4, 2)
    mean, std = kernels.exact(KERNEL, x.numpy(), y.numpy(), test_x.numpy())
    across = squared_exponential(test_x, x)
    inverse = (squared_exponential(x, x) + KERNEL.noise * torch.eye(9, dtype=x.dtype)).inverse()
    variance = KERNEL.variance + KERNEL.noise - ((across @ inverse) * across).sum(1)
    np.testing.assert_allclose(mean, across @ inverse @ y)
    np.testing.assert_allclose(std, variance.sqrt())


def test_kernel_is_learnt():
    rng = Rng(2, dtype=torch.float64)
    x = 2 * rng.normal(150, 2)
    covariance = squared_exponential(x, x) + KERNEL.noise * torch.eye(150, dtype=x.dtype)
    y = torch.linalg.cholesky(covariance) @ rng.normal(150)
    found = kernels.learn(x.numpy(), y.numpy())
    np.testing.assert_allclose(found.scales, KERNEL.scales, rtol=0.25)
    np.testing.assert_allclose(found.noise, KERNEL.noise, rtol=0.5)


def test_sparse_process_with_a_point_at_each_example_is_the_exact_one():
    rng = Rng(3)
    x, test_x = 3 * rng.normal(2, 8, 2), 3 * rng.normal(2, 6, 2)
    test_x[:, -1] = 100  # where only the prior and the noise that it has learnt are left
    y = x[..., 0].sin()
    mean, std = sparse.predict(KERNEL, True, 8, x, y, test_x, 8, 300, 0.1, rng)
    for r in range(2):
        kernel = KERNEL._replace(noise=float(std[r, -1]) ** 2 - KERNEL.variance)
        expected = kernels.exact(kernel, *(t[r].double().numpy() for t in (x, y, test_x)))
        np.testing.assert_allclose(mean[r], expected[0], atol=0.03)
        np.testing.assert_allclose(std[r], expected[1], atol=0.04)


def test_no_other_factors_have_a_greater_bound():
    rng = Rng(4, dtype=torch.float64)
    phi, y = rng.normal(2, 30, 5), rng.normal(2, 30)
    best = mean_field.optimum(phi, y, run.NOISE)
    mean, variance, noise = (t.requires_grad_() for t in best)
    errors = (y - (phi @ mean.unsqueeze(2)).squeeze(2)).square().sum(1)
    errors = errors + (phi.square() @ variance.unsqueeze(2)).sum((1, 2))
    shape = run.NOISE.prior_shape + 15  # of q(tau), whose mean is 1 / noise
    tau = torch.distributions.Gamma(shape, shape * noise)
    prior = torch.distributions.Gamma(tensor(run.NOISE.prior_shape), tensor(run.NOISE.prior_rate))
    expected = 0.5 * 30 * (torch.digamma(tensor(shape)) - (shape * noise).log()) - errors / (2 * noise)
    weights = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, variance.sqrt()), torch.distributions.Normal(tensor(0.0), 1.0)
    )
    bound = expected - weights.sum(1) - torch.distributions.kl_divergence(tau, prior)
    for gradient in torch.autograd.grad(bound.sum(), (mean, variance, noise)):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)


def test_predictions_of_the_factors_are_those_of_their_draws():
    rng = Rng(5, dtype=torch.float64)
    factors = mean_field.Factors(rng.normal(1, 3), rng.uniform(1, 3), tensor(0.3))
    phi = rng.normal(1, 4, 3)
    draws = factors.mean + factors.variance.sqrt() * rng.normal(200_000, 3)
    targets = draws @ phi[0].T + 0.3**0.5 * rng.normal(200_000, 4)
    mean, std = factors.predict(phi)
    torch.testing.assert_close(mean[0], targets.mean(0), rtol=0, atol=0.03)
    torch.testing.assert_close(std[0], targets.std(0), rtol=0.01, atol=0)


def test_parameters_are_matched():
    net = Net(nn.Linear(256, 1, bias=False))
    for covariance, expected in (("diagonal", 4 * 16), ("full", 3 * 16 + 16 * 17 // 2)):
        posterior = registry.posterior("whvi", net, run.NOISE, covariance=covariance, **run.RESHAPED)
        state = posterior.init(1, 1, Rng(0))
        ((spread,),) = state.spread
        own = spread.numel() if covariance == "diagonal" else len(torch.tril_indices(16, 16)[0])
        assert own + sum(t.numel() for part in (*state.mean, *state.points) for t in part) == expected
        full = covariance == "full"
        points = sparse.inducing(expected, 5, full)
        assert sparse.count(points - 1, 5, full) < expected <= sparse.count(points, 5, full)
        model = sparse.Sparse(torch.zeros(1, points, 5), kernels.Kernel(1.0, (1.0,) * 5, 0.1), full)
        learnt = [p for p in model.parameters() if p.requires_grad]
        surplus = points * (points - 1) // 2 if full else 0  # the unused triangle
        assert sum(p.numel() for p in learnt) - surplus == sparse.count(points, 5, full)


def test_data_are_space_filling_and_standardised():
    splits = run.sample_splits("hartman6", 2, 256, 64, Rng(0))
    torch.testing.assert_close(splits.x.mean(1), torch.zeros(2, 6), rtol=0, atol=0.02)
    torch.testing.assert_close(splits.x.std(1), torch.ones(2, 6), rtol=0, atol=0.02)
    assert splits.y.std(1).sub(1).abs().max() < 0.02 and (splits.x[0] != splits.x[1]).any()
    truth = FUNCTIONS["hartman6"](splits.x.double() / math.sqrt(12) + 0.5).unsqueeze(2)
    scale, mean = torch.std_mean(truth, 1, keepdim=True)
    noise = (splits.y - (truth - mean) / scale).std()
    assert abs(float(noise) / run.NOISE_STD - 1) < 0.1


def test_small_run(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "LEARNT_FROM", 40)
    options = ["--functions", "otl-circuit,rastrigin5", "--sides", "8", "--replicas", "2", "--train", "60"]
    options += ["--test", "20", "--steps", "4", "--samples", "5", "--out", str(tmp_path)]
    done = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert done.exit_code == 0
    rows = pd.read_csv(tmp_path / "results.csv")
    assert len(rows) == 2 * 2 * (1 + 2 * len(run.MODELS)) and (rows["rmse"] > 0).all()
    exact = rows[(rows["model"] == "exact GP") & (rows["function"] == "otl-circuit")]["rmse"]
    assert f"exact GP |  | 60 | {exact.mean():.3f} ({exact.std():.3f})" in (tmp_path / "table.md").read_text()
    for colour in run.MODELS.values():  # a marker in each panel
        assert min(shares(tmp_path / "rmse.png", colour, panels=2, upper=0.9)) > 0.01
    again = [*options, "--functions", "rastrigin5", "--seed", "1"]
    assert CliRunner().invoke(run.main, again, catch_exceptions=False).exit_code == 0
    changed = pd.read_csv(tmp_path / "results.csv")
    kept = rows["function"] == "otl-circuit"
    pd.testing.assert_frame_equal(changed[kept], rows[kept])
    assert (changed["rmse"] != rows["rmse"])[~kept].all()
    done = CliRunner().invoke(run.main, ["--functions", "branin"])
    assert done.exit_code == 2 and "unknown function 'branin'; allowed: borehole" in done.output
