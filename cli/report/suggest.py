"""Report sections for campaigns of `explore suggest`."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from explore.campaign import short
from explore.campaign.state import State, mean, read as read_state
from explore.cli.display import literal
from explore.cli.report.drawing import map_of, panels
from explore.cli.report.page import Section
from explore.cli.report.session import Opened
from explore.core.errors import InputError, counted
from explore.data.reading import Cells
from explore.learning import saved

PARTS = ("mean", "low", "high")
Event = dict[str, Any]


class History(NamedTuple):
    """The history of a campaign, with times in UTC."""

    state: State
    targets: tuple[str, ...]
    suggestions: list[Event]  # with the `round`, from 1, and the next measurement of the row: `answered`, `measured`
    measurements: list[Event]  # with the means or most frequent classes by target; "failed" if all failed

    def predicted(self, suggestion: Event, target: str) -> list[Any]:
        """Return [mean, low, high] of the prediction for a target; None stands for a value that was not kept."""
        names = PARTS if len(self.targets) == 1 else [f"{part}_{target}" for part in PARTS]
        return [suggestion["values"].get(name) for name in names]


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """Yield the report sections, campaign by campaign."""
    for run in runs:
        history = read(run)
        parts = _rounds(history), *_predicted(history), *_map(run, history), *_scores(history)
        for section in (*parts, *_measurements(history, run.config.get("goal")), _steps(history)):
            yield section._replace(title=run.prefix + section.title)


def read(run: Opened) -> History:
    """Read the steps of a campaign."""
    state = read_state(run.folder)
    suggestions: list[Event] = []
    measurements: list[Event] = []
    for batch, step in enumerate(state.steps):
        time = datetime.fromisoformat(step["time"]).replace(tzinfo=None)
        for name, values in step["rows"].items():
            event = {"id": state.aliases.get(name, name), "batch": batch, "time": time, "values": values}
            if step["kind"] == "suggest":
                suggestions.append(event)
            elif changes := {t: change["values"] for t, change in (values or {}).items() if change["values"]}:
                means = {t: mean(results) for t, results in changes.items()}
                measurements.append(event | {"values": {t: "failed" if v is None else v for t, v in means.items()}})
    rounds = {batch: i for i, batch in enumerate(dict.fromkeys(event["batch"] for event in suggestions), 1)}
    for event in suggestions:
        answers = (e for e in measurements if e["id"] == event["id"] and e["batch"] > event["batch"])
        answer: Event = next(answers, {"time": None, "values": {}})
        event |= {"round": rounds[event["batch"]], "answered": answer["time"], "measured": answer["values"]}
    return History(state, state.targets, suggestions, measurements)


def _rounds(history: History) -> Section:
    figure, (axes,) = panels(1, width=8, height=3.5)
    suggestions, targets = history.suggestions, history.targets
    for label, times in (
        ("measured", [event["time"] for event in history.measurements]),
        ("suggested", [s["time"] for s in suggestions]),
        ("suggested and measured", [s["answered"] for s in suggestions if s["answered"]]),
    ):
        if times:
            x = np.sort(np.array(times, "datetime64[s]"))
            axes.step(x, range(1, len(x) + 1), "o-", where="post", markersize=3, label=label)
    axes.set(xlabel="time (UTC)", ylabel="rows so far")
    axes.tick_params(axis="x", labelrotation=20)
    if axes.lines:
        axes.legend(fontsize="small")
    header = ["round", "row", *(f"{t}: predicted" for t in targets), "score", "suggested", "measured", *targets]
    rows = []
    for s in suggestions:
        ranges = [map(_text, history.predicted(s, t)) for t in targets]
        predicted = [f"{middle} ({low} to {high})" if middle else "" for middle, low, high in ranges]
        answered = f"{s['answered']:%Y-%m-%d %H:%M}" if s["answered"] else "pending"
        facts = _text(s["values"].get("score")), f"{s['time']:%Y-%m-%d %H:%M}", answered
        values = [_text(s["measured"].get(t)) for t in targets]
        rows.append([str(s["round"]), short(s["id"]), *predicted, *facts, *values])
    pending = sum(row.pending is not None for row in history.state.rows.values())
    counts = counted(len(history.measurements), "measurement"), counted(len(suggestions), "row")
    sentence = f"{counts[0]}; {counts[1]} suggested, {pending} of them pending."
    return Section("Suggestions and measurements", figure, [sentence], header=header, rows=rows)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _predicted(history: History) -> Iterator[Section]:
    """Yield a section that compares predictions with later measurements."""
    pairs = {}
    for target in history.targets:
        rows = [[*history.predicted(s, target), s["measured"].get(target)] for s in history.suggestions]
        if numbers := [row for row in rows if all(isinstance(v, int | float) for v in row)]:
            pairs[target] = np.array(numbers, float).T
    if not pairs:
        return
    figure, every = panels(len(pairs))
    sentences = []
    for axes, (target, (middle, low, high, y)) in zip(every, pairs.items(), strict=True):
        axes.errorbar(y, middle, [middle - low, high - middle], fmt="o", markersize=4, capsize=2, alpha=0.8)
        ends = [min(y.min(), low.min()), max(y.max(), high.max())]
        axes.plot(ends, ends, "k--", linewidth=1)
        axes.set(xlabel=literal(f"{target}, measured"), ylabel="predicted, with interval")
        inside, error = int(((low <= y) & (y <= high)).sum()), f"{np.abs(y - middle).mean():.4g}"
        covered = f"{inside} of {len(y)} measurements lie in the 90 % interval predicted for them"
        sentences.append(f"{target}: {covered}. Mean absolute error: {error}.")
    yield Section("Predictions and later measurements", figure, sentences)


def _map(run: Opened, history: History) -> Iterator[Section]:
    """Yield a map of the rows in the first two principal components of the model's features."""
    if not (run.folder / saved.MODEL).exists():
        yield Section("Map of the rows", warnings=["Cannot draw the map: no model is fitted yet."])
        return
    schema = saved.read(run.folder, run.trusted).schema
    by_row = {name: row.cells for name, row in history.state.rows.items() if row.cells}
    if schema is None or len(by_row) < 2:
        return
    cells = pd.DataFrame.from_dict(by_row, orient="index").fillna("")
    columns = {str(name): column.tolist() for name, column in cells.items()}
    try:
        x = schema.apply(Cells(run.folder, columns, tuple(range(len(cells))))).x
    except InputError as error:
        yield Section("Map of the rows", warnings=[f"Cannot draw the map: {str(error).rstrip('.')}."])
        return
    at = {name: i for i, name in enumerate(cells.index)}
    rounds = {s["id"]: s["round"] for s in history.suggestions if s["id"] in at}
    start = [at[e["id"]] for e in history.measurements if e["id"] in at and e["id"] not in rounds]
    figure, (axes,) = panels(1, width=6, height=4.5)
    map_of(axes, x, start, [at[name] for name in rounds], list(rounds.values()))
    axes.legend(fontsize="small")
    yield Section("Chosen rows by round", figure, ["First two principal components of the rows in the campaign."])


