"""An active-learning experiment: from settings that JSON can hold to a learner, and from its rounds to results."""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from explore import data, registry
from explore.active import ActiveLearner, Round, active_loop
from explore.errors import InputError
from explore.fit import Epoch
from explore.likelihoods import LIKELIHOODS
from explore.nets import Net, mlp

Settings = dict[str, Any]
# Options that are settings as they stand; the others need the data or the posterior to be resolved.
PLAIN = (
    "posterior", "acquisition", "trials", "rounds", "initial", "acquire", "test_size", "control", "seed", "samples",
    "standardise",
)  # fmt: skip


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings that command-line options ask for; `Experiment` completes them.

    Raises:
        InputError: for options that contradict each other, an unknown name or a value of the wrong type.
    """
    settings = {"command": "active"} | {name: options[name] for name in PLAIN} | _source(options)
    settings["hidden"] = _widths(options["hidden"])
    dataset = load(settings)
    settings |= {"task": dataset.task, "fingerprint": fingerprint(dataset), "likelihood": _likelihood(dataset)}
    return settings | _parameters(options, LIKELIHOODS[settings["likelihood"]])


def _source(options: Mapping[str, Any]) -> Settings:
    """Where the data come from."""
    if options["data"] and options["dataset"]:
        raise InputError("give --dataset or --data, not both")
    if not options["data"] and (options["target"] or options["task"]):
        raise InputError("--target and --task belong to --data; a data set by name has its own")
    if options["data"] and not options["target"]:
        raise InputError("--data needs --target, the column to predict")
    return {
        "dataset": None if options["data"] else options["dataset"] or "boston",
        "data": str(Path(options["data"]).resolve()) if options["data"] else None,
        "target": list(options["target"]),
        "drop_columns": [name.strip() for name in options["drop_columns"].split(",") if name.strip()],
        "task": options["task"] or "regression",
    }


def _widths(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"--hidden is {text!r}; it must be positive whole numbers such as 50,50")
    return [int(part) for part in parts]


def _parameters(options: Mapping[str, Any], likelihood: type) -> Settings:
    """The preset and what `-p` and `--epochs` change of it."""
    cls, prefix = registry.find("posteriors", options["posterior"]), "likelihood."
    presets = registry.presets(cls)
    preset = options["preset"] or ("small" if "small" in presets else next(iter(presets)))
    own: dict[str, str] = {}
    noise: dict[str, str] = {}
    for text in options["parameters"]:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InputError(f"-p takes KEY=VALUE; got {text!r}")
        (noise if key.startswith(prefix) else own)[key.removeprefix(prefix)] = value
    if options["epochs"] is not None:
        if "epochs" in own:
            raise InputError("give --epochs or -p epochs=..., not both")
        own["epochs"] = str(options["epochs"])
    return {
        "preset": preset,
        "posterior_settings": registry.preset(cls, preset) | registry.parse(cls, own),
        "likelihood_settings": registry.parse(likelihood, noise),
    }


def load(settings: Settings) -> data.Dataset:
    """The data set of a run.

    Raises:
        InputError: when it cannot be had, or is not the one that the run began with.
    """
    drop = settings["drop_columns"]
    try:
        if settings["data"]:
            dataset = data.load_csv(settings["data"], settings["target"], drop, settings["task"])
        else:
            dataset = data.drop_columns(data.load(settings["dataset"]), drop)
    except (OSError, ImportError) as error:  # no file, no network, no library for its format
        raise InputError(str(error)) from error
    if "fingerprint" in settings and settings["fingerprint"] != fingerprint(dataset):
        raise InputError(f"the data of {dataset.name} have changed since the run began; restore them to continue")
    return dataset


def fingerprint(dataset: data.Dataset) -> str:
    """A hash of all numbers of a data set."""
    return hashlib.sha256(dataset.x.tobytes() + dataset.y.tobytes()).hexdigest()


class Experiment:
    """A learner with its data, its arms and the rounds done so far.

    Args:
        settings: from `resolve`, or those that a run recorded.
        device: where to compute.

    Attributes:
        settings: complete, every default filled in.
        arms: names of the acquisitions, the chosen one first.
        history: what happened, name -> [rounds, R], and `labels` [rounds].
    """

    def __init__(self, settings: Settings, device: str):
        self.dataset = load(settings)
        n, trials = len(self.dataset.x), settings["trials"]
        split = data.pool_splits(n, trials, settings["initial"], settings["test_size"], settings["seed"])
        wanted = settings["acquire"] * (settings["rounds"] - 1)
        if wanted > split.pool.shape[1]:
            raise InputError(
                f"{settings['rounds']} rounds label {wanted} points, but the pool of {self.dataset.name} has "
                f"{split.pool.shape[1]}; take fewer rounds, or fewer points a round"
            )
        self.arms = [settings["acquisition"]]
        if settings["control"] and settings["acquisition"] != "random":
            self.arms.append("random")

        classes = len(self.dataset.classes)
        outputs = {0: self.dataset.y.shape[-1], 2: 1}.get(classes, classes)
        likelihood = LIKELIHOODS[settings["likelihood"]](**_tuples(settings["likelihood_settings"]))
        self.posterior = registry.find("posteriors", settings["posterior"])(
            net=Net(mlp(self.dataset.x.shape[1], settings["hidden"], outputs)),
            likelihood=likelihood,
            **_tuples(settings["posterior_settings"]),
        )
        allowed = np.ones((trials, n), bool)
        np.put_along_axis(allowed, split.test, False, axis=1)
        scale = {} if settings["standardise"] is None else {"standardise": settings["standardise"]}
        self.learner = ActiveLearner(
            self.posterior, self.dataset.x, self.arms, trials=trials, allowed=allowed, seed=settings["seed"],
            samples=settings["samples"], device=device, **scale,
        )  # fmt: skip
        labelled = np.tile(split.labelled, (len(self.arms), 1))
        self.learner.tell(labelled, self.dataset.y[labelled])
        self.test = np.tile(split.test, (len(self.arms), 1))
        self.history: dict[str, Tensor] = {}
        self.settings = settings | {
            "standardise": self.learner.standardise,
            "posterior_settings": _fields(self.posterior),
            "likelihood_settings": _fields(likelihood),
        }

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return len(self.history["labels"]) if self.history else 0

    def events(self) -> Iterator[Epoch | Round]:
        """The rest of the experiment; `history` grows with every round."""
        if self.rounds == self.settings["rounds"]:
            return
        s = self.settings
        for event in active_loop(self.learner, self.dataset.y, self.test, s["rounds"], s["acquire"]):
            if isinstance(event, Round):
                new = event.metrics | {"alive": event.state.common.alive, "labels": torch.tensor(event.labels)}
                for name, value in new.items():
                    past = [self.history[name]] if name in self.history else []
                    self.history[name] = torch.cat([*past, value.cpu().unsqueeze(0)])
            yield event

    def state_dict(self) -> dict[str, Any]:
        """What continues the experiment after the last round."""
        learner = {name: value.cpu() for name, value in self.learner.state_dict().items()}
        return {"learner": learner, "history": dict(self.history)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.learner.load_state_dict(saved["learner"])
        self.history = dict(saved["history"])


def _likelihood(dataset: data.Dataset) -> str:
    if dataset.task == "regression":
        return "gaussian"
    return "bernoulli" if len(dataset.classes) == 2 else "categorical"


def _fields(record: Any) -> Settings:
    """The settings of a posterior or a likelihood: what `-p` can set."""
    hints = typing.get_type_hints(type(record))
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if registry.is_setting(hints[f.name])}


def _tuples(settings: Settings) -> Settings:
    """JSON makes lists of tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
