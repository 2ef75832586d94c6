"""What decides the numbers of `explore classify`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from explore import images, registry
from explore.cli import own_network, parameters, problem
from explore.cli.parameters import Values
from explore.core.errors import InputError, check_settings, one_of
from explore.execution import parallel
from explore.images import Images
from explore.images.base import ImageFiles
from explore.inference.base import Predictive
from explore.learning import classification
from explore.learning.feed import Augmentation
from explore.nets import zoo
from explore.nets.likelihoods import Categorical
from explore.nets.net import Net

WORTH = 10.0  # images that an augmented one counts for, as in VOGN's paper on CIFAR-10
PAIRS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}  # what each is to be told apart from


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of a run, every default filled in; those that the images decide, when they are loaded."""

    command: Literal["classify"] = "classify"
    dataset: str | None
    images: str | None  # a folder or a file instead
    size: int | None
    grey: bool
    stream: bool | None = False  # whether they stay in their files
    fingerprint: str | None = None  # of the images that the run began with
    net: str
    net_settings: Values
    outputs: tuple[float, ...] | None = None  # by which a network of the user's is known again
    amp: bool
    posterior: str
    preset: str
    posterior_settings: Values
    warmup: int
    augment: Augmentation | None
    train: int | None
    test: int | None = None
    validation: float  # share of the training images that is tested on in place of the test images; 0: none
    ood: str | None  # a name or a path
    ood_fingerprint: str | None = None  # of the images there that the run began with
    seed: int
    samples: int
    measure: int = classification.POINTS  # how often, at most
    processes: int = 1  # that every batch is divided among

    def load(self) -> tuple[Images, Settings]:
        """The images, and the settings with what they decide filled in.

        Raises:
            InputError: when they cannot be had, or are not those that the run began with.
        """
        if self.images:
            found = images.read(Path(self.images), self.size, self.grey, self.stream)
        else:
            found = _set(self.dataset or "", "; your own are given by --images PATH")
        if not len(found.test_x) and not self.validation:
            raise InputError(f"{found.name} has no images for testing; --validate 0.2 holds a fifth of the others out")
        whole = fingerprint(found)
        if self.fingerprint not in (None, whole):
            raise InputError(f"the images of {found.name} have changed since the run began; restore them to continue")
        augment: Any = self.augment or found.augmentation
        own = dict(self.posterior_settings)
        if "augmentation" not in own:
            own |= self._augmentation(augment != "none")
        stream = isinstance(found.x, ImageFiles)
        outputs = self.known(found.shape, len(found.classes))
        decided = replace(self, fingerprint=whole, augment=augment, stream=stream, outputs=outputs)
        return found, replace(decided, posterior_settings=own)

    def _augmentation(self, augmented: bool) -> Values:
        """How many images one is worth, if the posterior has that setting: the preset's, or `WORTH`, if augmented."""
        make = registry.find("posteriors", self.posterior)
        if "augmentation" not in registry.settings_of(make):
            return {}
        preset = registry.settings_in(make, self.preset)
        begun = self.fingerprint is not None  # by a version in which each counted once
        return {"augmentation": preset.get("augmentation", WORTH) if augmented and not begun else 1.0}

    def known(self, shape: tuple[int, int, int], classes: int) -> tuple[float, ...]:
        """By what a network of the user's is known again: what the run recorded, or what it gives now.

        Raises:
            InputError: when it cannot be taken, or is not the one that the run began with.
        """
        found = own_network.outputs(self.net, shape, classes, self.net_settings)
        own_network.check_known(self.net, found, self.outputs)
        return found if self.outputs is None else self.outputs

    def build(self, shape: tuple[int, int, int], classes: int) -> Predictive:
        """The posterior, on a network for images of a shape (channels, height, width)."""
        net = Net(zoo.build(self.net, shape, classes, self.net_settings), self.amp)
        found = registry.find("posteriors", self.posterior)
        check_settings(self.posterior, registry.settings_of(found), self.posterior_settings)
        made: Predictive = registry.build(found, net, Categorical(), self.posterior_settings)
        return made

    def others(self, shape: tuple[int, int, int]) -> tuple[np.ndarray | None, str]:
        """Images of another kind, uint8 [Q, channels, height, width], and what was left out or converted.

        Raises:
            InputError: when they cannot be had, or have another shape.
        """
        if self.ood is None:
            return None, ""
        if Path(self.ood).is_absolute():
            if not Path(self.ood).exists():
                raise InputError(f"--ood: there is no {self.ood} any more; restore it to continue")
            read = images.read_inputs(Path(self.ood), shape)
            return read.x, f"Images of another kind: {read.note}" if read.note else ""
        found = _set(self.ood, "; --ood takes an image, a folder of them and an .npz file with x, too, or none")
        if found.shape != shape:
            raise InputError(
                f"images of {self.ood} are {list(found.shape)}, those of the run {list(shape)}; take a set of that "
                "shape, or a folder of images, which are scaled to it"
            )
        return np.asarray(found.test_x), ""

    def with_others(self, x: np.ndarray | None) -> Settings:
        """The settings with the fingerprint of images of another kind.

        Raises:
            InputError: when they are not those that the run began with.
        """
        found = None if x is None else hashlib.sha256(np.ascontiguousarray(x).data).hexdigest()
        if self.ood_fingerprint not in (None, found):
            raise InputError(f"the images of {self.ood} have changed since the run began; restore them to continue")
        return replace(self, ood_fingerprint=found)


