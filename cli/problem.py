"""Data and model from settings that JSON can hold: what every command that trains on a data set shares."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from explore import data, images, registry
from explore.cli import own_network
from explore.cli.parameters import Values, complete
from explore.core import machine
from explore.core.errors import InputError, check_settings, listed, shown
from explore.data.base import Dataset, Task, check_units
from explore.data.columns import Schema
from explore.execution import parallel
from explore.images import Images
from explore.inference import presets
from explore.inference.base import Predictive
from explore.learning.scaling import Standardiser
from explore.nets import zoo
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

MOST_LAYERS, MOST_WEIGHTS = 100, 10**8  # of a network; what is larger would fill the memory before it is refused


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Data and network, and what else all commands have that train on a data set."""

    dataset: str | None
    data: str | None  # a file instead
    target: tuple[str, ...]
    drop_columns: tuple[str, ...]
    task: Task
    id_column: str | None
    categorical: tuple[str, ...]
    decimal: str
    keep_na: tuple[str, ...] = ()  # targets in which NA and other marks are classes
    fingerprint: str | None = None  # of the data that the run began with
    likelihood: str = ""
    hidden: tuple[int, ...]
    seed: int
    samples: int
    net: str | None = None  # for images; None: `hidden` layers for a table
    net_settings: Values = field(default_factory=dict)
    feature: tuple[str, ...] = ()  # columns that are learnt from whatever they count
    sheet: str | None = None  # of an Excel file; None: the first

    def load(self) -> Dataset:
        """The data set, if it is the one that the run began with."""
        return self.table()[0]

    def table(self) -> tuple[Dataset, Schema | None]:
        """The same, and of a table of the user's what its columns became."""
        drop, schema = list(self.drop_columns), None
        try:
            if self.net:
                dataset = pictures(images.load(self.dataset or ""))
            elif self.data:
                source = (self.data, self.target, drop, self.task, self.id_column, self.categorical, self.decimal)
                loaded = data.load_table(*source, feature=self.feature, sheet=self.sheet, keep_na=self.keep_na)
                dataset, schema = loaded.dataset, loaded.schema
            else:
                dataset = data.drop_columns(data.load(self.dataset or ""), drop)
        except (OSError, ImportError) as error:  # no file, no network, no library for its format
            raise InputError(str(error)) from error
        if self.fingerprint not in (None, fingerprint(dataset)):
            raise InputError(
                f"the data of {dataset.name} have changed since the run began; restore them to continue, or begin anew "
                "where a newer version reads them in another way"
            )
        if not self.net:
            check_units(dataset.features, dataset.x)
        if dataset.task == "regression" and self.target:
            check_units(self.target, dataset.y)
        return dataset, schema


def resolve(options: Mapping[str, Any]) -> Problem:
    """The data and the network that command-line options ask for."""
    return loaded(options)[0]


def loaded(options: Mapping[str, Any]) -> tuple[Problem, Dataset]:
    """The same, and the data, which have to be read for it."""
    id_column = options.get("id_column")  # of `explore active` alone
    if options["data"] and options["dataset"]:
        raise InputError("give --dataset or --data, not both")
    if not options["data"] and (options["target"] or options["task"]):
        raise InputError("--target and --task belong to --data; a data set by name has its own")
    if not options["data"] and (options["categorical"] or options["decimal"]):
        raise InputError("--categorical and --decimal belong to --data; the columns of a data set by name are numbers")
    if not options["data"] and (options["feature"] or options["sheet"]):
        raise InputError("--feature and --sheet belong to --data; a data set by name has neither")
    if not options["data"] and id_column is not None:
        raise InputError("--id belongs to --data; the examples of a data set by name have no names")
    if not options["data"] and options["keep_na"]:
        raise InputError("--keep-na belongs to --data; the classes of a data set by name are what they are")
    if options["data"] and not options["target"]:
        raise InputError("--data needs --target, the column to predict")
    name, net = options["dataset"], options.get("net")  # of `explore active` alone
    if "net" in options and name in registry.names("images"):
        net = net or "lenet5"
        if options["drop_columns"]:
            raise InputError("--drop-columns belongs to tables; images have no columns")
    elif net is not None:
        raise InputError("--net belongs to images, whose sets `explore list images` names; a table has --hidden")
    asked = Problem(
        dataset=None if options["data"] else options["dataset"] or "boston",
        data=str(Path(options["data"]).resolve()) if options["data"] else None,
        target=tuple(options["target"]),
        drop_columns=names(options["drop_columns"]),
        task=options["task"] or "regression",
        id_column=id_column,
        categorical=names(options["categorical"] or ""),
        decimal=options["decimal"] or ".",
        feature=tuple(options["feature"]),
        sheet=options["sheet"],
        keep_na=tuple(options["keep_na"]),
        hidden=widths(options["hidden"]),
        seed=options["seed"],
        samples=options["samples"],
        net=net,
    )
    dataset = asked.load()
    likelihood = likelihood_of(dataset)
    return replace(asked, task=dataset.task, fingerprint=fingerprint(dataset), likelihood=likelihood), dataset


def pictures(found: Images) -> Dataset:
    """All images of a set, training images first."""
    x, y = np.concatenate([found.x, found.test_x]), np.concatenate([found.y, found.test_y])
    return Dataset(found.name, x, y, (), "classification", found.classes)


