"""Data and models of the commands that train on a data set, built from JSON-compatible settings."""

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from explore import data, images, registry
from explore.core import machine
from explore.core.errors import InputError, counted, one_of, shown
from explore.data.base import Dataset, Task, check_units
from explore.data.columns import Schema
from explore.data.reading import Cells
from explore.data.table import cells_of
from explore.inference import presets
from explore.inference.base import Predictive
from explore.learning import build
from explore.learning.scaling import INPUT_BOUND, Standardiser
from explore.runs.recorded import Values, check_unchanged

MOST_LAYERS = 100
# Nested settings, by the prefix of their names in a flat list.
NESTED = {"posterior_settings": "posterior", "likelihood_settings": "likelihood", "acquisition_settings": "acquisition"}
OF_NETS = ("hidden", "preset", "epochs", "net")  # options that ask for a network
OF_DATA = "target task categorical decimal feature sheet id_column keep_na".split()  # options that apply to --data only


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Settings shared by all commands that train on a data set: data, network, seed and number of weight samples."""

    dataset: str | None
    data: str | None  # path of a table, instead of `dataset`
    target: tuple[str, ...]
    drop_columns: tuple[str, ...]
    task: Task
    id_column: str | None
    categorical: tuple[str, ...]
    decimal: str
    keep_na: tuple[str, ...] = ()  # targets in which NA and the like are classes
    fingerprint: str | None = None  # hash of the data at the start of the run
    likelihood: str = ""
    hidden: tuple[int, ...]
    seed: int
    samples: int
    net: str | None = None  # network for images; None: a table, with `hidden` layers
    net_settings: Values = field(default_factory=dict)
    feature: tuple[str, ...] = ()  # columns that are features even if they look like row numbers
    sheet: str | None = None  # of an Excel file; None: the first

    def table(self) -> tuple[Dataset, Schema | None]:
        """Load the data set. Also return the schema of a user's table, or None for other data.

        Raise InputError if the data have changed since the run began.
        """
        drop, schema = list(self.drop_columns), None
        try:
            if self.net:
                every = images.load(self.dataset or "")  # all of them, the training images first
                x, y = np.concatenate([every.x, every.test_x]), np.concatenate([every.y, every.test_y])
                dataset = Dataset(every.name, x, y, (), "classification", every.classes)
            elif self.data:
                source = (self.data, self.target, drop, self.task, self.id_column, self.categorical, self.decimal)
                loaded = data.load_table(*source, feature=self.feature, sheet=self.sheet, keep_na=self.keep_na)
                dataset, schema = loaded.dataset, loaded.schema
            else:
                dataset = data.drop_columns(data.load(self.dataset or ""), drop)
        except (OSError, ImportError) as error:  # no such file, no network, or the library for its format is missing
            raise InputError(str(error)) from error
        check_unchanged(f"the data of {dataset.name}", self.fingerprint, fingerprint(dataset))
        if not self.net:
            check_units(dataset.features, dataset.x)
        if dataset.task == "regression" and self.target:
            check_units(self.target, dataset.y)
        return dataset, schema

    def cells(self, path: str | Path, strict: bool = True) -> Cells:
        """Return the cells of a file as `cells_of` does. Raise InputError if the file cannot be read."""
        try:
            return cells_of(path, self.decimal, self.sheet, strict)
        except (OSError, ImportError) as error:  # no such file, or the library for its format is missing
            raise InputError(str(error)) from error


def resolve(options: Mapping[str, Any]) -> tuple[Problem, Dataset]:
    """Return the data and network settings for command-line options, and the data set."""
    if options["data"] and options["dataset"]:
        raise InputError("--dataset and --data exclude each other. Pass only one of them")
    for name in () if options["data"] else filter(options.get, OF_DATA):
        option = name.removesuffix("_column").replace("_", "-")
        raise InputError(f"--{option} applies to --data only. Leave it out for a built-in data set")
    if options["data"] and not options["target"]:
        raise InputError("--data needs --target, the column to predict")
    name, net = options["dataset"], options.get("net")  # option of `explore active` only
    if "net" in options and name in registry.names("images"):
        net = net or "lenet5"
        if options["drop_columns"]:
            raise InputError("--drop-columns applies to tables only. Leave it out for images")
    elif net is not None:
        raise InputError("--net applies to images only (see `explore list images`). For a table use --hidden")
    problem = Problem(
        dataset=None if options["data"] else options["dataset"] or "boston",
        target=tuple(options["target"]),
        drop_columns=names(options["drop_columns"]),
        task=options["task"] or "regression",
        id_column=options.get("id_column"),  # option of `explore active` only
        categorical=names(options["categorical"] or ""),
        decimal=options["decimal"] or ".",
        hidden=widths(options["hidden"]),
        net=net,
        **{name: options[name] for name in ("data", "feature", "sheet", "keep_na", "seed", "samples")},
    )
    dataset, _ = problem.table()
    likelihood = build.check_likelihood(options.get("likelihood"), dataset)
    return replace(problem, task=dataset.task, fingerprint=fingerprint(dataset), likelihood=likelihood), dataset


def channels(dataset: Dataset, device: str) -> Standardiser:
    """Return a standardiser with the mean and standard deviation of each channel over all images."""
    every = images.Images(dataset.name, dataset.x, dataset.y, dataset.x[:0], dataset.y[:0], dataset.classes)
    mean, scale = (torch.as_tensor(m, device=device, dtype=torch.float32)[:, None, None] for m in every.moments())
    return Standardiser(mean, scale)


def names(text: str) -> tuple[str, ...]:
    """Parse column names that are separated by commas; names that contain a comma are quoted."""
    rows = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    return tuple(name.strip() for row in rows for name in row if name.strip())


def check_once(option: str, names: Sequence[str]) -> None:
    """Raise InputError if a name of an option occurs twice."""
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise InputError(f"{option} names {shown(twice[0])} twice. Name it once")


def widths(text: str) -> tuple[int, ...]:
    """Parse the widths of hidden layers, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_LAYERS or not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        allowed = f"it must be at most {MOST_LAYERS} positive whole numbers such as 50,50"
        raise InputError(f"--hidden is {shown(text)}; {allowed}")
    return tuple(int(part) for part in parts)