def fingerprint(found: Images) -> str:
    """A hash of all that a run takes from a set; of images that stay in their files, of the files' names and sizes."""
    whole = hashlib.sha256(repr((found.classes, found.x.shape, found.test_x.shape)).encode())
    for part in (found.x, found.y, found.test_x, found.test_y):
        if isinstance(part, ImageFiles):
            whole.update(repr([(str(file), file.stat().st_size) for file in part.files]).encode())
        else:
            whole.update(np.ascontiguousarray(part).data)
    return whole.hexdigest()


def _set(name: str, others: str) -> Images:
    """A set by its name; where there is none of that name, `others` says what else may be given."""
    if ":" not in name and registry.hyphened(name) not in (known := registry.names("images")):
        raise one_of("set of images", name, known, others)
    return images.load(name)


def _is_path(ood: str) -> bool:
    """Whether it is that of a file or a folder; the name of a set goes before it."""
    return ood not in registry.names("images") and Path(ood).exists()


def _place(ood: str | None) -> str | None:
    """The name of a set, or the whole path of what is there."""
    if ood is None or ood == "none":
        return None
    return str(Path(ood).resolve()) if _is_path(ood) else ood


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings that command-line options ask for."""
    if options["images"] and options["dataset"]:
        raise InputError("give --dataset or --images, not both")
    if not options["images"] and (options["size"] or options["grey"] or options["stream"] is not None):
        raise InputError("--size, --grey and --stream belong to --images; a set by name is as it is")
    given = parameters.split(options["parameters"], ("", "net"), epochs=options["epochs"])
    posterior = problem.configured(options["posterior"], given[""], options["preset"], "images")
    own = dict(parameters.complete(posterior.make, posterior.settings))
    if "augmentation" not in given[""]:
        own.pop("augmentation", None)
    dataset = None if options["images"] else options["dataset"] or "mnist"
    net = options["net"] or ("mlp" if dataset == "digits" else "lenet5")  # their 8 x 8 pixels are too few for it
    ood = options["ood"] or PAIRS.get(dataset or "")
    return Settings(
        dataset=dataset,
        images=str(Path(options["images"]).resolve()) if options["images"] else None,
        size=options["size"],
        grey=options["grey"],
        stream=options["stream"],
        net=net,
        net_settings=own_network.settings(net, given["net"]),
        amp=options["amp"],
        posterior=posterior.name,
        preset=posterior.preset,
        posterior_settings=own,
        warmup=options["warmup"],
        augment=options["augment"],
        train=options["train"],
        test=options["test"],
        validation=options["validate"] or 0.0,
        ood=_place(ood),
        seed=options["seed"],
        samples=options["samples"],
        measure=options["measure"],
        processes=parallel.world().processes,
    )
