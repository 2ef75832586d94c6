"""Settings and experiment of `explore active`: a learner built from settings, and the results of its rounds."""

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from explore import data, registry
from explore.acquisitions.base import RedundancyWarning, check, default_rule, redundancy
from explore.cli import problem, tables
from explore.core.errors import FailedFitWarning, InputError, counted
from explore.data.columns import Matrix, Schema
from explore.inference import presets
from explore.inference.base import Predictive
from explore.learning import build
from explore.learning.fit import Epoch
from explore.learning.learner import ActiveLearner, Round, active_loop
from explore.learning.saved import Names, Saved
from explore.nets import zoo
from explore.runs.record import Run
from explore.runs.recorded import Values, check_unchanged


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Settings of an experiment, with defaults resolved."""

    command: Literal["active"] = "active"
    posterior: str
    preset: str
    posterior_settings: Values
    likelihood_settings: Values
    acquisition: str
    acquisition_settings: Values
    trials: int
    rounds: int
    initial: int
    acquire: int
    test_size: int
    control: bool
    pool: int | None = None  # number of random candidates; None: all
    jobs: int = 1  # number of processes that share the trials
    targets: str | None = None  # file with target inputs
    targets_digest: str | None = None  # hash of the target inputs

    def split(self, count: int) -> data.PoolSplit:
        """Return the initial points, test points and pool of each trial, as indices into `count` examples."""
        return data.pool_splits(count, self.trials, self.initial, self.test_size, self.seed)

    def aims(self, schema: Schema | None) -> Matrix | None:
        """Return the inputs in the --targets file, if any. Raise InputError if these changed since the run began."""
        if self.targets is None:
            return None
        if schema is None:
            raise InputError("--targets applies to --data only. Leave it out for a built-in data set")
        matrix = schema.apply(self.cells(self.targets, strict=False))
        check_unchanged(f"the inputs in {self.targets}", self.targets_digest, _digest(matrix))
        return matrix


def _digest(matrix: Matrix) -> str:
    return hashlib.sha256(matrix.x.tobytes()).hexdigest()


# Options that become settings unchanged.
PLAIN = ("trials", "rounds", "initial", "acquire", "control", "pool", "targets")


def resolve(options: Mapping[str, Any]) -> Settings:
    """Return the settings for command-line options."""
    common, data = problem.resolve({**options, "hidden": options["hidden"] or "10"})
    prefixes = ("", "likelihood", "acquisition", *(["net"] if common.net else []))
    texts = problem.split(options["parameters"], prefixes, epochs=options["epochs"])
    if common.net:
        if options["hidden"]:
            raise InputError("--hidden applies to tables only. For images use --net and -p net.KEY=VALUE")
        common = replace(common, net_settings=zoo.settings(common.net, texts["net"]))
    most = options["initial"] + options["rounds"] * options["acquire"]
    name, likelihood = problem.recommended({**options, "net": common.net}, texts[""], common.likelihood, most)
    build.check_used(name, options["hidden"], texts["likelihood"], "--hidden")
    common = replace(common, likelihood=likelihood)
    posterior = problem.configured(name, texts[""], options["preset"], "pool of images" if common.net else "table")
    by_rows = posterior.preset == presets.BY_ROWS  # defaults depend on the number of labels in each round
    name = options["acquisition"] or default_rule(common.task == "classification")
    rule = registry.configured("acquisitions", name, texts["acquisition"])
    noise = registry.find("likelihoods", common.likelihood)
    scatter = registry.parse(noise, texts["likelihood"])
    own_noise = build.noise_of(noise, {} if by_rows else presets.noise_for(posterior.preset), data.y)
    settings = Settings(
        **vars(common), **{name: options[name] for name in PLAIN}, acquisition=rule.name,
        posterior=posterior.name, preset=posterior.preset,
        posterior_settings=posterior.settings if by_rows else registry.complete(posterior.make, posterior.settings),
        acquisition_settings=registry.complete(rule.make, rule.settings) if isinstance(rule.make, type) else {},
        likelihood_settings=own_noise | scatter if by_rows else registry.complete(noise, own_noise | scatter),
        test_size=options["test_size"] or (1000 if common.net else 100),
        jobs=min(options["jobs"], options["trials"]),
    )  # fmt: skip
    aims = settings.aims(settings.table()[1]) if settings.targets else None
    return replace(settings, targets_digest=_digest(aims)) if aims else settings


class Experiment:
    """A learner with its data, its arms and the results of its finished rounds; see `explore.cli.start.Experiment`."""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        self.settings = s = settings
        self.dataset, self._schema = s.table()
        n = len(self.dataset.x)
        split = s.split(n)
        wanted, pool = s.acquire * (s.rounds - 1), split.pool[:, : s.pool]
        if wanted > pool.shape[1]:
            only = f"the pool of {self.dataset.name} has only {pool.shape[1]}"
            raise InputError(f"{s.rounds} rounds need {wanted} points, but {only}. Reduce --rounds or --acquire.")
        self.arms = list(dict.fromkeys([s.acquisition, *(["random"] if s.control else [])]))  # the tested one first
        self.posterior = self._posterior(s.initial)
        problem.check_memory(self.posterior, s.trials * len(self.arms), s.samples)
        rule = registry.acquisition(s.acquisition, **s.acquisition_settings)
        if s.rounds > 1:
            check(rule, self.posterior, s.samples, s.acquire)
        allowed = np.zeros((s.trials, n), bool)
        np.put_along_axis(allowed, np.hstack([split.labelled, pool]), True, axis=1)
        aims = s.aims(self._schema)
        self.learner = ActiveLearner(
            self.posterior, self.dataset.x, [rule, *self.arms[1:]], trials=s.trials, allowed=allowed, seed=s.seed,
            samples=s.samples, targets=aims and aims.x, device=device, jobs=s.jobs,
            standardise=problem.channels(self.dataset, device) if s.net else "labelled",
            posterior_for=self._posterior if s.preset == presets.BY_ROWS else None,
        )  # fmt: skip
        labelled = np.tile(split.labelled, (len(self.arms), 1))
        self.learner.tell(labelled, self.dataset.y[labelled])
        self.test = np.tile(split.test, (len(self.arms), 1))
        self.history: dict[str, Tensor] = {}  # metric -> [rounds, R], R = arms x trials; the number of labels: [rounds]
        self.seconds = 0.0  # duration of all finished rounds
        if old:
            self.learner.load_state_dict(old.state["learner"])
            self.history, self.seconds = dict(old.state["history"]), float(old.state["seconds"])
            # The last round of a run labels no points, so a longer run repeats it.
            if self.rounds == self.learner.round < s.rounds:
                self.history = {name: past[:-1] for name, past in self.history.items()} if self.rounds > 1 else {}
                old.rewind(self.state_dict())
        self.parts = (self.dataset.name, s.posterior, s.acquisition)
        trials, where = counted(s.trials, "trial"), problem.place(device, s.jobs)
        self.plan = f"{trials} of {' and '.join(self.arms)} with {s.posterior} on {where}"
        marked = tables.apostrophes("selected.csv", self.dataset.ids)
        scaled = problem.compressed(self.dataset.x)
        rounded = problem.rounded(s.likelihood_settings)
        alike = [redundancy(rule, s.acquire) for rule in self.learner.acquisitions] if s.rounds > 1 else []
        self.notes = [self.dataset.note, *(aims.notes if aims else ()), *marked, scaled, rounded, *alike]
        self.unit, self.total, self.done = "rounds", s.rounds, float(self.rounds)

    def _posterior(self, labels: int) -> Predictive:
        """Build the posterior with the settings that apply to this number of labels."""
        s = self.settings
        return problem.posterior(s, self.dataset, s.posterior, *build.for_rows(s, labels, self.dataset.x.shape[1]))

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return len(self.history["labels"]) if self.history else 0

    def events(self, folder: Path, emit: Callable[[Epoch | Round | None], None]) -> None:
        s, start = self.settings, time.monotonic() - self.seconds
        if self.rounds == s.rounds:
            return
        emit(None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RedundancyWarning)  # reported as a note
            warnings.simplefilter("ignore", FailedFitWarning)  # reported at the end
            for event in active_loop(self.learner, self.dataset.y, self.test, s.rounds, s.acquire):
                if isinstance(event, Round):
                    new = event.metrics | {"alive": event.state.common.alive, "labels": torch.tensor(event.labels)}
                    new |= self.posterior.learned(event.state)
                    new["initial_curvature_share"] = self.posterior.initial_curvature_share(event.state)
                    for name, value in new.items():
                        past = [self.history[name]] if name in self.history else []
                        self.history[name] = torch.cat([*past, value.cpu().unsqueeze(0)])
                    self.seconds = time.monotonic() - start
                else:
                    self.done = self.rounds + event.epoch / event.epochs
                emit(event)

    @property
    def saved(self) -> Saved:
        """The posteriors fitted in the last round, to be written to model.pt."""
        replicas = tuple({"arm": arm, "trial": t + 1} for arm in self.arms for t in range(self.settings.trials))
        models = {self.settings.posterior: self.learner.model}
        names = Names(self.dataset.features, self.settings.target, self.dataset.classes)
        return Saved(names, replicas, models, self._schema)

    def state_dict(self) -> dict[str, Any]:
        learner = {name: value.cpu() for name, value in self.learner.state_dict().items()}
        return {"learner": learner, "history": dict(self.history), "seconds": self.seconds, "done": self.rounds}
