"""The choice of rows to measure next, by a model or spread over the table, with predictions and reasons."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from explore import registry
from explore.cli import problem
from explore.cli.suggest.settings import Settings, allowed, limits
from explore.cli.suggest.table import Rows, Table
from explore.core import spread
from explore.core.errors import FailedFitWarning, Failure, counted, curvature_note, listed
from explore.data.base import Dataset, check_units
from explore.data.texts import absent, number
from explore.inference.base import Predictive
from explore.learning import build, loaded
from explore.learning.fit import batches
from explore.learning.learner import ActiveLearner
from explore.learning.saved import Names, Saved
from explore.learning.scaling import Transform

FAR = 0.9  # a row is called far if this share of the candidates is nearer to a measured row
SAMPLE = 1_000  # size of the random sample that represents all candidates
ROUGH = 20  # with fewer measured rows, intervals are called rough
UNITS = {
    "epig": "nats", "information-gain": "nats", "batch-bald": "nats", "entropy": "nats",
    "max-variance": "standardised", "bait": "standardised", "core-set": "distance, standardised",
    "margin": "1 less the margin",
}  # fmt: skip
GAINS = {"epig", "information-gain", "batch-bald", "variance-reduction"}  # rules whose score is what a label gains
FEWEST = 5  # minimum of measured rows for a model; with fewer, suggestions are spread over the table
UPDATES = 5_000  # maximum per fit, unless --epochs is passed
Progress = Callable[[int, int], None]


class Choice(NamedTuple):
    """The rows to measure next."""

    rows: pd.DataFrame = pd.DataFrame()  # indexed by row number, best first; columns as in next.csv, without the _
    score: str = ""  # name and unit of the scores
    notes: Sequence[str] = ()
    measures: Mapping[str, float] = {}  # values that --stop-when may limit
    stopped: str = ""  # the reason, when --stop-when applies
    saved: Saved | None = None  # the fitted model; None: too few measurements for one


def choose(table: Table, rows: Rows, settings: Settings, k: int, device: str, progress: Progress) -> Choice:
    """Choose the next k rows of the pool, best first. Choose fewer or none if --stop-when limits the number."""
    notes, every, conditions = [], len(rows.measured), limits(settings)
    if not getattr(registry.find("posteriors", settings.posterior), "partial", True):
        full = [i for i, values in enumerate(rows.values) if all(value == value for value in values)]  # not NaN
        rows = replace(rows, measured=[rows.measured[i] for i in full], values=[rows.values[i] for i in full])
    if missing := every - len(rows.measured):
        ignored = counted(missing, "row")
        notes.append(f"Ignored {ignored} with an unmeasured target: {settings.posterior} needs all targets.")
    if settings.task == "classification":
        enough = len(rows.measured) >= FEWEST and len(_classes(rows)) > 1
    else:
        enough = np.isfinite(np.array(rows.values, float)).sum(0).min() >= FEWEST
    choice = _by_model(table, rows, settings, k, device, progress) if enough else _spread(rows, settings, k)
    chosen = choice.rows if rows.costs is None else choice.rows.assign(cost=rows.costs[choice.rows.index])
    costs = pd.DataFrame({"labels": 1.0, "budget": chosen.get("cost", 1.0)}, index=chosen.index)
    n, stopped = allowed(conditions, choice.measures, rows.spent, costs)
    spent = {name: value + float(costs[name][:n].sum()) for name, value in rows.spent.items()}
    if rows.costs is None:
        del spent["budget"]
    notes += [*choice.notes, *([f"Only {n} of {k} suggestions stay within --stop-when."] if 0 < n < k else [])]
    return choice._replace(rows=chosen[:n], notes=notes, measures={**choice.measures, **spent}, stopped=stopped)


def _classes(rows: Rows) -> tuple[str, ...]:
    """Return the measured classes in numerical order, or in alphabetical order if any class is not a number."""
    names = sorted({str(values[0]) for values in rows.values})
    numbers = {name: None if absent(name) else number(name) for name in names}
    return tuple(names if None in numbers.values() else sorted(names, key=lambda name: numbers[name] or 0.0))


def _fit(table: Table, rows: Rows, settings: Settings, device: str, progress: Progress) -> tuple[ActiveLearner, Saved]:
    """Fit a model to the measured rows. Raise Failure if the fit fails.

    The learner gets a copy of each partly measured row, because the row itself may be pending or suggested again. The
    saved model has the likelihood of the settings, which needs all targets of a row.
    """
    data = _dataset(table, rows, settings)
    transform = Transform() if data.classes else Transform.fit(settings.transform, data.y)
    y = transform.apply(data.y) if settings.task == "regression" else data.y
    chosen: Any
    chosen, noise = build.for_rows(settings, len(data.x), data.x.shape[1], y)
    if (epochs := settings.epochs) is None:
        updates = len(batches(len(data.x), chosen["batch_size"], chosen["min_batches"]))  # per epoch
        epochs = max(1, min(int(chosen["epochs"]), UPDATES // updates))
    partly = np.flatnonzero(np.isnan(data.y).any(1)).tolist() if settings.task == "regression" else []

    def posterior(likelihood: str) -> Predictive:
        asked = replace(settings, likelihood=likelihood)
        return problem.posterior(asked, data, settings.posterior, {**chosen, "epochs": epochs}, noise)

    likelihood = settings.likelihood or build.likelihood_of(data)
    plain = posterior(likelihood)
    problem.check_memory(plain, 1, settings.samples)
    rule = registry.acquisition(settings.acquisition, **settings.acquisition_settings)
    labelled = np.array(rows.measured)
    x = np.concatenate([rows.x, rows.x[labelled[partly]]]) if partly else rows.x
    labelled[partly] = len(rows.x) + np.arange(len(partly))
    candidates = np.zeros((1, len(x)), bool)
    for some in (labelled, rows.pending, rows.pool):
        candidates[0, some] = True
    cost = None if rows.costs is None else np.append(rows.costs, np.ones(len(partly)))  # those of copies do not matter
    learner = ActiveLearner(
        posterior(f"partial-{likelihood}") if partly else plain, x, [rule], allowed=candidates, cost=cost,
        seed=settings.seed, samples=settings.samples, standardise="pool", device=device,
    )  # fmt: skip
    learner.tell(labelled, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailedFitWarning)  # raised as Failure below
        for epoch in learner.fit():
            progress(epoch.epoch, epoch.epochs)
    if not bool(learner.fitted.state.common.alive.all()):
        raise Failure("The fit failed. Choose another --posterior, or change its settings with -p.")
    names = Names(table.schema.features, settings.target, data.classes)
    models = {settings.posterior: replace(learner.model, posterior=plain)}
    return learner, Saved(names, ({},), models, table.schema, transform)


def _dataset(table: Table, rows: Rows, settings: Settings) -> Dataset:
    names: tuple[str, ...] = ()
    if settings.task == "regression":
        y = np.array(rows.values, float)
        check_units(settings.target, y)
    else:
        names = _classes(rows)
        y = np.array([names.index(str(values[0])) for values in rows.values], np.int64)
    return Dataset(table.path.stem, rows.x[rows.measured], y, table.schema.features, settings.task, names)


def _by_model(table: Table, rows: Rows, settings: Settings, k: int, device: str, progress: Progress) -> Choice:
    learner, saved = _fit(table, rows, settings, device, progress)
    predict = partial(loaded.predictions, learner.model, saved.names, saved.transform)
    with warnings.catch_warnings(record=True) as caught:  # such as RedundancyWarning; reported as notes
        warnings.simplefilter("default", UserWarning)
        asked = learner.ask(k, pending=np.array([rows.pending], np.int64) if rows.pending else None)
    chosen, (scores, unit) = asked.indices[0].tolist(), _in_units(asked.scores[0], learner, settings)
    prediction = predict(rows.x[chosen])
    parts = _columns(saved.names, "mean", "low", "high") or [f"p_{name}" for name in saved.names.classes]
    suggestions = prediction[parts].set_axis(chosen)
    suggestions.insert(0, "rank", range(1, len(chosen) + 1))
    reasons = _reasons(rows, chosen, scores, unit, saved.names, prediction, settings)
    suggestions = suggestions.assign(score=scores, reason=reasons)
    # With costs, the first row may not have the best score.
    best = min if (settings.acquisition, settings.goal) == ("upper-confidence-bound", "minimise") else max
    measures = {"gain": best(scores)}
    if settings.task == "regression":  # of the target with the widest intervals
        every = predict(rows.x[_sample(rows)])
        low, high = (every[_columns(saved.names, part)].to_numpy() for part in ("low", "high"))
        measures["width"] = float((high - low).mean(0).max())
    curved = curvature_note(learner.model.initial_curvature_share.tolist())
    title = f"{settings.acquisition} ({unit})" if unit else settings.acquisition
    scales = problem.compressed(rows.x), problem.rounded(vars(saved.models[settings.posterior].posterior.likelihood))
    notes = [*_doubts(rows, settings), *(str(w.message) for w in caught), *filter(None, (curved, *scales))]
    return Choice(suggestions, title, notes, measures, saved=saved)


def _columns(names: Names, *parts: str) -> list[str]:
    """Return the names of the prediction columns of `parts`, e.g. "mean", for all targets; [] for classification."""
    return [names.of(part, target) for target in (() if names.classes else names.targets) for part in parts]


def _in_units(scores: Tensor, learner: ActiveLearner, settings: Settings) -> tuple[list[float], str]:
    """Return scores, converted from the model's standardised units if they are in those of the target, and the unit."""
    mean, scale = (moment.flatten()[0] for moment in learner.fitted.scales.y)
    if settings.acquisition == "expected-improvement":
        scores = scores * scale
    elif settings.acquisition == "upper-confidence-bound":
        scores = scores * scale + mean
    else:
        return scores.tolist(), UNITS.get(settings.acquisition, "")
    target = settings.target[0]
    units = {"none": f"units of {target}", "log": f"logarithm of {target}", "rank": "normal scores"}
    return scores.tolist(), units[settings.transform]


