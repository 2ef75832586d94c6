"""Fitted posteriors of a run, stored in its folder beside config.json.

model.pt           the posteriors as tensors; names of features, targets and classes; keys of the replicas, such as arm
                   and trial; for a user's table, also the schema and the transform of the targets
probabilities.npz  predictions of `explore classify` for the test images
schema.json        the schema, for other programs; explore does not read it, since it may be newer than the model
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from explore.core import files
from explore.core.errors import InputError
from explore.data import Schema, packed
from explore.data.base import Task
from explore.inference import presets
from explore.inference.base import Predictive
from explore.learning import build, trust
from explore.learning.model import FittedModel
from explore.learning.scaling import Transform
from explore.runs.recorded import Values, read_part, run_id

MODEL, SCHEMA, PROBABILITIES = "model.pt", "schema.json", "probabilities.npz"
FORMAT = 1
LARGE = 100 * 2**20  # bytes; above this, the size is printed
COMMANDS = ("active", "classify", "compare", "suggest")  # commands that save a model
LIKELIHOOD = "likelihood."


@dataclass(frozen=True)
class Names:
    """Names of a model's inputs and outputs."""

    features: tuple[str, ...]
    targets: tuple[str, ...]  # empty for a registered data set, which has one target
    classes: tuple[str, ...] = ()

    def of(self, part: str, target: str) -> str:
        """Return the column name for a part of a prediction, such as "mean", plus "_TARGET" for several targets."""
        return part if len(self.targets) < 2 else f"{part}_{target}"


@dataclass(frozen=True)
class Saved:
    """Fitted posteriors by name, with the names of their inputs and outputs."""

    names: Names
    replicas: tuple[Mapping[str, Any], ...]  # keys of each replica, such as {"arm": ..., "trial": 1}
    models: Mapping[str, FittedModel]
    schema: Schema | None = None  # of a user's table; None: the features are numeric columns
    transform: Transform = Transform()  # of the targets


