"""A view is enough for rules that need the candidates, the labelled points, their targets, or posterior and state.

Small versions of four rules, as a plug-in would have them, against what they mean, computed from the pool itself.
"""

from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from scipy import stats

from explore import registry
from explore.acquisitions.base import Choice, Needs, View, best, greedy
from explore.acquisitions.conditioning import centred
from explore.core.errors import InputError
from explore.inference import predict
from explore.learning.learner import ActiveLearner
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from tests import oracles
from tests.acquisitions.views import R, S, view

P, TRIALS, K = 24, 2, 4
GENERATOR = np.random.default_rng(0)
X, START = GENERATOR.normal(size=(P, 2)) * [1, 50], np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
Y = np.sin(X[:, :1]) * 20 + 7
X[-4:] += [50, 0]  # the test points, far from all others
FREE = [np.setdiff1d(np.arange(P - 4), start) for start in START]


@dataclass(frozen=True)
class CoreSet:
    """The candidate farthest from its nearest labelled point, then the next (Sener and Savarese 2018)."""

    def __call__(self, view: View, k: int) -> Choice:
        def given(nearest, chosen):
            point = view.x.gather(1, chosen.unsqueeze(2).expand(-1, -1, view.x.shape[2]))
            return torch.minimum(nearest, torch.cdist(view.x, point).squeeze(2))

        start = torch.cdist(view.x, view.labelled.x).amin(2)
        return greedy(view.mask, k, start, lambda nearest: nearest, given)


@Needs(spread=True, targets="numbers", most=1)
@dataclass(frozen=True)
class ExpectedImprovement:
    """E[max(0, lowest - xi - y)] of a Gaussian prediction (Jones et al. 1998)."""

    xi: float = 0.0

    def __call__(self, view: View, k: int) -> Choice:
        mean, variance = (m.squeeze(2) for m in view.moments())
        gap, deviation = view.labelled.y.amin(1) - self.xi - mean, variance.sqrt()
        normal = torch.distributions.Normal(torch.zeros_like(gap), torch.ones_like(gap))
        z = gap / deviation
        return best(gap * normal.cdf(z) + deviation * normal.log_prob(z).exp(), view.mask, k)


@Needs(spread=True, targets="numbers", alone=True)
@dataclass(frozen=True)
class EPIG:
    """Mean information of a label about the labels of other points that matter (Bickford Smith et al. 2023)."""

    inputs: int = 6  # candidates whose labels matter, chosen at random

    def __call__(self, view: View, k: int) -> Choice:
        matter = best(view.rng.uniform(*view.mask.shape), view.mask, self.inputs).indices
        f, g = (centred(out).squeeze(3) for out in (view.outputs_at(view.x), view.outputs(matter)))
        noise = 1 / view.noise  # [R, 1, 1]
        each, other = f.square().sum(1).unsqueeze(2) + noise, g.square().sum(1).unsqueeze(1) + noise
        both = torch.einsum("rsb,rsm->rbm", f, g)
        information = -0.5 * (1 - both.square() / (each * other)).log()
        return best(information.mean(2), view.mask, k)


@Needs(density=True, targets="numbers")
def bait(view: View, k: int) -> Choice:
    """What leaves least of tr((P + sum I_x)^-1 sum_pool I_x), I_x = tau J^T J (Ash et al. 2021), for one output."""
    points = torch.cat([view.labelled.x, view.x], 1)
    posterior: Any = view.posterior
    out, pullback = posterior.net.forward(posterior.at_mean(view.state), points)
    taps = pullback(torch.ones_like(out))
    jacobian = tuple(torch.einsum("rsbti,rsbto->rbio", t.inputs, t.grads) for t in taps)
    _, precision, scale = posterior.gaussian(view.state)
    solved = tuple(scale * j for j in precision.solve(jacobian))
    kernel = sum(torch.einsum("rbio,rcio->rbc", j, s) for j, s in zip(jacobian, solved, strict=True))
    n, noise = view.labelled.x.shape[1], 1 / view.noise.squeeze(2)  # [R, 1]

    def scores(kernel):  # by how much the trace falls
        variance = kernel.diagonal(dim1=1, dim2=2)
        return (kernel.square().sum(1) / (noise + variance) / noise)[:, n:]

    def given(kernel, chosen):
        row = kernel.gather(1, (n + chosen).unsqueeze(2).expand(-1, -1, kernel.shape[2]))  # [R, 1, n + C]
        own = row.gather(2, (n + chosen).unsqueeze(2))
        return kernel - row.mT * row / (noise.unsqueeze(2) + own)

    return greedy(view.mask, k, kernel, scores, given)


