import pytest
import torch

from explore import registry
from explore.cli import problem
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.data import load
from explore.learning import compare
from explore.learning.fit import last_epoch, sharded_fit, stops, streams
from explore.learning.learner import ActiveLearner
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

R, N, D = 5, 12, 3


def made(name="bbb", epochs=4, **settings):
    return registry.posterior(name, Net(mlp(D, [4], 1)), Gaussian(), epochs=epochs, batch_size=6, samples=2, **settings)


def examples(replicas=R):
    drawn = Rng(7).stream("toy")
    return drawn.normal(replicas, N, D), drawn.normal(replicas, N, 1)


def equal(one, other):
    first, second = dict(tree.leaves(one)), dict(tree.leaves(other))
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        assert torch.equal(leaf, second[path]), path


@pytest.mark.parametrize(("epochs", "some"), [(1, {1}), (7, set(range(1, 8))), (1000, {20, 40, 980, 1000})])
def test_stops(epochs, some):
    found = stops(epochs, 50)
    assert some <= set(found) and found == sorted(set(found)) and found[-1] == epochs and len(found) == min(epochs, 50)


@pytest.mark.parametrize("settings", [{}, {"members": 2}])
def test_a_shard_is_the_fit_of_its_replicas_alone(settings):
    p, (x, y) = made(**settings), examples()
    found = list(sharded_fit(p, x, y, streams(Rng(3).stream("fit"), 2), [1, 3, 4]))
    assert [epoch.epoch for epoch in found] == [1, 3, 4]
    for i, part in enumerate((slice(0, 3), slice(3, 5))):
        alone = last_epoch(p, x[part], y[part], Rng(3).stream("fit").shard(i))
        equal(tree.part(found[-1].state, part), alone.state)
        equal(tree.part(found[-1].info, part), alone.info)


def test_shards_draw_numbers_of_their_own():
    p, (x, y) = made(), examples(1)
    same = x.expand(2, -1, -1), y.expand(2, -1, -1)
    *_, last = sharded_fit(p, *same, streams(Rng(3).stream("fit"), 2), [4])
    (weights, *_) = p.sample(last.state, 1, Rng(0))
    assert not torch.equal(weights[0], weights[1])


def test_one_shard_is_the_fit_that_is_not_divided():
    p, (x, y) = made(), examples()
    *_, last = sharded_fit(p, x, y, streams(Rng(3).stream("fit"), 1), [4])
    equal(last.state, last_epoch(p, x, y, Rng(3).stream("fit")).state)


def test_every_shard_has_the_same_part_of_each_arm():
    p, (x, y) = made(), examples(3)
    both = Rng(3, arms=2).stream("fit")
    *_, last = sharded_fit(p, x.repeat(2, 1, 1), y.repeat(2, 1, 1), streams(both, 2), [4])
    equal(tree.part(last.state, slice(0, 3)), tree.part(last.state, slice(3, 6)))


# The roots of noisy K-FAC are strided where they were made, and were not where a fit went on.
@pytest.mark.parametrize(
    "own", [{"name": "bbb"}, {"name": "noisy-kfac"}, {"name": "noisy-kfac", "members": 2}], ids=str
)
def test_a_comparison_continues_in_shards_bit_for_bit(own):
    settings = {"epochs": 4, "batch_size": 200, "samples": 2} | own
    p = registry.posterior(net=Net(mlp(13, [20], 1)), likelihood=Gaussian(), **settings)
    splits = compare.split(load("boston"), 3, Rng(0))

    def measured(saved=None):
        found = compare.follow(p, splits, Rng(0), samples=5, saved=saved, jobs=2)
        return [event for event in found if isinstance(event, compare.Measured)]

    whole = measured()
    rest = measured(whole[1].saved)
    assert [m.epoch for m in rest] == [3, 4]
    equal(rest[-1].state, whole[-1].state)
    equal(*(tree.map_tensors(torch.nan_to_num, part[-1].scalars) for part in (rest, whole)))  # some a mixture has not


def test_a_learner_in_shards_begins_both_arms_alike():
    pool = Rng(1).stream("toy").normal(20, D)
    learner = ActiveLearner(made(), pool, ["max-variance", "random"], trials=3, samples=5, jobs=8)
    assert learner.jobs == 3
    first = torch.arange(6).view(3, 2).repeat(2, 1)
    learner.tell(first, pool[first][..., :1])
    state = learner.fitted.state
    equal(tree.part(state, slice(0, 3)), tree.part(state, slice(3, 6)))
    assert learner.ask(1).indices.shape == (6, 1)


def test_processes_do_not_share_an_accelerator():
    assert problem.place("cpu", 2) == "cpu in 2 processes" and problem.place("cuda:0", 1) == "cuda:0"
    with pytest.raises(InputError, match="--jobs needs --device cpu. Leave --jobs out, or pass --device cpu"):
        problem.place("cuda:0", 2)
