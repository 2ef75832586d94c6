"""What a finished experiment says: tables, a verdict, a JSON object, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from explore.cli.active.experiment import Experiment
from explore.cli.console import Table
from explore.cli.display import literal
from explore.cli.estimate import TITLES, Estimate, clipped, decimals, estimate, unit
from explore.cli.report.drawing import band, panels, save, whole
from explore.cli.run import Report
from explore.core.errors import curvature_note
from explore.learning import saved
from explore.runs.record import plain

FIGURE = "learning_curve.png"
FEW = 5  # trials below which their standard error is itself a guess


def report(experiment: Experiment, folder: Path) -> Report:
    """All of it; the picture is drawn into the folder."""
    plot(experiment, folder / FIGURE)
    said = list(failures(experiment)), list(tables(experiment)), summary(experiment, folder)
    facts = [("model", saved.location(folder))]
    return Report(*said, verdict=verdict(experiment), facts=facts, figure=FIGURE)


def metrics(experiment: Experiment) -> list[str]:
    """The metrics to show, the one that decides first."""
    return [name for name in TITLES if name in experiment.history]


def per_trial(experiment: Experiment, metric: str) -> dict[str, Tensor]:
    """Values [rounds, T] by arm; `difference` is the chosen rule's minus the control's."""
    values = experiment.history[metric].double().unflatten(1, (len(experiment.arms), -1))  # [rounds, arms, T]
    found = dict(zip(experiment.arms, values.unbind(1), strict=True))
    return found | ({"difference": values[:, 0] - values[:, 1]} if len(experiment.arms) == 2 else {})


def curves(experiment: Experiment, metric: str) -> dict[str, list[Estimate]]:
    """Estimates by arm, one a round."""
    return {arm: [estimate(v) for v in values] for arm, values in per_trial(experiment, metric).items()}


def areas(experiment: Experiment, metric: str) -> dict[str, Estimate]:
    """Estimates by arm of the area under the learning curve, as a mean over rounds."""
    return {arm: estimate(values.mean(0)) for arm, values in per_trial(experiment, metric).items()}


def spread(experiment: Experiment) -> str:
    """What the numbers of a table or a picture stand for."""
    trials = experiment.settings.trials
    return f"mean ± s.e. over {trials} trials" if trials > 1 else "one trial"


def tables(experiment: Experiment) -> Iterator[tuple[str, Table]]:
    """A title and a table for each metric, by number of labels."""
    for metric in metrics(experiment):
        columns, places = curves(experiment, metric), decimals(experiment.history[metric])
        table = Table("labels", *columns)
        for column in table.columns:
            column.justify = "right"
        for labels, *row in zip(experiment.history["labels"].tolist(), *columns.values(), strict=True):
            table.add_row(str(labels), *(e.text(places) for e in row))
        if table.row_count > 1:
            table.add_row("mean", *(e.text(places) for e in areas(experiment, metric).values()))
        yield f"{TITLES[metric]}{unit(metric)}, {spread(experiment)}", table


def verdict(experiment: Experiment) -> str:
    """A sentence on whether the rule beat random, by the area under the learning curve."""
    metric, arm = metrics(experiment)[0], experiment.arms[0]
    if len(experiment.arms) < 2:
        return "No control arm: nothing is said about whether the rule helps."
    d, last = areas(experiment, metric)["difference"], curves(experiment, metric)["difference"][-1]
    places, labels = decimals(experiment.history[metric]), experiment.history["labels"].tolist()
    mean = f"{d.text(places)} in the mean over the learning curve, and by " if len(labels) > 1 else ""
    facts = f"{TITLES[metric]} differs by {mean}{last.text(places)} at {labels[-1]} labels"
    if not d.mean < 0:
        return f"Warning: {arm} is not better than random: {facts}."
    if math.isnan(d.se):
        return f"{arm} did better than random in the one trial: {facts}; more trials would tell whether by chance."
    beat = (
        "beat random by more than 2 s.e."
        if d.mean < -2 * d.se
        else "did better than random, but by no more than 2 s.e."
    )
    trials = experiment.settings.trials
    few = f" Of {trials} trials that says little; give --trials 10 or more." if trials < FEW else ""
    return f"{arm} {beat}: {facts}.{few}"


def failures(experiment: Experiment) -> Iterator[str]:
    """One sentence for every fit that failed, and one where the prior's variance met a bound in the last round."""
    trials = experiment.settings.trials
    for i, r in (~experiment.history["alive"]).nonzero().tolist():
        labels = int(experiment.history["labels"][i])
        arm = experiment.arms[r // trials]
        yield f"Trial {r % trials + 1}, arm {arm}: the fit on {labels} labels failed and was stopped where it stood."
    if (shares := experiment.history.get("initial_curvature_share")) is not None:
        if note := curvature_note(shares[-1][experiment.history["alive"][-1]].tolist()):
            yield f"Last round: {note}"
    learned = {name: past[-1] for name, past in experiment.history.items() if name.startswith("prior_variance")}
    if said := clipped(learned, "fits"):
        yield f"Last round: {said}"


def summary(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """The result at the last number of labels, as JSON can hold it (null: unknown).

    `active` is the chosen acquisition and `random` the control; `paired_difference` is active minus random, trial by
    trial, of `rmse` (of `error` for classification), and `paired_auc_difference` its mean over rounds, the area under
    the learning curve; null without a control.
    """
    result: dict[str, Any] = {
        "posterior": experiment.settings.posterior,
        "acquisition": experiment.settings.acquisition,
        "trials": experiment.settings.trials,
    }
    last = {m: [e[-1]._asdict() for e in curves(experiment, m).values()] for m in metrics(experiment)}
    for metric, (active, *control) in last.items():
        result[metric] = {"active": active} | ({"random": control[0]} if control else {})
    decisive = last[metrics(experiment)[0]]
    result["paired_difference"] = decisive[2] if len(decisive) == 3 else None
    area = areas(experiment, metrics(experiment)[0]).get("difference")
    result["paired_auc_difference"] = area and area._asdict()
    return plain(result | {"seconds": round(experiment.seconds, 3), "run": str(folder)})


def plot(experiment: Experiment, path: Path) -> None:
    """Learning curves with a band of one standard error, one panel a metric."""
    shown, labels = metrics(experiment), experiment.history["labels"].tolist()
    figure, every = panels(len(shown), columns=len(shown), height=4)
    for axes, metric in zip(every, shown, strict=True):
        trials = per_trial(experiment, metric)
        for arm, style in zip(experiment.arms, ("o-", "s--"), strict=False):
            values = trials[arm].numpy()
            # The mean of fewer trials would be another curve: a gap stands where one of them has no number.
            band(axes, labels, np.where(np.isnan(values).any(1, keepdims=True), np.nan, values), arm, style)
        axes.set(xlabel="labelled points", ylabel=TITLES[metric] + unit(metric))
        whole(axes)
    every[0].legend()
    posterior = experiment.settings.posterior
    figure.suptitle(literal(f"{experiment.dataset.name}, {posterior}: {spread(experiment)}"), fontsize=11)
    save(figure, path)
