"""The report on campaigns of `explore suggest`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from explore.campaign import short
from explore.campaign.log import Log
from explore.campaign.memory import Memory, mean
from explore.cli.display import literal
from explore.cli.report.drawing import components, map_of, panels, whole
from explore.cli.report.page import Section
from explore.cli.report.session import Opened
from explore.core.errors import InputError, counted
from explore.data.reading import Cells
from explore.learning import saved


class Asked(NamedTuple):
    """A row that was handed out, and what became of it."""

    row: str
    round: int  # from 1
    when: datetime  # UTC
    said: dict[str, Any]
    answered: datetime | None
    values: dict[str, Any]  # by target; none before it is answered


class History(NamedTuple):
    """What happened in a campaign."""

    memory: Memory
    asked: list[Asked]
    told: list[tuple[datetime, str, dict[str, Any]]]  # every measurement


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """All of it, campaign by campaign."""
    for run in runs:
        history = read(run)
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        made = [
            _rounds(history),
            *_foretold(run, history),
            *_chosen(run, history),
            *_scores(history),
            *_found(run, history),
        ]
        yield from (section._replace(title=prefix + section.title) for section in made)


def read(run: Opened) -> History:
    """The log as a history, without what was taken back."""
    memory = Memory(Log(run.folder, dry=True).events)
    events = [
        {**event, "id": row.id if (row := memory.find(event["id"])) else event["id"]}  # as it is called now
        | {"time": datetime.fromisoformat(event["time"]).replace(tzinfo=None)}
        for batch in memory.batches.values()
        for event in batch
    ]
    told = [event for event in events if event["event"] in ("label", "correct")]
    suggested = [event for event in events if event["event"] == "suggest"]
    batches = list(dict.fromkeys(event["batch"] for event in suggested))
    asked = []
    for event in suggested:
        later = (e for e in told if e["id"] == event["id"] and e["batch"] > event["batch"])
        answer = next(later, None)
        values = {target: _value(measured) for target, measured in answer["values"].items()} if answer else {}
        when, number = answer["time"] if answer else None, batches.index(event["batch"]) + 1
        asked.append(Asked(event["id"], number, event["time"], event["values"] or {}, when, values))
    return History(memory, asked, [(event["time"], event["id"], event["values"]) for event in told])


def _value(measured: Sequence[Any]) -> Any:
    """The mean, or the most frequent class; the word where all experiments failed."""
    value = mean(measured)
    return "failed" if value is None else value


def _targets(history: History) -> tuple[str, ...]:
    return history.memory.schema.targets if history.memory.schema else ()


def _said(asked: Asked, part: str, target: str, targets: Sequence[str]) -> Any:
    """A part of the prediction, which is called by its target where there are several."""
    return asked.said.get(part if len(targets) == 1 else f"{part}_{target}")


def _rounds(history: History) -> Section:
    targets = _targets(history)
    figure, (axes,) = panels(1, width=8, height=3.5)
    asked = sorted(a.when for a in history.asked)
    answered = sorted(a.answered for a in history.asked if a.answered)
    told = sorted(when for when, _, _ in history.told)
    for label, times in (("measured", told), ("asked for", asked), ("asked for and answered", answered)):
        if times:
            x = np.array(times, "datetime64[s]")
            axes.step(x, range(1, len(x) + 1), "o-", where="post", markersize=3, label=label)
    axes.set(xlabel="time (UTC)", ylabel="rows so far")
    axes.tick_params(axis="x", labelrotation=20)
    if axes.lines:
        axes.legend(fontsize="small")
    header = ["round", "row", *(f"{t}: predicted" for t in targets), "score", "asked", "answered", *targets]
    rows = [
        [
            str(a.round), short(a.row), *(_range(a, t, targets) for t in targets), _text(a.said.get("score")),
            f"{a.when:%Y-%m-%d %H:%M}", f"{a.answered:%Y-%m-%d %H:%M}" if a.answered else "pending",
            *(_text(a.values.get(t)) for t in targets),
        ]
        for a in history.asked
    ]  # fmt: skip
    open_rows = sum(row.pending is not None for row in history.memory.rows.values())
    measurements, rows_asked = counted(len(history.told), "measurement"), counted(len(asked), "row")
    said = f"{measurements}; {rows_asked} asked for, {open_rows} of them pending."
    return Section("What was asked and answered", figure, [said], header=header, rows=rows)


def _range(asked: Asked, target: str, targets: Sequence[str]) -> str:
    mean, low, high = (_said(asked, part, target, targets) for part in ("mean", "low", "high"))
    return "" if mean is None else f"{_text(mean)} ({_text(low)} to {_text(high)})"


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _foretold(run: Opened, history: History) -> Iterator[Section]:
    """Predictions of rows against what was measured afterwards."""
    targets = _targets(history)
    found = {}
    for target in targets:
        parts = [
            (*(_said(a, p, target, targets) for p in ("mean", "low", "high")), a.values.get(target))
            for a in history.asked
        ]
        numbers = [row for row in parts if all(isinstance(v, int | float) for v in row)]
        if numbers:
            found[target] = np.array(numbers, float)
    if not found:
        return
    figure, every = panels(len(found))
    said = []
    for axes, (target, (values)) in zip(every, found.items(), strict=True):
        mean, low, high, y = values.T
        axes.errorbar(y, mean, [mean - low, high - mean], fmt="o", markersize=4, capsize=2, alpha=0.8)
        ends = [min(y.min(), low.min()), max(y.max(), high.max())]
        axes.plot(ends, ends, "k--", linewidth=1)
        axes.set(xlabel=literal(f"{target}, measured afterwards"), ylabel="predicted, with interval")
        inside = int(((low <= y) & (y <= high)).sum())
        said.append(
            f"{target}: {inside} of {len(y)} measurements lie in the 90 % interval that was given before; "
            f"the mean absolute error is {np.abs(y - mean).mean():.4g}."
        )
    yield Section("Predicted, then measured", figure, said)


def _chosen(run: Opened, history: History) -> Iterator[Section]:
    """Rows by their two principal components, by the schema of the model."""
    if not (run.folder / saved.MODEL).exists():
        yield Section("Map of the rows", warnings=["No model is fitted yet, so that the rows have no map."])
        return
    schema, rows = saved.read(run.folder, run.trusted).schema, history.memory.rows
    known = [name for name, row in rows.items() if row.cells]
    if schema is None or len(known) < 2:
        return
    features = list(dict.fromkeys(cell for name in known for cell in rows[name].cells))
    columns = {feature: [rows[name].cells.get(feature, "") for name in known] for feature in features}
    try:
        x, shares = components(schema.apply(Cells(run.folder, columns, tuple(range(len(known))))).x)
    except InputError as error:
        yield Section("Map of the rows", warnings=[f"The rows have no map: {error}."])
        return
    at = {name: i for i, name in enumerate(known)}
    asked = {a.row: a.round for a in history.asked if a.row in at}
    start = [at[name] for _, name, _ in history.told if name in at and name not in asked]
    figure, (axes,) = panels(1, width=6, height=4.5)
    map_of(axes, x, start, [at[name] for name in asked], list(asked.values()))
    axes.set(xlabel=f"first component ({shares[0]:.0%})", ylabel=f"second component ({shares[1]:.0%})")
    axes.legend(fontsize="small")
    yield Section("What was chosen when", figure, ["The two first principal components of the rows that are known."])


def _scores(history: History) -> Iterator[Section]:
    scores = [(a.round, a.said["score"]) for a in history.asked if isinstance(a.said.get("score"), int | float)]
    if not scores:
        return
    rounds = pd.DataFrame(scores, columns=["round", "score"]).groupby("round").score
    figure, (axes,) = panels(1, width=6)
    axes.plot(rounds.max(), "o-", label="best")
    axes.plot(rounds.mean(), "s--", label="mean")
    axes.set(xlabel="round", ylabel="score, as the rule counts it")
    whole(axes)
    axes.legend(fontsize="small")
    yield Section("Score over rounds", figure)


def _found(run: Opened, history: History) -> Iterator[Section]:
    """Measurements in their order, and the best so far where one is looked for."""
    targets, goal = _targets(history), str(run.config.get("goal", "learn"))
    means = {t: [_value(values[t]) for _, _, values in history.told if values.get(t)] for t in targets}
    numbers = {t: [value for value in own if not isinstance(value, str)] for t, own in means.items()}
    if not any(numbers.values()):
        return
    figure, every = panels(len(targets))
    for axes, target in zip(every, targets, strict=True):
        y = np.array(numbers[target], float)
        axes.plot(range(1, len(y) + 1), y, "o", markersize=4, label="measured")
        if goal in ("maximise", "minimise"):
            best = (np.maximum if goal == "maximise" else np.minimum).accumulate(y)
            axes.step(range(1, len(y) + 1), best, where="post", label="best so far")
        axes.set(xlabel="measurement", ylabel=literal(target))
        whole(axes)
        axes.legend(fontsize="small")
    yield Section("Measurements", figure)
