"""The model of the measured rows: a learner whose pool is the table."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from explore import registry
from explore.cli import problem
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Rows, Table
from explore.core.errors import FailedFitWarning, Failure, InputError
from explore.data.base import Dataset, check_units
from explore.data.texts import absent, number
from explore.inference.base import Predictive
from explore.learning import loaded
from explore.learning.fit import batches
from explore.learning.learner import ActiveLearner
from explore.learning.model import FittedModel
from explore.learning.saved import Names
from explore.learning.transforms import Transform

FEWEST = 5  # measured rows that a model is fitted to; before, rows are spread over the features
UPDATES = 5_000  # of a fit, unless --epochs says otherwise


class Model(NamedTuple):
    """A learner whose pool is the table, and the scale in which it learns."""

    learner: ActiveLearner
    transform: Transform
    names: Names
    posterior: Predictive  # as the settings have it, for rows of which all targets are measured

    @property
    def fitted(self) -> FittedModel:
        """What predicts, of the posterior that the settings make."""
        return replace(self.learner.model, posterior=self.posterior)

    def predict(self, x: np.ndarray) -> pd.DataFrame:
        """Predictions at some inputs [P, D], in the targets' own units; see `loaded.predictions`."""
        return loaded.predictions(self.learner.model, self.names, self.transform, x)


def enough(rows: Rows, settings: Settings) -> bool:
    """Whether there is anything that a model could learn."""
    if len(rows.measured) < FEWEST:
        return False
    if settings.task == "classification":
        return len({values[0] for values in rows.values}) > 1
    return bool((np.isfinite(np.array(rows.values, float)).sum(0) >= FEWEST).all())


def classes(rows: Rows) -> tuple[str, ...]:
    """The classes that were measured: in the order of their numbers, or of their letters."""
    names = sorted({str(values[0]) for values in rows.values})
    numbers = {name: None if absent(name) else number(name) for name in names}
    if None not in numbers.values():
        names.sort(key=lambda name: numbers[name] or 0.0)
    return tuple(names)


def dataset(table: Table, rows: Rows, settings: Settings) -> Dataset:
    """The measured rows."""
    names: tuple[str, ...] = ()
    if settings.task == "regression":
        y = np.array(rows.values, float)
        check_units(settings.target, y)
    else:
        names = classes(rows)
        y = np.array([names.index(str(values[0])) for values in rows.values], np.int64)
    x = rows.x[rows.measured]
    return Dataset(table.path.stem, x, y, table.schema.features, settings.task, names)


def build(table: Table, rows: Rows, settings: Settings, device: str) -> Model:
    """With the measured rows told; fitted when it is first asked.

    A row of which some targets are measured is told as a copy of itself: it may still be handed out, or is pending.
    """
    data = dataset(table, rows, settings)
    transform = _transform(table, rows, settings, data.y)
    chosen, noise = problem.for_rows(settings, len(data.x))
    own = {**chosen, "epochs": settings.epochs or epochs(len(data.x), chosen)}
    partly = np.flatnonzero(np.isnan(data.y).any(1)).tolist() if settings.task == "regression" else []

    def posterior(likelihood: str) -> Predictive:
        asked = replace(settings, likelihood=likelihood)
        return problem.posterior(asked, data, settings.posterior, own, noise)

    plain = posterior(problem.likelihood_of(data))
    problem.check_memory(plain, 1, settings.samples)
    rule = registry.acquisition(settings.acquisition, **settings.acquisition_settings)
    told = np.array(rows.measured)
    told[partly] = len(rows.x) + np.arange(len(partly))
    x = np.concatenate([rows.x, rows.x[np.array(rows.measured)[partly]]])
    allowed = np.zeros((1, len(x)), bool)
    allowed[0, [*told, *rows.pending, *rows.pool]] = True
    learner = ActiveLearner(
        posterior("partial-gaussian") if partly else plain, x, [rule], allowed=allowed, cost=_cost(rows, len(x)),
        seed=settings.seed, samples=settings.samples, standardise="pool", device=device,
    )  # fmt: skip
    learner.tell(told, transform.apply(data.y) if settings.task == "regression" else data.y)
    return Model(learner, transform, Names(table.schema.features, settings.target, data.classes), plain)


def _transform(table: Table, rows: Rows, settings: Settings, y: np.ndarray) -> Transform:
    """The scale in which targets are learnt.

    Raises:
        InputError: naming the cell of a target that has no logarithm.
    """
    if settings.transform == "log" and (y <= 0).any():
        i, o = np.argwhere(y <= 0)[0].tolist()
        row, target = rows.measured[i], settings.target[o]
        where = f"{target} of a row that is no longer in {table.path}"
        if row < len(table.cells.lines):
            where = table.cells.where(row, target)
        raise InputError(f"{where}: {y[i, o]:.12g} has no logarithm; correct it, or leave --transform at none")
    return Transform.fit(settings.transform, y) if settings.task == "regression" else Transform()


def _cost(rows: Rows, count: int) -> np.ndarray | None:
    """Of each row; of copies and of those that are not in the table any more it does not matter."""
    if rows.costs is None:
        return None
    costs = np.append(rows.costs, np.ones(count - len(rows.costs)))
    return np.where(np.isnan(costs), 1.0, costs)


def epochs(labels: int, settings: Any) -> int:
    """Those of the posterior, fewer where that would be too many updates."""
    steps = len(batches(labels, settings["batch_size"], settings["min_batches"]))
    return max(1, min(int(settings["epochs"]), UPDATES // steps))


def fit(model: Model) -> Iterable[tuple[int, int]]:
    """Fit it; yields the epochs that are done, and all of them.

    Raises:
        Failure: when it did not go well.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailedFitWarning)  # it is a failure here
        for epoch in model.learner.fit():
            yield epoch.epoch, epoch.epochs
    if not bool(model.learner.fitted.state.common.alive.all()):
        raise Failure("the fit failed; take another --posterior, or other settings of it by -p")
