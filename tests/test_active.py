"""Pool-based active learning: asking, telling, resuming, comparing arms."""

import io
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from explore import registry
from explore.acquisitions.base import Choice, Needs, RedundancyWarning, best
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.learning.learner import ActiveLearner, Round, active_loop
from explore.learning.scaling import Standardiser
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian, PartialGaussian
from explore.nets.net import Net, mlp

# Two points a round with max-variance, which looks at each alone: what these tests ask does not hang on it.
pytestmark = pytest.mark.filterwarnings("ignore::explore.acquisitions.base.RedundancyWarning")
GENERATOR = np.random.default_rng(0)
P, TRIALS = 30, 2
X = GENERATOR.normal(size=(P, 2)) * [1, 50] + [3, 0]
Y = np.sin(X[:, :1]) * 20 + 7
TEST = np.stack([np.arange(5), np.arange(5, 10)])  # [trials, m]
START = np.array([[10, 11, 12], [20, 21, 22]])


def posterior(name="noisy-kfac", likelihood=None, outputs=1, inputs=2, **settings):
    sampled = {
        "hmc": {"epochs": 8, "warmup": 4, "max_tree_depth": 3},
        "mclmc": {"epochs": 8, "start": 2, "warmup": 2},
        "gp": {},
        "last-layer": {},
    }
    quick = sampled.get(name, {"epochs": 4, "lr": 0.05})
    net = Net(mlp(inputs, [6], outputs))
    return registry.posterior(name, net, likelihood or Gaussian(), "small", **quick | settings)


def learner(arms=("max-variance", "random"), x=X, y=Y, start=START, model=None, **kwargs):
    allowed = np.ones((TRIALS, P), bool)
    np.put_along_axis(allowed, TEST, False, 1)
    made = ActiveLearner(model or posterior(), x, arms, trials=TRIALS, allowed=allowed, samples=20, **kwargs)
    start = np.tile(start, (len(arms), 1))
    made.tell(start, y[start])
    return made


def rounds(learner, n=4, y=Y, k=2):
    test = np.tile(TEST, (len(learner.acquisitions), 1))
    return [event for event in active_loop(learner, y, test, n, k) if isinstance(event, Round)]


def human(**kwargs):
    return ActiveLearner(posterior(), X, ["information-gain"], samples=20, dtype=torch.float64, **kwargs)


def test_labels_are_kept_when_their_array_is_used_again():
    own, buffer = human(), np.empty(1)
    for i, value in enumerate((0.5, 1.5, 2.5)):
        buffer[:] = value
        own.tell([i], buffer)
    assert own.state_dict()["y"].flatten().tolist() == [0.5, 1.5, 2.5]


def test_a_person_with_one_pool():
    own = human()
    own.tell([3, 4], [0.5, 1.5])
    chosen = own.ask(2).indices
    assert chosen.shape == (1, 2) and not {3, 4} & set(chosen[0].tolist())
    own.tell(chosen, [1.0, 2.0])
    assert own.labelled.tolist() == [[3, 4, *chosen[0].tolist()]]
    prediction = own.predict(X[:4])
    assert prediction.mean.shape == (1, 4, 1) and (prediction.total > prediction.epistemic).all()


def test_asking_changes_nothing():
    own = human()
    own.tell([3, 4], [0.5, 1.5])
    assert torch.equal(own.ask(2).indices, own.ask(2).indices)
    assert torch.equal(own.predict(X[:4]).mean, own.predict(X[:4]).mean)


