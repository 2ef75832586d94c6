"""The fitted posteriors of a run, as its folder keeps them beside config.json.

model.pt       what each posterior has learnt, as tensors; the names of features, targets and classes; what tells the
               replicas apart; of a table of the user's the schema, and the scale in which its targets were learnt
probabilities.npz  what `explore classify` has found of the test images, see its recording
schema.json    the schema for other programs: it may be newer than the model, and is not read here
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from explore.campaign.log import NAME as LOG
from explore.cli import problem
from explore.cli.problem import Problem
from explore.core import files
from explore.core.errors import InputError
from explore.data import Dataset, Schema, packed
from explore.data.base import Task
from explore.inference import presets
from explore.inference.base import Predictive
from explore.learning.model import FittedModel
from explore.learning.transforms import Transform
from explore.runs.recorded import run_id

MODEL, SCHEMA, PROBABILITIES = "model.pt", "schema.json", "probabilities.npz"
FORMAT = 1
LARGE = 100 * 2**20  # bytes, beyond which the size is said


@dataclass(frozen=True)
class Names:
    """How what goes into a model and comes out of it is called."""

    features: tuple[str, ...]
    targets: tuple[str, ...]  # none: of a data set by name, which has one
    classes: tuple[str, ...] = ()

    def of(self, part: str, target: str) -> str:
        """The column of a part of a prediction, such as its mean: it names its target where there are several."""
        return part if len(self.targets) < 2 else f"{part}_{target}"

    @property
    def dataset(self) -> Dataset:
        """A data set of these features and targets, without examples: what a posterior is made for."""
        y = np.empty(0, np.int64) if self.classes else np.empty((0, max(1, len(self.targets))))
        task: Task = "classification" if self.classes else "regression"
        return Dataset("", np.empty((0, len(self.features))), y, self.features, task, self.classes)


@dataclass(frozen=True)
class Saved:
    """Fitted posteriors by name, and what is said of them."""

    names: Names
    replicas: tuple[Mapping[str, Any], ...]  # of each what tells it from the others, such as {"arm": ..., "trial": 1}
    models: Mapping[str, FittedModel]
    schema: Schema | None = None  # of a table; None: the features are columns of numbers
    transform: Transform = Transform()  # of the targets


def names(settings: Problem, dataset: Dataset) -> Names:
    """Those of a data set, whose targets the settings know."""
    return Names(dataset.features, settings.target, dataset.classes)


def write(folder: Path, saved: Saved) -> None:
    """Write the files; what is there is replaced in one step.

    Raises:
        OSError: when they cannot be written.
    """
    schema = saved.schema and saved.schema.to_json()
    if schema is not None:
        with files.replacing(folder / SCHEMA) as draft:
            draft.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    content = {
        "features": list(saved.names.features),
        "targets": list(saved.names.targets),
        "classes": list(saved.names.classes),
        "replicas": [dict(replica) for replica in saved.replicas],
        "schema": json.dumps(schema),
        "transform": saved.transform.to_json(),
        "models": {name: model.state_dict() for name, model in saved.models.items()},
    }
    files.save(folder / MODEL, "saved model", FORMAT, content, run_id(folder))


def add(folder: Path, saved: Saved, settings: Any) -> None:
    """Write the files with the models that are there already."""
    before = read(folder, settings).models if (folder / MODEL).exists() else {}
    write(folder, replace(saved, models={**before, **saved.models}))


def read(folder: Path, settings: Any, device: str = "cpu") -> Saved:
    """What `write` wrote.

    Args:
        folder: of the run.
        settings: of the run; its modules are trusted by now.
        device: where to predict.

    Raises:
        InputError: when something is missing, damaged, or belongs to another run or other settings.
    """
    path = folder / MODEL
    if not path.exists():
        raise InputError(
            f"{folder} has no {MODEL}; it is written when a run has finished, so finish it with --resume, or begin anew"
        )
    content = files.load(path, "saved model", FORMAT, _run(folder, MODEL))
    try:
        called = Names(*(tuple(map(str, content[key])) for key in ("features", "targets", "classes")))
        replicas = tuple(dict(replica) for replica in content["replicas"])
        states = {str(name): dict(state) for name, state in content["models"].items()}
        columns, transform = json.loads(content["schema"]), Transform.from_json(content["transform"])
        schema = None if columns is None else Schema.from_json(columns)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # and InputError
        raise InputError(f"{path} is damaged: it is no saved model ({error!r})") from None
    own = posteriors(settings)
    models = {}
    for name, state in states.items():
        if name not in own:
            raise InputError(f"{path} does not belong to {folder / 'config.json'}: that names no posterior {name}")
        shape = tuple(map(int, state.get("shape", ()))) if getattr(settings, "net", None) else ()  # of an image
        if hasattr(settings, "build"):
            settings.known(shape, len(called.classes))
            made = settings.build(shape, len(called.classes))
        else:
            known = by_rows(settings, state) if getattr(settings, "preset", None) == presets.BY_ROWS else own[name]
            made = posterior(settings, called, *known, shape=shape)
        models[name] = FittedModel.from_state_dict(made, state, device)
        if models[name].replicas != len(replicas):
            raise InputError(f"{path} is damaged: it names {len(replicas)} replicas of {models[name].replicas}")
    return Saved(called, replicas, models, schema, transform)


def probabilities(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of what a run has found of its test images.

    Raises:
        InputError: when they are missing, damaged or of another run.
    """
    path = folder / PROBABILITIES
    try:
        arrays, _ = packed.arrays(path)
    except (OSError, InputError) as error:
        raise InputError(f"{path} is gone or damaged ({error})") from error
    files.check_run(path, str(arrays.get("run", "")), _run(folder, PROBABILITIES))
    return arrays


