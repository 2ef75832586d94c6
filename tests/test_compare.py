"""Measurements of posteriors under the same splits, against formulas written out."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.data import uci_splits
from explore.data.base import Dataset
from explore.inference.predict import Moments, Predictor
from explore.learning import compare
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp

R, S = 2, 6
NET = Net(mlp(3, [4], 1))


def dataset(classes=0, n=40):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(3, 2, (n, 2)), np.ones((n, 1))], 1)  # a column is constant
    y = rng.integers(classes, size=n) if classes else 10 * np.sin(x[:, :1]) + 5
    task: Literal["classification", "regression"] = "classification" if classes else "regression"
    return Dataset("d", x, y, ("a", "b", "c"), task, tuple(map(str, range(classes))))


def posterior(name="noisy-kfac", classes=0, **settings):
    likelihood = Categorical() if classes else Gaussian()
    return registry.posterior(name, Net(mlp(3, [4], classes or 1)), likelihood, **settings)


def draw():
    return Rng(0, dtype=torch.float64)


def trained(name="noisy-kfac", classes=0, **settings):
    splits = compare.split(dataset(classes), R, draw())
    *_, last = compare.follow(p := posterior(name, classes, epochs=3, **settings), splits, draw(), S)
    return p, splits, last


def test_splits_are_standardised_by_their_training_part():
    d = dataset()
    found = compare.split(d, R, draw())
    rng = np.random.RandomState(1)
    for r in range(R):
        order = rng.permutation(40)
        train, test = order[:36], order[36:]
        mean, deviation = d.x[train].mean(0), d.x[train].std(0)
        deviation[2] = 1
        np.testing.assert_allclose(found.x[r], (d.x[train] - mean) / deviation)
        np.testing.assert_allclose(found.test_x[r], (d.x[test] - mean) / deviation)
        scale = d.y[train].std(0)
        np.testing.assert_allclose(found.test_y[r], (d.y[test] - d.y[train].mean(0)) / scale)
        assert found.scale is not None
        np.testing.assert_allclose(found.scale[r], scale)
    classes = compare.split(dataset(3), R, draw())
    assert classes.scale is None and classes.y.dtype == torch.int64


def test_elbo_and_objective_count_every_example_once():
    p, splits, last = trained(kl_weight=0.7, augmentation=2.0)
    # As many samples, and the same ones: the streams begin alike.
    net, layers, tau = p.functions(last.state, S, draw().stream("test", 3))
    normal = torch.distributions.Normal(net.output(layers, splits.x), tau.rsqrt().unsqueeze(2))
    fit = normal.log_prob(splits.y.unsqueeze(1)).sum((2, 3)).mean(1)
    kl = p.kl_prior(last.state) + p.likelihood.kl(last.state.common.noise)
    torch.testing.assert_close(last.scalars["train/kl"], kl)
    torch.testing.assert_close(last.scalars["train/elbo"], fit - kl)  # a bound without kl_weight
    torch.testing.assert_close(last.scalars["train/objective"], 2 * fit - 0.7 * kl)
    unit = (fit - kl) / splits.x.shape[1] - splits.scale.log().sum(1)
    torch.testing.assert_close(last.scalars["train/bound"], unit)  # of one point, in its own units


def test_the_bound_of_a_mixture_is_below_its_own_by_log_k_at_most():
    p, _, last = trained("bbb", members=3, kl_weight=1.0)
    kl, nll = last.scalars["train/kl"], last.scalars["train/nll"]
    torch.testing.assert_close(kl, p.divergence(last.state))
    torch.testing.assert_close(last.scalars["train/elbo"], -(36 * nll + kl))
    assert last.scalars["structure/effective_rank"].isnan().all()
    without = trained("mc-dropout", members=3)[2]
    assert without.scalars["train/kl"].isnan().all() and without.scalars["test/rmse"].isfinite().all()


def test_joint_log_likelihood_multiplies_the_points_first():
    p, splits, last = trained()
    rng = draw().stream("test", 3)
    net, layers, tau = p.functions(last.state, S, rng)
    out = net.output(layers, splits.test_x) * splits.scale[:, None, None]
    y, deviation = splits.test_y.unsqueeze(1) * splits.scale[:, None, None], splits.scale.unsqueeze(1) * tau.rsqrt()
    density = torch.distributions.Normal(out, deviation.unsqueeze(2)).log_prob(y).squeeze(3).exp()
    expected = density.prod(2).mean(1).log() / y.shape[2]
    torch.testing.assert_close(last.scalars["test/joint_log_likelihood"], expected)
    torch.testing.assert_close(last.scalars["test/log_likelihood"], density.mean(1).log().mean(1))


@dataclass(frozen=True)
class Given(Predictor):
    """Its moments are given."""

    found: Moments

    def moments(self, x):
        return self.found

    def moments_of(self, out):
        return self.found

    def outputs(self, x, budget=None, only=None):
        yield slice(0, x.shape[1]), self.found.mean.unsqueeze(1)


def test_calibration_error_of_classes_is_that_of_a_loop():
    rng = draw()
    p = rng.uniform(R, 200, 3) + 1e-3
    p[:, :20] = torch.tensor([1.0, 0.0, 0.0])  # a confidence of exactly 1 belongs to the last bin
    p = p / p.sum(2, keepdim=True)
    y = (3 * rng.uniform(R, 200)).long()
    found = compare.reliability(Given(NET, Categorical(), (), None, Moments(p, p)), p, y)
    for r in range(R):
        error = 0.0
        for b in range(15):
            rows = [i for i in range(200) if b / 15 <= p[r, i].max() and (p[r, i].max() < (b + 1) / 15 or b == 14)]
            if rows:
                confidence = np.mean([float(p[r, i].max()) for i in rows])
                accuracy = np.mean([bool(p[r, i].argmax() == y[r, i]) for i in rows])
                error += len(rows) / 200 * float(abs(confidence - accuracy))
        assert float(found.error[r]) == pytest.approx(error)
    torch.testing.assert_close(found.weight.sum(1), torch.ones(R, dtype=torch.float64))


def test_intervals_of_a_gaussian_that_is_right_are_reliable():
    rng, n, noise = draw(), 20000, torch.full((R, 1, 1), 4.0, dtype=torch.float64)  # deviation 0.5
    mean, variance = rng.normal(R, n, 1), torch.full((R, n, 1), 0.75, dtype=torch.float64)
    predictor = Given(NET, Gaussian(), (), noise, Moments(mean, variance))
    right = compare.reliability(predictor, mean, mean + rng.normal(R, n, 1))
    assert (right.observed - right.expected).abs().max() < 5 * 0.5 / n**0.5
    wide = compare.reliability(predictor, mean, mean + 0.5 * rng.normal(R, n, 1))
    # P(|z| / 2 <= q) with z standard normal, q the quantile of each level
    q = torch.distributions.Normal(0.0, 1.0).icdf((1 + wide.expected[0]) / 2)
    expected = 2 * torch.distributions.Normal(0.0, 1.0).cdf(2 * q) - 1
    assert (wide.observed - expected).abs().max() < 5 * 0.5 / n**0.5
    assert (wide.error > 10 * right.error).all()


@pytest.mark.parametrize("classes", [0, 3])
def test_every_posterior_has_the_same_tags(classes):
    tags = {name: list(trained(name, classes)[2].scalars) for name in ("noisy-kfac", "map", "mc-dropout")}
    assert len({tuple(t) for t in tags.values()}) == 1
    assert ("test/error" in tags["map"]) == (classes > 0)


@pytest.mark.parametrize(
    ("members", "calibrate", "jobs"), [(3, 0.0, 1), (1, 0.2, 1), pytest.param(2, 0.2, 2, marks=pytest.mark.slow)]
)
def test_saved_continues_bit_for_bit(members, calibrate, jobs):
    splits, p = compare.split(dataset(), R, Rng(0)), posterior("noisy-ekfac", epochs=4, members=members)

    def measured(saved=None):
        found = compare.follow(p, splits, Rng(0), S, saved, calibrate, jobs)
        return [event for event in found if isinstance(event, compare.Measured)]

    whole = measured()
    rest = measured(whole[1].saved)
    assert [e.epoch for e in rest] == [3, 4]
    for a, b in zip(whole[2:], rest, strict=True):
        for tag, value in a.scalars.items():
            torch.testing.assert_close(value, b.scalars[tag], rtol=0, atol=0, equal_nan=True, msg=tag)


@pytest.mark.parametrize("factor", [1e160, 1e30, 1e-30])
def test_targets_in_extreme_units_are_refused(factor):
    data = dataset()
    with pytest.raises(InputError, match="rescale it|Rescale them to values near 1"):
        compare.split(data._replace(y=data.y * factor), 2, Rng(0))


def test_a_test_example_beyond_single_precision_is_refused():
    data = dataset()
    _, test = uci_splits(len(data.x), 1)[0]
    x = data.x.copy()
    x[test[0], 0] = 1e60
    with pytest.raises(
        InputError,
        match="an example is too far from the others to be standardised in torch.float32: it overflows",
    ):
        compare.split(data._replace(x=x), 1, Rng(0))