@pytest.mark.parametrize(
    ("indices", "y", "message"),
    [
        ([3], [0.0], "are not available: they are already labelled, not allowed, or repeated"),
        ([2], [0.0], "are not available: they are already"),
        ([7, 7], [0.0, 0.0], "or repeated"),
        ([30], [0.0], "points are numbered 0 to 29"),
        ([-1], [0.0], "points are numbered 0 to 29"),
        ([8], [np.nan], "a label is not a finite number"),
        ([8, 9], [np.inf, 0.0], "a label is not a finite number"),
        ([8, 9], [1.0, 2.0, 3.0], "got 3 labels for 2 points; each point needs"),
        ([8, 9], [1.0, 2.0, 3.0, 4.0], "got 4 labels for 2 points; each point needs 1"),
        ([], [], "got 0 labels for 0 points; each point needs"),
        ([], [1.0], "got 1 labels for 0 points; each point needs"),
        ([8.7], [1.0], "indices must have an integer type; got torch.float64"),
        (np.array([8.0]), [1.0], "indices must have an integer type; got"),
        ([True], [1.0], "indices must have an integer type; got torch.bool"),
        (["8"], [1.0], "indices must be whole numbers"),
        (None, [1.0], "indices must be whole numbers"),
        ([8, 9], [[1.0], [2.0, 3.0]], "labels must be a numeric array with rows of"),
    ],
)
def test_wrong_labels_are_refused_and_change_nothing(indices, y, message):
    allowed = np.ones((1, P), bool)
    allowed[0, 2] = False
    own = human(allowed=allowed)
    own.tell([3], [0.0])
    with pytest.raises(InputError, match=message):
        own.tell(indices, y)
    assert own.labelled.tolist() == [[3]] and own.round == 1 and int(own.mask.sum()) == P - 2


def test_other_errors():
    own = human()
    with pytest.raises(InputError, match="no labels yet"):
        own.ask()
    own.tell([3], [0.0])
    for k, message in ((0, "k is 0; it must be a whole number"), (30, "cannot suggest 30 points: only 29")):
        with pytest.raises(InputError, match=message):
            own.ask(k)
    with pytest.raises(InputError, match="replicas': 1}, this one .*'replicas': 4"):
        learner().load_state_dict(own.state_dict())
    with pytest.raises(InputError, match="an input is not a finite number"):
        ActiveLearner(posterior(), np.where(X > X.max() - 1e-9, np.nan, X))


MIXED = [(name, {"members": 3}) for name in ("noisy-kfac", "whvi", "mc-dropout", "map")]
EACH = [
    # It is compiled anew for every number of examples.
    pytest.param(name, {}, marks=[pytest.mark.slow] if name == "hmc" else [])
    for name in registry.names("posteriors")
]


@pytest.mark.parametrize(("name", "settings"), [*EACH, *MIXED])
def test_loop(name, settings):
    model = posterior(name, **settings)
    own = learner(("random" if model.certain else "max-variance", "random"), model=model)  # one net has no spread
    events = rounds(own)
    assert [(e.round, e.labels) for e in events] == [(1, 3), (2, 5), (3, 7), (4, 9)]
    assert events[-1].choice is None and all(e.choice is not None for e in events[:-1])
    for event in events:
        assert event.metrics.keys() == {"rmse", "log_likelihood", "epistemic", "coverage_95", "crps"}
        assert all(v.shape == (4,) and v.isfinite().all() for v in event.metrics.values())
    told = torch.cat([e.choice.indices for e in events[:-1]], 1)
    assert torch.equal(own.labelled[:, 3:], told)
    for row, test in zip(own.labelled.tolist(), np.tile(TEST, (2, 1)).tolist(), strict=True):
        assert len(set(row)) == len(row) and not set(row) & set(test)


def test_arms_share_the_first_round_and_part_ways_after_it():
    first, second, *_ = rounds(learner())
    for value in first.metrics.values():
        torch.testing.assert_close(value[:TRIALS], value[TRIALS:], rtol=1e-6, atol=0)
    assert not torch.allclose(first.metrics["rmse"][:1], first.metrics["rmse"][1:TRIALS], rtol=1e-3)
    assert not torch.equal(second.metrics["rmse"][:TRIALS], second.metrics["rmse"][TRIALS:])


@pytest.mark.parametrize("members", [1, 3])
def test_an_arm_does_not_notice_the_others(members):
    # A control must not change the trial it controls; other shapes differ in the last bits.
    both, alone = (
        rounds(learner(arms, model=posterior(members=members), dtype=torch.float64))
        for arms in (("max-variance", "random"), ("max-variance",))
    )
    for a, b in zip(both, alone, strict=True):
        torch.testing.assert_close(a.metrics["rmse"][:TRIALS], b.metrics["rmse"], rtol=1e-7, atol=0)
        if b.choice is not None:
            assert torch.equal(a.choice.indices[:TRIALS], b.choice.indices)


