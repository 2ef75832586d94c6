"""Which rows to measure next, and what to say of each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from explore import registry
from explore.acquisitions.base import RedundancyWarning, redundancy
from explore.cli.suggest import model, stopping
from explore.cli.suggest.model import Model, Prediction
from explore.cli.suggest.settings import Settings
from explore.cli.suggest.table import Rows, Table
from explore.core import spread
from explore.core.errors import counted, curvature_note, listed

FAR = 0.9  # of the candidates lie nearer to what was measured than one that is called far from it
SAMPLE = 1_000  # candidates that stand for all of them
ROUGH = 20  # measured rows below which intervals are said to be rough
UNITS = {
    "epig": "nats", "information-gain": "nats", "batch-bald": "nats", "entropy": "nats",
    "max-variance": "standardised", "bait": "standardised", "core-set": "distance, standardised",
    "margin": "1 less the margin",
}  # fmt: skip
GAINS = {"epig", "information-gain", "batch-bald"}  # their scores are information
SPREAD = "distance"  # the score of rows that no model chose


class Suggestion(NamedTuple):
    """A row to measure next."""

    row: int
    said: dict[str, Any]  # by the names of the columns of next.csv, without their underscore


class Choice(NamedTuple):
    """The rows to measure next."""

    suggestions: list[Suggestion]
    score: str = ""  # what the scores are, with their unit
    notes: Sequence[str] = ()
    measures: Mapping[str, float] = {}  # what --stop-when goes by
    stopped: str = ""  # a sentence, when it says that enough is done
    model: Model | None = None  # None: there is too little to learn from


Progress = Callable[[int, int], None]


def choose(table: Table, rows: Rows, settings: Settings, k: int, device: str, progress: Progress) -> Choice:
    """The next k rows of the pool, best first; fewer, or none, where --stop-when says so."""
    limits = [stopping.parse(text) for text in settings.stop_when]
    every, doubts = len(rows.measured), []
    if not getattr(registry.find("posteriors", settings.posterior), "partial", True):
        rows = rows.complete()
    if missing := every - len(rows.measured):
        doubts.append(f"{settings.posterior} does not learn from {counted(missing, 'row')} with a target that is open.")
    if model.enough(rows, settings):
        made = _learnt(table, rows, settings, k, device, progress)
    else:
        made = _spread(rows, settings, k)
    suggestions = [s._replace(said=s.said | _price(rows, s.row)) for s in made.suggestions]
    prices = [{"labels": 1, **_price(rows, s.row, "budget", 1)} for s in suggestions]
    n = stopping.allowed(limits, rows.spent, prices)
    stopped = stopping.reached(limits, made.measures) or ("" if n else stopping.exhausted(limits, rows.spent))
    handed = [] if stopped else prices[:n]
    spent = {name: value + sum(price[name] for price in handed) for name, value in rows.spent.items()}
    if rows.costs is None:
        del spent["budget"]
    measures = {**made.measures, **spent}
    notes = [*doubts, *made.notes, *([f"Only {n} of {k} rows stay within --stop-when."] if 0 < n < k else [])]
    return made._replace(
        suggestions=[] if stopped else suggestions[:n], notes=notes, measures=measures, stopped=stopped
    )


def _price(rows: Rows, row: int, name: str = "cost", default: float | None = None) -> dict[str, Any]:
    if rows.costs is None:
        return {} if default is None else {name: default}
    return {name: float(rows.costs[row])}


def _learnt(table: Table, rows: Rows, settings: Settings, k: int, device: str, progress: Progress) -> Choice:
    """The choice of a model."""
    made = model.build(table, rows, settings, device)
    for done, total in model.fit(made):
        progress(done, total)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RedundancyWarning)  # said below
        asked = made.learner.ask(k, pending=np.array([rows.pending], np.int64) if rows.pending else None)
    chosen, scores = asked.indices[0].tolist(), _in_units(asked.scores[0], made, settings)
    prediction = model.predict(made, rows.x[chosen])
    told = list(_predicted(settings, prediction, made.classes))
    reasons = _reasons(rows, chosen, scores, prediction, settings)
    suggestions = [
        Suggestion(row, {"rank": i + 1, **told[i], "score": scores[i], "reason": reasons[i]})
        for i, row in enumerate(chosen)
    ]
    unit = _unit(settings)
    title = f"{settings.acquisition} ({unit})" if unit else settings.acquisition
    # The first one's is not the largest where costs count, and nothing is known enough while any row promises more.
    best = min if (settings.acquisition, settings.goal) == ("upper-confidence-bound", "minimise") else max
    measures = {"gain": best(scores), **_width(made, rows, settings)}
    said = redundancy(made.learner.acquisitions[0], k, len(rows.pending))
    curved = curvature_note(made.learner.model.initial_curvature_share.tolist())
    notes = [*_doubts(rows, settings), *filter(None, (said, curved))]
    return Choice(suggestions, title, notes, measures, model=made)


def _in_units(scores: Tensor, made: Model, settings: Settings) -> list[float]:
    """Scores as `_unit` says, which rules give in the standardised units of the model."""
    mean, scale = (moment.flatten()[0] for moment in made.learner.fitted.scales.y)
    if settings.acquisition == "expected-improvement":
        scores = scores * scale
    elif settings.acquisition == "upper-confidence-bound":
        scores = scores * scale + mean
    return [float(score) for score in scores]


def _unit(settings: Settings) -> str:
    """What the scores are measured in."""
    if settings.acquisition in ("expected-improvement", "upper-confidence-bound"):
        target = settings.target[0]
        return {"none": f"units of {target}", "log": f"logarithm of {target}", "rank": "normal scores"}[
            settings.transform
        ]
    return UNITS.get(settings.acquisition, "")


def _width(made: Model, rows: Rows, settings: Settings) -> dict[str, float]:
    """The mean width of the candidates' intervals, of the target for which it is largest."""
    if settings.task == "classification":
        return {}
    prediction = model.predict(made, rows.x[_sample(rows)])
    return {"width": float((prediction.high - prediction.low).mean(0).max())}


