"""Fitting from scratch: epochs over shuffled batches of numbers or images, in one process or several.

`sharded_fit` divides the replicas into equal shards, each with its own random stream. The number of shards affects the
results; when and where a shard is trained does not. joblib trains the shards in processes of this machine or, inside
`joblib.parallel_config(backend=...)`, on a Dask or Ray cluster.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise, starmap
from typing import Any, Literal, NamedTuple

import joblib
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from explore.core import tree
from explore.core.context import execute, execution
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, State
from explore.execution import graphs, parallel
from explore.images.base import ImageFiles
from explore.inference.base import Predictive
from explore.inference.predict import Inputs

Augmentation = Literal["none", "crop", "crop-flip", "resized-crop"]
PADDING = 4  # pixels added at each side before a random crop
AREA, RATIO = (0.08, 1.0), 4 / 3  # share of the image and largest aspect ratio of a resized crop


class Epoch(NamedTuple):
    """The state of a fit after an epoch, one pass over the data."""

    epoch: int  # from 1
    epochs: int
    state: State
    info: Info  # of the last batch, with the posterior's `learned` values


def batches(n: int, size: int, least: int = 1) -> list[slice]:
    """Return slices that divide n examples into round(n / size) near-equal batches, but at least `least`."""
    count = max(min(least, n), round(n / size))
    return list(starmap(slice, pairwise(round(i * n / count) for i in range(count + 1))))


def fit(
    posterior: Predictive, x: Inputs, y: Tensor, rng: Rng, done: int = 0, state: State | None = None
) -> Iterator[Epoch]:
    """Fit to n examples per replica; yield an `Epoch` after each pass. The last pass ends with `posterior.finish`.

    Args:
        posterior: what to fit; its settings include the number of epochs.
        x: [R, n, ...] inputs, or a feed that loads batches of images on demand.
        y: [R, n, O] targets, or [R, n] class indices.
        rng: the random stream of this fit, for initialisation, data order and noise.
        done: finished epochs of an interrupted fit. `rng.generator` must be in its state after these epochs.
        state: the posterior's state after these epochs; None: a new initial state. The state must come from a fit to
            the same number of examples, which determines the weight of the prior.
    """
    replicas, n = x.shape[:2]
    state = posterior.init(n, replicas, rng) if state is None else state
    slices = batches(n, posterior.batch_size, posterior.min_batches)
    rows = torch.arange(replicas, device=y.device).unsqueeze(1)
    total = posterior.epochs * len(slices)
    info: Info = {}
    update = graphs.updates(posterior, rng)
    for epoch in range(done, posterior.epochs):
        order = rng.permutation(replicas, n)
        shuffled_x, shuffled_y = x[rows, order], y[rows, order]
        for i, part in enumerate(slices):
            share = parallel.local_part(part)
            batch = Batch(shuffled_x[:, share], shuffled_y[:, share])
            state, info = update(state, batch, (epoch * len(slices) + i) / total)
        state, info = update.copied((state, info))
        if epoch + 1 == posterior.epochs:
            state = posterior.finish(state, (Batch(x[:, part], y[:, part]) for part in slices), rng)
        yield Epoch(epoch + 1, posterior.epochs, state, info | posterior.learned(state))


def last_epoch(posterior: Predictive, x: Inputs, y: Tensor, rng: Rng, state: State | None = None) -> Epoch:
    """Run a `fit` and return its last epoch. Earlier states are not kept, since they could take gigabytes."""
    return deque(fit(posterior, x, y, rng, state=state), maxlen=1).pop()


def streams(rng: Rng, shards: int) -> list[Rng]:
    """Return the random stream of each shard. A single shard uses `rng` itself."""
    return [rng] if shards == 1 else [rng.shard(i) for i in range(shards)]


def stops(epochs: int, count: int) -> list[int]:
    """Return the numbers of up to `count` evenly spaced epochs, including the last."""
    return sorted({math.ceil(epochs * i / count) for i in range(1, count + 1)})


def sharded_fit(
    posterior: Predictive,
    x: Float[Tensor, "R n ..."],
    y: Tensor,
    rngs: Sequence[Rng],
    at: Sequence[int],
    done: int = 0,
    state: State | None = None,
) -> Iterator[Epoch]:
    """Fit like `fit`, in one process per stream in `rngs`. With several processes, yield only after epochs in `at`.

    An arm is a block of replicas (see `Rng`); every shard gets the same part of each arm. The streams advance as in
    `fit`. `at` is ascending and ends with the last epoch. `done` and `state` are as in `fit`, for all replicas.
    """
    if len(rngs) == 1:
        yield from fit(posterior, x, y, rngs[0], done, state)
        return
    trials = torch.arange(len(x)).view(rngs[0].arms, -1)
    parts = [part.flatten() for part in trials.tensor_split(len(rngs), 1)]  # the replicas of each shard
    order = torch.cat(parts).argsort()
    states: list[State | None] = [None if state is None else tree.part(state, part) for part in parts]
    threads, record = torch.get_num_threads(), execution().record  # of this thread: joblib creates tasks in others, too
    with joblib.Parallel(n_jobs=len(rngs)) as workers:
        for stop in (epoch for epoch in at if epoch > done):
            ends = workers(
                joblib.delayed(_advance)(posterior, Batch(x[part], y[part]), rng, done, old, stop, threads, record)
                for part, rng, old in zip(parts, rngs, states, strict=True)
            )
            shards, infos, generators = zip(*ends, strict=True)
            for rng, generator in zip(rngs, generators, strict=True):
                rng.generator.set_state(generator)
            done, joined = stop, _joined(shards, order)
            # Not the shards' own tensors: a resumed fit has the strides of these, and strides affect rounding.
            states = [tree.part(joined, part) for part in parts]
            yield Epoch(stop, posterior.epochs, joined, _joined(infos, order))


def _advance(
    posterior: Predictive, data: Batch, rng: Rng, done: int, state: State, stop: int, threads: int, record: bool | None
) -> tuple[State, Info, Tensor]:
    """Train a shard up to epoch `stop`, in a separate process; return its state, info and random state."""
    torch.set_num_threads(threads)
    execute(record=record)
    end = next(epoch for epoch in fit(posterior, *data, rng, done, state) if epoch.epoch == stop)
    return end.state, end.info, rng.generator.get_state()


def _joined(trees: Sequence[tree.Tree], order: Tensor) -> tree.Tree:
    """Join the trees of all shards, and reorder the replicas by `order`. Scalar leaves are equal in all shards."""
    first, *rest = trees
    return tree.map_tensors(lambda *t: torch.cat(t)[order] if t[0].dim() else t[0], first, *rest)


class ImageFeed:
    """A feed of images for fits and predictions, indexed like a tensor [R, n, C, H, W]; replicas share the images.

    A tensor of images must be on the device to compute on; `mean` and `scale` of the channels are in [0, 255]. `rng`
    is the random stream of the fit, which draws the augmentations; batches have its dtype. Only shuffled batches are
    augmented, not slices of the feed.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "n C H W"] | ImageFiles,
        mean: Float[Tensor, " C"],
        scale: Float[Tensor, " C"],
        replicas: int,
        rng: Rng,
        augmentation: Augmentation = "none",
    ):
        self.device, self.shape = rng.device, torch.Size([replicas, *images.shape])
        self._images, self.rng, self.augmentation = images, rng, augmentation
        self._mean, self._scale = (t.to(rng.device, rng.dtype)[:, None, None] for t in (mean, scale))

    def __getitem__(self, key: Any) -> Any:
        """Return a batch [R, b, C, H, W] for a key `[:, part]`, or a shuffled feed for a key `[rows, order]`."""
        _, points = key
        if isinstance(points, slice):
            self.ahead(torch.arange(self.shape[1]), points, points.indices(self.shape[1])[1])
            return self.standardised(self.at(points).unsqueeze(0)).expand(len(self), -1, -1, -1, -1)
        return _Shuffled(self, points)

    def __len__(self) -> int:
        return self.shape[0]

    def ahead(self, order: Int[Tensor, "... n"], part: slice, then: int) -> None:
        """Start decoding the images at `part` of `order`, and the same number from position `then`."""
        if not isinstance(self._images, ImageFiles):
            return
        start, stop, _ = part.indices(order.shape[-1])
        soon = torch.cat([order[..., start:stop], order[..., then : then + stop - start]], -1)
        self._images.ahead(soon.cpu().numpy())

    def at(self, points: slice | Int[Tensor, "..."]) -> UInt8[Tensor, "... C H W"]:
        """Return the images at indices `points` as they are stored."""
        if not isinstance(self._images, ImageFiles):
            return self._images[points]
        images = self._images[points if isinstance(points, slice) else points.cpu().numpy()]
        return torch.from_numpy(images).to(self.device)

    def standardised(self, images: Shaped[Tensor, "... C H W"]) -> Float[Tensor, "... C H W"]:
        """Standardise the channels of images."""
        return (images.to(self.rng.dtype) - self._mean) / self._scale


