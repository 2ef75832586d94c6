"""Settings of `explore suggest`, which persist until changed, and the conditions of --stop-when."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd

from explore import registry
from explore.acquisitions.base import default_rule
from explore.cli import problem
from explore.core.errors import InputError, one_of, shown
from explore.data.texts import number
from explore.inference import presets
from explore.learning import build
from explore.learning.scaling import Kind
from explore.runs.recorded import Values, flat

Options = Mapping[str, Any]  # of the command line, by name


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Settings of a campaign, with defaults resolved."""

    command: Literal["suggest"] = "suggest"
    posterior: str
    preset: str
    posterior_settings: Values
    likelihood_settings: Values
    acquisition: str
    acquisition_settings: Values
    epochs: int | None  # None: depends on the number of labels
    batch: int
    goal: Literal["learn", "maximise", "minimise"]
    cost: str | None
    transform: Kind
    stop_when: tuple[str, ...]
    failed: tuple[str, ...] = ()  # target texts that mark failed experiments


DEFAULTS = {
    "batch": 5, "task": "regression", "id_column": None, "decimal": ".", "sheet": None, "seed": 0, "samples": 100,
    "epochs": None, "goal": "learn", "transform": "none", "cost": None, "hidden": (10,),
    **dict.fromkeys(("target", "drop_columns", "categorical", "feature", "stop_when", "keep_na", "failed"), ()),
}  # fmt: skip
READ = {"drop_columns": problem.names, "categorical": problem.names, "hidden": problem.widths}  # parsers
GAINLESS = {"upper-confidence-bound", "random", "power"}  # their best score is not an expected gain
LIKELIHOODS = ("gaussian", "heteroscedastic")  # each has a version for rows that are measured in part
NONE = "none"
RESET = ("cost", "stop_when", "keep_na", "failed")  # options that the value "none" resets to the default


def resolve(options: Options, old: Settings | None = None, rows: int = 0) -> Settings:
    """Return the settings for command-line options. Missing options keep the value in `old`, if any, or the default.

    The default posterior depends on the number of measured `rows`. Raise InputError for an invalid setting.
    """
    values: dict[str, Any] = {name: getattr(old, name) if old else default for name, default in DEFAULTS.items()}
    for name, value in options.items():
        if name in values and value not in (None, ()):
            resets = name in RESET and value in (NONE, (NONE,))
            values[name] = DEFAULTS[name] if resets else READ[name](value) if name in READ else value
    target, task, goal = values["target"], values["task"], values["goal"]
    if not target:
        advice = "Pass --target with the column to predict; leave its cells empty where nothing is measured."
        raise InputError(f"--target is missing. {advice}")
    if goal != "learn" and (task == "classification" or len(target) > 1):
        raise InputError(f"--goal {goal} needs exactly one --target and --task regression. Use --goal learn otherwise.")
    new = Settings(
        **values, **_model(options, old, task, goal, rows), dataset=None, data=str(Path(options["table"]).resolve())
    )
    if task == "classification" and new.transform != NONE:
        raise InputError("--transform applies to regression only. Leave it out, or pass --transform none.")
    if any(limit.name == "gain" for limit in limits(new)) and new.acquisition in GAINLESS:
        reason = f"--acquisition {new.acquisition}, whose best score is not a gain"
        advice = "Use another acquisition, or width, budget or labels."
        raise InputError(f"--stop-when gain<X is not supported with {reason}. {advice}")
    return new


def _model(options: Options, old: Settings | None, task: str, goal: str, rows: int) -> dict[str, Any]:
    """Return posterior, acquisition and their settings. For an unchanged plug-in, the defaults are as in `old`."""
    by_part = problem.split(options["parameters"], ("", "likelihood", "acquisition"))
    if "epochs" in by_part[""]:
        raise InputError("-p epochs=... is not supported. Use --epochs.")
    settings: Values
    if old and (options["posterior"] or old.posterior) == old.posterior and not options["preset"]:
        changed = registry.parse(registry.find("posteriors", old.posterior), by_part[""]) if by_part[""] else {}
        name, preset, settings = old.posterior, old.preset, {**old.posterior_settings, **changed}
    else:
        name = options["posterior"] or (old.posterior if old else "")
        if not name:
            likelihood = LIKELIHOODS[0] if task == "regression" else ""
            name, likelihood = problem.recommended(options, by_part[""], likelihood, rows)
            options = {**options, "likelihood": likelihood}
        new = problem.configured(name, by_part[""], options["preset"])
        name, preset, settings = new.name, new.preset, new.settings
        settings = settings if preset == presets.BY_ROWS else registry.complete(new.make, settings)
    build.check_used(name, options["hidden"], by_part["likelihood"], "--hidden")
    model = {"posterior": name, "preset": preset, "posterior_settings": settings}
    model |= _noise(options, old, by_part["likelihood"], task, preset)
    return model | _rule(options, old, by_part["acquisition"], goal, task == "classification")


