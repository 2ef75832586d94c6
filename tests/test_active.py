"""Pool-based active learning: asking, telling, resuming, comparing arms."""

import io

import numpy as np
import pytest
import torch

from explore import registry
from explore.active import ActiveLearner, Round, active_loop
from explore.errors import InputError
from explore.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets import Net, mlp

GENERATOR = np.random.default_rng(0)
P, TRIALS = 30, 2
X = GENERATOR.normal(size=(P, 2)) * [1, 50] + [3, 0]
Y = np.sin(X[:, :1]) * 20 + 7
TEST = np.stack([np.arange(5), np.arange(5, 10)])  # [trials, m]
START = np.array([[10, 11, 12], [20, 21, 22]])


def posterior(name="noisy-kfac", likelihood=None, outputs=1, inputs=2, **settings):
    quick = {"epochs": 8, "warmup": 4, "max_tree_depth": 3} if name == "hmc" else {"epochs": 4, "lr": 0.05}
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
        ([3], [0.0], "labelled already, held out for testing, or named twice"),
        ([2], [0.0], "held out for testing"),
        ([7, 7], [0.0, 0.0], "named twice"),
        ([30], [0.0], "points are numbered 0 to 29"),
        ([-1], [0.0], "points are numbered 0 to 29"),
        ([8], [np.nan], "a label is not a finite number"),
        ([8, 9], [np.inf, 0.0], "a label is not a finite number"),
        ([8, 9], [1.0, 2.0, 3.0], "2 points cannot have 3 labels"),
        ([8, 9], [1.0, 2.0, 3.0, 4.0], "2 points cannot have 4 labels; each has 1"),
        ([], [], "0 points cannot have 0 labels"),
        ([], [1.0], "0 points cannot have 1 label"),
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
    with pytest.raises(InputError, match="there is no label yet"):
        own.ask()
    own.tell([3], [0.0])
    for k in (0, 30):
        with pytest.raises(InputError, match=f"asked for {k} points, but 29 are left"):
            own.ask(k)
    with pytest.raises(InputError, match="replicas': 1}, this one .*'replicas': 4"):
        learner().load_state_dict(own.state_dict())
    with pytest.raises(InputError, match="an input is not a finite number"):
        ActiveLearner(posterior(), np.where(X > X.max() - 1e-9, np.nan, X))


@pytest.mark.parametrize("name", registry.names("posteriors"))
def test_loop(name):
    own = learner(model=posterior(name))
    if name == "map":  # one net has no spread to choose by
        with pytest.raises(InputError, match="at least 2 weight samples"):
            rounds(own)
        own = learner(["random"] * 2, model=posterior(name))
    events = rounds(own)
    assert [(e.round, e.labels) for e in events] == [(1, 3), (2, 5), (3, 7), (4, 9)]
    assert events[-1].choice is None and all(e.choice is not None for e in events[:-1])
    for event in events:
        assert event.metrics.keys() == {"rmse", "log_likelihood", "epistemic", "coverage_95"}
        assert all(v.shape == (4,) and v.isfinite().all() for v in event.metrics.values())
    told = torch.cat([e.choice.indices for e in events[:-1]], 1)
    assert torch.equal(own.labelled[:, 3:], told)
    for row, test in zip(own.labelled.tolist(), np.tile(TEST, (2, 1)).tolist(), strict=True):
        assert len(set(row)) == len(row) and not set(row) & set(test)


def test_arms_share_the_first_round_and_part_ways_after_it():
    first, second, *_ = rounds(learner())
    for value in first.metrics.values():
        assert torch.equal(value[:TRIALS], value[TRIALS:])
    assert len(first.metrics["rmse"].unique()) == TRIALS
    assert not torch.equal(second.metrics["rmse"][:TRIALS], second.metrics["rmse"][TRIALS:])


def test_an_arm_does_not_notice_the_others():
    # A control must not change the trial it controls; other shapes differ in the last bits.
    both, alone = (
        rounds(learner(arms, dtype=torch.float64)) for arms in (("max-variance", "random"), ("max-variance",))
    )
    for a, b in zip(both, alone, strict=True):
        torch.testing.assert_close(a.metrics["rmse"][:TRIALS], b.metrics["rmse"], rtol=1e-7, atol=0)
        if b.choice is not None:
            assert torch.equal(a.choice.indices[:TRIALS], b.choice.indices)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resuming_equals_an_uninterrupted_run_bit_for_bit(stop):
    whole = rounds(learner())
    interrupted = learner()
    test = np.tile(TEST, (2, 1))
    for event in active_loop(interrupted, Y, test, 4, 2):
        if isinstance(event, Round) and event.round == stop:
            break
    file = io.BytesIO()
    torch.save(interrupted.state_dict(), file)
    file.seek(0)
    continued = learner()
    continued.load_state_dict(torch.load(file, weights_only=True))
    for ours, theirs in zip(rounds(continued), whole[stop:], strict=True):
        assert ours.round == theirs.round
        assert all(torch.equal(ours.metrics[m], theirs.metrics[m]) for m in theirs.metrics)
        assert (ours.choice is None) == (theirs.choice is None)
        if theirs.choice is not None:
            assert torch.equal(ours.choice.indices, theirs.choice.indices)


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
    noise = (found.total**2 - found.epistemic**2) / own.fitted.y_scale**2
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
        f = own.fitted
        for found, expected in ((f.x_mean, mean), (f.x_scale, scale)):
            np.testing.assert_allclose(found.expand(4, 1, 2)[r, 0], expected, rtol=1e-8)


@pytest.mark.parametrize("standardise", ["labelled", "pool"])
@pytest.mark.parametrize("constant", [0.0, 3.3, 1e8])
def test_a_constant_feature_is_harmless(standardise, constant):
    x = np.column_stack([X, np.full(P, constant)])
    own = learner(x=x, model=posterior(inputs=3), standardise=standardise)
    assert (own.fitted.x_scale[..., 2] == 1).all()
    assert all(e.metrics["rmse"].isfinite().all() for e in rounds(own, 2))


def test_equal_labels_are_harmless():
    own = learner(y=np.full((P, 1), 7.0))
    assert own.predict(X[:3]).mean.isfinite().all() and (own.fitted.y_scale == 1).all()


def test_several_outputs():
    y = np.column_stack([Y, -Y[:, 0] * 1000])
    own = learner(y=y, model=posterior(outputs=2))
    assert all(e.metrics["log_likelihood"].isfinite().all() for e in rounds(own, 2, y))
    assert own.predict(X[:3]).mean.shape == (4, 3, 2)


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
        with pytest.raises(InputError, match="class labels are whole numbers from 0 to 2|finite"):
            own.tell([0, 1], [0, wrong])
    with pytest.raises(InputError, match="labels must be numbers"):
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
    with pytest.raises(InputError, match=r"come as \[4, k\]"):
        own.tell([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])


def test_standardise_is_checked():
    with pytest.raises(InputError, match="unknown standardise 'pol'"):
        ActiveLearner(posterior(), X, standardise="pol")