def parse(texts: Iterable[str], targets: Mapping[str, Any], option: str = "-p") -> dict[str, dict[str, Any]]:
    """Parse strings such as "prefix.key=value" by `targets`: prefix -> a dataclass, or a dict of types."""
    return {prefix: registry.parse(targets[prefix], t) for prefix, t in split(texts, targets, option).items()}


def split(
    texts: Iterable[str], prefixes: Iterable[str], option: str = "-p", mark: str = "=", epochs: int | None = None
) -> dict[str, dict[str, str]]:
    """Split strings such as "prefix.key=value" into prefix -> key -> value; the last value of a key counts.

    `mark` separates key and value. `epochs` is the value of --epochs, a short form of -p epochs.
    """
    values: dict[str, dict[str, str]] = {prefix: {} for prefix in prefixes}
    for text in texts:
        name, marked, value = text.partition(mark)
        if not (name and marked):
            raise InputError(f"{option} must be KEY{mark}VALUE; got {shown(text)}")
        prefix, _, key = name.rpartition(".")
        if (prefix := registry.hyphened(prefix)) not in values:
            raise one_of("name before a setting", prefix, values.keys() - {""})
        values[prefix][key] = value
    if epochs is not None:
        if "epochs" in values[""]:
            raise InputError("--epochs and -p epochs=... exclude each other. Pass only one of them")
        values[""]["epochs"] = str(epochs)
    return values


def fingerprint(dataset: Dataset) -> str:
    """Return a hash of all the data that a run uses: values, names, and the lines and ids of the examples."""
    origin = repr((dataset.features, dataset.classes, dataset.lines, dataset.ids))
    return hashlib.sha256(dataset.x.tobytes() + dataset.y.tobytes() + origin.encode()).hexdigest()


def posterior(problem: Problem, dataset: Dataset, name: str, settings: Values, noise: Values) -> Predictive:
    """Build the posterior `name` over the weights of a network for the data. `noise` has the likelihood settings."""
    shape = tuple(map(int, dataset.x.shape[1:]))
    outputs = build.outputs(problem.likelihood, len(dataset.classes), dataset.y.shape[-1])
    return build.posterior(problem, shape, outputs, name, settings, noise)


def recommended(options: Mapping[str, Any], texts: Mapping[str, str], likelihood: str, rows: int) -> tuple[str, str]:
    """Return posterior and likelihood: those in `options` or the default; `texts` are settings of the posterior."""
    of_net = bool(texts) or any(options.get(option) for option in OF_NETS)
    return presets.chosen(options["posterior"], options["likelihood"], likelihood, rows, of_net)


def configured(
    name: str, texts: Mapping[str, str], preset: str | None, consumer: presets.Consumer = "table"
) -> registry.Configured:
    """Configure the posterior `name`. Settings not in `texts` come from the preset, by default the recommended one.

    For tables, the recommended settings depend on the number of rows and are resolved later.
    """
    if consumer != "table" and preset is None:
        preset = presets.recommended_settings(registry.find("posteriors", name), consumer=consumer).preset
    if preset not in (None, presets.BY_ROWS):
        return registry.configured("posteriors", name, texts, preset)
    chosen = registry.configured("posteriors", name, texts)
    return chosen._replace(preset=presets.BY_ROWS, settings=registry.parse(chosen.make, texts) if texts else {})


def rounded(noise: Mapping[str, Any]) -> str:
    """Return a sentence on targets that the settings of the likelihood take as rounded, or ""."""
    units = noise.get("resolution") or ()
    if not any(units):
        return ""
    value, exact = ",".join(f"{unit:.3g}" for unit in units), ",".join("0" * len(units))
    steps = f"in steps of likelihood.resolution={value} standard deviations"
    return f"Targets are taken as rounded, {steps}. If they are exact, pass -p likelihood.resolution={exact}."


def compressed(x: np.ndarray) -> str:
    """Return a sentence on features [N, D] with values that `Standardiser.inputs` compresses, or ""."""
    if x.ndim != 2:
        return ""
    count = sum(bool((np.abs(column - column.mean()) > INPUT_BOUND * column.std()).any()) for column in x.T)
    beyond = f"beyond {INPUT_BOUND:g} standard deviations"
    return f"{counted(count, 'feature')} with values {beyond}, which are compressed." if count else ""


def place(device: str, jobs: int) -> str:
    """Describe where fits run, e.g. "cpu in 4 processes". Raise InputError if processes would share an accelerator."""
    if jobs == 1:
        return device
    if device != "cpu":
        raise InputError("--jobs needs --device cpu. Leave --jobs out, or pass --device cpu")
    return f"{device} in {jobs} processes"


def check_memory(posterior: Predictive, replicas: int, samples: int) -> None:
    """Raise InputError if the weight samples do not fit into memory; otherwise the system would kill the process."""
    numbers = sum(rows * columns for rows, columns in getattr(posterior, "coordinates", ()))
    needed = 4 * replicas * samples * numbers
    if needed > (most := machine.memory()):
        raise InputError(
            f"{samples} weight samples of {numbers} values in {replicas} replicas need {needed / 2**30:.0f} GiB, but "
            f"this machine has {most / 2**30:.0f} GiB. Reduce --samples, --hidden, --trials or --splits"
        )