def check(folder: Path) -> None:
    """Refuse files that are not of the run in whose folder they are; there may be none yet.

    Raises:
        InputError: naming the file.
    """
    if (folder / MODEL).exists():
        files.load(folder / MODEL, "saved model", FORMAT, _run(folder, MODEL))
    if (folder / PROBABILITIES).exists():
        probabilities(folder)


def _run(folder: Path, name: str) -> str:
    """The id of the run that a file must be of; a warning where an earlier version gave it none.

    Of a campaign the command itself says so, when it opens the log.
    """
    if not (run := run_id(folder)) and not (folder / LOG).exists():
        warnings.warn(
            f"{folder} is of an earlier version of explore, whose files do not say of which run they are; make sure "
            f"that its {name} is its own",
            stacklevel=4,
        )
    return run


def posteriors(settings: Any) -> dict[str, tuple[str, Any, Any]]:
    """Of each posterior of a run, by what the run calls it: its name, its settings, and those of its likelihood."""
    if hasattr(settings, "posteriors"):
        return {name: (own.name, own.settings, settings.noise(name)) for name, own in settings.posteriors.items()}
    noise = getattr(settings, "likelihood_settings", {})
    return {settings.posterior: (settings.posterior, settings.posterior_settings, noise)}


def by_rows(settings: Any, state: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """The same of a posterior whose settings go by the number of labels, which its saved state tells."""
    examples = float(state.get("state.common.n_data", 1)) / float(settings.posterior_settings.get("augmentation", 1))
    return (settings.posterior, *problem.for_rows(settings, round(examples)))


def posterior(settings: Any, called: Names, name: str, own: Any, noise: Any, shape: tuple[int, ...] = ()) -> Predictive:
    """A posterior as the run has it, for inputs of a shape where these are images."""
    dataset = called.dataset
    if getattr(settings, "net", None):
        dataset = dataset._replace(x=np.empty((0, *shape)))
    asked = replace(settings, likelihood=problem.likelihood_of(dataset))
    return problem.posterior(asked, dataset, name, own, noise)


def said(folder: Path) -> str:
    """Where the model is, and how large if it is."""
    size = (folder / MODEL).stat().st_size
    return f"{folder / MODEL}" + (f" ({size / 2**20:.0f} MiB)" if size > LARGE else "")


def replicas(keys: Sequence[str], *values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """What tells replicas apart, from a name for each part of it and its values, the first one changing slowest."""
    if not keys:
        return ({},)
    rest = replicas(keys[1:], *values[1:])
    return tuple({keys[0]: value, **other} for value in values[0] for other in rest)