def asked(rule, k=K, posterior="noisy-kfac"):
    """(the view, the points of the pool that the rule chose, the learner)"""
    seen: list[View] = []

    @Needs(**vars(getattr(rule, "needs", Needs())))
    def watched(view, k):
        seen.append(view)
        return rule(view, k)

    model = registry.posterior(posterior, Net(mlp(2, [4], 1)), Gaussian(noise_std=0.3), "small", epochs=20)
    allowed = np.broadcast_to(np.arange(P) < P - 4, (TRIALS, P)).copy()
    learner = ActiveLearner(model, X, [watched], trials=TRIALS, allowed=allowed, samples=30, dtype=torch.float64)
    learner.tell(START, Y[START])
    points = learner.ask(k).indices
    return seen[0], points, learner


def test_core_set_is_as_far_as_can_be_from_labels_and_choices():
    _, points, *_ = asked(CoreSet())
    for t in range(TRIALS):
        scaled = (X - X[START[t]].mean(0)) / X[START[t]].std(0)
        have = list(START[t])
        for point in points[t].tolist():
            distance = [min(np.linalg.norm(scaled[i] - scaled[j]) for j in have) for i in FREE[t]]
            assert point == FREE[t][int(np.argmax(distance))]
            have.append(point)


@pytest.mark.parametrize("xi", [0.0, 0.5])
def test_expected_improvement_on_the_best_label(xi):
    view, points, learner = asked(ExpectedImprovement(xi), 1)
    for t in range(TRIALS):
        scale = Y[START[t]].std()
        # The view's own nets, in units of the targets.
        f = view.predictor.net.output(view.predictor.layers, view.x)[t, :, :, 0].numpy() * scale + Y[START[t]].mean()
        mean, deviation = f.mean(0), f.std(0, ddof=1)
        gap = Y[START[t]].min() - xi * scale - mean
        expected = gap * stats.norm.cdf(gap / deviation) + deviation * stats.norm.pdf(gap / deviation)
        assert points[t].item() == FREE[t][expected.argmax()]
    with pytest.raises(InputError, match="chooses at most 1 point at once, not 2"):
        learner.ask(2)


def test_epig_asks_what_candidates_would_say():
    view, points, _ = asked(EPIG(inputs=len(FREE[0])), 1)  # all of them matter
    f = view.predictor.net.output(view.predictor.layers, view.x).squeeze(3).numpy()
    for t in range(TRIALS):
        covariance, noise, scores = np.cov(f[t].T), 0.3**2 * np.eye(2), []
        for i in range(len(FREE[t])):
            # Two labels, of one point too: each has noise of its own.
            pairs = [covariance[np.ix_([i, j], [i, j])] + noise for j in range(len(FREE[t]))]
            scores.append(np.mean([0.5 * np.log(pair.diagonal().prod() / np.linalg.det(pair)) for pair in pairs]))
        assert points[t].item() == FREE[t][int(np.argmax(scores))]


def test_bait_lowers_the_trace_most():
    view, points, learner = asked(bait, 3)
    posterior, state = learner.posterior, learner.fitted.state
    (mean, precision, scale), tau = posterior.gaussian(state), 0.3**-2
    for t in range(TRIALS):
        scaled = torch.as_tensor((X - X[START[t]].mean(0)) / X[START[t]].std(0))
        jacobian = torch.autograd.functional.jacobian(
            lambda *w, x=scaled: posterior.net.output([m[None, None] for m in w], x[None])[0, 0, :, 0],
            tuple(m[t] for m in mean),
        )
        rows = torch.cat([j.flatten(1) for j in jacobian], 1).numpy()  # [P, W]
        inverse = oracles.dense(precision)[t].numpy() / scale
        pool = [*START[t], *FREE[t]]
        fisher = tau * rows[pool].T @ rows[pool]
        left = list(FREE[t])
        for point in points[t].tolist():
            traces = [np.trace(np.linalg.solve(inverse + tau * np.outer(rows[i], rows[i]), fisher)) for i in left]
            assert point == left[int(np.argmin(traces))]
            inverse = inverse + tau * np.outer(rows[point], rows[point])
            left.remove(point)


def test_bait_is_refused_without_a_density():
    with pytest.raises(InputError, match="needs a posterior with a density, but Ensemble has none"):
        asked(bait, posterior="ensemble")


@pytest.mark.parametrize("rule", ["variance-reduction", "information-gain", "epig", "max-variance"])
def test_jobs_that_share_the_candidates_choose_the_same(rule, monkeypatch):
    monkeypatch.setattr(predict, "CACHE", 4 * R * S * 6)  # chunks of four points
    for points in (50, 3):
        choice = registry.acquisition(rule)(view(points=points), 3)
        with joblib.parallel_config("sequential", n_jobs=3):
            shared = registry.acquisition(rule)(view(points=points), 3)
        assert torch.equal(shared.indices, choice.indices) and torch.equal(shared.scores, choice.scores)