@pytest.mark.parametrize(("stop", "members"), [(1, 1), (2, 1), (3, 1), (2, 3)])
def test_resuming_equals_an_uninterrupted_run_bit_for_bit(stop, members):
    model = posterior(members=members)
    whole = rounds(learner(model=model))
    interrupted = learner(model=model)
    test = np.tile(TEST, (2, 1))
    for event in active_loop(interrupted, Y, test, 4, 2):
        if isinstance(event, Round) and event.round == stop:
            break
    file = io.BytesIO()
    torch.save(interrupted.state_dict(), file)
    file.seek(0)
    continued = learner(model=model)
    continued.load_state_dict(torch.load(file, weights_only=True))
    for ours, theirs in zip(rounds(continued), whole[stop:], strict=True):
        assert ours.round == theirs.round
        assert all(torch.equal(ours.metrics[m], theirs.metrics[m]) for m in theirs.metrics)
        assert (ours.choice is None) == (theirs.choice is None)
        if theirs.choice is not None:
            assert torch.equal(ours.choice.indices, theirs.choice.indices)


TWICE = np.vstack([X[: P // 2]] * 2)  # every point has an equal one


def single(x=X, arms=("information-gain",), allowed=None, model=None, **kwargs):
    """A person's learner, in double precision."""
    model = model or posterior()
    return ActiveLearner(model, x, list(arms), allowed=allowed, samples=20, dtype=torch.float64, **kwargs)


def test_equal_points_keep_their_places_in_the_same_pool():
    first, second = single(TWICE), single(TWICE)
    first.tell([20, 3, 18], [0.0, 1.0, 2.0])  # 3 and 18 are equal
    second.load_state_dict(first.state_dict())
    assert second.labelled.tolist() == [[20, 3, 18]] and torch.equal(second.mask, first.mask)


@pytest.mark.parametrize(
    "change",
    [
        {"x": X * [1, 2]},
        {"x": X[:, ::-1].copy()},
        {"x": X[::-1].copy()},  # the same points in another order
        {"x": np.vstack([X[:-1], X[:1]])},  # a point fewer, and another twice
        {"x": np.where(np.arange(P)[:, None] == 7, X + 1e-12, X)},
        {"x": X.astype(np.float32)},
        {"x": X[:-1]},
        {"allowed": np.arange(P)[None] != 9},
        {"arms": ["max-variance"]},
        {"arms": ["information-gain", "information-gain"]},
        {"trials": 2},
        {"seed": 1},
        {"model": "outputs"},
        {"model": "classes"},
    ],
    ids=str,
)
def test_a_learner_of_something_else_is_not_continued(change):
    first = single()
    first.tell([3, 4], [0.0, 1.0])
    models = {"outputs": lambda: posterior(outputs=2), "classes": lambda: posterior(likelihood=Bernoulli())}
    other = single(**change | ({"model": models[change["model"]]()} if "model" in change else {}))
    with pytest.raises(InputError, match="the saved learner"):
        other.load_state_dict(first.state_dict())
    assert other.round == 0 and other.mask.sum() == other.mask.numel() - ("allowed" in change)


def test_arms_are_not_confused():
    first, second = single(arms=["random", "information-gain"]), single(arms=["information-gain", "random"])
    first.tell([[3], [4]], [[0.0], [1.0]])
    with pytest.raises(
        InputError, match="the saved learner has different settings: {'acquisitions': .'random', 'information-gain'"
    ):
        second.load_state_dict(first.state_dict())


def test_images_of_another_shape_are_other_points():
    from torch import nn

    x = GENERATOR.normal(size=(6, 1, 4, 4))
    pools = (x, x.reshape(6, 1, 2, 8))
    model = registry.posterior("bbb", Net(nn.Sequential(nn.Flatten(), nn.Linear(16, 1))), Gaussian())
    first, second = (single(x, model=model) for x in pools)
    with pytest.raises(InputError, match="the saved learner has a different pool."):
        second.load_state_dict(first.state_dict())


def test_negative_zero_is_zero():
    x = X.copy()
    x[4] = 0.0
    first, second = single(x), single(np.where(x == 0, -0.0, x))
    first.tell([4], [1.0])
    second.load_state_dict(first.state_dict())
    assert second.labelled.tolist() == [[4]]


def test_states_of_other_versions_are_refused():
    own = single()
    own.tell([3], [0.0])
    saved = own.state_dict()
    old = {k: saved[k] for k in ("labelled", "y", "round")} | {"seed": torch.tensor(0), "points": torch.tensor(P)}
    for wrong in (old, saved | {"format": torch.tensor(2)}, saved | {"format": torch.tensor(4)}):
        with pytest.raises(InputError, match="written by another version"):
            single().load_state_dict(wrong)


def test_another_seed_is_another_experiment():
    a, b = (rounds(learner(seed=s), 1)[0].metrics["rmse"] for s in (0, 1))
    assert not torch.equal(a, b)


def test_units_cancel():
    # Standardisation: other units of inputs and targets change nothing but the units of the answer.
    plain, scaled = learner(dtype=torch.float64), learner(x=X * [100, 0.1] - 40, y=Y * 8 + 3, dtype=torch.float64)
    a, b = plain.predict(X[:6]), scaled.predict(X[:6] * [100, 0.1] - 40)
    torch.testing.assert_close(b.mean, a.mean * 8 + 3, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(b.epistemic, a.epistemic * 8, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(b.total, a.total * 8, rtol=1e-6, atol=1e-6)


def test_metrics_are_in_original_units():
    own = learner(dtype=torch.float64)
    test = np.tile(TEST, (2, 1))
    found = own.evaluate(test, Y)
    for r in range(4):
        prediction = own.predict(X[test[r]])
        error = prediction.mean[r].numpy() - Y[test[r]]
        np.testing.assert_allclose(found["rmse"][r], np.sqrt((error**2).mean()), rtol=1e-8)
        np.testing.assert_allclose(found["epistemic"][r], prediction.epistemic[r].mean(), rtol=1e-8)


def test_the_noise_is_part_of_the_total_deviation():
    # A known one, in units in which the labels scatter by 1.
    own = learner(model=posterior(likelihood=Gaussian(noise_std=0.5)), dtype=torch.float64)
    found = own.predict(X[:6])
    noise = (found.total**2 - found.epistemic**2) / own.fitted.scales.y.scale**2
    torch.testing.assert_close(noise, torch.full_like(noise, 0.25))


@pytest.mark.parametrize("y", [Y[:, 0], np.round(Y).astype(int), np.round(Y[:, 0]).astype(np.int32)])
def test_targets_of_one_output_in_any_form(y):
    expected = rounds(learner(y=Y if y.dtype == float else np.round(Y)), 2, Y if y.dtype == float else np.round(Y))
    for a, b in zip(rounds(learner(y=y), 2, y), expected, strict=True):
        assert all(torch.equal(a.metrics[m], b.metrics[m]) for m in b.metrics)


@pytest.mark.parametrize("standardise", ["labelled", "pool", "none"])
def test_input_scale(standardise):
    own = learner(standardise=standardise, dtype=torch.float64)
    for r in range(4):
        points = {"labelled": START[r % 2], "pool": np.setdiff1d(np.arange(P), TEST[r % 2])}.get(standardise)
        mean, scale = (np.zeros(2), np.ones(2)) if points is None else (X[points].mean(0), X[points].std(0))
        f = own.fitted.scales
        for found, expected in zip(f.x, (mean, scale), strict=True):
            np.testing.assert_allclose(found.expand(4, 1, 2)[r, 0], expected, rtol=1e-8)


def test_given_scales_are_those_of_standardised_inputs():
    """Also of one replica of the model."""
    scale = Standardiser(torch.tensor(X.mean(0)), torch.tensor(X.std(0)))
    one, other = (
        learner(standardise=scale, dtype=torch.float64),
        learner(x=(X - X.mean(0)) / X.std(0), standardise="none", dtype=torch.float64),
    )
    for r in range(one.replicas):
        found = one.model.replica(r).predict(X[:5]), other.model.replica(r).predict((X[:5] - X.mean(0)) / X.std(0))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("standardise", ["labelled", "pool"])
@pytest.mark.parametrize("constant", [0.0, 3.3, 1e8])
def test_a_constant_feature_is_harmless(standardise, constant):
    x = np.column_stack([X, np.full(P, constant)])
    own = learner(x=x, model=posterior(inputs=3), standardise=standardise)
    assert own.fitted.scales.x.scale[..., 2].isinf().all()
    assert all(e.metrics["rmse"].isfinite().all() for e in rounds(own, 2))
    other = np.column_stack([X, np.full(P, 200.0)])  # another value than all that was seen
    assert torch.equal(own.predict(other).mean, own.predict(x).mean)


@pytest.mark.parametrize(("unit", "scale"), [(1.0, None), (1e-9, 1.0)])
def test_a_feature_that_is_constant_among_the_labelled_is_no_farther_off_than_in_the_pool(unit, scale):
    """A pressure of 200000 where all others have 101325."""
    pressure = 101325 * unit * np.ones(P)
    pressure[np.setdiff1d(np.arange(P), START)[::3]] = 200000 * unit
    own = learner(x=np.column_stack([X, pressure]), model=posterior(inputs=3))
    expected = pressure.std() if scale is None else scale
    np.testing.assert_allclose(own.fitted.scales.x.scale[..., 2], expected, rtol=1e-6)


def test_equal_labels_are_harmless():
    own = learner(y=np.full((P, 1), 7.0))
    assert own.predict(X[:3]).mean.isfinite().all() and (own.fitted.scales.y.scale == 1).all()


def test_several_outputs():
    y = np.column_stack([Y, -Y[:, 0] * 1000])
    own = learner(y=y, model=posterior(outputs=2))
    assert all(e.metrics["log_likelihood"].isfinite().all() for e in rounds(own, 2, y))
    found = own.evaluate(np.tile(TEST, (2, 1)), y)
    for r in range(4):
        points = TEST[r % 2]
        error = own.predict(X[points]).mean[r].numpy() - y[points]
        np.testing.assert_allclose(found["rmse"][r], np.sqrt((error**2).mean()), rtol=1e-5)
    assert (own.fitted.scales.y.scale[..., 1] / own.fitted.scales.y.scale[..., 0] - 1000).abs().max() < 0.1


@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1)])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_classification(likelihood, outputs, dtype):
    y = (np.arange(P) % (3 if outputs == 3 else 2)).astype(dtype)
    own = learner(("information-gain", "max-variance"), y=y, model=posterior(likelihood=likelihood, outputs=outputs))
    test = np.tile(TEST, (2, 1))
    for event in active_loop(own, y, test, 3, 2):
        if isinstance(event, Round):
            assert event.metrics.keys() == {"error", "log_likelihood", "epistemic"}
    found = own.evaluate(test, y)  # of the last round
    for r in range(4):
        p, target = own.probabilities(X[test[r]])[r].numpy(), y[test[r]]
        np.testing.assert_allclose(found["error"][r], np.mean(p.argmax(1) != target), rtol=1e-6)
        np.testing.assert_allclose(found["log_likelihood"][r], np.log(p[range(5), target]).mean(), rtol=1e-4)
    assert len(found["log_likelihood"].unique()) > 1 and (found["epistemic"] > 1e-3).all()


def test_images_keep_their_axes():
    from torch import nn

    net = Net(nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)))
    model = registry.posterior("noisy-kfac", net, Categorical(), epochs=2)
    own = ActiveLearner(model, GENERATOR.normal(size=(P, 1, 4, 4)), ["information-gain"], samples=5)
    own.tell([0, 1, 2], [0, 1, 2])
    assert own.ask(3).indices.shape == (1, 3)


