"""What a finished experiment says: a table, a verdict, a JSON object, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from explore import files
from explore.cli.estimate import TITLES, Estimate, decimals, estimate, unit
from explore.cli.experiment import Experiment
from explore.record import plain


def metrics(experiment: Experiment) -> list[str]:
    """The metrics to show, the one that decides first."""
    return [name for name in TITLES if name in experiment.history]


def curves(experiment: Experiment, metric: str) -> dict[str, list[Estimate]]:
    """Estimates by arm, one a round; `difference` is the chosen rule's minus the control's, trial by trial."""
    values = experiment.history[metric].double().unflatten(1, (len(experiment.arms), -1))  # [rounds, arms, T]
    found = {arm: [estimate(v) for v in values[:, i]] for i, arm in enumerate(experiment.arms)}
    if len(experiment.arms) == 2:
        found["difference"] = [estimate(v) for v in values[:, 0] - values[:, 1]]
    return found


def tables(experiment: Experiment) -> Iterator[tuple[str, Table]]:
    """A title and a table for each metric, by number of labels."""
    trials = experiment.settings["trials"]
    spread = f"mean ± s.e. over {trials} trials" if trials > 1 else "one trial"
    for metric in metrics(experiment):
        columns, places = curves(experiment, metric), decimals(experiment.history[metric])
        table = Table("labels", *columns)
        for column in table.columns:
            column.justify = "right"
        for labels, *row in zip(experiment.history["labels"].tolist(), *columns.values(), strict=True):
            table.add_row(str(labels), *(e.text(places) for e in row))
        yield f"{TITLES[metric]}{unit(metric)}, {spread}", table


def verdict(experiment: Experiment) -> str:
    """A sentence on whether the rule beat random."""
    metric, arm = metrics(experiment)[0], experiment.arms[0]
    if len(experiment.arms) < 2:
        return "No control arm: nothing is said about whether the rule helps."
    d, labels = curves(experiment, metric)["difference"][-1], int(experiment.history["labels"][-1])
    facts = f"{TITLES[metric]} differs by {d.text(decimals(experiment.history[metric]))} at {labels} labels"
    if not d.mean < 0:
        return f"Warning: {arm} is not better than random: {facts}."
    if math.isnan(d.se):
        return f"{arm} did better than random in the one trial: {facts}; more trials would tell whether by chance."
    beat = (
        "beat random by more than 2 s.e."
        if d.mean < -2 * d.se
        else "did better than random, but by no more than 2 s.e."
    )
    return f"{arm} {beat}: {facts}."


def failures(experiment: Experiment) -> Iterator[str]:
    """One sentence for every fit that failed."""
    trials = experiment.settings["trials"]
    for i, r in (~experiment.history["alive"]).nonzero().tolist():
        labels = int(experiment.history["labels"][i])
        arm = experiment.arms[r // trials]
        yield f"Trial {r % trials + 1}, arm {arm}: the fit on {labels} labels failed and was stopped where it stood."


def summary(experiment: Experiment, seconds: float, folder: Path) -> dict[str, Any]:
    """The result at the last number of labels, as JSON can hold it (null: unknown).

    `active` is the chosen acquisition and `random` the control; `paired_difference` is active minus random, trial by
    trial, of `rmse` (of `error` for classification), null without a control.
    """
    found: dict[str, Any] = {
        "posterior": experiment.settings["posterior"],
        "acquisition": experiment.settings["acquisition"],
        "trials": experiment.settings["trials"],
    }
    last = {m: [e[-1]._asdict() for e in curves(experiment, m).values()] for m in metrics(experiment)}
    for metric, (active, *control) in last.items():
        found[metric] = {"active": active} | ({"random": control[0]} if control else {})
    decisive = last[metrics(experiment)[0]]
    found["paired_difference"] = decisive[2] if len(decisive) == 3 else None
    return plain(found | {"seconds": round(seconds, 3), "run": str(folder)})


def draw(experiment: Experiment, path: Path) -> None:
    """Learning curves with a band of one standard error, one panel a metric."""
    shown = metrics(experiment)
    figure = Figure(figsize=(5 * len(shown), 4), layout="constrained")  # not pyplot, which keeps global state
    labels = experiment.history["labels"].tolist()
    for i, metric in enumerate(shown):
        axes = figure.add_subplot(1, len(shown), i + 1)
        found = curves(experiment, metric)
        for arm, style in zip(experiment.arms, ("o-", "s--"), strict=False):
            mean = [e.mean for e in found[arm]]
            band = [0.0 if math.isnan(e.se) else e.se for e in found[arm]]
            (line,) = axes.plot(labels, mean, style, markersize=4, label=arm)
            low, high = ([m + sign * b for m, b in zip(mean, band, strict=True)] for sign in (-1, 1))
            axes.fill_between(labels, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
        axes.set_xlabel("labelled points")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(TITLES[metric] + unit(metric))
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    s = experiment.settings
    figure.suptitle(f"{experiment.dataset.name}, {s['posterior']}: mean ± s.e. over {s['trials']} trials", fontsize=11)
    with files.replacing(path) as draft:
        figure.savefig(draft, dpi=120)
