"""Epochs over shuffled batches."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Weights
from explore.inference.base import Common, Predictive, common
from explore.inference.updates import adam
from explore.inference.updates.steps import end_update, train_pass
from explore.learning import fit as fitting
from explore.learning.fit import fit
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp


def test_an_interrupted_fit_continues_bit_for_bit():
    rng = Rng(0)
    x = rng.normal(2, 10, 1)
    posterior = registry.posterior("noisy-kfac", Net(mlp(1, [3], 1)), Gaussian(), "paper", epochs=5, batch_size=4)
    ours, theirs = Rng(1), Rng(2)
    epochs = fit(posterior, x, x, ours)
    for _ in range(2):
        epoch = next(epochs)
    theirs.generator.set_state(ours.generator.get_state())
    (*_, whole), rest = epochs, list(fit(posterior, x, x, theirs, epoch.epoch, epoch.state))
    assert [e.epoch for e in rest] == [3, 4, 5]
    for (path, a), (_, b) in zip(tree.leaves(rest[-1].state), tree.leaves(whole.state), strict=True):
        assert torch.equal(a, b), path


@pytest.mark.parametrize(
    ("n", "size", "count"),
    [(25, 10, 2), (20, 10, 2), (3, 10, 1), (14, 10, 1), (16, 10, 2), (1, 1, 1), (36, 10, 4), (101, 10, 10)],
)
def test_batches_are_near_equal_and_cover_everything(n, size, count):
    parts = fitting.batches(n, size)
    assert [i for p in parts for i in range(n)[p]] == list(range(n))
    sizes = [p.stop - p.start for p in parts]
    assert len(parts) == count and max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


@pytest.mark.parametrize(("n", "least", "count"), [(100, 16, 16), (100, 3, 10), (5, 16, 5), (1, 16, 1)])
def test_there_are_at_least_so_many_batches_but_none_is_empty(n, least, count):
    sizes = [part.stop - part.start for part in fitting.batches(n, 10, least)]
    assert len(sizes) == count and sum(sizes) == n and max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


class Recorder(Predictive):
    """A posterior that only notes what it is shown."""

    seen: list

    def __init__(self):
        self.__dict__.update(epochs=3, batch_size=4, min_batches=1, seen=[])

    def init(self, n_data, replicas, rng):
        self.seen.append((n_data, replicas))
        return 0

    def update(self, state, batch, rng, progress=0.0):
        self.seen.append((batch, progress))
        return state + 1, {"step": torch.tensor([state])}

    def sample(self, state, n, rng):
        raise AssertionError("a fit predicts nothing")


def test_every_epoch_shows_every_example_once_with_its_target():
    x = torch.arange(20.0).view(2, 10, 1)
    recorder = Recorder()
    epochs = list(fit(recorder, x, 10 * x, Rng(0)))
    start, *steps = recorder.seen
    batches, progress = zip(*steps, strict=True)
    assert start == (10, 2)
    assert [e.epoch for e in epochs] == [1, 2, 3] and {e.epochs for e in epochs} == {3}
    assert [e.state for e in epochs] == [2, 4, 6] and epochs[-1].info["step"].tolist() == [5]
    assert progress == pytest.approx([i / 6 for i in range(6)])
    orders = []
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        seen = torch.cat([first.x, second.x], 1).squeeze(2)
        assert torch.equal(seen.sort(1).values, x.squeeze(2))
        assert torch.equal(torch.cat([first.y, second.y], 1).squeeze(2), 10 * seen)
        orders.append(tuple((seen - seen.min(1, keepdim=True).values).flatten().tolist()))
    assert len(set(orders)) == 3  # shuffled anew every epoch ...
    assert all(o[:10] != o[10:] for o in orders)  # ... and for every replica by itself


class AverageState(NamedTuple):
    common: Common
    weights: Weights
    mean: Weights  # of the weights that updates of the second half of the training began with; then what is sampled
    seen: torch.Tensor  # how many of them
    spread: Weights


@dataclass(frozen=True, kw_only=True)
class Average(Predictive):
    """Stochastic weight averaging, with a diagonal Gaussian that is made of the averages in the end."""

    epochs: int = 4
    batch_size: int = 5

    def init(self, n_data, replicas, rng):
        zeros = tuple(torch.zeros(replicas, 1, i, o) for i, o in self.net.shapes)
        shared = common(self, n_data, replicas, rng)
        return AverageState(shared, self.net.glorot(replicas, rng, 1), zeros, torch.tensor(0), zeros)

    def update(self, state, batch, rng, progress=0.0):
        seen = train_pass(self, state, state.weights, self.likelihood.expected(state.common.noise), batch)
        gradients = adam.loss_gradients(seen.taps, state.weights, 0.0)
        new = state._replace(weights=tuple(w - 0.05 * g for w, g in zip(state.weights, gradients, strict=True)))
        if progress >= 0.5:
            mean = tuple(torch.lerp(m, w, 1 / (state.seen + 1)) for m, w in zip(state.mean, state.weights, strict=True))
            new = new._replace(mean=mean, seen=state.seen + 1)
        return end_update(self, seen, new, state)

    def finish(self, state, batches, rng):
        examples = sum(batch.x.shape[1] for batch in batches)
        spread = tuple(torch.full_like(m, 1 / examples) for m in state.mean)
        return state._replace(weights=state.mean, spread=spread)

    def sample(self, state, n, rng):
        noise = [rng.normal(len(w), n, *w.shape[2:]) for w in state.weights]
        weights = [w + s * e for w, s, e in zip(state.weights, state.spread, noise, strict=True)]
        return self.layers(state, weights)


def test_what_is_made_of_the_trained_net_is_made_once_after_the_last_epoch():
    posterior = Average(net=Net(mlp(1, [3], 1)), likelihood=Gaussian())
    x = Rng(0).normal(2, 10, 1)
    rng = Rng(1)
    *earlier, last = fit(posterior, x, x, rng)
    assert all(not s.any() for epoch in earlier for s in epoch.state.spread)
    assert all((s == 0.1).all() for s in last.state.spread) and int(last.state.seen) == 4
    assert all(map(torch.equal, last.state.weights, last.state.mean))
    assert posterior.sample(last.state, 3, Rng(2))[0].shape == (2, 3, 2, 3)

    rest = list(fit(posterior, x, x, rng, 3, earlier[-1].state))
    assert len(rest) == 1 and all((s == 0.1).all() for s in rest[0].state.spread)
    assert not list(fit(posterior, x, x, rng, 4, last.state))  # what is finished is not finished again


def test_a_fit_can_start_from_a_state():
    x = torch.zeros(2, 10, 1)
    assert [e.state for e in fit(Recorder(), x, x, Rng(0), state=5)] == [7, 9, 11]
