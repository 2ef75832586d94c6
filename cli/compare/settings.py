"""What decides the numbers of `explore compare`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from explore import registry
from explore.cli import parameters, problem
from explore.cli.parameters import Values
from explore.errors import InputError, one_of, shown
from explore.likelihoods import LIKELIHOODS


@dataclass(frozen=True)
class Posterior:
    """Settings of a posterior, and the preset that they began with."""

    preset: str
    settings: Values


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Of a comparison, every default filled in."""

    command: Literal["compare"] = "compare"
    posteriors: Mapping[str, Posterior]
    likelihood_settings: Values
    splits: int
    figures: bool
    calibrate: float


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings that command-line options ask for: of `-p`, those for one posterior before those for all."""
    classes = {name: registry.find("posteriors", name) for name in _names(options["posterior"])}
    common = problem.resolve(options)
    noise = LIKELIHOODS[common.likelihood]
    given = parameters.split(options["parameters"], ["", "likelihood", *classes], epochs=options["epochs"])
    known = {name: registry.settings_of(cls) for name, cls in classes.items()}
    every = {key for own in known.values() for key in own}
    if unknown := given[""].keys() - every:
        raise one_of("setting", min(unknown), every)
    posteriors = {}
    for name, cls in classes.items():
        if options["preset"] not in (None, *registry.presets(cls)):
            raise one_of(f"preset of {name}", options["preset"], registry.presets(cls))
        texts = {key: text for key, text in given[""].items() if key in known[name]} | given[name]
        own = registry.configured("posteriors", name, texts, options["preset"], ("uci", "default", "paper"))
        posteriors[name] = Posterior(own.preset, parameters.complete(cls, own.settings))
    return Settings(
        **vars(common), posteriors=posteriors, splits=options["splits"], figures=options["figures"],
        calibrate=_share(options["calibrate"], common),
        likelihood_settings=parameters.complete(noise, registry.parse(noise, given["likelihood"])),
    )  # fmt: skip


def _share(share: float | None, common: problem.Problem) -> float:
    """Of the training examples that are held out for calibration; 0: none."""
    if share is None:
        return 0.0
    if common.task == "classification":
        raise InputError("--calibrate is a factor on a predictive variance, which classes do not have; leave it out")
    return share


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise InputError(f"--posterior is {shown(text)}; it must be names with single commas between")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"--posterior names {', '.join(twice)} twice; name each once")
    return names
