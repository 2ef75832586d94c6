"""Epochs over shuffled batches."""

import pytest
import torch

from explore import fit as fitting
from explore import registry, tree
from explore.fit import fit
from explore.likelihoods import Gaussian
from explore.nets import Net, mlp
from explore.posteriors.base import Predictive
from explore.rng import Rng


def test_an_interrupted_fit_continues_bit_for_bit():
    rng = Rng(0)
    x = rng.normal(2, 10, 1)
    posterior = registry.posterior("noisy-kfac", Net(mlp(1, [3], 1)), Gaussian(), epochs=5, batch_size=4)
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


class Recorder(Predictive):
    """A posterior that only notes what it is shown."""

    seen: list

    def __init__(self):
        self.__dict__.update(epochs=3, batch_size=4, seen=[])

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


def test_a_fit_can_start_from_a_state():
    x = torch.zeros(2, 10, 1)
    assert [e.state for e in fit(Recorder(), x, x, Rng(0), state=5)] == [7, 9, 11]
