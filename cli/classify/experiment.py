"""The experiment of `explore classify`: a fit to images and its results."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from explore.cli import problem, start
from explore.cli.classify.settings import PAIRS, Settings
from explore.core import machine, tree
from explore.core.errors import InputError, counted, listed
from explore.core.rng import Rng
from explore.execution import parallel
from explore.images import Images
from explore.images.base import ImageFiles
from explore.inference.predict import Predictor
from explore.learning import classification
from explore.learning.fit import Epoch, ImageFeed, batches
from explore.learning.model import FittedModel
from explore.learning.pool import Scales
from explore.learning.saved import Names, Saved
from explore.learning.scaling import UNSCALED, Standardiser
from explore.runs.record import Run


class Finished(NamedTuple):
    """The results of the fit."""

    scalars: dict[str, float]  # by tag, after the last epoch
    tested: classification.Classified  # predictions for the test images
    ood: classification.Classified | None  # predictions for out-of-distribution images
    alive: bool  # whether the fit succeeded
    seconds: float  # duration of the fit, without measurements
    epoch_seconds: float  # median duration of an epoch
    initial_curvature_share: float = 0.0  # share of the posterior's curvature that is still its initial value


Event = Epoch | classification.Measured | Finished | None  # None: the fit starts or resumes


class Experiment:
    """A posterior, images to train and test it on, and the results of the fit; see `explore.cli.start.Experiment`."""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        images, self.settings = settings.load()
        self.rng = Rng(settings.seed, device)
        self.name, self.classes, self.shape = images.name, images.classes, images.shape
        self.posterior = self.settings.build(self.shape, len(self.classes))
        classification.check_warmup(self.posterior, settings.warmup)
        problem.check_memory(self.posterior, 1, settings.samples)
        mean, scale = map(self.rng.tensor, images.moments())
        self._feed = lambda x, rng, augment="none": ImageFeed(x, mean, scale, 1, rng, augment)
        self.scale = Standardiser(*(t[None, None, :, None, None] for t in (mean, scale)))
        self._split(images)
        remainder = self._remainder()
        self._ood: np.ndarray | None = None  # out-of-distribution images
        # A finished run has their results.
        converted = "" if old and old.state["finished"] else self._load_ood()
        self.finished: Finished | None = None  # the results of the fit, once it ends
        self.saved: Saved | None = None  # the fitted posterior
        self._saved: dict[str, Any] | None = None
        self._seconds: list[float] = []  # duration of each epoch
        if old:
            self._saved, self._seconds = old.state["saved"], [float(s) for s in old.state["seconds"]]
            if entry := old.state["finished"]:
                parts = {key: entry[key] and classification.Classified(**entry[key]) for key in ("tested", "ood")}
                self.finished = Finished(**entry | parts)
        self.parts = (self.name, settings.net, settings.posterior)
        train, test = self.task.y.shape[1], len(self.task.test_y)
        used = f"{train} training and {test} {self._tested} images of {self.name}"
        model = f"{settings.posterior} on {settings.net} ({self.posterior.net.weights} weights)"
        self.plan = f"{model}: {used}, {counted(self.posterior.epochs, 'epoch')}, on {device}"
        self.notes = [*self._notes(images.note, converted), remainder]
        self.unit, self.total = "epochs", self.posterior.epochs

    def _split(self, images: Images) -> None:
        """Choose the training images and the test images (with --validate, from the training set)."""
        s, count = self.settings, len(images.x)
        order, held = Rng(s.seed).stream("split").permutation(1, count)[0], round(s.validation * count)
        if s.validation and not held:
            raise InputError(f"--validate {s.validation:g} of {count} training images selects none. Use a larger share")
        self._tested = "validation" if held else "test"
        train = _first(order[held:], "train", s.train)
        parts = (part if isinstance(part, ImageFiles) else self.rng.tensor(part) for part in (images.x, images.test_x))
        (x, test_x), (y, test_y) = parts, map(self.rng.tensor, (images.y, images.test_y))
        # Of each tested image, in the full test set or, with --validate, in the full training set.
        self.index = order[:held].sort().values if held else torch.arange(len(test_y))
        if held:
            test_x, test_y = _of(x, self.index), y[self.index]
        if s.test is not None:
            chosen = _first(Rng(s.seed).stream("split", 1).permutation(1, len(test_y))[0], "test", s.test)
            test_x, test_y, self.index = _of(test_x, chosen), test_y[chosen], self.index[chosen]
        self.task = classification.Task(
            self._feed(_of(x, train), self.rng.stream("fit"), s.augment or "none"), y[train].unsqueeze(0),
            self._feed(test_x, self.rng), test_y,
        )  # fmt: skip

    def _remainder(self) -> str:
        """Return a note on images that each epoch skips, or "". Raise InputError if images are too few to share."""
        parallel.share(len(self.task.test_y))
        count = self.task.y.shape[1]
        slices = batches(count, self.posterior.batch_size, self.posterior.min_batches)
        for batch in slices:
            parallel.local_part(batch)
        world = parallel.world()
        rest = sum((batch.stop - batch.start) % world.parts for batch in slices)
        why = f"because batches are not divisible by {world.processes} processes"
        return f"Each epoch skips {rest} of {count} images, {why}." if rest else ""

    def _load_ood(self) -> str:
        """Load the out-of-distribution images, if any. Return a note on their conversion or their absence, or ""."""
        try:
            images, converted, settings = self.settings.load_ood(self.shape)
            if images is not None:
                parallel.share(len(images))
            self.settings, self._ood = settings, images
        except InputError as error:
            if self.settings.ood != PAIRS.get(self.settings.dataset or ""):  # the user asked for these images
                raise
            return f"Skipped the out-of-distribution test on {self.settings.ood}: {str(error).rstrip('.')}."
        return converted

    def _notes(self, *notes: str) -> Iterator[str]:
        s = self.settings
        if s.augment != "none":
            worth = self.posterior.stands_for(1)
            each = f"; each counts as {worth:g} examples" if worth != 1 else ""
            yield f"Augmentation of training images: {s.augment}{each}."
        yield from notes
        for part, labels in (("training", self.task.y[0]), (self._tested, self.task.test_y)):
            counts = labels.bincount(minlength=len(self.classes)).tolist()
            if absent := [name for name, count in zip(self.classes, counts, strict=True) if not count]:
                yield f"Classes without a {part} image: {listed(absent, 10)}."
        if self.posterior.net.norms and getattr(self.posterior, "batch_norm", "") == "frozen":
            norms = counted(len(self.posterior.net.norms), "batch normalisation")
            yield f"The scale and shift of {norms} stay fixed at 1 and 0. Use -p batch_norm=adam to train them."
        if s.stream:
            yield "Images are read from their files during training."

    @property
    def done(self) -> int:
        """Number of finished epochs."""
        return len(self._seconds)

    def events(self, folder: Path, emit: Callable[[Event], None]) -> None:
        if self.finished:
            return
        emit(None)
        s, last, begin = self.settings, None, machine.seconds(self.rng.device)
        fit = classification.follow(self.posterior, self.task, self.rng, s.samples, s.warmup, self._saved, s.measure)
        for event in fit:
            if isinstance(event, Epoch):
                self._seconds.append(machine.seconds(self.rng.device) - begin)
            else:
                # A run resumed after the last epoch would skip the code below.
                last, self._saved = event, event.saved if event.epoch < self.total else self._saved
            emit(event)
            begin = machine.seconds(self.rng.device)
        assert last is not None and last.epoch == self.total
        self.finished = self._finish(last)
        scales = Scales(self.scale, UNSCALED)
        model = FittedModel(self.posterior, last.state, scales, self.shape, s.samples, s.seed, last.epoch)
        self.saved = Saved(Names((), ("class",), self.classes), ({},), {s.posterior: model})
        emit(self.finished)

    def _finish(self, last: classification.Measured) -> Finished:
        ood = None
        if self._ood is not None:
            rng = self.rng.stream("test", last.epoch)
            predictor = Predictor.sample(self.posterior, last.state, self.settings.samples, rng)
            ood = classification.classify(predictor, self._feed(self.rng.tensor(self._ood), self.rng))
        alive = bool(last.state.common.alive.all() & last.tested.probabilities.isfinite().all())
        share = float(self.posterior.initial_curvature_share(last.state))
        seconds = sum(self._seconds), float(np.median(self._seconds))
        tested, ood = tree.map_tensors(Tensor.cpu, (last.tested, ood))
        return Finished(last.scalars, tested, ood, alive, *seconds, share)

    def state_dict(self) -> dict[str, Any]:
        finished = self.finished and start.as_dict(self.finished)
        done = self.total if self.finished else (self._saved or {"epoch": 0})["epoch"]
        return {"finished": finished, "saved": self._saved, "seconds": self._seconds[:done], "done": done}


def _first(order: Tensor, option: str, wanted: int | None) -> Tensor:
    """Return the first `wanted` of the shuffled indices `order`, sorted. If `wanted` is None, return all, sorted."""
    if wanted is not None and wanted > len(order):
        raise InputError(f"--{option} is {wanted}, but only {counted(len(order), 'image')} can be used to {option}")
    return order[:wanted].sort().values


def _of(x: Tensor | ImageFiles, points: Tensor) -> Tensor | ImageFiles:
    return x.part(points) if isinstance(x, ImageFiles) else x[points]
