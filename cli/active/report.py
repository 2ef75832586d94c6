"""Results of `explore active`: the files of a run (see docs/active.md), terminal output, and report sections."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from explore import data
from explore.acquisitions.base import Choice
from explore.cli.active.experiment import Experiment
from explore.cli.display import literal
from explore.cli.estimate import TITLES, Estimate, decimals, estimate, metrics, spread, title
from explore.cli.problem import NESTED
from explore.cli.report import drawing, page
from explore.cli.report.session import Opened, readable
from explore.cli.start import Report, file_name
from explore.core.errors import curvature_note
from explore.data import texts
from explore.learning import saved
from explore.learning.fit import Epoch
from explore.learning.learner import Round
from explore.runs.record import Run
from explore.runs.recorded import flat

FIGURE = "learning_curve.png"
CONTROL = "random"
FEW = 5  # with fewer trials, the standard error itself is unreliable


def write(run: Run, experiment: Experiment, event: Epoch | Round | None) -> int | None:
    """Write a round or, for None, the settings. Return the number of labels if a checkpoint is due, else None."""
    posterior, trials = experiment.settings.posterior, experiment.settings.trials
    series = {arm: file_name(posterior, arm) for arm in experiment.arms}
    if event is None:
        decisive = "test/error" if experiment.dataset.classes else "test/rmse"
        for arm in experiment.arms:
            settings = flat(experiment.settings, NESTED) | {"acquisition": arm}
            run.hparams(series[arm], settings, [decisive, "test/log_likelihood"])
    if not isinstance(event, Round):
        return None
    replicas = {"arm": np.repeat(experiment.arms, trials), "trial": [*range(1, trials + 1)] * len(experiment.arms)}
    tested = {name: values.tolist() for name, values in event.metrics.items()}
    alive = {"alive": event.state.common.alive.tolist()}
    results = pd.DataFrame({"round": event.round, "labels": event.labels} | replicas | tested | alive)
    for i, arm in enumerate(experiment.arms):
        run.scalars(series[arm], event.labels, _scalars(event, results, slice(i * trials, (i + 1) * trials)))
    run.rows("results.csv", results.to_dict("records"))
    if event.choice is None:
        saved.write(run.folder, experiment.saved)
    else:
        run.rows("selected.csv", _selected(experiment.dataset, event.choice, results).to_dict("records"))
    return event.labels


def _scalars(event: Round, results: pd.DataFrame, arm: slice) -> dict[str, float]:
    """Return tag -> scalar for the replicas `arm`: means over trials, s.e. of test metrics, and acquisition scores."""
    scalars: dict[str, float] = {"labels": event.labels}
    for name in event.metrics:
        mean, se = estimate(results[name][arm])
        test = {f"test/{name}": mean, f"test/{name}_se": se}
        scalars |= {"uncertainty/epistemic_mean": mean} if name == "epistemic" else test
    scalars |= {f"train/{name}": estimate(values[arm]).mean for name, values in event.info.items()}
    if event.choice is not None:
        scores = event.choice.scores[arm].double()
        scalars |= {"acq/score_max": float(scores.max()), "acq/score_mean": float(scores.mean())}
    return scalars


def _selected(dataset: data.Dataset, choice: Choice, results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of selected.csv for a round. `results` has the round's rows of results.csv, one per replica."""
    replicas, k = choice.indices.shape
    points = choice.indices.flatten().tolist()
    rows = results.loc[results.index.repeat(k), ["arm", "trial", "round"]]
    rows = rows.assign(order=[*range(1, k + 1)] * replicas, index=points)
    if dataset.lines:
        rows["line"] = [dataset.lines[point] for point in points]
    if dataset.ids:
        rows["id"] = [texts.neutralised(dataset.ids[point]) for point in points]
    return rows.assign(score=choice.scores.flatten().tolist())


def curves(results: pd.DataFrame, metric: str) -> dict[str, pd.DataFrame]:
    """Return arm -> table of the metric [labels, trials]; with a control, `difference` is the rule minus it."""
    groups = results.groupby("arm", sort=False)
    arms = {str(arm): rows.pivot(index="labels", columns="trial", values=metric) for arm, rows in groups}
    rule, *control = arms.values()
    return arms | ({"difference": rule - control[0]} if control else {})


