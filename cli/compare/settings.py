"""Settings of `explore compare` that determine its results."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from explore import registry
from explore.cli import problem
from explore.core.errors import InputError, one_of
from explore.inference import presets
from explore.learning import build
from explore.learning.baselines import BOOSTING
from explore.learning.saved import LIKELIHOOD, Candidate
from explore.nets.protocols import is_gaussian
from explore.runs.recorded import Values


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Settings with defaults resolved."""

    command: Literal["compare"] = "compare"
    posteriors: Mapping[str, Candidate]  # by label: the name, followed by values of a grid
    likelihood_settings: Values
    splits: int
    jobs: int = 1  # number of processes that share the splits
    figures: bool
    calibrate: float
    baselines: tuple[str, ...] = ()  # methods without a posterior: "boosting" or none
    validation: float  # share of each training part held out for testing; 0: use the test parts

    def noise(self, label: str) -> Values:
        """Return the likelihood settings of the posterior `label`."""
        return self.posteriors[label].noise(self.likelihood_settings)


def resolve(options: Mapping[str, Any]) -> Settings:
    """Return the settings for command-line options. -p NAME.KEY=VALUE overrides -p KEY=VALUE for one posterior."""
    names = list(dict.fromkeys(name.strip() for name in options["posterior"].split(",")))
    baselines = tuple(name for name in names if name == BOOSTING)
    classes = {name: registry.find("posteriors", name) for name in names if name not in baselines}
    if not classes:
        raise InputError(f"--posterior has only the baseline {BOOSTING}. Name at least one posterior")
    if len(names) == 1:
        build.check_used(names[0], options["hidden"], (), "--hidden")
    common, data = problem.resolve({**options, "hidden": options["hidden"] or "50"})
    rows = round(0.9 * (1 - (options["validate"] or 0)) * len(data.x))  # training rows
    if not options["hidden"]:
        common = replace(common, hidden=presets.recommended_widths(rows))
    if common.likelihood == "gaussian" and not (options["likelihood"] or options["preset"]):
        common = replace(common, likelihood="heteroscedastic")
    if baselines and common.task == "classification":
        raise InputError(f"{BOOSTING} is a baseline for numeric targets. Leave it out of --posterior")
    if options["calibrate"] and common.task == "classification":
        raise InputError("--calibrate applies to regression only: it scales the predictive variance. Leave it out")
    noise = registry.find("likelihoods", common.likelihood)
    if baselines and common.task == "regression" and not is_gaussian(noise):
        raise InputError(f"{BOOSTING} predicts Gaussians. Leave it out with --likelihood {common.likelihood}")
    fixed = problem.split(options["parameters"], ["", "likelihood", *classes], epochs=options["epochs"])
    grid = problem.split(options["grid"], ["", "likelihood", *classes], "--grid")
    every = {key for cls in classes.values() for key in registry.settings_of(cls)}
    if unknown := {*fixed[""], *grid[""]} - every:
        raise one_of("setting", min(unknown), every)
    posteriors: dict[str, Candidate] = {}
    for name, cls in classes.items():
        for candidate in _candidates(name, cls, fixed, grid, noise, rows, common, options):
            label = " ".join([candidate.name, *(f"{key}={value}" for key, value in candidate.chosen.items())])
            posteriors[label] = candidate
    preset = options["preset"]
    weak = presets.noise_for(preset) if preset else presets.between(presets.NOISE, rows)
    prior = build.noise_of(noise, weak, data.y)
    return Settings(
        **vars(common), posteriors=posteriors, splits=options["splits"], jobs=min(options["jobs"], options["splits"]),
        baselines=baselines, figures=options["figures"] and not options["grid"],
        calibrate=options["calibrate"] or 0.0, validation=options["validate"] or 0.0,
        likelihood_settings=registry.complete(noise, prior | registry.parse(noise, fixed["likelihood"])),
    )  # fmt: skip


def _candidates(
    name: str, cls: Any, fixed: Mapping[str, Any], grid: Mapping[str, Any], noise: Any, rows: int,
    common: problem.Problem, options: Mapping[str, Any],
) -> Iterator[Candidate]:  # fmt: skip
    """Yield the posterior `name` with each combination of grid values. `rows` is the number of training rows."""
    preset, allowed = options["preset"], registry.settings_of(cls)
    values, axes = (
        {key: text for key, text in texts[""].items() if key in allowed} | texts[name] for texts in (fixed, grid)
    )
    varied = axes | {LIKELIHOOD + key: text for key, text in grid["likelihood"].items()}
    if both := varied.keys() & (values.keys() | {LIKELIHOOD + key for key in fixed["likelihood"]}):
        setting = min(both) if min(both).startswith(LIKELIHOOD) else f"{min(both)} of {name}"
        raise InputError(f"{setting} is set by both -p and --grid. Pass it only once")
    if varied and not options["validate"] and not hasattr(cls, "divergence"):
        raise InputError(f"--grid selects by the variational bound, which {name} does not have. Add --validate 0.2")
    for texts in itertools.product(*(text.split(",") for text in varied.values())):
        point = dict(zip(varied, map(str.strip, texts), strict=True))
        scatter = registry.parse(noise, {key: point.pop(LIKELIHOOD + key) for key in grid["likelihood"]})
        choice = problem.configured(name, values | point, preset)
        if choice.preset == presets.BY_ROWS:
            units, kind = max(common.hidden), common.likelihood
            advice = presets.recommended_settings(cls, rows, task=common.task, units=units, likelihood=kind)
            choice = choice._replace(preset=advice.preset, settings=advice.settings | choice.settings)
        chosen = {key: choice.settings[key] for key in axes} | {LIKELIHOOD + key: v for key, v in scatter.items()}
        yield Candidate(name, choice.preset, registry.complete(cls, choice.settings), chosen)
