"""Data and model from settings that JSON can hold: what every command that trains on a data set shares."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from explore import data, registry
from explore.errors import InputError, listed, shown
from explore.likelihoods import LIKELIHOODS, Likelihood
from explore.nets import Net, mlp
from explore.posteriors.base import Predictive

Settings = dict[str, Any]
MOST_LAYERS, MOST_WEIGHTS = 100, 10**8  # of a network; what is larger would fill the memory before it is refused


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings of data and network that command-line options ask for.

    Raises:
        InputError: for options that contradict each other, or data that cannot be had.
    """
    settings = _source(options) | {"hidden": _widths(options["hidden"])}
    dataset = load(settings)
    return settings | {"task": dataset.task, "fingerprint": fingerprint(dataset), "likelihood": _likelihood(dataset)}


def _source(options: Mapping[str, Any]) -> Settings:
    """Where the data come from."""
    if options["data"] and options["dataset"]:
        raise InputError("give --dataset or --data, not both")
    id_column = options.get("id_column")  # of `explore active` alone
    if not options["data"] and (options["target"] or options["task"]):
        raise InputError("--target and --task belong to --data; a data set by name has its own")
    if not options["data"] and id_column is not None:
        raise InputError("--id belongs to --data; the examples of a data set by name have no names")
    if options["data"] and not options["target"]:
        raise InputError("--data needs --target, the column to predict")
    return {
        "dataset": None if options["data"] else options["dataset"] or "boston",
        "data": str(Path(options["data"]).resolve()) if options["data"] else None,
        "target": list(options["target"]),
        "drop_columns": [name.strip() for name in options["drop_columns"].split(",") if name.strip()],
        "task": options["task"] or "regression",
        "id_column": id_column,
    }


def _widths(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_LAYERS or not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise InputError(
            f"--hidden is {shown(text)}; it must be at most {MOST_LAYERS} positive whole numbers such as 50,50"
        )
    return [int(part) for part in parts]


def parameters(texts: tuple[str, ...], option: str = "-p") -> list[tuple[str, str]]:
    """(key, value) of each `-p key=value`, or another option's."""
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InputError(f"{option} takes KEY=VALUE; got {shown(text)}")
        found.append((key, value))
    return found


def load(settings: Settings) -> data.Dataset:
    """The data set of a run.

    Raises:
        InputError: when it cannot be had, or is not the one that the run began with.
    """
    drop = settings["drop_columns"]
    try:
        if settings["data"]:
            source = (settings["data"], settings["target"], drop, settings["task"], settings["id_column"])
            dataset = data.load_csv(*source)
        else:
            dataset = data.drop_columns(data.load(settings["dataset"]), drop)
    except (OSError, ImportError) as error:  # no file, no network, no library for its format
        raise InputError(str(error)) from error
    if "fingerprint" in settings and settings["fingerprint"] != fingerprint(dataset):
        raise InputError(f"the data of {dataset.name} have changed since the run began; restore them to continue")
    return dataset


def fingerprint(dataset: data.Dataset) -> str:
    """A hash of all that a run takes from a data set: numbers, names, and where the examples come from."""
    names = repr((dataset.features, dataset.classes, dataset.lines, dataset.ids))
    return hashlib.sha256(dataset.x.tobytes() + dataset.y.tobytes() + names.encode()).hexdigest()


def _likelihood(dataset: data.Dataset) -> str:
    if dataset.task == "regression":
        return "gaussian"
    return "bernoulli" if len(dataset.classes) == 2 else "categorical"


def likelihood(settings: Settings) -> Likelihood:
    """The likelihood of a run."""
    made: Likelihood = LIKELIHOODS[settings["likelihood"]](**_tuples(settings["likelihood_settings"]))
    return made


def posterior(settings: Settings, dataset: data.Dataset, name: str, own: Settings) -> Predictive:
    """A posterior with settings of its own, on a network for the data."""
    classes = len(dataset.classes)
    outputs = {0: dataset.y.shape[-1], 2: 1}.get(classes, classes)
    widths = [dataset.x.shape[1], *settings["hidden"], outputs]
    if (weights := sum((i + 1) * o for i, o in pairwise(widths))) > MOST_WEIGHTS:
        raise InputError(
            f"a network of {listed(widths)} units has {weights} weights; the most are {MOST_WEIGHTS}, so take fewer "
            "units in --hidden"
        )
    net = Net(mlp(widths[0], widths[1:-1], outputs))
    made: Predictive = registry.find("posteriors", name)(net=net, likelihood=likelihood(settings), **_tuples(own))
    return made


def check_memory(posterior: Predictive, replicas: int, samples: int) -> None:
    """Refuse weight samples that no memory of this machine could hold: its system would end the process for them.

    Raises:
        InputError: naming the sizes.
    """
    numbers = sum(rows * columns for rows, columns in getattr(posterior, "coordinates", ()))
    needed = 4 * replicas * samples * numbers
    if hasattr(os, "sysconf") and needed > (most := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        raise InputError(
            f"{samples} samples of {numbers} numbers in {replicas} replicas take {needed / 2**30:.0f} GiB, but this "
            f"machine has {most / 2**30:.0f}; take fewer samples, units, trials or splits"
        )


def fields(record: Any) -> Settings:
    """The settings of a posterior or a likelihood: what `-p` can set."""
    return {name: getattr(record, name) for name in registry.settings_of(type(record))}


def _tuples(settings: Settings) -> Settings:
    """JSON makes lists of tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
