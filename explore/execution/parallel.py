"""Data-parallel training: each process has a shard of every batch and separate weight samples. Also: GPU streams.

    with parallel.joined():  # in a script that `torchrun --nproc-per-node 4 script.py` starts
        for epoch in fit(posterior, x, y, rng): ...

Every process has all the data, the same root seed and the same state. Gradients, curvature statistics, noise and
batch-norm statistics are averaged over the processes (all-reduce), so that the states stay equal (Osawa et al.:
Practical Deep Learning with Bayesian Principles, 2019, Section 3). Random numbers for examples or weight samples come
from a separate stream for each update and each part (shard) of the batch; all other random numbers come from the shared
stream. One process that computes several parts gets the same results as several processes, except with batch-norm
layers, `sub_batches` or `reparameterisation="weights"`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from explore.core import tree
from explore.core.context import World, executing, execution
from explore.core.errors import InputError, counted
from explore.core.rng import Kind, Rng

T = TypeVar("T")
STREAMS = 8


def world() -> World:
    """Return the `World`: the number of parts (shards) of each batch, and which parts this process computes."""
    return execution().world


def within(world: World) -> AbstractContextManager[Any]:
    """Use a different `World` within the block; for several processes, the default process group must exist."""
    return executing(world=world)


def within_group() -> AbstractContextManager[Any]:
    """Use the processes of torch's default group within the block, if there is such a group."""
    exists = dist.is_available() and dist.is_initialized()
    return within(World(dist.get_world_size(), dist.get_rank()) if exists else world())


@contextmanager
def joined() -> Iterator[World]:
    """Set up the process group of a `torchrun` job for the block; without torchrun, do nothing.

    Communication in the block raises `ProcessLost` if another process has ended.
    """
    if started() == 1:
        yield world()
        return
    store, rank, size = next(dist.rendezvous("env://"))
    # After a restart, the store may still contain the addresses of the former processes.
    store = dist.PrefixStore(f"attempt-{attempt()}", store)
    dist.init_process_group(store=store, rank=rank, world_size=size)
    try:
        with within_group():
            yield world()
    finally:
        dist.destroy_process_group()


def started() -> int:
    """Return the number of processes that `torchrun` started; 1 without `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", 1))


def attempt() -> int:
    """Return how often `torchrun` has restarted this job."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


class ProcessLost(RuntimeError):
    """Another process of the job has ended, so communication is no longer possible."""


def local_part(part: slice) -> slice:
    """Return this process's share of the batch [part.start, part.stop); a remainder of examples is dropped."""
    count = (part.stop - part.start) // world().parts
    if not count:
        examples = counted(part.stop - part.start, "example")
        raise InputError(f"a batch of {examples} does not divide into {world().parts} parts; take larger batches")
    start = part.start + world().first * count
    return slice(start, start + world().held * count)


def apart(rng: Rng, step: int, axis: int) -> Rng:
    """Return a stream that draws separately for each part of the batch along `axis`; `step` counts updates, from 1."""
    if world().parts == 1:
        return rng
    return _Apart([rng.shard(step, part, axis) for part in range(world().first, world().first + world().held)], axis)


class _Apart(Rng):
    """A random stream that concatenates the draws of several streams along an axis, one per part of the batch."""

    def __init__(self, streams: Sequence[Rng], axis: int):
        super().__init__(streams[0].seed, streams[0].device, streams[0].dtype, streams[0].arms)
        self._streams, self._axis = streams, axis

    def draw(self, kind: Kind, shape: tuple[int, ...]) -> Tensor:
        count, axis = shape[self._axis] // len(self._streams), self._axis
        part = (*shape[:axis], count, *shape[axis + 1 :])
        return torch.cat([stream.draw(kind, part) for stream in self._streams], axis)


def mean(values: T) -> T:
    """Average a tree of tensors over the processes."""
    if world().processes == 1:
        return values
    every = tree.tensors(values)
    whole = torch.cat([leaf.reshape(-1) for leaf in every])  # one message for all
    with _sharing():
        dist.all_reduce(whole)
    parts = iter((whole / world().processes).split([leaf.numel() for leaf in every]))
    return tree.map_tensors(lambda leaf: next(parts).view(leaf.shape), values)


def gathered(values: Shaped[Tensor, "..."], axis: int) -> Shaped[Tensor, "..."]:
    """Concatenate the tensors of all processes along an axis, on which their lengths may differ."""
    if world().processes == 1:
        return values
    local = values.movedim(axis, 0).contiguous()
    length = torch.tensor([len(local)], device=local.device)
    lengths = [torch.empty_like(length) for _ in range(world().processes)]
    with _sharing():
        dist.all_gather(lengths, length)
        longest = int(torch.cat(lengths).max())
        padded = torch.cat([local, local.new_zeros(longest - len(local), *local.shape[1:])])
        every = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(every, padded)
    return torch.cat([t[: int(n)] for t, n in zip(every, lengths, strict=True)]).movedim(0, axis)


def share(count: int) -> slice:
    """Return this process's share of `count` items; `gathered` concatenates the shares in order."""
    processes, rank = world().processes, world().rank
    if count < processes:
        raise InputError(f"{counted(count, 'example')} cannot be divided among {processes} processes; take fewer")
    return slice(round(rank * count / processes), round((rank + 1) * count / processes))


def agreed(value: Any) -> Any:
    """Broadcast a plain value from the first process; return the first process's value in every process."""
    if world().processes == 1:
        return value
    box = [value]
    with _sharing():
        dist.broadcast_object_list(box, 0)
    return box[0]


@contextmanager
def _sharing() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # gloo has no exception class of its own
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise ProcessLost("another process of this job has ended") from error


# Streams of a GPU ------------------------------------------------------------------------------------------


def side_by_side(works: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """Run independent functions, in several streams on a GPU, else one after the other; return the list of results."""
    if device.type != "cuda":
        return [work() for work in works]
    main, streams = torch.cuda.current_stream(device), _streams(device)[: len(works)]
    for stream in streams:
        stream.wait_stream(main)
    results = []
    try:
        for i, work in enumerate(works):
            with torch.cuda.stream(streams[i % len(streams)]):
                results.append(work())
    finally:  # even after an error: tensors that other streams still read may be freed
        for stream in streams:
            main.wait_stream(stream)
    return results


@lru_cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(STREAMS))
