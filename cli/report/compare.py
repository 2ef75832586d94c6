"""The page on runs of `explore compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from explore.cli.compare.report import best
from explore.cli.display import literal
from explore.cli.estimate import TITLES, title, unit
from explore.cli.report import held_out
from explore.cli.report.drawing import center, panels
from explore.cli.report.page import Section
from explore.cli.report.session import Opened, learning_curves
from explore.core.errors import InputError
from explore.data import uci_splits
from explore.learning import saved


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """Yield all sections."""
    several = len(runs) > 1
    results = {
        (f"{run.name}: {posterior}" if several else str(posterior)): rows.set_index("split")
        for run in runs
        for posterior, rows in run.table("results.csv").groupby("posterior", sort=False)
    }
    metrics = [name for name in TITLES if all(name in rows and rows[name].notna().any() for rows in results.values())]
    titles = {metric: title(metric, bool(runs[0].config["validation"])) for metric in metrics}
    yield _splits(results, titles)
    yield learning_curves(runs, {m: heading + unit(m) for m, heading in titles.items()}, "Means over splits.")
    yield from _calibration(runs)


def _splits(results: dict[str, pd.DataFrame], titles: dict[str, str]) -> Section:
    figure, every = panels(len(titles), height=1.2 + 0.45 * len(results))
    rows = [[name, str(len(table))] for name, table in results.items()]
    for axes, (metric, heading) in zip(every, titles.items(), strict=True):
        winner = best(metric, {name: float(table[metric].mean()) for name, table in results.items()})
        for i, (name, table) in enumerate(results.items()):
            mean, se = center(table[metric].to_numpy()[None])
            axes.plot(table[metric], np.full(len(table), i), "|", color="grey", markersize=8)
            axes.errorbar(mean, [i], xerr=se, fmt="o", color=f"C{i}", capsize=3)
            paired = (table[metric] - results[winner][metric]).dropna()
            difference, error = center(paired.to_numpy()[None])
            beside = "best" if name == winner else f"{difference[0]:.4g} ± {error[0]:.2g}"
            rows[i] += [f"{mean[0]:.4g} ± {se[0]:.2g}", beside]
        axes.set_yticks(range(len(results)), [literal(name) for name in results])
        axes.invert_yaxis()
        axes.set(xlabel=heading + unit(metric))
    for row, table in zip(rows, results.values(), strict=True):
        row.append(f"{float(table.seconds.iloc[0]):.1f}")
    note = "Grey: one split; dot and bar: mean with its standard error. Differences are paired by split."
    header = [part for heading in titles.values() for part in (heading, "minus the best")]
    return Section("Scores", figure, [note], header=("posterior", "splits", *header, "seconds"), rows=rows)


def _calibration(runs: Sequence[Opened]) -> Iterator[Section]:
    predictions = {}
    for run in runs:
        if not Path(run.folder, saved.MODEL).exists():
            note = f"{run.folder} has no {saved.MODEL} yet: no fit is finished."
            yield Section(f"Model of {run.name}", warnings=[note])
            continue
        settings = run.settings
        try:
            data = settings.load()
        except InputError as error:
            yield Section(f"Data of {run.name}", warnings=[f"Not shown is what needs the data: {error}."])
            continue
        test = [rows for _, rows in uci_splits(len(data.x), settings.splits, validation=settings.validation)]
        for name, model in saved.read(run.folder, run.trusted).models.items():
            label = f"{run.name}: {name}" if len(runs) > 1 else name
            predictions[label] = held_out.collect(model, data.x, data.y, test, range(settings.splits))
    if predictions:
        yield held_out.section(predictions, "Held-out examples of all splits.")
