"""Points that were handed out and have no label yet, and inputs that matter."""

import numpy as np
import pytest
import torch

from explore import registry
from explore.acquisitions.base import Needs, RedundancyWarning, best
from explore.core.errors import InputError
from explore.learning.learner import ActiveLearner
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

P, TRIALS = 30, 2
X = np.random.default_rng(0).normal(size=(P, 2)) * [1, 50] + [3, 0]
Y = np.sin(X[:, :1]) * 20 + 7
START = np.array([[10, 11, 12], [20, 21, 22]] * 2)


def learner(*arms, trials=TRIALS, x=X, **kwargs):
    model = registry.posterior("noisy-kfac", Net(mlp(2, [6], 1)), Gaussian(), "small", epochs=4, lr=0.05)
    allowed = np.ones((trials, len(x)), bool)
    allowed[:, 0] = False
    made = ActiveLearner(model, x, arms, trials=trials, allowed=allowed, samples=20, dtype=torch.float64, **kwargs)
    start = START[: made.replicas]
    made.tell(start, Y[start])
    return made


def test_rules_see_them_in_the_units_of_the_model_and_may_not_choose_them():
    seen = []

    def look(view, k):
        seen.append(view)
        return best(view.uniform, view.mask, k)

    own, pending = learner("random", look), np.array([[1, 2], [3, 4], [5, 6], [7, 8]])
    chosen = own.ask(24, pending).indices  # all that there are
    for row, start, waiting in zip(chosen.tolist(), START, pending, strict=True):
        assert set(row) == set(range(1, P)) - set(start) - set(waiting)
    (view,) = seen
    for t in range(TRIALS):
        known = X[START[t]]
        scaled = (X - known.mean(0)) / known.std(0)
        np.testing.assert_allclose(view.pending[t], scaled[pending[TRIALS + t]])
        np.testing.assert_allclose(view.taken[t], scaled[[*START[t], *pending[TRIALS + t]]])
    own.ask(2, pending[:, :0])
    assert seen[1].pending is None and seen[1].targets is None and seen[1].taken is seen[1].labelled.x


def test_inputs_that_matter_are_seen_in_the_units_of_the_model():
    seen = []

    @Needs(aims=True)
    def look(view, k):
        seen.append(view)
        return best(view.uniform, view.mask, k)

    learner("random", look, targets=X[:3] + 1).ask(1)
    for t in range(TRIALS):
        known = X[START[t]]
        np.testing.assert_allclose(seen[0].targets[t], (X[:3] + 1 - known.mean(0)) / known.std(0))
    with pytest.raises(InputError, match=r"inputs must have shape \[n, 2\] like the pool; got \[3, 1\]"):
        learner("epig", targets=X[:3, :1])
    with pytest.raises(
        InputError, match="targets has no effect with random, max-variance. .* such as variance-reduction"
    ):
        learner("random", "max-variance", targets=X[:3])


@pytest.mark.parametrize(
    ("pending", "message"),
    [
        ([10], r"points \[10\] are not available: they are"),
        ([0], "are not available: they are already"),
        ([5, 5], "or repeated"),
        ([P], "points are numbered 0 to 29"),
        ([1.5], "integer type"),
    ],
)
def test_points_that_could_not_have_been_handed_out_are_refused(pending, message):
    own = learner("random", trials=1)
    with pytest.raises(InputError, match=message):
        own.ask(1, pending)
    with pytest.raises(InputError, match=r"must have shape \[2, k\] for 2 replicas; got \[2\]"):
        learner("random").ask(1, [1, 2])
    with pytest.raises(InputError, match="cannot suggest 25 points: only 24 candidates left"):
        own.ask(25, [1, 2])


def test_a_rule_that_ignores_them_says_so():
    own = learner("max-variance", trials=1)
    with pytest.warns(RedundancyWarning, match="may be near-duplicates of the 2 pending points. Use epig"):
        own.ask(1, [1, 2])
    with pytest.warns(RedundancyWarning, match="near-duplicates of each other or the 1 pending point. Use epig"):
        own.ask(3, [1])


def test_information_gain_chooses_no_copy_of_a_pending_point():
    own = learner("information-gain", trials=1)
    first, second = own.ask(2).indices[0].tolist()
    copied = np.concatenate([X, X[[first] * 5]])  # the best point, five times more
    own = learner("information-gain", trials=1, x=copied)
    assert own.ask(1, [first]).indices.tolist() == [[second]]
    torch.testing.assert_close(own.ask(1, [first]).scores[0, 0], own.ask(2).scores[0, 1])