def channels(dataset: Dataset, device: str) -> Standardiser:
    """Mean and deviation of each channel over all images."""
    of = Images(dataset.name, dataset.x, dataset.y, dataset.x[:0], dataset.y[:0], dataset.classes)
    mean, scale = (torch.as_tensor(m, device=device, dtype=torch.float32)[:, None, None] for m in of.moments())
    return Standardiser(mean, scale)


def names(text: str) -> tuple[str, ...]:
    """Names of columns as a line of CSV has them: with commas between, and in quotes where they have commas.

    Raises:
        InputError: for quotes that are not closed, or followed by something else than a comma.
    """
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True))
    except csv.Error:
        raise InputError(
            f"{shown(text)} names no columns; give names with commas between, such as a,b, and one that has commas "
            'in double quotes, such as "x, y",z'
        ) from None
    return tuple(name.strip() for row in rows for name in row if name.strip())


def widths(text: str) -> tuple[int, ...]:
    """Units of hidden layers with commas between.

    Raises:
        InputError: for anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_LAYERS or not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(
            f"--hidden is {shown(text)}; it must be at most {MOST_LAYERS} positive whole numbers such as 50,50"
        )
    return tuple(int(part) for part in parts)


def fingerprint(dataset: Dataset) -> str:
    """A hash of all that a run takes from a data set: numbers, names, and where the examples come from."""
    names = repr((dataset.features, dataset.classes, dataset.lines, dataset.ids))
    return hashlib.sha256(dataset.x.tobytes() + dataset.y.tobytes() + names.encode()).hexdigest()


def likelihood_of(dataset: Dataset) -> str:
    """The name of the likelihood for its targets."""
    if dataset.task == "regression":
        return "gaussian"
    return "bernoulli" if len(dataset.classes) == 2 else "categorical"


def posterior(problem: Problem, dataset: Dataset, name: str, own: Values, noise: Values) -> Predictive:
    """A posterior with settings of its own, on a network for the data, with those of the likelihood's noise."""
    classes = len(dataset.classes)
    outputs = {0: dataset.y.shape[-1], 2: 1}.get(classes, classes)
    shape = tuple(map(int, dataset.x.shape[1:]))
    if problem.net:
        own_network.outputs(problem.net, shape, outputs, problem.net_settings)  # type: ignore[arg-type]
        net = Net(zoo.build(problem.net, shape, outputs, problem.net_settings))  # type: ignore[arg-type]
    else:
        net = Net(dense([*shape, *problem.hidden, outputs]))
    kind, cls = registry.find("likelihoods", problem.likelihood), registry.find("posteriors", name)
    check_settings(problem.likelihood, registry.settings_of(kind), noise)
    check_settings(name, registry.settings_of(cls), own)
    made: Predictive = registry.build(cls, net, kind(**noise), own)
    return made


def configured(
    name: str, texts: Mapping[str, str], preset: str | None, consumer: presets.Consumer = "table"
) -> registry.Configured:
    """A posterior with the settings that were given; without a preset the others are those that are recommended.

    For a table they go by the number of rows, and are found later.

    Raises:
        InputError: see `registry.configured`.
    """
    if consumer != "table" and preset is None:
        preset = presets.recommended_settings(registry.find("posteriors", name), consumer=consumer).preset
    if preset not in (None, presets.BY_ROWS):
        return registry.configured("posteriors", name, texts, preset)
    made = registry.configured("posteriors", name, texts)
    return made._replace(preset=presets.BY_ROWS, settings=registry.parse(made.make, texts) if texts else {})


def for_rows(settings: Any, rows: int) -> tuple[Values, Values]:
    """Of a command's settings those of the posterior and of the noise, for so many rows to learn from."""
    own, noise = settings.posterior_settings, settings.likelihood_settings
    if settings.preset == presets.BY_ROWS:
        cls = registry.find("posteriors", settings.posterior)
        chosen = presets.recommended_settings(cls, rows, task=settings.task, units=max(settings.hidden))
        own = complete(cls, chosen.settings | dict(own))
        noise = {} if settings.task == "classification" else complete(Gaussian, chosen.noise | dict(noise))
    return own, noise


def dense(widths: list[int]) -> nn.Module:
    """A network of these units a layer.

    Raises:
        InputError: for more weights than a memory could hold.
    """
    if (weights := sum((i + 1) * o for i, o in pairwise(widths))) > MOST_WEIGHTS:
        raise InputError(
            f"a network of {listed(widths)} units has {weights} weights; the most are {MOST_WEIGHTS}, so take fewer "
            "units in --hidden"
        )
    return mlp(widths[0], widths[1:-1], widths[-1])


def place(device: str, jobs: int) -> str:
    """Where the fits are, in words.

    Raises:
        InputError: for processes that would share an accelerator.
    """
    if jobs > 1 and parallel.world().processes > 1:
        raise InputError("--jobs and torchrun both divide the work; take one of them")
    if jobs == 1:
        return device
    if device != "cpu":
        raise InputError("--jobs shares the work of the processor's cores; leave it out, or take --device cpu")
    return f"{device} in {jobs} processes"


def check_memory(posterior: Predictive, replicas: int, samples: int) -> None:
    """Refuse weight samples that no memory of this machine could hold: its system would end the process for them."""
    numbers = sum(rows * columns for rows, columns in getattr(posterior, "coordinates", ()))
    needed = 4 * replicas * samples * numbers
    if needed > (most := machine.memory()):
        raise InputError(
            f"{samples} samples of {numbers} numbers in {replicas} replicas take {needed / 2**30:.0f} GiB, but this "
            f"machine has {most / 2**30:.0f}; take fewer samples, units, trials or splits"
        )