def area(curve: pd.DataFrame) -> Estimate:
    """Estimate the area under a learning curve (the mean over rounds), with its standard error over trials."""
    return estimate(torch.tensor(curve.to_numpy()).mean(0))


def last(curve: pd.DataFrame) -> Estimate:
    """Estimate the metric at the last number of labels, with its standard error over trials."""
    return estimate(curve.iloc[-1])


def table(lines: drawing.Lines) -> pd.DataFrame:
    """Return strings "mean ± s.e.": one column per curve, one row per number of labels, and a row for the area."""
    places = decimals(np.concatenate([curve.to_numpy().ravel() for curve in lines.values()]))
    rows: dict[str, dict[str, str]] = {}
    for labels in sorted({labels for curve in lines.values() for labels in curve.index}):
        at = {label: estimate(curve.loc[labels]) for label, curve in lines.items() if labels in curve.index}
        rows[str(labels)] = {label: value.text(places) for label, value in at.items()}
    if len(rows) > 1:
        rows["mean"] = {label: area(curve).text(places) for label, curve in lines.items()}
    return pd.DataFrame([{"labels": labels} | row for labels, row in rows.items()]).fillna("")


def figure(metrics: Mapping[str, drawing.Lines], **size: Any) -> Figure:
    """Draw a figure of learning curves, with one panel per metric."""
    return drawing.curves({title(m): lines for m, lines in metrics.items()}, "labelled points", ("o-", "s--"), **size)


def report(experiment: Experiment, folder: Path) -> Report:
    """Return the result, and save the figure in the run folder."""
    results, s = pd.read_csv(folder / "results.csv"), experiment.settings
    arms = {metric: curves(results, metric) for metric in metrics([results])}
    numbers = spread(s.trials, "trial")
    drawn = figure({metric: {arm: every[arm] for arm in experiment.arms} for metric, every in arms.items()}, height=4)
    drawn.suptitle(literal(f"{experiment.dataset.name}, {s.posterior}: {numbers}"), fontsize=11)
    page.save(drawn, folder / FIGURE)
    named = {"posterior": s.posterior, "acquisition": s.acquisition, "trials": s.trials}
    return Report(
        list(failures(experiment, results)),
        [(f"{title(metric)}, {numbers}", table(every)) for metric, every in arms.items()],
        named | summary(arms) | {"seconds": round(experiment.seconds, 3)},
        verdict(arms), [("model", saved.location(folder))], FIGURE,
    )  # fmt: skip


def verdict(arms: Mapping[str, drawing.Lines]) -> str:
    """Return a sentence on whether the acquisition beat random choice, by the area under the learning curve."""
    metric, (arm, *control) = next(iter(arms.items()))
    if not control:
        return "No comparison with random choice: the run has no control arm."
    difference, trials = arms[metric]["difference"], arms[metric]["difference"].shape[1]
    places = decimals(np.stack([arms[metric][name].to_numpy() for name in (arm, control[0])]))
    d, labels = area(difference), difference.index
    mean = f"{d.text(places)} on average over the learning curve, and by " if len(labels) > 1 else ""
    facts = f"{TITLES[metric]} differs by {mean}{last(difference).text(places)} at {labels[-1]} labels"
    if not d.mean < 0:
        return f"Warning: {arm} is not better than random: {facts}."
    if math.isnan(d.se):
        return f"{arm} beat random in a single trial: {facts}. Use --trials 10 or more to rule out chance."
    beat = "beat random by more than 2 s.e." if d.mean < -2 * d.se else "beat random, but by no more than 2 s.e."
    few = f" {trials} trials are few; use --trials 10 or more." if trials < FEW else ""
    return f"{arm} {beat}: {facts}.{few}"


def failures(experiment: Experiment, results: pd.DataFrame) -> Iterator[str]:
    """Yield warnings about failed fits and, in the last round, too much initial curvature."""
    for row in results[~results.alive].itertuples():
        where = f"Trial {row.trial}, arm {row.arm}"
        yield f"{where}: the fit on {row.labels} labels diverged and was stopped."
    history = experiment.history
    if (shares := history.get("initial_curvature_share")) is not None:
        if note := curvature_note(shares[-1][history["alive"][-1]].tolist()):
            yield f"Last round: {note}"


