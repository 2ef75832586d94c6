"""The report on runs of `explore active`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """All of it."""
    results = {run.name: run.table("results.csv") for run in runs}
    yield _curves(results)
    if any(CONTROL in set(table.arm) and table.arm.nunique() > 1 for table in results.values()):
        yield _differences(results)
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


def _metrics(results: dict[str, pd.DataFrame]) -> list[str]:
    """That all runs have, the one that decides first."""
    return [name for name in TITLES if all(name in table for table in results.values())]


def _arms(results: dict[str, pd.DataFrame]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each arm with its name: the run's too where there are several."""
    for name, table in results.items():
        for arm, rows in table.groupby("arm", sort=False):
            yield f"{name}: {arm}" if len(results) > 1 else str(arm), rows


def _values(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A row for each number of labels, a column for each trial."""
    return rows.pivot(index="labels", columns="trial", values=metric)


def _curves(results: dict[str, pd.DataFrame]) -> Section:
    metrics, rows = _metrics(results), []
    figure, every = panels(len(metrics))
    for axes, metric in zip(every, metrics, strict=True):
        for i, (name, table) in enumerate(_arms(results)):
            values = _values(table, metric)
            band(axes, values.index.to_list(), values.to_numpy(), name, "o-" if i % 2 == 0 else "s--")
        axes.set(xlabel="labelled points", ylabel=TITLES[metric] + unit(metric))
        whole(axes)
    every[0].legend(fontsize="small")
    for name, table in _arms(results):
        each = [_values(table, metric) for metric in metrics]
        cells = [text for v in each for text in (_text(v.mean(axis=0)), _text(v.iloc[-1]))]
        rows.append([name, str(each[0].shape[1]), str(each[0].index[-1]), *cells])
    columns = [f"{TITLES[m]}, {where}" for m in metrics for where in ("mean over the curve", "last")]
    said = ["Mean over trials with a band of one standard error; test points are never labelled."]
    failed = sum(int((~table.alive).sum()) for table in results.values())
    wrong = [f"{failed} fits failed and were stopped where they stood."] if failed else []
    return Section("Learning curves", figure, said, wrong, ("arm", "trials", "labels", *columns), rows)


def _text(values: Any) -> str:
    mean, se = center(np.asarray(values, float)[None])
    return f"{mean[0]:.4g} ± {se[0]:.2g}" if np.size(values) > 1 else f"{mean[0]:.4g}"


def _differences(results: dict[str, pd.DataFrame]) -> Section:
    metrics, rows = _metrics(results), []
    figure, every = panels(len(metrics))
    for axes, metric in zip(every, metrics, strict=True):
        axes.axhline(0, color="black", linewidth=1)
        for name, table in results.items():
            arms = {str(arm): _values(own, metric) for arm, own in table.groupby("arm", sort=False)}
            control = arms.pop(CONTROL, None)
            for arm, values in arms.items() if control is not None else ():
                paired = values - control
                label = f"{name}: {arm}" if len(results) > 1 else arm
                band(axes, paired.index.to_list(), paired.to_numpy(), f"{label} - {CONTROL}")
                rows.append([label, TITLES[metric], _text(paired.mean(axis=0)), _text(paired.iloc[-1])])
        axes.set(xlabel="labelled points", ylabel=f"difference in {TITLES[metric]}")
        whole(axes)
    every[0].legend(fontsize="small")
    said = ["Paired, trial by trial from the same start: an error below 0 is smaller than that of labelling at random."]
    header = ("rule", "minus random in", "mean over the curve", "last")
    return Section("Difference from labelling at random", figure, said, header=header, rows=rows)


def _chosen(runs: Sequence[Opened], sets: dict[str, Dataset]) -> Iterator[Section]:
    shown = [run for run in runs if run.name in sets and run.sizes.get("selected.csv")]
    if not shown:
        return
    figure, every = panels(len(shown))
    for axes, run in zip(every, shown, strict=True):
        table, s = run.table("selected.csv"), run.config
        mine = table[(table.arm == s["acquisition"]) & (table.trial == 1)]
        x, shares = components(sets[run.name].x)
        start = data.pool_splits(len(x), s["trials"], s["initial"], s["test_size"], s["seed"]).labelled[0]
        map_of(axes, x, start.tolist(), mine["index"].tolist(), mine["round"].tolist())
        axes.set(title=literal(f"{run.name}: {s['acquisition']}, trial 1"))
        axes.set(xlabel=f"first component ({shares[0]:.0%})", ylabel=f"second component ({shares[1]:.0%})")
    every[0].legend(fontsize="small")
    said = "The two first principal components of the standardised features; grey are all points of the data."
    yield Section("What was chosen when", figure, [said])


def _calibration(runs: Sequence[Opened], sets: dict[str, Dataset]) -> Iterator[Section]:
    every = {}
    for run in (run for run in runs if run.name in sets):
        if not Path(run.folder, saved.MODEL).exists():
            yield Section(
                f"Model of {run.name}", warnings=[f"{run.folder} has no {saved.MODEL} yet: it is not finished."]
            )
            continue
        s, kept = run.settings, saved.read(run.folder, run.trusted)
        (model,), own = kept.models.values(), sets[run.name]
        test = data.pool_splits(len(own.x), s.trials, s.initial, s.test_size, s.seed).test
        for arm in dict.fromkeys(replica["arm"] for replica in kept.replicas):
            used = [r for r, replica in enumerate(kept.replicas) if replica["arm"] == arm][:TRIALS]
            rows = [test[replica["trial"] - 1] for replica in kept.replicas]
            name = f"{run.name}: {arm}" if len(runs) > 1 else arm
            every[name] = held_out.collect(model, own.x, own.y, rows, used)
    if every:
        first = f", of the first {TRIALS}" if any(run.config["trials"] > TRIALS for run in runs) else ""
        yield held_out.section(every, f"Held-out points of all trials{first}, predicted by the fits of the last round.")


def _scores(tables: dict[str, pd.DataFrame]) -> Section:
    figure, (axes,) = panels(1, width=6)
    for name, table in _arms(tables):
        if table.arm.iloc[0] == CONTROL:
            continue
        best = table.groupby(["round", "trial"]).score.max().unstack()
        band(axes, best.index.to_list(), best.to_numpy(), name)
    axes.set(xlabel="round", ylabel="best score, as the rule counts it")
    whole(axes)
    if axes.lines:
        axes.legend(fontsize="small")
    return Section(
        "Score of what was chosen", figure, ["The best score of each round: how much the rule still expects."]
    )
