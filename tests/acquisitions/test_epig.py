"""Expected predictive information gain against its definition, written out point by point."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from explore import registry
from explore.acquisitions.base import View, best
from explore.acquisitions.conditioning import Classes, LabelSets, Numbers, _of_outputs, _of_two_outputs, labels_of
from explore.acquisitions.epig import EPIG
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference import predict
from explore.inference.predict import Predictor
from explore.learning.learner import ActiveLearner
from explore.nets.likelihoods import Bernoulli, Categorical, Gamma, Gaussian
from explore.nets.net import Net, mlp
from tests.memory import Largest

R, S, P = 2, 9, 10
TAU = torch.tensor([[0.7], [3.0]], dtype=torch.float64) * torch.tensor([1.0, 20.0, 0.3])  # [R, O]


def view(likelihood=None, outputs=1, points=P, samples=S, seed=0, scale=2.0):
    rng, likelihood = Rng(seed, dtype=torch.float64), likelihood or Gaussian()
    net, x = Net(mlp(2, [6], outputs)), rng.normal(R, points, 2)
    layers = tuple(scale * w for w in net.glorot(R, rng, samples))
    mask = torch.ones(R, points, dtype=torch.bool)
    mask[1, -2:] = False
    posterior = registry.posterior("bbb", net, likelihood)
    state = posterior.init(points, R, rng)
    if not likelihood.discrete:
        tau = TAU[:, :outputs]
        state = state._replace(common=state.common._replace(noise=Gamma(tau, torch.ones_like(tau))))
    noise = TAU[:, None, :outputs]
    labelled = Batch(rng.normal(R, 4, 2), likelihood.sample(noise, rng.normal(R, 1, 4, outputs), rng)[:, 0])
    nets = Predictor(net, likelihood, layers, noise.expand(R, samples, outputs))
    return View(posterior, state, labelled, x, mask, lambda: nets, rng.uniform(R, points), rng)


def outputs_at(v, x):
    nets = v.predictor
    return nets.net.output(nets.layers, x)


def gaussian_information(v, r, given, one, other):
    """I(y_one; y_other | y_given), inputs [., 2] each; every label has noise of its own."""
    groups = [given, one, other]
    x = torch.cat(groups)
    out = outputs_at(v, x.expand(R, *x.shape))[r].flatten(1).numpy()
    covariance = np.cov(out.T).reshape(out.shape[1], -1) + np.diag(np.tile(1 / v.noise[r, 0].numpy(), len(x)))
    group = np.repeat([0, 1, 2], [len(g) * out.shape[1] // len(x) for g in groups])

    def log_det(*parts):
        where = np.isin(group, parts)
        return np.linalg.slogdet(covariance[np.ix_(where, where)])[1]

    return 0.5 * (log_det(0, 1) + log_det(0, 2) - log_det(0) - log_det(0, 1, 2))


def class_information(v, r, given, one, other):
    """The same of classes, from the table of all labels."""
    x = torch.cat([given, one, other])
    p = v.likelihood.mean(outputs_at(v, x.expand(R, *x.shape)))[r].numpy()  # [S, points, C]
    total = 0.0
    for labels in itertools.product(range(p.shape[2]), repeat=len(given)):
        weights = np.prod([p[:, i, y] for i, y in enumerate(labels)], axis=0) * np.ones(len(p)) / len(p)
        both = np.einsum("s,sa,sb->ab", weights / weights.sum(), p[:, -2], p[:, -1])
        alone = both.sum(1, keepdims=True) * both.sum(0, keepdims=True)
        total += weights.sum() * (both * np.log(both / alone)).sum()
    return total


def definition(v, information, r, k):
    """The points and scores that the greedy choice of k has, by the definition."""
    candidates = v.x[r][v.mask[r]]
    targets = candidates if v.targets is None else v.targets[r]
    given, chosen, scores = v.taken[r][len(v.labelled.x[r]) :], [], []
    for _ in range(k):
        means = [
            -np.inf if i in chosen else np.mean([information(v, r, given, x[None], t[None]) for t in targets])
            for i, x in enumerate(candidates)
        ]
        chosen.append(int(np.argmax(means)))
        scores.append(max(means))
        given = torch.cat([given, candidates[chosen[-1]][None]])
    return chosen, scores


KINDS = {
    "one output": (Gaussian(), 1, gaussian_information),
    "three outputs": (Gaussian(), 3, gaussian_information),
    "three classes": (Categorical(), 3, class_information),
    "two classes": (Bernoulli(), 1, class_information),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["pool", "pending", "targets"])
def test_it_is_the_definition(kind, case, monkeypatch):
    likelihood, outputs, information = KINDS[kind]
    v = view(likelihood, outputs)
    if case == "pending":
        v = dataclasses.replace(v, pending=v.rng.normal(R, 2, 2))
    if case == "targets":
        v = dataclasses.replace(v, targets=v.rng.normal(R, 5, 2) + 1)
        monkeypatch.setattr(predict, "CACHE", 4 * R * S * 9)  # in chunks
    k = 2 if case == "pending" else 3
    choice = EPIG(adjusted=False, label_sets=81, alike=0)(v, k)
    for r in range(R):
        chosen, scores = definition(v, information, r, k)
        assert choice.indices[r].tolist() == chosen
        np.testing.assert_allclose(choice.scores[r], scores, rtol=1e-7)


def test_the_correlation_is_adjusted():
    v = view()
    choice = EPIG()(v, 1)
    for r in range(R):
        f = outputs_at(v, v.x)[r, :, v.mask[r], 0].numpy()
        variance = f.var(0, ddof=1)
        signal = variance / (variance + 1 / float(TAU[r, 0]))
        square = 1 - (1 - np.corrcoef(f.T) ** 2) * (S - 1) / (S - 2)
        scores = (-0.5 * np.log(1 - square.clip(0) * np.outer(signal, signal))).mean(1)
        assert int(choice.indices[r, 0]) == int(np.argmax(scores))
        np.testing.assert_allclose(choice.scores[r, 0], scores.max(), rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_what_strangers_show_by_chance_counts_for_little_and_a_whole_dependence_in_full(kind):
    """Targets whose nets were shuffled against those of the candidates have nothing to do with them."""
    likelihood, outputs, _ = KINDS[kind]
    v = view(likelihood, outputs, points=60, samples=40, scale=4.0)
    out = outputs_at(v, v.x)
    labels = labels_of(v, EPIG.label_sets, EPIG.adjusted)
    strangers = torch.stack([out[r, torch.randperm(40, generator=torch.Generator().manual_seed(r))] for r in range(R)])

    def information(adjusted, one, other):
        own, share = dataclasses.replace(labels, adjusted=adjusted), v.uniform.new_full((R, other.shape[2]), 1)
        return own.about(None, other, share)(one)

    chance = [float(information(adjusted, out, strangers).mean()) for adjusted in (True, False)]
    assert 0 < chance[0] < 0.7 * chance[1]
    adjusted, whole = (information(adjusted, out[:, :, :1], out[:, :, :1]) for adjusted in (True, False))
    if kind in ("one output", "two classes"):  # of several, directions differ in how uncertain they are
        torch.testing.assert_close(adjusted, whole)
    assert (adjusted > 0.7 * whole).all() and (adjusted < whole + 1e-9).all()


def test_label_sets_are_drawn_as_often_as_they_are_probable():
    generator = np.random.default_rng(0)
    p = torch.as_tensor(generator.dirichlet([0.3] * 3, (1, 8, 4)))  # [R, S, points, C]
    exact = Classes(lambda out: out, False, 10**4, Rng(0))
    every = exact.condition(None, p[:, :, :3])
    assert every.mass.shape == (1, 27) and float(every.mass.sum()) == pytest.approx(1)
    truth = exact.about(every, p, p.new_ones(1, 4) / 4)(p)
    found = []
    for seed in range(400):
        some = Classes(lambda out: out, False, 7, Rng(seed, dtype=torch.float64))
        known = some.condition(None, p[:, :, :3])
        assert known.mass.shape == (1, 7) and isinstance(known, LabelSets)
        torch.testing.assert_close(known.weights.sum(2), torch.ones(1, 7, dtype=torch.float64))
        found.append(some.about(known, p, p.new_ones(1, 4) / 4)(p))
    draws = torch.cat(found)
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - truth[0]).abs() < 4 * error + 1e-12).all() and (error < 0.05 * truth).all()


@pytest.mark.parametrize("kind", ["one output", "three classes"])
def test_the_order_of_the_samples_does_not_matter(kind):
    likelihood, outputs, _ = KINDS[kind]
    v = view(likelihood, outputs)
    nets = v.predictor
    other = dataclasses.replace(nets, layers=tuple(w.flip(1) for w in nets.layers))
    one, two = EPIG()(v, 3), EPIG()(dataclasses.replace(v, sample=lambda: other), 3)
    assert torch.equal(one.indices, two.indices)
    torch.testing.assert_close(one.scores, two.scores, rtol=1e-9, atol=1e-12)


def test_of_many_candidates_some_are_the_targets_for_all():
    v = view(points=40)
    drawn = EPIG(targets=15)._targets(v)
    x, share = drawn
    assert x.shape == (R, 15, 2) and torch.allclose(share.sum(1), torch.ones(R, dtype=torch.float64))
    for r in range(R):
        allowed = {tuple(p) for p in v.x[r][v.mask[r]].tolist()}
        assert len({tuple(p) for p in x[r].tolist()} & allowed) == 15
    again = [EPIG(targets=15)._targets(dataclasses.replace(v, rng=Rng(s, dtype=torch.float64)))[0] for s in (3, 3, 4)]
    assert torch.equal(again[0], again[1]) and not torch.equal(again[0], again[2])
    given = EPIG(targets=15)._targets(dataclasses.replace(v, targets=v.x[:, :16] + 9))[0]
    assert given.shape == (R, 15, 2) and float(given.mean()) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_grows_with_samples_candidates_and_targets(kind, monkeypatch):
    likelihood, outputs, _ = KINDS[kind]
    for name in ("BUDGET", "CACHE", "KEPT"):
        monkeypatch.setattr(predict, name, 2**12)
    v = view(likelihood, outputs, points=500, samples=12)
    with Largest() as largest:
        EPIG(targets=50)(v, 2)
    at_targets = R * 12 * 50 * max(3, v.predictor.net.width)
    assert largest.numbers <= 4 * max(2**12, at_targets)  # and all pairs are R * 500 * 50, all samples R * 12 * 500 * 6
    assert R * 500 * 50 > 2**15


@pytest.mark.parametrize(("settings", "message"), [({"targets": 0}, "targets is 0"), ({"label_sets": 0}, "label_sets")])
def test_settings_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        registry.acquisition("epig", **settings)


def test_test_points_are_never_targets():
    x = np.random.default_rng(0).normal(size=(40, 2))
    allowed = (np.arange(40) < 30)[None]
    found = []
    for far in (0, 100):
        x[30:] += far
        model = registry.posterior("noisy-kfac", Net(mlp(2, [4], 1)), Gaussian(), "small", epochs=5)
        own = ActiveLearner(model, x, ["epig"], allowed=allowed, samples=20)
        own.tell(range(5), np.sin(x[:5, 0]))
        found.append(own.ask(3))
    assert torch.equal(found[0].indices, found[1].indices) and torch.equal(found[0].scores, found[1].scores)


def test_points_that_are_behind_come_last_with_their_own_scores():
    scores, mask = torch.tensor([[4.0, 3.0, -torch.inf, 1.0, 5.0]]), torch.tensor([[True, True, True, True, False]])
    choice = best(scores, mask, 4, torch.tensor([[True, False, False, True, False]]))
    assert choice.indices.tolist() == [[1, 2, 0, 3]] and choice.scores.tolist() == [[3, -torch.inf, 4, 1]]


@pytest.mark.parametrize("likelihood", [Gaussian(noise_std=0.1), Bernoulli()])
@pytest.mark.parametrize("pending", [0, 2])
def test_a_batch_hits_a_heap_of_near_duplicates_at_most_once(likelihood, pending):
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(size=(60, 2)), 2.5 + 1e-3 * generator.normal(size=(60, 2))])
    y = np.sin(2 * x[:, 0]) if not likelihood.discrete else (x[:, 0] > 0).astype(int)
    model = registry.posterior("noisy-kfac", Net(mlp(2, [20], 1)), likelihood, "small", epochs=50)
    own = ActiveLearner(model, x, ["epig"], samples=100)
    own.tell(range(12), y[:12])
    waiting = [*range(12, 12 + pending - 1), 61][:pending]
    chosen = [*own.ask(5, waiting).indices[0].tolist(), *waiting]
    assert sum(point >= 60 for point in chosen) <= 1, chosen


@pytest.mark.parametrize("adjusted", [False, True])
def test_the_information_of_two_outputs_is_that_of_any_number(adjusted):
    rng = Rng(0, dtype=torch.float64)
    numbers = Numbers(lambda signals: signals, adjusted)
    one, other = (numbers._whitened(rng.normal(2, 9, count, 2), None) for count in (4, 5))
    expected = _of_outputs(one, other, adjusted)
    torch.testing.assert_close(_of_two_outputs(one, other, adjusted), expected)
    assert expected.max() > 0.1