@dataclass(frozen=True)
class Candidate:
    """A posterior of a comparison, with its settings and the preset on which these are based."""

    name: str
    preset: str
    settings: Values
    chosen: Values  # the grid's values, including those of likelihood.KEY

    def noise(self, shared: Values) -> Values:
        """Return the settings of the likelihood: `shared`, overridden by this candidate's values from the grid."""
        values = {k.removeprefix(LIKELIHOOD): v for k, v in self.chosen.items() if k.startswith(LIKELIHOOD)}
        return dict(shared) | values


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings of a run that determine its models and inputs."""

    command: str
    posterior: str = ""
    preset: str = ""
    posterior_settings: Values = field(default_factory=dict)
    likelihood: str = ""
    likelihood_settings: Values = field(default_factory=dict)
    posteriors: Mapping[str, Candidate] = field(default_factory=dict)  # for a comparison, by label
    task: Task = "classification"
    hidden: tuple[int, ...] = ()
    net: str | None = None  # for images
    net_settings: Values = field(default_factory=dict)
    outputs: tuple[float, ...] | None = None  # that identify a user's network
    amp: bool = False
    decimal: str = "."
    drop_columns: tuple[str, ...] = ()
    id_column: str | None = None

    def build(self, label: str, state: Mapping[str, Any], names: Names) -> Predictive:
        """Build the posterior `label` of the run, into which the saved state can be loaded."""
        shape = tuple(map(int, state.get("shape", ()))) if self.net else (len(names.features),)
        if self.posteriors:
            chosen = self.posteriors[label]
            name, settings, noise = chosen.name, chosen.settings, chosen.noise(self.likelihood_settings)
        else:
            n_data: Any = state.get("state.common.n_data", 1)
            weight: Any = self.posterior_settings.get("augmentation", 1)  # of each row
            rows = round(float(n_data) / float(weight)) if self.preset == presets.BY_ROWS else 0
            name, (settings, noise) = self.posterior, build.for_rows(self, rows, shape[0] if shape else 0)
        of_classes = "categorical" if self.command == "classify" else build.likelihood_of(names)
        likelihood = of_classes if names.classes else self.likelihood
        outputs = build.outputs(likelihood, len(names.classes), max(1, len(names.targets)))
        return build.posterior(replace(self, likelihood=likelihood), shape, outputs, name, settings, noise)


def settings_of(folder: Path, trusted: Sequence[str]) -> ModelSettings:
    """Read the settings of a run that saves models. Raise InputError if the settings name untrusted modules."""
    return read_part(ModelSettings, trust.settings(folder, COMMANDS, trusted), str(folder / "config.json"))


def write(folder: Path, saved: Saved, more: bool = False) -> None:
    """Write model.pt and, for a table, schema.json, each atomically. With `more`, keep models saved earlier."""
    schema = saved.schema and saved.schema.to_json()
    if schema is not None:
        files.write_json(folder / SCHEMA, schema)
    before = _load(folder)["models"] if more and (folder / MODEL).exists() else {}
    content = {
        **{part: list(names) for part, names in vars(saved.names).items()},
        "replicas": [dict(replica) for replica in saved.replicas],
        "schema": json.dumps(schema),
        "transform": saved.transform.to_json(),
        "models": {**before, **{name: model.state_dict() for name, model in saved.models.items()}},
    }
    files.save(folder / MODEL, "saved model", FORMAT, content, run_id(folder))


def read(folder: Path, trusted: Sequence[str], device: str = "cpu") -> Saved:
    """Load the models of a run. Raise InputError for missing, damaged or mismatched files, or untrusted modules."""
    settings, path = settings_of(folder, trusted), folder / MODEL
    if not path.exists():
        raise InputError(f"{folder} has no {MODEL}: the run is unfinished. Finish it with --resume, or start over")
    content = _load(folder)
    try:
        names = Names(*(tuple(map(str, content[key])) for key in ("features", "targets", "classes")))
        replicas = tuple(dict(replica) for replica in content["replicas"])
        states = {str(name): dict(state) for name, state in content["models"].items()}
        columns, transform = json.loads(content["schema"]), Transform.from_json(content["transform"])
        schema = None if columns is None else Schema.from_json(columns)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # and InputError
        raise InputError(f"{path} is damaged: not a saved model ({error!r})") from None
    models = {}
    for name, state in states.items():
        if name not in (settings.posteriors or [settings.posterior]):
            raise InputError(f"{path} has a posterior {name}, which config.json lacks: the files are of different runs")
        models[name] = FittedModel.from_state_dict(settings.build(name, state, names), state, device)
        if models[name].replicas != len(replicas):
            raise InputError(f"{path} is damaged: it lists {len(replicas)} replicas, but has {models[name].replicas}")
    return Saved(names, replicas, models, schema, transform)


def probabilities(folder: Path) -> dict[str, np.ndarray]:
    """Read the arrays in probabilities.npz. Raise InputError if the file is missing, damaged or of a different run."""
    path = folder / PROBABILITIES
    try:
        arrays, _ = packed.arrays(path)
    except (OSError, InputError) as error:
        raise InputError(f"{path} is missing or damaged ({error})") from error
    files.check_run(path, str(arrays.get("run", "")), run_id(folder))
    return arrays


def check(folder: Path) -> None:
    """Raise InputError if model.pt or probabilities.npz is damaged or of a different run; either may be missing."""
    if (folder / MODEL).exists():
        _load(folder)
    if (folder / PROBABILITIES).exists():
        probabilities(folder)


def _load(folder: Path) -> Any:
    return files.load(folder / MODEL, "saved model", FORMAT, run_id(folder))


def location(folder: Path) -> str:
    """Return the path of model.pt as text, with the file's size if the file is large."""
    size = (folder / MODEL).stat().st_size
    return f"{folder / MODEL}" + (f" ({size / 2**20:.0f} MiB)" if size > LARGE else "")