class _Shuffled:
    """The images of a feed, in a separate random order for each replica, each with a random crop and flip."""

    def __init__(self, feed: ImageFeed, order: Int[Tensor, "R n"]):
        self._feed, self._order = feed, order
        count = {"none": 0, "resized-crop": 5}.get(feed.augmentation, 3)  # of random numbers for each image
        self._places = feed.rng.uniform(*order.shape, count) if count else None

    def __getitem__(self, key: Any) -> Float[Tensor, "R b C H W"]:
        world, (start, stop, _) = parallel.world(), key[1].indices(self._order.shape[1])
        feed, points = self._feed, self._order[key]
        # The other processes' parts of the batch come in between.
        feed.ahead(self._order, slice(start, stop), start + (stop - start) * world.parts // world.held)
        if self._places is None:
            return feed.standardised(feed.at(points))
        images, places = feed.at(points.flatten()), self._places[key].flatten(0, 1)
        if feed.augmentation == "resized-crop":
            augmented = resized(images.to(feed.rng.dtype), places)
        else:
            augmented = cropped(images, places, feed.augmentation == "crop-flip")
        return feed.standardised(augmented.unflatten(0, points.shape))


def cropped(images: UInt8[Tensor, "N C H W"], places: Float[Tensor, "N 3"], flip: bool) -> UInt8[Tensor, "N C H W"]:
    """Pad images by four black pixels, crop them at random to the original size and, if `flip`, mirror half of them."""
    height, width = images.shape[2:]
    windows = F.pad(images, (PADDING,) * 4).unfold(2, height, 1).unfold(3, width, 1)  # a view of all possible crops
    down, right = (places[:, :2] * (2 * PADDING + 1)).long().unbind(1)
    crops = windows[torch.arange(len(images), device=images.device), :, down, right]
    crops = torch.where((places[:, 2] < 0.5)[:, None, None, None], crops.flip(-1), crops) if flip else crops
    return crops.contiguous(memory_format=torch.channels_last)


def resized(images: Float[Tensor, "N C H W"], places: Float[Tensor, "N 5"]) -> Float[Tensor, "N C H W"]:
    """Resize random crops of the images to full size, and mirror half of them (Szegedy et al. 2015, Section 6)."""
    area, ratio, down, right, turn = places.unbind(1)
    area, ratio = AREA[0] + (AREA[1] - AREA[0]) * area, RATIO ** (2 * ratio - 1)
    width, height = ((area * r).sqrt().clamp_max(1.0) for r in (ratio, 1 / ratio))  # as shares of the image's
    mirror = torch.where(turn < 0.5, -1.0, 1.0)
    nothing = torch.zeros_like(width)
    # Maps coordinates in [-1, 1] of the result to those of the image.
    across = torch.stack([mirror * width, nothing, (2 * right - 1) * (1 - width)], 1)
    upright = torch.stack([nothing, height, (2 * down - 1) * (1 - height)], 1)
    grid = F.affine_grid(torch.stack([across, upright], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