def _noise(options: Options, old: Settings | None, texts: Mapping[str, str], task: str, preset: str) -> dict[str, Any]:
    """Return the likelihood and its settings. The default is as in `old`."""
    if task == "classification":
        if texts or options["likelihood"]:
            raise InputError("--likelihood and -p likelihood.* apply to regression only. Leave them out.")
        return {"likelihood": "", "likelihood_settings": {}}
    before = (old.likelihood if old else "") or LIKELIHOODS[0]
    name = options["likelihood"] or before
    if name not in LIKELIHOODS:
        raise one_of("--likelihood", name, LIKELIHOODS)
    kind = registry.find("likelihoods", name)
    noise = registry.parse(kind, texts)
    if old and old.preset == preset and name == before:
        noise = {**old.likelihood_settings, **noise}
    elif preset != presets.BY_ROWS:
        noise = registry.complete(kind, presets.noise_for(preset) | noise)
        if "resolution" not in texts:  # of the measurements, see `build.for_rows`
            noise.pop("resolution", None)
    return {"likelihood": name, "likelihood_settings": noise}


def _rule(options: Options, old: Settings | None, texts: Mapping[str, str], goal: str, classes: bool) -> dict[str, Any]:
    """Return the acquisition of the options. The default is as in `old` or, if `goal` changed, the rule for `goal`."""
    default = default_rule(classes) if goal == "learn" else "expected-improvement"
    before = old.acquisition if old and old.goal == goal else default
    rule = registry.configured("acquisitions", options["acquisition"] or before, texts)
    settings: Values = registry.complete(rule.make, rule.settings) if isinstance(rule.make, type) else {}
    if old and old.acquisition == rule.name:
        settings = {**old.acquisition_settings, **rule.settings}
    if "direction" in settings and goal != "learn":
        settings = {**settings, "direction": goal}
    return {"acquisition": rule.name, "acquisition_settings": settings}


def changes(old: Settings, new: Settings) -> Iterator[str]:
    """Yield sentences on changed settings. Raise InputError for another task: it gives measurements a new meaning."""
    if old.task != new.task:
        advice = f"For {new.task}, copy the table and start a new campaign."
        raise InputError(f"{Path(new.data or '').name} already has a {old.task} campaign. {advice}")
    replaced = tuple(f"{name}." for name in ("acquisition", "posterior") if vars(old)[name] != vars(new)[name])
    before, after = flat(old, problem.NESTED), flat(new, problem.NESTED)
    for name in before | after:
        was, now = (settings.get(name, "the default") for settings in (before, after))
        if was != now and name != "data" and not name.startswith(replaced):
            yield f"Setting {name} is now {now}; it was {was}."


# Descriptions of measures. A campaign stops when one in BELOW is below its limit; those in WITHIN must not exceed it.
BELOW = {"gain": "the best candidate's score", "width": "the mean width of the candidates' intervals"}
WITHIN = {
    "budget": "the cost of all measured, failed or pending rows",
    "labels": "the number of measured or pending rows",
}


class Limit(NamedTuple):
    """A condition of --stop-when."""

    name: str
    value: float
    text: str  # as the user wrote it


def limits(settings: Settings) -> list[Limit]:
    """Return the conditions of --stop-when, such as gain<0.01 or budget<=100; raise InputError for an invalid one."""
    conditions = []
    for text in settings.stop_when:
        match = re.fullmatch(r"\s*(?:(gain|width)\s*<|(budget|labels)\s*<=)\s*([^\s=]\S*)\s*", text)
        value = number(match[3]) if match else None
        if not match or value is None or not (0 < value < math.inf):
            forms = "gain<X, width<X, budget<=X or labels<=X with a positive number X"
            raise InputError(f"--stop-when is {shown(text)}; it must be {forms}")
        if match[1] == "width" and settings.task == "classification":
            reason = "classes have no intervals. Use gain, budget or labels."
            raise InputError(f"--stop-when width<X applies to regression only: {reason}")
        conditions.append(Limit(match[1] or match[2], value, text.strip()))
    return conditions


def allowed(
    conditions: Sequence[Limit], measures: Mapping[str, float], spent: Mapping[str, float], costs: pd.DataFrame
) -> tuple[int, str]:
    """Return how many rows can be suggested, in order, and why none can be, or "". `costs` add to `spent`, by row."""
    for name, value, text in conditions:
        if name in BELOW and measures.get(name, math.inf) < value:
            return 0, f"Stopped by --stop-when {text}: {BELOW[name]} is {measures[name]:.4g}. No row suggested."
    totals, within = costs.cumsum() + pd.Series(spent), [limit for limit in conditions if limit.name in WITHIN]
    fits = pd.Series(True, costs.index)
    for limit in within:
        fits &= totals[limit.name] <= limit.value * (1 + 1e-12)  # sums of decimals may exceed it by their last digit
    if n := int(fits.cumprod().sum()):
        return n, ""
    sums = " and ".join(f"{WITHIN[limit.name]} is {spent[limit.name]:.12g}" for limit in within)
    texts = ", ".join(limit.text for limit in within)
    return 0, f"Stopped by --stop-when {texts}: {sums}. Another row would exceed the limit; raise it to continue."
