"""Settings and experiment of `explore compare`: fits of posteriors on splits of a data set, and their results."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from explore import registry
from explore.cli import problem, start
from explore.core import machine, tree
from explore.core.errors import InputError, counted, one_of, shown
from explore.core.rng import Rng
from explore.inference import presets
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning import baselines, build, compare
from explore.learning.baselines import BOOSTING
from explore.learning.compare import Measured
from explore.learning.fit import Epoch
from explore.learning.model import FittedModel
from explore.learning.saved import LIKELIHOOD, Candidate, Names, Saved
from explore.nets.protocols import is_gaussian
from explore.runs.record import Run
from explore.runs.recorded import Values


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Settings with defaults resolved."""

    command: Literal["compare"] = "compare"
    posteriors: Mapping[str, Candidate]  # by label: the name, followed by values of a grid
    likelihood_settings: Values
    splits: int
    jobs: int = 1  # number of processes that share the splits
    calibrate: float
    baselines: tuple[str, ...] = ()  # methods without a posterior: "boosting" or none
    validation: float  # share of each training part held out for testing; 0: use the test parts

    def noise(self, label: str) -> Values:
        """Return the likelihood settings of the posterior `label`."""
        return self.posteriors[label].noise(self.likelihood_settings)


def resolve(options: Mapping[str, Any]) -> Settings:
    """Return the settings for command-line options. -p NAME.KEY=VALUE overrides -p KEY=VALUE for one posterior."""
    names = [name.strip() for name in options["posterior"].split(",")]
    baselines = tuple(name for name in names if name == BOOSTING)
    classes = {name: registry.find("posteriors", name) for name in names if name not in baselines}
    problem.check_once("--posterior", names)
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
    args = fixed, grid, noise, (rows, data.x.shape[1]), common, options
    candidates = [each for name, cls in classes.items() for each in _candidates(name, cls, *args)]
    labels = [" ".join([each.name, *(f"{key}={value}" for key, value in each.chosen.items())]) for each in candidates]
    problem.check_once("--grid", labels)
    preset = options["preset"]
    weak = presets.noise_for(preset) if preset else presets.between(presets.NOISE, rows)
    prior = build.noise_of(noise, weak, data.y)
    return Settings(
        **vars(common), posteriors=dict(zip(labels, candidates, strict=True)),
        splits=options["splits"], jobs=min(options["jobs"], options["splits"]),
        baselines=baselines, calibrate=options["calibrate"] or 0.0, validation=options["validate"] or 0.0,
        likelihood_settings=registry.complete(noise, prior | registry.parse(noise, fixed["likelihood"])),
    )  # fmt: skip


def _candidates(
    name: str, cls: Any, fixed: Mapping[str, Any], grid: Mapping[str, Any], noise: Any, size: tuple[int, int],
    common: problem.Problem, options: Mapping[str, Any],
) -> Iterator[Candidate]:  # fmt: skip
    """Yield the posterior `name` with each combination of grid values. `size`: training rows and columns."""
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
            advice = presets.recommended_settings(cls, *size, common.task, units=units, likelihood=kind)
            choice = choice._replace(preset=advice.preset, settings=advice.settings | choice.settings)
        chosen = {key: choice.settings[key] for key in axes} | {LIKELIHOOD + key: v for key, v in scatter.items()}
        yield Candidate(name, choice.preset, registry.complete(cls, choice.settings), chosen)


class Finished(NamedTuple):
    """The results of one posterior after its fit."""

    scalars: dict[str, Tensor]  # tag -> [R], after the last epoch
    alive: Tensor  # [R] whether the fit on each split succeeded
    seconds: float  # duration of its fit
    reliability: compare.Reliability | None = None


FACTOR = "test/variance_factor"
Event = tuple[str, Epoch | Measured | Finished | None]  # name of a posterior and event; None: its fit starts or resumes


