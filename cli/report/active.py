"""The report on runs of `explore active`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from explore import data
from explore.cli.display import literal
from explore.cli.estimate import TITLES, unit
from explore.cli.report import held_out
from explore.cli.report.drawing import band, center, components, map_of, panels, whole
from explore.cli.report.page import Section
from explore.cli.report.session import Opened
from explore.core.errors import InputError
from explore.data import Dataset
from explore.learning import saved

CONTROL = "random"
TRIALS = 40  # whose held-out points are predicted
Results = Mapping[str, pd.DataFrame]  # by name of a run


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """Yield the sections of all runs."""
    results = {run.name: run.table("results.csv") for run in runs}
    yield _curves(results)
    yield from _differences(results)
    sets: dict[str, Dataset] = {}
    for run in runs:
        try:
            sets[run.name] = run.settings.load()
        except InputError as error:
            yield Section(f"Data of {run.name}", warnings=[f"Not shown is what needs the data: {error}."])
    yield from _chosen(runs, sets)
    yield from _calibration(runs, sets)
    scores = {run.name: run.table("selected.csv") for run in runs if run.sizes.get("selected.csv")}
    if scores:
        yield _scores(scores)


def _metrics(results: Results) -> list[str]:
    """Return the metrics of all runs, the decisive one first."""
    return [name for name in TITLES if all(name in table for table in results.values())]


def _arms(results: Results) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each arm with its name, which has the run's where there are several."""
    for name, table in results.items():
        for arm, rows in table.groupby("arm", sort=False):
            yield f"{name}: {arm}" if len(results) > 1 else str(arm), rows


def _values(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a row for each number of labels, a column for each trial."""
    return rows.pivot(index="labels", columns="trial", values=metric)


def _draw(panel: Axes, values: Mapping[str, pd.DataFrame], ylabel: str, styles: Sequence[str] = ("o-",)) -> None:
    for (name, curve), style in zip(values.items(), cycle(styles), strict=False):
        band(panel, curve.index.to_list(), curve.to_numpy(), name, style)
    panel.set(xlabel="labelled points", ylabel=ylabel)
    whole(panel)


def _curves(results: Results) -> Section:
    metrics, header, cells = _metrics(results), ["arm", "trials", "labels"], dict[str, list[str]]()
    figure, every = panels(len(metrics))
    for axes, metric in zip(every, metrics, strict=True):
        arms = {name: _values(table, metric) for name, table in _arms(results)}
        _draw(axes, arms, TITLES[metric] + unit(metric), ("o-", "s--"))
        header += [f"{TITLES[metric]}, {where}" for where in ("mean over the curve", "last")]
        for name, v in arms.items():
            cells.setdefault(name, [name, str(v.shape[1]), str(v.index[-1])])
            cells[name] += [_text(v.mean(axis=0)), _text(v.iloc[-1])]
    every[0].legend(fontsize="small")
    sentences = ["Mean over trials with a band of one standard error; test points are never labelled."]
    failed = sum(int((~table.alive).sum()) for table in results.values())
    warnings = [f"{failed} fits failed and were stopped where they stood."] if failed else []
    return Section("Learning curves", figure, sentences, warnings, header, list(cells.values()))


def _text(values: Any) -> str:
    mean, se = center(np.asarray(values, float)[None])
    return f"{mean[0]:.4g} ± {se[0]:.2g}" if np.size(values) > 1 else f"{mean[0]:.4g}"


def _differences(results: Results) -> Iterator[Section]:
    """Yield the differences of rules from the control of their run."""
    pairs = {
        f"{name}: {arm}" if len(results) > 1 else str(arm): (rows, table[table.arm == CONTROL])
        for name, table in results.items()
        for arm, rows in table.groupby("arm", sort=False)
        if arm != CONTROL and CONTROL in set(table.arm)
    }
    if not pairs:
        return
    metrics, rows = _metrics(results), []
    figure, every = panels(len(metrics))
    for axes, metric in zip(every, metrics, strict=True):
        axes.axhline(0, color="black", linewidth=1)
        paired = {name: _values(rule, metric) - _values(control, metric) for name, (rule, control) in pairs.items()}
        _draw(axes, {f"{name} - {CONTROL}": v for name, v in paired.items()}, f"difference in {TITLES[metric]}")
        rows += [[name, TITLES[metric], _text(v.mean(axis=0)), _text(v.iloc[-1])] for name, v in paired.items()]
    every[0].legend(fontsize="small")
    sentence = (
        "Paired, trial by trial from the same start: an error below 0 is smaller than that of labelling at random."
    )
    header = ("rule", "minus random in", "mean over the curve", "last")
    yield Section("Difference from labelling at random", figure, [sentence], header=header, rows=rows)


def _chosen(runs: Sequence[Opened], sets: dict[str, Dataset]) -> Iterator[Section]:
    shown = [run for run in runs if run.name in sets and run.sizes.get("selected.csv")]
    if not shown:
        return
    figure, every = panels(len(shown))
    for axes, run in zip(every, shown, strict=True):
        table, s = run.table("selected.csv"), run.config
        chosen = table[(table.arm == s["acquisition"]) & (table.trial == 1)]
        x, shares = components(sets[run.name].x)
        start = data.pool_splits(len(x), s["trials"], s["initial"], s["test_size"], s["seed"]).labelled[0]
        map_of(axes, x, start.tolist(), chosen["index"].tolist(), chosen["round"].tolist())
        axes.set(title=literal(f"{run.name}: {s['acquisition']}, trial 1"))
        axes.set(xlabel=f"first component ({shares[0]:.0%})", ylabel=f"second component ({shares[1]:.0%})")
    every[0].legend(fontsize="small")
    sentence = "The two first principal components of the standardised features; grey are all points of the data."
    yield Section("What was chosen when", figure, [sentence])


def _calibration(runs: Sequence[Opened], sets: dict[str, Dataset]) -> Iterator[Section]:
    every = {}
    for run in (run for run in runs if run.name in sets):
        if not Path(run.folder, saved.MODEL).exists():
            warning = f"{run.folder} has no {saved.MODEL} yet: it is not finished."
            yield Section(f"Model of {run.name}", warnings=[warning])
            continue
        s, content = run.settings, saved.read(run.folder, run.trusted)
        (model,), dataset, replicas = content.models.values(), sets[run.name], content.replicas
        test = data.pool_splits(len(dataset.x), s.trials, s.initial, s.test_size, s.seed).test
        rows = [test[replica["trial"] - 1] for replica in replicas]
        for arm in dict.fromkeys(replica["arm"] for replica in replicas):
            used = [r for r, replica in enumerate(replicas) if replica["arm"] == arm][:TRIALS]
            name = f"{run.name}: {arm}" if len(runs) > 1 else arm
            every[name] = held_out.collect(model, dataset.x, dataset.y, rows, used)
    if every:
        first = f", of the first {TRIALS}" if any(run.config["trials"] > TRIALS for run in runs) else ""
        yield held_out.section(every, f"Held-out points of all trials{first}, predicted by the fits of the last round.")


def _scores(tables: Results) -> Section:
    figure, (axes,) = panels(1, width=6)
    for name, table in _arms(tables):
        if table.arm.iloc[0] != CONTROL:
            best = table.groupby(["round", "trial"]).score.max().unstack()
            band(axes, best.index.to_list(), best.to_numpy(), name)
    axes.set(xlabel="round", ylabel="best score, as the rule counts it")
    whole(axes)
    if axes.lines:
        axes.legend(fontsize="small")
    sentence = "The best score of each round: how much the rule still expects."
    return Section("Score of what was chosen", figure, [sentence])
