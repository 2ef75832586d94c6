"""What decides the answer of `explore suggest`, beside the table and what was told: kept until it is given anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from explore import registry
from explore.cli import parameters, problem
from explore.cli.parameters import Values
from explore.cli.suggest import stopping
from explore.core.errors import InputError, listed
from explore.inference import presets
from explore.learning.transforms import Kind
from explore.nets.likelihoods import Gaussian


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Of a campaign, every default filled in."""

    command: Literal["suggest"] = "suggest"
    posterior: str
    preset: str
    posterior_settings: Values
    likelihood_settings: Values
    acquisition: str
    acquisition_settings: Values
    epochs: int | None  # None: by the number of labels
    batch: int
    goal: Literal["learn", "maximise", "minimise"]
    cost: str | None
    transform: Kind
    stop_when: tuple[str, ...]
    failed: tuple[str, ...] = ()  # texts that say that an experiment failed


SILENT = {"data", "fingerprint", "likelihood"}  # not the user's to give
PLAIN = {
    "batch": 5, "task": "regression", "id_column": None, "decimal": ".", "sheet": None, "seed": 0, "samples": 100,
    "epochs": None, "goal": "learn", "transform": "none",
}  # fmt: skip
RULES = {True: "epig", False: "expected-improvement"}  # whether the goal is to learn
GAINLESS = {"upper-confidence-bound", "random", "power"}  # a bound; no score at all; not the best score
NONE = "none"  # takes back --cost, --stop-when, --keep-na and --failed


def resolve(options: Mapping[str, Any], old: Settings | None = None) -> Settings:
    """The settings that command-line options ask for; those that are not given are the old ones, or the defaults.

    Raises:
        InputError: for a setting that cannot be, or when there is no target.
    """

    def chosen(name: str, default: Any, read: Any = lambda text: text) -> Any:
        if options[name] not in (None, ()):
            return read(options[name])
        return getattr(old, name) if old else default

    values = {name: chosen(name, default) for name, default in PLAIN.items()}
    target = chosen("target", (), tuple)
    if not target:
        raise InputError("--target is missing: the column to predict, whose cells are empty where nothing is measured")
    if values["goal"] != "learn" and (values["task"] == "classification" or len(target) > 1):
        raise InputError(f"--goal {values['goal']} takes one target of numbers")
    made = Settings(
        **values, dataset=None, data=str(Path(options["table"]).resolve()), target=target,
        drop_columns=chosen("drop_columns", (), problem.names), categorical=chosen("categorical", (), problem.names),
        feature=chosen("feature", (), tuple), hidden=chosen("hidden", (10,), problem.widths),
        cost=chosen("cost", None, lambda name: _unless_none(name)),
        **{name: chosen(name, (), _several) for name in ("stop_when", "keep_na", "failed")},
        **_model(options, old, values["task"], values["goal"]),
    )  # fmt: skip
    _check(made)
    return made


def _unless_none(name: str) -> str | None:
    return None if name == NONE else name


def _several(texts: tuple[str, ...]) -> tuple[str, ...]:
    return () if texts == (NONE,) else tuple(texts)


def _check(made: Settings) -> None:
    """Refuse what does not go together."""
    if made.task == "classification" and made.transform != NONE:
        raise InputError("--transform is for numbers; classes have none")
    for text in made.stop_when:
        limit = stopping.parse(text, made.task == "classification")
        if limit.name == "gain" and made.acquisition in GAINLESS:
            raise InputError(
                f"--stop-when gain<X goes with rules whose best score is a gain; that of {made.acquisition} is none"
            )


def _model(options: Mapping[str, Any], old: Settings | None, task: str, goal: str) -> dict[str, Any]:
    """Posterior and rule with their settings: those of before stay where it is the same one."""
    given = parameters.split(options["parameters"], ("", "likelihood", "acquisition"))
    if "epochs" in given[""]:
        raise InputError("give the passes over the labels by --epochs")
    if old and (options["posterior"] or old.posterior) == old.posterior and not options["preset"]:
        make = registry.find("posteriors", old.posterior)
        changed = registry.parse(make, given[""]) if given[""] else {}
        model: dict[str, Any] = {
            "posterior": old.posterior, "preset": old.preset,
            "posterior_settings": {**old.posterior_settings, **changed},
        }  # fmt: skip
    else:
        name = options["posterior"] or (old.posterior if old else "noisy-kfac")
        new = problem.configured(name, given[""], options["preset"])
        own = new.settings if new.preset == presets.BY_ROWS else parameters.complete(new.make, new.settings)
        model = {"posterior": new.name, "preset": new.preset, "posterior_settings": own}
    if task == "classification" and given["likelihood"]:
        raise InputError("classes have no settings of a likelihood")
    noise = registry.parse(Gaussian, given["likelihood"]) if task == "regression" else {}
    if old and old.preset == model["preset"]:
        noise = {**old.likelihood_settings, **noise}
    elif task == "regression" and model["preset"] != presets.BY_ROWS:
        noise = dict(parameters.complete(Gaussian, presets.noise_for(model["preset"]) | noise))
    return model | {"likelihood_settings": noise} | _rule(options, old, given["acquisition"], goal)


def _rule(options: Mapping[str, Any], old: Settings | None, given: Mapping[str, str], goal: str) -> dict[str, Any]:
    """The rule that was asked for, else that of before for the same goal, else the goal's."""
    before = old.acquisition if old and old.goal == goal else RULES[goal == "learn"]
    rule = registry.configured("acquisitions", options["acquisition"] or before, given)
    settings: Values = parameters.complete(rule.make, rule.settings) if isinstance(rule.make, type) else {}
    if old and old.acquisition == rule.name:
        settings = {**old.acquisition_settings, **rule.settings}
    if "direction" in settings and goal != "learn":
        settings = {**settings, "direction": goal}
    return {"acquisition": rule.name, "acquisition_settings": settings}


def changes(old: Settings, new: Settings) -> Iterator[str]:
    """Sentences on settings that are others than before.

    Raises:
        InputError: when the task is another, in which the measurements would mean something else.
    """
    if old.task != new.task:
        raise InputError(
            f"the task of {Path(new.data or '').name} is {old.task}; for {new.task} begin anew with a copy of the table"
        )
    silent = SILENT | {
        f"{name}_settings" for name in ("acquisition", "posterior") if vars(old)[name] != vars(new)[name]
    }
    for field in fields(Settings):
        was, now = getattr(old, field.name), getattr(new, field.name)
        if was != now and field.name not in silent:
            yield f"Setting {field.name} is now {_text(now, was)}; it was {_text(was, now)}."


def _text(value: Any, other: Any) -> str:
    """A setting as a sentence has it; of several by name those that differ."""
    if isinstance(value, Mapping):
        known = other if isinstance(other, Mapping) else {}
        return listed(f"{k}={v}" for k, v in value.items() if k not in known or known[k] != v) or "the default"
    if isinstance(value, tuple):
        return listed(value) or "none"
    return "none" if value is None else str(value)
