"""Expected improvement and confidence bounds of points and of batches, against integrals."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from explore import registry
from explore.acquisitions.base import check
from explore.acquisitions.optimum import ramp
from explore.core.errors import InputError
from explore.inference import predict
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp
from tests.acquisitions.views import P, R, S, outputs_of, view

DIRECTIONS = pytest.mark.parametrize("direction", ["maximise", "minimise"])
RULES = ("expected-improvement", "upper-confidence-bound")
KAPPA = 1.5
NODES = np.linspace(-8, 8, 641)  # fine, as maxima have kinks
WEIGHTS = stats.norm.pdf(NODES) / stats.norm.pdf(NODES).sum()


def gaussian(v, direction):
    """Mean and covariance at the candidates of each replica, and the best mean at a labelled point; more is better."""
    sign = 1 if direction == "maximise" else -1
    out = sign * outputs_of(v).squeeze(3).numpy()
    labelled = sign * v.predictor.net.output(v.predictor.layers, v.labelled.x).squeeze(3).numpy()
    return out.mean(1), [np.cov(o.T) for o in out], labelled.mean(1).max(1)


def expected_max(mean, covariance, best, name):
    """Of one or two points, on a grid."""
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(mean)))
    z = np.stack(np.meshgrid(*[NODES] * len(mean), indexing="ij"), -1).reshape(-1, len(mean))
    weights = np.prod(np.stack(np.meshgrid(*[WEIGHTS] * len(mean), indexing="ij"), -1), -1).ravel()
    f = z @ root.T
    if name == "expected-improvement":
        return weights @ np.maximum((mean + f).max(1) - best, 0)
    return weights @ (mean + KAPPA * np.sqrt(np.pi / 2) * np.abs(f)).max(1)


def rule(name, direction="maximise", **settings):
    return registry.acquisition(name, direction=direction, **settings)


@DIRECTIONS
@pytest.mark.parametrize("chunked", [False, True])
def test_a_points_improvement_and_bound_are_the_closed_forms(direction, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr(predict, "BUDGET", 4 * R * S * 6)
    mask = torch.ones(R, P, dtype=torch.bool)
    mask[:, 1] = False
    v = view(mask=mask)
    mean, covariance, best = gaussian(v, direction)
    deviation = np.sqrt([c.diagonal() for c in covariance])
    z = (mean - best[:, None]) / deviation
    improvement = deviation * stats.norm.pdf(z) + (mean - best[:, None]) * stats.norm.cdf(z)
    bound, sign = mean + KAPPA * deviation, 1 if direction == "maximise" else -1
    for name, settings, scores in ((RULES[0], {}, improvement), (RULES[1], {"kappa": KAPPA}, bound)):
        choice = rule(name, direction, **settings)(v, 1)
        scores = np.where(mask, scores, -np.inf)
        assert np.array_equal(choice.indices[:, 0], scores.argmax(1))
        said = scores.max(1) * (sign if name == RULES[1] else 1)  # a bound is one of the targets
        np.testing.assert_allclose(choice.scores[:, 0], said, rtol=1e-8)


@DIRECTIONS
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("pending", [False, True])
def test_the_second_point_adds_most_to_the_first(name, direction, pending):
    """To the pending one, or to the one that was chosen."""
    v, settings = view(), {"kappa": KAPPA} if name == RULES[1] else {}
    mean, covariance, best = gaussian(v, direction)
    chosen = rule(name, direction, draws=20_000, **settings)
    if pending:
        some = {"candidates": v.x[:, 1:], "mask": v.mask[:, 1:], "uniform": v.uniform[:, 1:]}
        few = dataclasses.replace(v, **some, pending=v.x[:, :1])
        choice = chosen(few, 1)
        first, second, score = np.zeros(R, int), choice.indices[:, 0].numpy() + 1, choice.scores[:, 0]
    else:
        choice = chosen(v, 2)
        (first, second), score = choice.indices.T.numpy(), choice.scores[:, 1]
    for r in range(R):
        pairs = [[first[r], i] for i in range(P) if i != first[r]]
        both = [expected_max(mean[r, p], covariance[r][np.ix_(p, p)], best[r], name) for p in pairs]
        assert second[r] == pairs[int(np.argmax(both))][1]
        if name == RULES[0]:
            alone = [first[r]]
            before = expected_max(mean[r, alone], covariance[r][np.ix_(alone, alone)], best[r], name)
            np.testing.assert_allclose(score[r], max(both) - before, rtol=1e-3, atol=1e-3)  # of grid and draws


@pytest.mark.parametrize("name", RULES)
def test_pending_twins_are_one_point(name):
    """And so are more points than there are nets to tell them apart."""
    v = view()
    some = {"candidates": v.x[:, 1:], "mask": v.mask[:, 1:], "uniform": v.uniform[:, 1:]}
    chosen = [
        rule(name, draws=5_000)(dataclasses.replace(v, **some, pending=v.x[:, :1].expand(-1, n, -1)), 1)
        for n in (1, 2, S + 1)
    ]
    for other in chosen[1:]:
        assert torch.equal(other.indices, chosen[0].indices)
        torch.testing.assert_close(other.scores, chosen[0].scores, rtol=5e-3, atol=5e-3)


def copies(v, n):
    """Its first replica, n times: of the first two points, which are pending, and the third."""
    nets = dataclasses.replace(v.predictor, layers=tuple(w[:1].expand(n, -1, -1, -1) for w in v.predictor.layers))
    return dataclasses.replace(
        v, candidates=v.x[:1, 2:3].expand(n, -1, -1), pending=v.x[:1, :2].expand(n, -1, -1), sample=lambda: nets,
        labelled=v.labelled._replace(x=v.labelled.x[:1].expand(n, -1, -1)), mask=v.mask[:1, :1].expand(n, 1),
        uniform=v.uniform[:1, :1].expand(n, 1),
    )  # fmt: skip


def test_few_draws_are_unbiased():
    """For a third point, of which closed forms know nothing: by few draws against by many."""
    v, n = view(), 300
    exact = rule(RULES[0], draws=200_000)(copies(v, 1), 1).scores.squeeze()
    few = rule(RULES[0], draws=10)(copies(v, n), 1).scores[:, 0]
    error = few.std() / n**0.5
    assert 0 < error < 0.05 * exact and (few.mean() - exact).abs() < 4 * error


@pytest.mark.parametrize("name", RULES)
def test_what_is_good_is_said(name):
    v, settings = view(), {"kappa": 0.1} if name == RULES[1] else {}
    up, down = (rule(name, direction, **settings)(v, 1) for direction in ("maximise", "minimise"))
    assert not torch.equal(up.indices, down.indices)
    mirrored = dataclasses.replace(
        v.predictor, layers=(*v.predictor.layers[:-1], -v.predictor.layers[-1])
    )  # of a net with negated last weights the highest is the lowest
    other = rule(name, "maximise", **settings)(dataclasses.replace(v, sample=lambda: mirrored), 1)
    assert torch.equal(other.indices, down.indices)
    torch.testing.assert_close(other.scores, down.scores if name == RULES[0] else -down.scores)


def test_hopeless_points_are_still_ranked():
    """Where no sampled net would improve on the best, the rule does not just take the first."""
    v = view()
    v.labelled.x[:] = v.x[:, :1]
    mean, covariance, _ = gaussian(v, "maximise")
    top = mean.argmax(1)
    for r in range(R):
        v.labelled.x[r] = v.x[r, top[r]]
    few = torch.arange(P) != 0
    far = dataclasses.replace(v.predictor, layers=tuple(w.mean(1, keepdim=True) + 0.02 * (w - w.mean(1, keepdim=True))
    for w in v.predictor.layers))  # fmt: skip
    v = dataclasses.replace(v, sample=lambda: far, mask=few.expand(R, P))
    choice = rule("expected-improvement")(v, P - 1)
    assert choice.scores.isfinite().all() and (choice.scores >= 0).all()
    assert len(choice.scores[0].unique()) > 3


def test_a_ramp_far_below_keeps_its_digits():
    z = torch.tensor([-30.0, -10.0, 0.0, 4.0], dtype=torch.float64)
    exact = [
        integrate.quad(lambda u, m=m: u * stats.norm.pdf(u - m), 0, 15, epsabs=0, epsrel=1e-12)[0] for m in z.tolist()
    ]
    np.testing.assert_allclose(ramp(z, torch.ones_like(z)), exact, rtol=1e-9)
    assert torch.equal(ramp(z, torch.zeros_like(z)), z.clamp_min(0))


@pytest.mark.parametrize("name", RULES)
def test_several_outputs_and_classes_are_refused_by_name(name):
    for likelihood, outputs, message in (
        (Gaussian(), 2, "supports a single output, but BBB predicts 2"),
        (Categorical(), 3, "supports numbers only, but BBB predicts classes"),
    ):
        posterior = registry.posterior("bbb", Net(mlp(2, [4], outputs)), likelihood)
        with pytest.raises(InputError, match=f"{name} {message}"):
            check(rule(name), posterior, 10)
    with pytest.raises(InputError, match=r"direction='up' is not valid; allowed: maximise \| minimise"):
        registry.configured("acquisitions", name, [("direction", "up")])
    with pytest.raises(InputError, match="draws is 0; it must be"):
        rule(name, draws=0)
