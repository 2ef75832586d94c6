"""Settings of `explore classify` that determine its results."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from explore import registry
from explore.cli import problem
from explore.core.errors import InputError
from explore.execution import parallel
from explore.images import Images, load, read as read_images, read_inputs
from explore.images.base import ImageFiles
from explore.inference.base import Predictive
from explore.learning import build, classification
from explore.learning.fit import Augmentation
from explore.nets import zoo
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

    def load_ood(self, shape: tuple[int, int, int]) -> tuple[np.ndarray | None, str, "Settings"]:
        """Load the out-of-distribution images. Raise InputError if the images have changed since the run began.

        Return the images (None without a test), a note on them, and settings with the images' fingerprint.
        """
        if self.ood is None:
            return None, "", self
        if Path(self.ood).is_absolute():
            if not Path(self.ood).exists():
                raise InputError(f"--ood {self.ood} no longer exists. Restore it to continue")
            x, note = (inputs := read_inputs(Path(self.ood), shape)).x, inputs.note
        else:
            images = load(self.ood)
            if images.shape != shape:
                problem = f"have shape {list(images.shape)}, but the run expects {list(shape)}"
                advice = "Pass --ood with a set of that shape, or with a folder of images, which are rescaled"
                raise InputError(f"images of {self.ood} {problem}. {advice}")
            x, note = np.asarray(images.test_x), ""
        digest = hashlib.sha256(np.ascontiguousarray(x).data).hexdigest()
        check_unchanged(f"the images of {self.ood}", self.ood_fingerprint, digest)
        return x, f"Out-of-distribution images: {note}" if note else "", replace(self, ood_fingerprint=digest)


def fingerprint(images: Images) -> str:
    """Return a hash of a data set. For images that stay in files, hash file paths and sizes instead of pixels."""
    whole = hashlib.sha256(repr((images.classes, images.x.shape, images.test_x.shape)).encode())
    for part in (images.x, images.y, images.test_x, images.test_y):
        if isinstance(part, ImageFiles):
            whole.update(repr([(str(file), file.stat().st_size) for file in part.files]).encode())
        else:
            whole.update(np.ascontiguousarray(part).data)
    return whole.hexdigest()


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