def _sample(rows: Rows) -> list[int]:
    """Return a random sample of at most `SAMPLE` candidates, drawn with a fixed seed."""
    return np.random.default_rng(0).permutation(rows.pool)[:SAMPLE].tolist()


def _spread(rows: Rows, settings: Settings, k: int) -> Choice:
    """Choose rows by farthest-first traversal from `rows.taken`. Used while there are too few labels for a model."""
    chosen, distances = spread.farthest_first(rows.x, rows.pool, rows.taken, k)
    far = "spread over the table: {:.2g} standard deviations from the nearest measured or suggested row"
    scores = [distance if np.isfinite(distance) else None for distance in distances]
    reasons = ["nearest to the mean of all rows" if score is None else far.format(score) for score in scores]
    columns = {"rank": range(1, len(chosen) + 1), "score": scores, "reason": reasons}
    suggestions = pd.DataFrame(columns, index=chosen, dtype=object)
    needed = " and two classes" if settings.task == "classification" else ""
    needed = f"{FEWEST}{needed if len(settings.target) == 1 else ' of each target'}"
    measured = f"{counted(len(rows.measured), 'row')} measured; a model needs {needed}"
    notes = [f"{measured}. These suggestions are spread over the table instead."]
    notes += ["Costs are ignored until there is a model."] if settings.cost else []
    return Choice(suggestions, "distance (standard deviations)", notes)


