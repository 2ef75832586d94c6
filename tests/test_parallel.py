"""A fit in two processes is the fit of one that holds both parts."""

import multiprocessing
import socket

import pytest
import torch

from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.execution import parallel
from explore.execution.parallel import World
from explore.inference.predict import divided
from explore.learning.learner import ActiveLearner
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from tests import parallel_worker as worker


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The results of `parallel_worker` in each of two processes, as `torchrun` sets them up.

    They are forked from a server that has imported everything, and that no other library's threads run in.
    """
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.parallel_worker"])
    processes = [context.Process(target=worker.work, args=(rank, port, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("part", ["every", "optimised"])
def test_two_processes_have_the_parameters_of_one(pair, part):
    """After some steps, of every posterior that learns from batches and of optimisers, and both the same bits."""
    first, second = (results[part] for results in pair)
    with parallel.within(World(2, 0, 2)):
        reference = getattr(worker, part)()
    assert first.keys() == second.keys() == reference.keys()
    for name, state in reference.items():
        assert first[name].keys() == state.keys()
        for path, expected in state.items():
            told = f"{name}, {path}"
            assert torch.equal(second[name][path], first[name][path]), told
            if "conditionals" in path or "columns" in path:  # rounding may turn eigenvectors
                continue
            assert torch.allclose(first[name][path], expected, rtol=0, atol=1e-5), told


@pytest.mark.parametrize("rank", range(3))
def test_a_part_of_the_pool_is_looked_at(rank, monkeypatch):
    """Of 23 candidates; what the others find is theirs to say."""
    seen: list[int] = []
    monkeypatch.setattr(parallel, "gathered", lambda values, axis: values)

    def outputs(own):
        for start in range(own.start, own.stop, 3):
            part = slice(start, min(start + 3, own.stop))
            seen.extend(range(part.start, part.stop))
            yield part, torch.arange(part.start, part.stop)[None]

    with parallel.within(World(3, rank)):
        (found,) = divided(outputs, 23, lambda part, out: (out,))
        own = parallel.share(23)
    assert seen == found[0].tolist() == list(range(own.start, own.stop)) and 7 <= len(seen) <= 8


def test_active_learning_in_several_processes_is_refused():
    posterior = registry.posterior("bbb", Net(mlp(2, [3], 1)), Gaussian())
    learner = ActiveLearner(posterior, Rng(0).normal(9, 2))
    learner.tell([0, 1], [0.5, 1.0])
    with parallel.within(World(2, 0)), pytest.raises(InputError, match="ActiveLearner runs in one process"):
        learner.ask()


def test_a_batch_is_divided_and_what_is_left_over_is_left_out():
    with parallel.within(World(3, 1)):
        assert parallel.local_part(slice(10, 21)) == slice(13, 16)
        with pytest.raises(InputError, match="a batch of 2 examples does not divide into 3 parts"):
            parallel.local_part(slice(0, 2))
    assert parallel.local_part(slice(10, 21)) == slice(10, 21)


@pytest.mark.parametrize("count", [3, 7, 12])
def test_shares_are_all_of_it(count):
    found: list[int] = []
    for rank in range(3):
        with parallel.within(World(3, rank)):
            own = parallel.share(count)
            found += range(own.start, own.stop)
    assert found == list(range(count))
    with (
        parallel.within(World(3, 1)),
        pytest.raises(InputError, match="2 examples cannot be divided among 3 processes"),
    ):
        parallel.share(2)


def test_streams_belong_to_part_step_and_axis():
    rng = Rng(1).stream("fit")
    assert parallel.apart(rng, 3, 1) is rng
    with parallel.within(World(2, 0, 2)):
        both = parallel.apart(rng, 3, 1).normal(2, 6, 4)
        others = [parallel.apart(rng, step, axis).normal(2, 6, 4) for step, axis in ((4, 1), (3, 2))]
    for rank in range(2):
        with parallel.within(World(2, rank)):
            own = parallel.apart(rng, 3, 1).normal(2, 3, 4)
        assert torch.equal(own, both[:, 3 * rank : 3 * rank + 3])
    assert not torch.equal(both[:, :3], both[:, 3:])
    assert not any(torch.equal(both, other) for other in others)


def test_alone_nothing_is_shared():
    values = Rng(0).normal(3, 4, 4)
    assert parallel.mean(values) is values and parallel.gathered(values, 1) is values
    assert parallel.agreed("a") == "a"