class Experiment:
    """The posteriors, the splits of the data, and the results so far; see `explore.cli.start.Experiment`."""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        self.settings = settings
        self.dataset, self._schema = settings.table()
        self.rng = Rng(settings.seed, device)
        scaling = registry.find("likelihoods", settings.likelihood).scaling
        self.splits = compare.split(self.dataset, settings.splits, self.rng, settings.validation, scaling)
        self.posteriors: dict[str, Predictive] = {}
        for label, chosen in settings.posteriors.items():
            posterior = problem.posterior(settings, self.dataset, chosen.name, chosen.settings, settings.noise(label))
            problem.check_memory(posterior, settings.splits, settings.samples)
            self.posteriors[label] = posterior
        self.finished: dict[str, Finished] = {}
        self.saved: Saved | None = None  # the latest fitted posterior
        self._saved: dict[str, Any] | None = None  # checkpoint of the current fit
        self._seconds = 0.0
        if old:
            for name, entry in old.state["finished"].items():
                reliability = compare.Reliability(**entry["reliability"]) if entry["reliability"] else None
                self.finished[name] = Finished(**entry | {"reliability": reliability})
            self._saved, self._seconds = old.state["saved"], old.state["seconds"]
        self.parts = (self.dataset.name,)
        parts, place = "validation parts of " if settings.validation else "", problem.place(device, settings.jobs)
        names = (n if p.preset == "default" else f"{n} (preset {p.preset})" for n, p in settings.posteriors.items())
        self.plan = f"{', '.join(names)} on {parts}{counted(settings.splits, 'split')}, on {place}"
        notes = [self.dataset.note, problem.compressed(self.dataset.x), *self._constant()]
        notes += [problem.rounded(settings.noise(label)) for label in settings.posteriors]
        if settings.baselines:
            notes.append("The log-likelihood of boosting is that of a Gaussian around the predicted mean.")
        self.notes = list(dict.fromkeys(notes))
        self.unit, self.total = "epochs", sum(p.epochs for p in self.posteriors.values())
        self.done = self._epochs(self._saved)

    def _constant(self) -> Iterator[str]:
        constant = self.splits.scales.x.scale.isinf().sum(0).flatten().tolist()
        for name, column, k in zip(self.dataset.features, self.dataset.x.T, constant, strict=True):
            if k and np.ptp(column):
                parts = f"training part of {k} of {self.settings.splits} splits"
                yield f"{shown(name)} is constant in the {parts} and ignored there."

    def events(self, folder: Path, emit: Callable[[Event], None]) -> None:
        s = self.settings
        for name, posterior in self.posteriors.items():
            if name in self.finished:
                continue
            emit((name, None))
            before, last = self._epochs(None), None
            begin = machine.seconds(self.rng.device)
            for event in compare.follow(posterior, self.splits, self.rng, s.samples, self._saved, s.calibrate, s.jobs):
                if isinstance(event, Epoch):
                    self._seconds += machine.seconds(self.rng.device) - begin
                    self.done = before + event.epoch
                else:
                    last = event
                    # A run resumed after the last epoch would skip the code below.
                    self._saved = event.saved if event.epoch < posterior.epochs else self._saved
                emit((name, event))
                begin = machine.seconds(self.rng.device)
            assert last is not None and last.epoch == posterior.epochs
            self._finish(name, last)
            emit((name, self.finished[name]))
        for name in s.baselines:
            if name not in self.finished:
                begin = machine.seconds(self.rng.device)
                scores = baselines.boosting(self.splits, s.seed, s.jobs)
                every = {tag: torch.full((s.splits,), torch.nan) for tag in next(iter(self.finished.values())).scalars}
                alive, seconds = torch.ones(s.splits, dtype=torch.bool), machine.seconds(self.rng.device) - begin
                self.finished[name] = Finished(every | scores, alive, seconds)
                emit((name, self.finished[name]))

    def _epochs(self, saved: Mapping[str, Any] | None) -> int:
        """Return the number of epochs of the finished fits and of the current fit's checkpoint `saved`, if any."""
        finished = sum(p.epochs for name, p in self.posteriors.items() if name in self.finished)
        return finished + (saved or {}).get("epoch", 0)

    def _finish(self, name: str, last: Measured) -> None:
        """Keep the results of a fit, and the posterior, which predicts with the weight samples of the metrics."""
        s, p, state, factor = self.settings, self.posteriors[name], last.state, last.scalars.get(FACTOR)
        predictor = Predictor.sample(p, state, s.samples, self.rng.stream("test", p.epochs))
        if factor is not None:
            predictor = predictor.stretched(factor)
        reliability = compare.reliability(predictor, self.splits.test_x, self.splits.test_y)
        on_cpu, alive, reliability = tree.map_tensors(Tensor.cpu, (last.scalars, state.common.alive, reliability))
        self.finished[name] = Finished(on_cpu, alive, self._seconds, reliability)
        self._saved, self._seconds = None, 0.0
        shape = tuple(self.splits.x.shape[2:])
        model = FittedModel(p, state, self.splits.scales, shape, s.samples, s.seed, p.epochs, factor=factor)
        names = Names(self.dataset.features, s.target, self.dataset.classes)
        self.saved = Saved(names, tuple({"split": i + 1} for i in range(s.splits)), {name: model}, self._schema)

    def state_dict(self) -> dict[str, Any]:
        finished = {name: start.as_dict(results) for name, results in self.finished.items()}
        return {"finished": finished, "saved": self._saved, "seconds": self._seconds, "done": self._epochs(self._saved)}
