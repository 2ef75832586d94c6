"""The experiment of `explore active`: a learner built from settings, and the results of its rounds."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from explore import registry
from explore.acquisitions.base import RedundancyWarning, check, redundancy
from explore.cli import problem, tables
from explore.cli.active.settings import Settings
from explore.core.errors import FailedFitWarning, InputError, counted
from explore.inference import presets
from explore.inference.base import Predictive
from explore.learning import build
from explore.learning.fit import Epoch
from explore.learning.learner import ActiveLearner, Round, active_loop
from explore.learning.saved import Names, Saved
from explore.runs.record import Run


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
            standardise=problem.channels(self.dataset, device) if s.net else s.standardise,
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
        scaled = problem.compressed(self.dataset.x) if s.standardise != "none" else ""
        rounded = problem.rounded(s.likelihood_settings)
        alike = [redundancy(rule, s.acquire) for rule in self.learner.acquisitions] if s.rounds > 1 else []
        self.notes = [self.dataset.note, *(aims.notes if aims else ()), *marked, scaled, rounded, *alike]
        self.unit, self.total, self.done = "rounds", s.rounds, float(self.rounds)

    def _posterior(self, labels: int) -> Predictive:
        """Build the posterior with the settings that apply to this number of labels."""
        s = self.settings
        return problem.posterior(s, self.dataset, s.posterior, *build.for_rows(s, labels))

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