def summary(arms: Mapping[str, drawing.Lines]) -> dict[str, Any]:
    """Return the metrics at the last number of labels; docs/active.md explains the keys."""
    values: dict[str, Any] = {
        metric: {role: last(curve)._asdict() for role, curve in zip(("active", "random"), every.values(), strict=False)}
        for metric, every in arms.items()
    }
    difference = next(iter(arms.values())).get("difference")
    for name, measure in {"paired_difference": last, "paired_auc_difference": area}.items():
        values[name] = None if difference is None else measure(difference)._asdict()
    return values


def sections(runs: Sequence[Opened]) -> Iterator[page.Section]:
    """Yield the report sections for all runs."""
    results = {run: run.table("results.csv") for run in runs}
    failed = sum(int((~rows.alive).sum()) for rows in results.values())
    arms: dict[str, dict[str, pd.DataFrame]] = {metric: {} for metric in metrics(results.values())}
    differences: dict[str, dict[str, pd.DataFrame]] = {metric: {} for metric in arms}
    for metric, (run, rows) in itertools.product(arms, results.items()):
        rule, *control = every = curves(rows, metric)
        if control:
            differences[metric][f"{run.prefix}{rule} - {CONTROL}"] = every.pop("difference")
        arms[metric] |= {run.prefix + arm: curve for arm, curve in every.items()}
    warnings = [f"{failed} fits diverged and were stopped."] if failed else []
    note = "Mean over trials ± one standard error. Test points are never labelled."
    yield page.Section("Learning curves", figure(arms), [note], warnings, **page.cells(_joined(arms)))
    if any(differences.values()):
        drawn = figure(differences)
        for axes in drawn.axes:
            axes.axhline(0, color="black", linewidth=1)
        note = "Paired by trial, from the same start. An error below 0 means that the rule beat random labelling."
        yield page.Section("Difference from random labelling", drawn, [note], **page.cells(_joined(differences)))
    sets, missing = readable(runs, "data", lambda run: run.settings.table()[0])
    yield from missing
    selected = {run: run.table("selected.csv") for run in runs if run.sizes.get("selected.csv")}
    if shown := {run: table for run, table in selected.items() if run.name in sets}:
        yield _chosen(shown, sets)
    note = "Held-out points of all trials{first}, predicted by the fits of the last round."
    yield from drawing.held_out(runs, sets, lambda count, settings: settings.split(count).test, note)
    if selected:
        lines = {
            run.prefix + str(arm): rows.pivot_table(index="round", columns="trial", values="score", aggfunc="max")
            for run, table in selected.items()
            for arm, rows in table.groupby("arm", sort=False)
            if arm != CONTROL
        }
        drawn = drawing.curves({"best acquisition score": lines}, "round", ("o-",), width=6)
        note = "Best acquisition score of each round: the gain that the rule still expects."
        yield page.Section("Best score by round", drawn, [note])


def _joined(metrics: Mapping[str, drawing.Lines]) -> pd.DataFrame:
    """Return one table with the columns of all metrics side by side."""
    tables = [table(lines).set_index("labels").add_prefix(f"{TITLES[metric]}: ") for metric, lines in metrics.items()]
    return pd.concat(tables, axis=1).reset_index()


def _chosen(selected: Mapping[Opened, pd.DataFrame], sets: Mapping[str, data.Dataset]) -> page.Section:
    """Draw a map of each run's points, in which colours mark the points chosen in the first trial."""
    drawn, every = drawing.panels(len(selected))
    for axes, (run, rows) in zip(every, selected.items(), strict=True):
        rule = run.config["acquisition"]
        chosen = rows[(rows.arm == rule) & (rows.trial == 1)]
        x = sets[run.name].x
        start = run.settings.split(len(x)).labelled[0]
        drawing.map_of(axes, x, start.tolist(), chosen["index"].tolist(), chosen["round"].tolist())
        axes.set(title=literal(f"{run.name}: {rule}, trial 1"))
    every[0].legend(fontsize="small")
    note = "First two principal components of the standardised features. Grey: all points of the data."
    return page.Section("Chosen points by round", drawn, [note])