def test_class_labels_are_checked():
    model = registry.posterior("bbb", Net(mlp(2, [4], 3)), Categorical(), epochs=2)
    own = ActiveLearner(model, np.random.default_rng(0).normal(size=(9, 2)))
    for wrong in (0.5, np.nan, -1, 3):
        with pytest.raises(InputError, match="class labels must be whole numbers from 0 to 2|finite"):
            own.tell([0, 1], [0, wrong])
    with pytest.raises(InputError, match="labels must be a numeric array with rows of"):
        own.tell([0, 1], ["a", "b"])
    own.tell([0, 1], [0, 2])
    p = own.probabilities(own.x[:4])
    assert p.shape == (1, 4, 3)
    torch.testing.assert_close(p.sum(2), torch.ones(1, 4))
    with pytest.raises(InputError, match="probabilities"):
        own.predict(own.x)
    with pytest.raises(InputError, match="one output"):
        ActiveLearner(registry.posterior("bbb", Net(mlp(2, [4], 2)), Bernoulli()), np.zeros((9, 2)))


def test_large_offsets_and_whole_numbers_are_no_trouble():
    x = np.arange(30).reshape(30, 1)
    seconds = x + 1_700_000_000  # single precision has steps of 128 here
    learners = [
        ActiveLearner(registry.posterior("bbb", Net(mlp(1, [4], 1)), Gaussian(), epochs=5), v) for v in (x, seconds)
    ]
    for own, offset in zip(learners, (0, 10**9), strict=True):
        own.tell([0, 10, 20], np.array([0, 1, 2]) + offset)
    torch.testing.assert_close(learners[1].predict(seconds).mean - 10**9, learners[0].predict(x).mean)


