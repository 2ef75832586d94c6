"""Settings and experiment of `explore classify`: a fit to images and its results."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from explore import registry
from explore.cli import problem, start
from explore.core import machine, tree
from explore.core.errors import InputError, counted, listed
from explore.core.rng import Rng
from explore.execution import parallel
from explore.images import Images, load, read as read_images, read_inputs
from explore.images.base import ImageFiles
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning import build, classification
from explore.learning.fit import Augmentation, Epoch, ImageFeed, batches
from explore.learning.model import FittedModel
from explore.learning.pool import Scales
from explore.learning.saved import Names, Saved
from explore.learning.scaling import UNSCALED, Standardiser
from explore.nets import zoo
from explore.runs.record import Run
from explore.runs.recorded import Values, check_unchanged

WORTH = 10.0  # examples that an augmented image counts as, as in the VOGN paper for CIFAR-10
# Options that become settings unchanged.
PLAIN = ("images", "size", "grey", "stream", "amp", "warmup", "augment", "train", "test", "seed", "samples", "measure")
PAIRS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}  # default out-of-distribution images


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings with defaults resolved, except those that depend on the images: `load` resolves these."""

    command: Literal["classify"] = "classify"
    dataset: str | None
    images: str | None  # a folder or file, instead of `dataset`
    size: int | None
    grey: bool
    stream: bool | None = False  # whether images are read from their files during training
    fingerprint: str | None = None  # hash of the images at the start of the run
    net: str
    net_settings: Values
    outputs: tuple[float, ...] | None = None  # of a user's network for fixed inputs, to detect changes
    amp: bool
    posterior: str
    preset: str
    posterior_settings: Values
    warmup: int
    augment: Augmentation | None
    train: int | None
    test: int | None = None
    validation: float  # share of the training images held out for testing; 0: use the test images
    ood: str | None  # name or path of out-of-distribution images
    ood_fingerprint: str | None = None  # hash of these images at the start of the run
    seed: int
    samples: int
    measure: int = classification.POINTS  # maximum number of measurements
    processes: int = 1  # number of processes that share every batch

    likelihood = "categorical"  # the same for all runs, so not a setting

    def load(self) -> tuple[Images, "Settings"]:
        """Return the images, and settings with all defaults resolved. Raise InputError if the images have changed."""
        if self.images:
            images = read_images(Path(self.images), self.size, self.grey, self.stream)
        else:
            images = load(self.dataset or "")
        if not len(images.test_x) and not self.validation:
            raise InputError(f"{images.name} has no test images. Use --validate 0.2 to hold out training images")
        whole = fingerprint(images)
        check_unchanged(f"the images of {images.name}", self.fingerprint, whole)
        augment: Any = self.augment or images.augmentation
        settings = dict(self.posterior_settings)
        make = registry.find("posteriors", self.posterior)
        if "augmentation" in registry.settings_of(make) and "augmentation" not in settings:
            worth = registry.settings_in(make, self.preset).get("augmentation", WORTH)
            settings["augmentation"] = 1.0 if augment == "none" else worth
        outputs = zoo.outputs(self.net, images.shape, len(images.classes), self.net_settings)
        zoo.check_known(self.net, outputs, self.outputs)
        return images, replace(
            self, fingerprint=whole, augment=augment, stream=isinstance(images.x, ImageFiles),
            outputs=outputs if self.outputs is None else self.outputs, posterior_settings=settings,
        )  # fmt: skip

    def build(self, shape: tuple[int, int, int], classes: int) -> Predictive:
        """Build the posterior over a network's weights, for images of shape (channels, height, width)."""
        return build.posterior(self, shape, classes, self.posterior, self.posterior_settings, {})


def fingerprint(images: Images) -> str:
    """Return a hash of a data set. For images that stay in files, hash file paths and sizes instead of pixels."""
    whole = hashlib.sha256(repr((images.classes, images.x.shape, images.test_x.shape)).encode())
    for part in (images.x, images.y, images.test_x, images.test_y):
        if isinstance(part, ImageFiles):
            whole.update(repr([(str(file), file.stat().st_size) for file in part.files]).encode())
        else:
            whole.update(np.ascontiguousarray(part).data)
    return whole.hexdigest()


def _read_ood(ood: str, shape: tuple[int, int, int]) -> tuple[np.ndarray, str]:
    """Read the out-of-distribution images at a path or of a data set. Also return a note on their conversion, or ""."""
    if Path(ood).is_absolute():
        if not Path(ood).exists():
            raise InputError(f"--ood {ood} no longer exists. Restore it to continue")
        inputs = read_inputs(Path(ood), shape)
        return inputs.x, f"Out-of-distribution images: {inputs.note}" if inputs.note else ""
    images = load(ood)
    if images.shape != shape:
        problem = f"have shape {list(images.shape)}, but the run expects {list(shape)}"
        advice = "Pass --ood with a set of that shape, or with a folder of images, which are rescaled"
        raise InputError(f"images of {ood} {problem}. {advice}")
    return np.asarray(images.test_x), ""


def _place(ood: str | None) -> str | None:
    """Resolve --ood to the name of a data set or an absolute path. Return None for no out-of-distribution test."""
    if ood is None or ood == "none":
        return None
    is_path = ood not in registry.names("images") and Path(ood).exists()
    return str(Path(ood).resolve()) if is_path else ood


def resolve(options: Mapping[str, Any]) -> Settings:
    """Return the settings for command-line options."""
    if options["images"] and options["dataset"]:
        raise InputError("--dataset and --images exclude each other. Pass only one of them")
    if not options["images"] and (options["size"] or options["grey"] or options["stream"] is not None):
        raise InputError("--size, --grey and --stream apply to --images only. Leave them out with --dataset")
    texts = problem.split(options["parameters"], ("", "net"), epochs=options["epochs"])
    posterior = problem.configured(options["posterior"], texts[""], options["preset"], "images")
    settings = dict(registry.complete(posterior.make, posterior.settings))
    if "augmentation" not in texts[""]:
        settings.pop("augmentation", None)
    dataset = None if options["images"] else options["dataset"] or "mnist"
    net = options["net"] or ("mlp" if dataset == "digits" else "lenet5")  # LeNet-5 needs more than 8 x 8 pixels
    ood = options["ood"] or PAIRS.get(dataset or "")
    return Settings(
        **{name: options[name] for name in PLAIN}, dataset=dataset, net=net, ood=_place(ood),
        net_settings=zoo.settings(net, texts["net"]),
        posterior=posterior.name, preset=posterior.preset, posterior_settings=settings,
        validation=options["validate"] or 0.0, processes=parallel.world().processes,
    )  # fmt: skip


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
        s = self.settings
        if s.ood is None:
            return ""
        try:
            images, note = _read_ood(s.ood, self.shape)
            digest = hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()
            check_unchanged(f"the images of {s.ood}", s.ood_fingerprint, digest)
            parallel.share(len(images))
        except InputError as error:
            if s.ood != PAIRS.get(s.dataset or ""):  # the user asked for these images
                raise
            return f"Skipped the out-of-distribution test on {s.ood}: {str(error).rstrip('.')}."
        self.settings, self._ood = replace(s, ood_fingerprint=digest), images
        return note

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
