"""The model of the measured rows: a learner whose pool is the table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from explore import registry
from explore.cli import loaded, problem
from explore.cli.saved import Names
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Rows, Table
from explore.core.errors import FailedFitWarning, Failure, InputError
from explore.data.base import Dataset, check_units
from explore.data.texts import absent, number
from explore.inference.base import Predictive
from explore.learning.fit import batches
from explore.learning.learner import ActiveLearner
from explore.learning.model import FittedModel
from explore.learning.transforms import Transform

FEWEST = 5  # measured rows for a model; with fewer, rows are spread over the features
UPDATES = 5_000  # of a fit, unless --epochs says otherwise
Progress = Callable[[int, int], None]


class Model(NamedTuple):
    """A learner whose pool is the table, and the scale in which it learns."""

    learner: ActiveLearner
    transform: Transform
    names: Names
    posterior: Predictive  # of the settings, for rows whose targets are all measured

    @property
    def fitted(self) -> FittedModel:
        """The fitted posterior of the settings."""
        return replace(self.learner.model, posterior=self.posterior)

    def predict(self, x: np.ndarray) -> pd.DataFrame:
        """Return predictions at inputs [P, D], in the targets' own units; see `loaded.predictions`."""
        return loaded.predictions(self.learner.model, self.names, self.transform, x)


def enough(rows: Rows, settings: Settings) -> bool:
    """Return whether the rows suffice for a model."""
    if len(rows.measured) < FEWEST:
        return False
    if settings.task == "classification":
        return len({values[0] for values in rows.values}) > 1
    return bool((np.isfinite(np.array(rows.values, float)).sum(0) >= FEWEST).all())


def classes(rows: Rows) -> tuple[str, ...]:
    """Return the classes that were measured, in the order of their numbers, or of their letters."""
    names = sorted({str(values[0]) for values in rows.values})
    numbers = {name: None if absent(name) else number(name) for name in names}
    if None not in numbers.values():
        names.sort(key=lambda name: numbers[name] or 0.0)
    return tuple(names)


def fit(table: Table, rows: Rows, settings: Settings, device: str, progress: Progress) -> Model:
    """Fit a model to the measured rows.

    A row with open targets is told as a copy of itself: it may still be suggested, or is pending.

    Raises:
        Failure: when the fit fails.
    """
    data = _dataset(table, rows, settings)
    transform = _transform(table, rows, settings, data.y)
    chosen, noise = problem.for_rows(settings, len(data.x))
    posterior_settings = {**chosen, "epochs": settings.epochs or _epochs(len(data.x), chosen)}
    partly = np.flatnonzero(np.isnan(data.y).any(1)).tolist() if settings.task == "regression" else []

    def posterior(likelihood: str) -> Predictive:
        asked = replace(settings, likelihood=likelihood)
        return problem.posterior(asked, data, settings.posterior, posterior_settings, noise)

    plain = posterior(problem.likelihood_of(data))
    problem.check_memory(plain, 1, settings.samples)
    rule = registry.acquisition(settings.acquisition, **settings.acquisition_settings)
    labelled = np.array(rows.measured)
    x = np.concatenate([rows.x, rows.x[labelled[partly]]])
    labelled[partly] = len(rows.x) + np.arange(len(partly))
    candidates = np.zeros((1, len(x)), bool)
    candidates[0, [*labelled, *rows.pending, *rows.pool]] = True
    cost = None
    if rows.costs is not None:  # of copies and of rows that are gone it does not matter
        cost = np.nan_to_num(np.append(rows.costs, np.ones(len(x) - len(rows.costs))), nan=1.0)
    learner = ActiveLearner(
        posterior("partial-gaussian") if partly else plain, x, [rule], allowed=candidates, cost=cost,
        seed=settings.seed, samples=settings.samples, standardise="pool", device=device,
    )  # fmt: skip
    learner.tell(labelled, transform.apply(data.y) if settings.task == "regression" else data.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailedFitWarning)  # it is a failure here
        for epoch in learner.fit():
            progress(epoch.epoch, epoch.epochs)
    if not bool(learner.fitted.state.common.alive.all()):
        raise Failure("the fit failed; take another --posterior, or other settings of it by -p")
    return Model(learner, transform, Names(table.schema.features, settings.target, data.classes), plain)


def _dataset(table: Table, rows: Rows, settings: Settings) -> Dataset:
    names: tuple[str, ...] = ()
    if settings.task == "regression":
        y = np.array(rows.values, float)
        check_units(settings.target, y)
    else:
        names = classes(rows)
        y = np.array([names.index(str(values[0])) for values in rows.values], np.int64)
    return Dataset(table.path.stem, rows.x[rows.measured], y, table.schema.features, settings.task, names)


def _transform(table: Table, rows: Rows, settings: Settings, y: np.ndarray) -> Transform:
    """Return the scale in which targets are learnt; refuse values without a logarithm."""
    if settings.transform == "log" and (y <= 0).any():
        i, o = np.argwhere(y <= 0)[0].tolist()
        row, target = rows.measured[i], settings.target[o]
        where = f"{target} of a row that is no longer in {table.path}"
        if row < len(table.cells.lines):
            where = table.cells.where(row, target)
        raise InputError(f"{where}: {y[i, o]:.12g} has no logarithm; correct it, or leave --transform at none")
    return Transform.fit(settings.transform, y) if settings.task == "regression" else Transform()


def _epochs(labels: int, settings: Any) -> int:
    """Return the posterior's epochs, fewer where that would be too many updates."""
    steps = len(batches(labels, settings["batch_size"], settings["min_batches"]))
    return max(1, min(int(settings["epochs"]), UPDATES // steps))