def test_replicas_need_their_own_points():
    own = learner()
    with pytest.raises(InputError, match=r"must have shape \[4, k\]"):
        own.tell([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])


def test_standardise_is_checked():
    with pytest.raises(InputError, match="unknown standardise 'pol'"):
        ActiveLearner(posterior(), X, standardise="pol")


def test_points_that_are_chosen_together_are_warned_of():
    own = single(arms=["max-variance"])
    own.tell([3, 4], [0.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.ask(1)
        for quiet in ("information-gain", "epig", "random"):
            for model in (None, posterior(likelihood=Bernoulli())):
                other = single(arms=[quiet], model=model)
                other.tell([3, 4], [0.0, 1.0])
                other.ask(2)
    with pytest.warns(RedundancyWarning, match="max-variance scores points independently; .*Use epig"):
        own.ask(2)


@pytest.mark.parametrize(
    ("posterior", "samples", "rule"),
    [
        (posterior("map"), 20, "information-gain"),
        (posterior("map"), 20, "max-variance"),
        (posterior("ensemble", members=1), 20, "max-variance"),
        (posterior("mc-dropout", rate=0.0), 20, "max-variance"),
        (posterior(), 1, "information-gain"),
    ],
)
def test_where_nothing_varies_a_rule_that_needs_it_is_refused_at_once(posterior, samples, rule):
    with pytest.raises(InputError, match=f"{rule} needs weight uncertainty, .* acquisition random"):
        ActiveLearner(posterior, X, ["random", rule], samples=samples)
    ActiveLearner(posterior, X, ["random"], samples=samples)


@pytest.mark.parametrize(
    "choose",
    [
        lambda view, k: Choice(torch.tensor([[5, P - 1]]), torch.zeros(1, k)),  # one of P points has a label
        lambda view, k: Choice(torch.tensor([[5, -1]]), torch.zeros(1, k)),
        lambda view, k: Choice(torch.tensor([[5]]), torch.zeros(1, 1)),
        lambda view, k: Choice(torch.tensor([[5.0, 6.0]]), torch.zeros(1, k)),
        lambda view, k: torch.tensor([5, 6]),
        lambda view, k: None,
    ],
)
def test_a_rules_wrong_answer_is_said_to_be_the_rules(choose):
    def my_rule(view, k):
        return choose(view, k)

    own = single(arms=[my_rule])
    own.tell([3], [0.0])
    with pytest.raises(InputError, match=r"acquisition tests.test_active:.*my_rule (returned \[|must return)"):
        own.ask(2)


def test_a_rule_that_chooses_a_point_twice_is_named():
    def twice(view, k):
        return Choice(torch.full((1, k), 5), torch.zeros(1, k))

    own = single(arms=[twice])
    own.tell([3], [0.0])
    with pytest.raises(InputError, match=r"acquisition tests.test_active:.*twice returned a point twice: \[5, 5\]"):
        own.ask(2)


def test_a_view_has_the_points_that_may_be_chosen_and_the_labelled_ones_and_no_others():
    """In the units of the model; of replicas with different numbers of candidates the shorter are filled up."""
    seen = []

    def look(view, k):
        seen.append(view)
        return best(view.uniform, view.mask, k)

    allowed = np.ones((TRIALS, P), bool)
    np.put_along_axis(allowed, TEST, False, 1)
    allowed[1, 15:18] = False
    own = ActiveLearner(posterior(), X, ["random", look], trials=TRIALS, allowed=allowed, samples=20)
    start = np.tile(START, (2, 1))
    own.tell(start, Y[start])
    chosen, (view,) = own.ask(2).indices, seen
    for t in range(TRIALS):
        free = np.setdiff1d(np.flatnonzero(allowed[t]), START[t])
        mean, scale = X[START[t]].mean(0), X[START[t]].std(0)
        assert view.mask[t].tolist() == [True] * len(free) + [False] * (22 - len(free))
        np.testing.assert_allclose(view.x[t, : len(free)], (X[free] - mean) / scale, rtol=1e-5, atol=1e-6)
        assert (view.x[t, len(free) :] == view.x[t, 0]).all()
        np.testing.assert_allclose(view.labelled.x[t], (X[START[t]] - mean) / scale, rtol=1e-5, atol=1e-6)
        y = Y[START[t]]
        np.testing.assert_allclose(view.labelled.y[t], (y - y.mean(0)) / y.std(0), rtol=1e-5, atol=1e-6)
    assert not torch.equal(view.mask[0], view.mask[1])
    # The state is that of these replicas: its density and its samples are theirs.
    _, layers, _ = own.posterior.functions(own.fitted.state, 3, Rng(0, arms=2))
    _, alone, _ = view.posterior.functions(view.state, 3, Rng(0))
    for a, b in zip(tree.tensors(layers), tree.tensors(alone), strict=True):
        torch.testing.assert_close(a[TRIALS:], b)
    # The same numbers for both arms, so that the same points are chosen.
    assert torch.equal(chosen[:TRIALS], chosen[TRIALS:])


def test_a_points_random_number_does_not_depend_on_the_other_candidates():
    allowed = np.ones((1, P), bool)
    allowed[0, 20:] = False
    found = []
    for mask in (None, allowed):
        own = single(arms=["random"], allowed=mask)
        own.tell([3], [0.0])
        points = own.ask(5).indices[0].tolist()
        found.append([point for point in points if point < 20])
    assert found[1][: len(found[0])] == found[0]


def needs(**declared):
    return Needs(**declared)(lambda view, k: best(view.uniform, view.mask, k))


@pytest.mark.parametrize(
    ("rule", "model", "message"),
    [
        (needs(density=True), posterior("mc-dropout"), "needs a posterior with a density, but MCDropout has none"),
        (needs(targets="classes"), posterior(), "supports classes only, but NoisyKFAC predicts numbers"),
        (needs(targets="numbers"), posterior(likelihood=Bernoulli()), "numbers only, but NoisyKFAC predicts classes"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_before_anything_is_fitted(rule, model, message):
    with pytest.raises(InputError, match=f"tests.test_active:.*{message}"):
        single(arms=[rule], model=model)
    assert single(arms=[needs(density=True, targets="numbers")], model=posterior("bbb")).round == 0


def test_too_many_points_are_refused_before_the_first_fit():
    own = single(arms=[needs(most=2)])
    own.tell([3], [0.0])
    with pytest.raises(InputError, match="chooses at most 2 points at once, not 3"):
        own.ask(3)
    for rounds, k, message in ((2, 3, "chooses at most 2 points at once"), (16, 2, "cannot suggest 15 times 2 points")):
        with pytest.raises(InputError, match=message):
            next(active_loop(own, Y, TEST[:1], rounds, k))
    assert own.ask(2).indices.shape == (1, 2)


@dataclass(frozen=True)
class Nearest:
    """Near a place, and near it first."""

    place: float = 0.0

    def __call__(self, view, k):
        return best(-(view.x - self.place).square().sum(-1), view.mask, k)


def test_a_rule_with_settings_is_a_dataclass():
    own = single(arms=[Nearest(), Nearest(place=9.0)])
    own.tell([[3, 4]] * 2, [[0.0, 1.0]] * 2)
    chosen = own.ask().indices
    assert chosen[0] != chosen[1]
    other = single(arms=[Nearest(), Nearest(place=8.0)])
    with pytest.raises(InputError, match=r"the saved learner has .*Nearest\(place=9.0\)"):
        other.load_state_dict(own.state_dict())
    with pytest.raises(InputError, match="an acquisition is <class .*Nearest'>; it must be a name, or"):
        single(arms=[Nearest])


def test_settings_of_an_acquisition_by_name():
    named = f"{__name__}:Nearest"
    assert registry.acquisition(named, place=2.0) == Nearest(2.0) and registry.acquisition(named) == Nearest()
    assert registry.configured("acquisitions", named, [("place", "2")]).settings == {"place": 2.0}
    with pytest.raises(InputError, match="unknown setting of .*Nearest 'plaice'; allowed: place"):
        registry.acquisition(named, plaice=2.0)
    with pytest.raises(InputError, match="random has no settings"):
        registry.acquisition("random", seed=1)


def test_inputs_are_those_of_the_pool():
    own = single()
    own.tell([3, 4], [0.0, 1.0])
    # One column would be spread over all of them.
    for wrong in (X[:, :1], X[0], X[:, :, None], np.zeros((0, 2)), np.zeros((4, 3))):
        with pytest.raises(InputError, match=r"inputs must have shape \[n, 2\] like the training inputs; got"):
            own.predict(wrong)
    with pytest.raises(InputError, match="inputs must be a numeric array with rows of"):
        own.predict([["a", "b"]])
    with pytest.raises(InputError, match="'0' expects 2 features"):
        single(np.zeros((5, 3)))
    for wrong in (X[0, 0], np.zeros((0, 2))):
        with pytest.raises(InputError, match="at least one point"):
            single(wrong)
    for allowed in (np.ones((1, P)), np.ones((1, P - 1), bool), np.ones(P, bool)):
        with pytest.raises(InputError, match="allowed must be a boolean array of shape .1, 30."):
            single(allowed=allowed)


def test_labels_in_another_order_of_axes_are_not_shuffled():
    own = single(model=posterior(outputs=2))
    with pytest.raises(InputError, match=r"labels must have shape \[1, 3, 2\]; got \[2, 3\]"):
        own.tell([3, 4, 5], np.zeros((2, 3)))
    own.tell([3, 4, 5], np.zeros((3, 2)))
    own.tell([6, 7, 8], np.zeros((1, 3, 2)))


def test_test_points_and_their_labels_are_checked():
    own = learner()
    test = np.tile(TEST, (2, 1))
    for wrong, message in ((test[:1], r"\[4, m\]"), (test + 0.5, "integer type"), (test + P, "numbered 0 to 29")):
        with pytest.raises(InputError, match=message):
            own.evaluate(wrong, Y)
    for labels in (Y[:-1], np.hstack([Y, Y]), 3.0):
        with pytest.raises(InputError, match="y must have the labels of all 30 points, 1 each"):
            own.evaluate(test, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_units_are_no_answer_of_nan(dtype):
    """They are scaled away, or refused; and so are points far from the labelled ones."""
    for factor in (1e155, 1e300, 1e-160):
        for wrong in ({"x": X * [1, factor]}, {"y": Y * factor}):
            with pytest.raises(InputError, match="column [12] ranges from .*; rescale it"):
                learner(dtype=dtype, **wrong).predict(X[:3])
    for factor in (1e100, 1e-100):
        plain, scaled = learner(dtype=dtype), learner(x=X * factor, y=Y * factor, dtype=dtype)
        torch.testing.assert_close(scaled.predict(X[:3] * factor).mean / factor, plain.predict(X[:3]).mean.double())
    far = X.copy()
    far[0] = 1e300
    with pytest.raises(
        InputError,
        match="an example is too far from the others to be standardised in torch.float32: it overflows",
    ):
        learner(x=far).ask(1)
    with pytest.raises(InputError, match="too far from the others"):
        learner(x=X * 1e60, standardise="none").ask(1)


def test_labels_of_which_some_outputs_are_not_measured():
    """What stands in place of NaN does not matter; without the likelihood for it they are refused."""
    x, y = np.random.default_rng(0).normal(size=(2, 30, 2))
    y[:8, 1], y[8:12, 0] = np.nan, np.nan
    partial = registry.posterior("bbb", Net(mlp(2, [4], 2)), PartialGaussian(), epochs=3)
    learner = ActiveLearner(partial, x, ["max-variance"])
    learner.tell(range(20), y[:20])
    assert learner.ask(3).indices.shape == (1, 3)
    labelled = learner.training(learner.fitted.scales)
    np.testing.assert_allclose(labelled.y.nanmean(1), 0, atol=1e-5)
    assert torch.equal(labelled.y[0].isnan(), torch.from_numpy(np.isnan(y[:20])))
    again = ActiveLearner(partial, x, ["max-variance"])
    again.load_state_dict(learner.state_dict())
    assert torch.equal(again.ask(3).scores, learner.ask(3).scores)
    with pytest.raises(InputError, match="a point has NaN in all outputs. Leave out"):
        learner.tell([20], [[np.nan, np.nan]])
    with pytest.raises(InputError, match="a label is not a finite number"):
        learner.tell([20], [[np.inf, 1.0]])
    plain = registry.posterior("bbb", Net(mlp(2, [4], 2)), "gaussian", epochs=3)
    with pytest.raises(InputError, match="a label is not a finite number"):
        ActiveLearner(plain, x, ["max-variance"]).tell(range(20), y[:20])