def _scores(history: History) -> Iterator[Section]:
    scores = [(s["round"], s["values"].get("score")) for s in history.suggestions]
    rounds = pd.DataFrame(scores, columns=["round", "score"]).dropna().groupby("round").score
    if not len(rounds):
        return
    figure, (axes,) = panels(1, width=6)
    axes.plot(rounds.max(), "o-", label="best")
    axes.plot(rounds.mean(), "s--", label="mean")
    axes.set(xlabel="round", ylabel="score")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")
    yield Section("Score over rounds", figure)


def _measurements(history: History, goal: str | None) -> Iterator[Section]:
    """Yield a plot of the measurements in order. If the goal is to maximise or minimise, add the best value so far."""
    values = {t: [e["values"].get(t) for e in history.measurements] for t in history.targets}
    numbers = {t: np.array([v for v in column if isinstance(v, int | float)]) for t, column in values.items()}
    if not any(map(len, numbers.values())):
        return
    figure, every = panels(len(numbers))
    for axes, (target, y) in zip(every, numbers.items(), strict=True):
        axes.plot(range(1, len(y) + 1), y, "o", markersize=4, label="measured")
        if goal in ("maximise", "minimise"):
            best = (np.maximum if goal == "maximise" else np.minimum).accumulate(y)
            axes.step(range(1, len(y) + 1), best, where="post", label="best so far")
        axes.set(xlabel="measurement", ylabel=literal(target))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize="small")
    yield Section("Measurements", figure)


def _steps(history: History) -> Section:
    """Return a table of all steps of the campaign, except undone ones."""
    rows = []
    for number, step in enumerate(history.state.steps, 1):
        names = []
        for name, values in step["rows"].items():
            changes = (values or {}).items() if step["kind"] in ("measure", "withdraw") else ()
            results = {t: ["failed" if v is None else _text(v) for v in change["values"]] for t, change in changes}
            measured = [f"{t} {', '.join(results[t]) or 'none'}, from {change['from']}" for t, change in changes]
            names.append(f"{short(name)} ({'; '.join(measured)})" if measured else short(name))
        rows.append([str(number), step["time"][:16].replace("T", " "), step["kind"], ", ".join(names)])
    return Section("Steps", header=["batch", "time (UTC)", "step", "rows"], rows=rows, fold=True)