def _sample(rows: Rows) -> list[int]:
    """Candidates that stand for all of them."""
    found: list[int] = np.random.default_rng(0).permutation(rows.pool)[:SAMPLE].tolist()
    return found


def _spread(rows: Rows, settings: Settings, k: int) -> Choice:
    """Rows far from each other, where there is too little to learn from."""
    chosen, distances = spread.farthest_first(rows.x, rows.pool, rows.taken, k)
    suggestions = []
    for i, (row, distance) in enumerate(zip(chosen, distances, strict=True)):
        first = "the row nearest to the middle of all"
        far = f"spread over the table: {distance:.2g} deviations from the nearest row that was taken"
        score = distance if np.isfinite(distance) else None
        reason = first if score is None else far
        suggestions.append(Suggestion(row, {"rank": i + 1, "score": score, "reason": reason}))
    needed = "two classes and " if settings.task == "classification" else ""
    notes = [
        f"{counted(len(rows.measured), 'row', be=True)} measured, too few for a model, which needs "
        f"{needed}{model.FEWEST} of {'them' if len(settings.target) == 1 else 'each target'}: these rows are spread "
        "over the table."
    ]
    if settings.cost and rows.costs is not None:
        notes.append("Their costs did not count yet.")
    return Choice(suggestions, f"{SPREAD} (standard deviations)", notes)


def _predicted(settings: Settings, prediction: Prediction, classes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What is predicted of each row: mean and interval by target, or the probability of each class."""
    for i in range(len(prediction.mean)):
        if classes:
            yield {f"p_{name}": float(p) for name, p in zip(classes, prediction.mean[i], strict=True)}
        else:
            parts = {"mean": prediction.mean[i], "low": prediction.low[i], "high": prediction.high[i]}
            yield {name: float(v[o]) for o, name, v in _columns(settings, parts)}


def _columns(settings: Settings, parts: dict[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Of each target its parts; they are called by the target where there are several."""
    for o, target in enumerate(settings.target):
        for name, values in parts.items():
            yield o, name if len(settings.target) == 1 else f"{name}_{target}", values


def _reasons(
    rows: Rows, chosen: list[int], scores: list[float], prediction: Prediction, settings: Settings
) -> list[str]:
    """One line on each row: what stands out of it."""
    z = spread.standardised(rows.x)
    usual = spread.nearest(z, _sample(rows), rows.measured)
    near = spread.nearest(z, chosen, rows.measured)
    far, middle = float(np.quantile(usual, FAR)), float(np.median(usual))
    known = {"expected-improvement": "expected improvement", "upper-confidence-bound": "may be as good as"}
    gain = "expected gain" if settings.acquisition in GAINS else known.get(settings.acquisition, settings.acquisition)
    reasons = []
    for i, score in enumerate(scores):
        apart = prediction.epistemic[i] / np.maximum(prediction.noise[i], 1e-300)
        if settings.goal != "learn":
            said = f"{gain}: {score:.3g} {_unit(settings)}".rstrip()
        elif near[i] > far:
            said = f"far from everything measured: {near[i]:.2g} deviations, half of the rows {middle:.2g}"
        elif apart.size and apart.max() > 1:
            o = int(apart.argmax())
            scale = {"none": "", "log": ", in logarithms", "rank": ", in normal scores"}[settings.transform]
            said = (
                f"disagreement: sampled networks differ by {prediction.epistemic[i, o]:.3g}, beside noise of "
                f"{prediction.noise[i, o]:.3g}{scale}"
            )
        else:
            said = f"{gain}: {score:.3g} {_unit(settings)}".rstrip()
        reasons.append(said)
    return reasons


def _doubts(rows: Rows, settings: Settings) -> Iterator[str]:
    """What to keep in mind of the answer."""
    if len(rows.measured) < ROUGH:
        what = "probabilities" if settings.task == "classification" else "intervals"
        yield f"Only {counted(len(rows.measured), 'row', be=True)} measured: take the {what} as rough."
    if settings.task == "classification":
        yield f"Classes so far: {listed(model.classes(rows))}."
    for target, column in zip(settings.target, zip(*rows.values, strict=True), strict=True):
        told = {value for value in column if value == value}  # not NaN
        if settings.task != "classification" and len(told) == 1:
            yield f"All measured values of {target} are {told.pop():.12g}: of how it varies nothing is known yet."
    if settings.transform != "none":
        yield f"With --transform {settings.transform} the predictions are medians."
    if settings.transform == "rank":
        yield "Nothing beyond the smallest and the largest measurement is predicted with --transform rank."
    if settings.goal != "learn":
        values = [float(value) for (value,) in rows.values]
        yield f"Best so far: {max(values) if settings.goal == 'maximise' else min(values):.12g}."
