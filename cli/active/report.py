"""The report on a finished experiment: tables, a verdict, a JSON object, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from explore.cli.active.experiment import Experiment
from explore.cli.console import Table
from explore.cli.display import literal
from explore.cli.estimate import TITLES, Estimate, clipped, decimals, estimate, unit
from explore.cli.report.drawing import band, panels, save, whole
from explore.cli.start import Report
from explore.core.errors import curvature_note
from explore.learning import saved
from explore.runs.record import plain

FIGURE = "learning_curve.png"
FEW = 5  # trials below which their standard error is itself a guess


def report(experiment: Experiment, folder: Path) -> Report:
    """Make the report, and draw the picture into the folder."""
    plot(experiment, folder / FIGURE)
    parts = list(failures(experiment)), list(tables(experiment)), summary(experiment, folder)
    return Report(*parts, verdict=verdict(experiment), facts=[("model", saved.location(folder))], figure=FIGURE)


def metrics(experiment: Experiment) -> list[str]:
    """Return the metrics to show, the decisive one first."""
    return [name for name in TITLES if name in experiment.history]


def curves(experiment: Experiment, metric: str) -> dict[str, Tensor]:
    """Return values [rounds, T] by arm; `difference` is the chosen rule's minus the control's."""
    values = experiment.history[metric].double().unflatten(1, (len(experiment.arms), -1))  # [rounds, arms, T]
    arms = dict(zip(experiment.arms, values.unbind(1), strict=True))
    return arms | ({"difference": values[:, 0] - values[:, 1]} if len(experiment.arms) == 2 else {})


def area(values: Tensor) -> Estimate:
    """Return the area under a learning curve [rounds, T], as a mean over rounds."""
    return estimate(values.mean(0))


def spread(experiment: Experiment) -> str:
    """Return the legend of the numbers in a table or plot."""
    trials = experiment.settings.trials
    return f"mean ± s.e. over {trials} trials" if trials > 1 else "one trial"


def tables(experiment: Experiment) -> Iterator[tuple[str, Table]]:
    """Yield a title and a table for each metric, by number of labels."""
    for metric in metrics(experiment):
        arms, places = curves(experiment, metric), decimals(experiment.history[metric])
        table = Table("labels", *arms)
        for column in table.columns:
            column.justify = "right"
        for labels, *row in zip(experiment.history["labels"].tolist(), *arms.values(), strict=True):
            table.add_row(str(labels), *(estimate(values).text(places) for values in row))
        if table.row_count > 1:
            table.add_row("mean", *(area(values).text(places) for values in arms.values()))
        yield f"{TITLES[metric]}{unit(metric)}, {spread(experiment)}", table


def verdict(experiment: Experiment) -> str:
    """Return whether the rule beat random, by the area under the learning curve."""
    metric, arm = metrics(experiment)[0], experiment.arms[0]
    if len(experiment.arms) < 2:
        return "No control arm: nothing is said about whether the rule helps."
    difference = curves(experiment, metric)["difference"]
    d, last = area(difference), estimate(difference[-1])
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
    """Yield a sentence for every fit that failed, and for prior variances at a bound in the last round."""
    history, trials = experiment.history, experiment.settings.trials
    for i, r in (~history["alive"]).nonzero().tolist():
        where = f"Trial {r % trials + 1}, arm {experiment.arms[r // trials]}"
        yield f"{where}: the fit on {int(history['labels'][i])} labels failed and was stopped where it stood."
    notes = []
    if (shares := history.get("initial_curvature_share")) is not None:
        notes.append(curvature_note(shares[-1][history["alive"][-1]].tolist()))
    learned = {name: past[-1] for name, past in history.items() if name.startswith("prior_variance")}
    notes.append(clipped(learned, "fits"))
    yield from (f"Last round: {note}" for note in notes if note)


def summary(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Return the result at the last number of labels, as JSON can hold it (null: unknown).

    `active` is the chosen acquisition and `random` the control; `paired_difference` is active minus random, trial by
    trial, of `rmse` (of `error` for classification), and `paired_auc_difference` its mean over rounds, the area under
    the learning curve; null without a control.
    """
    settings = experiment.settings
    result: dict[str, Any] = {name: getattr(settings, name) for name in ("posterior", "acquisition", "trials")}
    for metric in metrics(experiment):
        arms = list(curves(experiment, metric).values())[: len(experiment.arms)]
        result[metric] = dict(zip(("active", "random"), (estimate(v[-1])._asdict() for v in arms), strict=False))
    difference = curves(experiment, metrics(experiment)[0]).get("difference")
    result["paired_difference"] = None if difference is None else estimate(difference[-1])._asdict()
    result["paired_auc_difference"] = None if difference is None else area(difference)._asdict()
    return plain(result | {"seconds": round(experiment.seconds, 3), "run": str(folder)})


def plot(experiment: Experiment, path: Path) -> None:
    """Draw learning curves with a band of one standard error, one panel a metric."""
    shown, labels = metrics(experiment), experiment.history["labels"].tolist()
    figure, every = panels(len(shown), columns=len(shown), height=4)
    for axes, metric in zip(every, shown, strict=True):
        arms = curves(experiment, metric)
        for arm, style in zip(experiment.arms, ("o-", "s--"), strict=False):
            band(axes, labels, arms[arm].numpy(), arm, style)
        axes.set(xlabel="labelled points", ylabel=TITLES[metric] + unit(metric))
        whole(axes)
    every[0].legend()
    posterior = experiment.settings.posterior
    figure.suptitle(literal(f"{experiment.dataset.name}, {posterior}: {spread(experiment)}"), fontsize=11)
    save(figure, path)
