"""A fit in two processes is the fit of one that holds both parts."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from explore import linalg, parallel
from explore.errors import InputError
from explore.parallel import World
from explore.rng import Rng
from tests import parallel_worker as worker

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_two_processes_have_the_parameters_of_one(tmp_path):
    """After 20 steps, of every posterior that learns from batches, and both the same bits."""
    command = [*TORCHRUN, worker.__file__, str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[1])
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    with parallel.within(World(2, 0, 2)):
        reference = worker.every()
    assert first.keys() == second.keys() == reference.keys()
    for name, state in reference.items():
        assert first[name].keys() == state.keys()
        for path, expected in state.items():
            told = f"{name}, {path}"
            assert torch.equal(second[name][path], first[name][path]), told
            if "conditionals" in path or "columns" in path:  # rounding may turn eigenvectors
                continue
            assert torch.allclose(first[name][path], expected, rtol=0, atol=1e-5), told


def test_a_batch_is_divided_and_what_is_left_over_is_left_out():
    with parallel.within(World(3, 1)):
        assert parallel.own(slice(10, 21)) == slice(13, 16)
        with pytest.raises(InputError, match="a batch of 2 examples does not divide into 3 parts"):
            parallel.own(slice(0, 2))
    assert parallel.own(slice(10, 21)) == slice(10, 21)


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
    found = parallel.eigh([values @ values.mT])[0]
    assert all(map(torch.equal, found, linalg.eigh(values @ values.mT)))
