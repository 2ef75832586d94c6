"""What decides the numbers of `explore compare`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from explore import registry
from explore.cli import parameters, problem
from explore.cli.parameters import Values
from explore.core.errors import InputError, one_of, shown
from explore.inference import presets

LIKELIHOOD = "likelihood."


@dataclass(frozen=True)
class Posterior:
    """A posterior, its settings, and the preset that they began with."""

    name: str
    preset: str
    settings: Values
    chosen: Values  # what its rivals of the same name have otherwise, also of the likelihood.KEY


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Of a comparison, every default filled in."""

    command: Literal["compare"] = "compare"
    posteriors: Mapping[str, Posterior]  # by name, and what was chosen of a grid
    likelihood_settings: Values
    splits: int
    jobs: int = 1  # processes, each with a part of the splits
    figures: bool
    calibrate: float
    validation: float  # share of each training part that is tested on in place of the test part; 0: none

    def noise(self, name: str) -> Values:
        """The settings of the likelihood of one of the posteriors."""
        chosen = self.posteriors[name].chosen.items()
        own = {key.removeprefix(LIKELIHOOD): value for key, value in chosen if key.startswith(LIKELIHOOD)}
        return dict(self.likelihood_settings) | own


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings that command-line options ask for: those for one posterior before those for all."""
    classes = {name: registry.find("posteriors", name) for name in _names(options["posterior"])}
    common, data = problem.loaded(options)
    noise, numbers = registry.find("likelihoods", common.likelihood), common.task == "regression"
    trained = round(0.9 * len(data.x))  # of the standard splits
    asked = options["preset"]
    free = _noise(asked, trained) if numbers else {}
    given = parameters.split(options["parameters"], ["", "likelihood", *classes], epochs=options["epochs"])
    grid = parameters.split(options["grid"], ["", "likelihood", *classes], "--grid")
    if both := given["likelihood"].keys() & grid["likelihood"].keys():
        raise InputError(f"likelihood.{min(both)} stands in --grid and is fixed too; give it once")
    shared = {LIKELIHOOD + key: text for key, text in grid["likelihood"].items()}
    known = {name: registry.settings_of(cls) for name, cls in classes.items()}
    every = {key for own in known.values() for key in own}
    if unknown := {*given[""], *grid[""]} - every:
        raise one_of("setting", min(unknown), every)
    posteriors: dict[str, Posterior] = {}
    for name, cls in classes.items():
        if options["preset"] not in (None, *registry.presets(cls)):
            raise one_of(f"preset of {name}", options["preset"], registry.listed_presets(cls))
        fixed, axes = (
            {key: text for key, text in texts[""].items() if key in known[name]} | texts[name]
            for texts in (given, grid)
        )
        if both := fixed.keys() & axes.keys():
            raise InputError(f"{min(both)} of {name} stands in --grid and is fixed too; give it once")
        if axes | shared and not options["validate"] and not hasattr(cls, "divergence"):
            raise InputError(f"--grid chooses by the bound, which {name} does not have; add --validate, such as 0.2")
        for point in _points(axes | shared):
            scatter = registry.parse(noise, {key: point.pop(LIKELIHOOD + key) for key in grid["likelihood"]})
            choice = problem.configured(name, fixed | point, asked)
            if choice.preset == presets.BY_ROWS:
                advice = presets.recommended_settings(cls, trained, task=common.task, units=max(common.hidden))
                choice = choice._replace(preset=advice.preset, settings=advice.settings | choice.settings)
            chosen = {key: choice.settings[key] for key in axes} | {LIKELIHOOD + key: v for key, v in scatter.items()}
            label = " ".join([name, *(f"{key}={value}" for key, value in chosen.items())])
            if label in posteriors:
                raise InputError(f"--grid names {label} twice; name each value once")
            posteriors[label] = Posterior(name, choice.preset, parameters.complete(cls, choice.settings), chosen)
    return Settings(
        **vars(common), posteriors=posteriors, splits=options["splits"], jobs=min(options["jobs"], options["splits"]),
        figures=options["figures"] and not options["grid"],
        calibrate=_share(options["calibrate"], common), validation=options["validate"] or 0.0,
        likelihood_settings=parameters.complete(noise, free | registry.parse(noise, given["likelihood"])),
    )  # fmt: skip


def _noise(preset: str | None, rows: int) -> dict[str, Any]:
    """The prior of the noise: that of the preset, or of so many rows."""
    return presets.noise_for(preset) if preset else presets.between(presets.NOISE, rows)


def _points(axes: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Every combination of the values of a grid, as they were written."""
    for texts in itertools.product(*(text.split(",") for text in axes.values())):
        yield dict(zip(axes, map(str.strip, texts), strict=True))


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