def _reasons(
    rows: Rows, chosen: list[int], scores: list[float], unit: str, names: Names, prediction: pd.DataFrame,
    settings: Settings,
) -> list[str]:  # fmt: skip
    """Return a phrase for each chosen row that says why it was chosen."""
    if settings.goal != "learn":
        return [*_hopes(rows, names, prediction, settings)]
    groups = _sample(rows), chosen, rows.measured
    z = spread.standardised(rows.x, np.concatenate(groups))
    some, these, known = np.split(np.arange(len(z)), np.cumsum(list(map(len, groups)))[:2])
    usual, near = spread.nearest(z, some, known), spread.nearest(z, these, known)
    far, middle = float(np.quantile(usual, FAR)), float(np.median(usual))
    gain = "expected gain" if settings.acquisition in GAINS else settings.acquisition
    scale = {"none": "", "log": " (in logarithms)", "rank": " (in normal scores)"}[settings.transform]
    epistemic, noise = (prediction[_columns(names, part)].to_numpy() for part in ("epistemic", "noise"))
    apart = epistemic / np.maximum(noise, 1e-300)
    reasons = []
    for i, score in enumerate(scores):
        reason = f"{gain}: {score:.3g} {unit}".rstrip()
        if near[i] > far:
            reason = f"far from all measured rows: {near[i]:.2g} standard deviations (median candidate: {middle:.2g})"
        elif (apart[i] > 1).any():
            o = int(apart[i].argmax())
            reason = f"model uncertainty {epistemic[i, o]:.3g} exceeds the noise, {noise[i, o]:.3g}{scale}"
        reasons.append(reason)
    return reasons


def _best(rows: Rows, settings: Settings) -> float:
    """Return the best measurement so far, for a goal other than to learn."""
    return (max if settings.goal == "maximise" else min)(float(value) for (value,) in rows.values)


def _hopes(rows: Rows, names: Names, prediction: pd.DataFrame, settings: Settings) -> Iterator[str]:
    """Yield a phrase for each chosen row that compares its prediction with the best measurement."""
    best, high = _best(rows, settings), settings.goal == "maximise"
    for middle, limit in prediction[_columns(names, "mean", "high" if high else "low")].to_numpy():
        if (middle > best) == high:
            yield f"predicted {middle:.4g}, better than the best so far, {best:.4g}"
        else:
            yield f"predicted {middle:.4g}, but {limit:.4g} is possible; best so far {best:.4g}"


def _doubts(rows: Rows, settings: Settings) -> Iterator[str]:
    if len(rows.measured) < ROUGH:
        rough = "probabilities" if settings.task == "classification" else "intervals"
        yield f"Only {counted(len(rows.measured), 'row')} measured so far; {rough} are rough."
    if settings.task == "classification":
        yield f"Classes so far: {listed(_classes(rows))}."
    for target, column in zip(settings.target, zip(*rows.values, strict=True), strict=True):
        distinct = {value for value in column if value == value}  # not NaN
        if settings.task != "classification" and len(distinct) == 1:
            yield f"All measured values of {target} are {distinct.pop():.12g}, so the model cannot learn how it varies."
    if settings.transform != "none":
        yield f"With --transform {settings.transform}, predictions are medians."
    if settings.transform == "rank":
        yield "With --transform rank, predictions stay within the range of the measurements."
    if settings.goal != "learn":
        yield f"Best so far: {_best(rows, settings):.12g}."
