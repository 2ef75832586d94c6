"""What a finished fit to images says: a table, a JSON object, a reliability diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from explore.cli import saved
from explore.cli.classify.experiment import Experiment, Finished
from explore.cli.console import Table
from explore.cli.display import literal
from explore.cli.report.drawing import panels, save
from explore.cli.run import Report
from explore.core.errors import curvature_note
from explore.learning import classification
from explore.learning.classification import Classified
from explore.learning.compare import confidence_bins
from explore.runs.record import plain

SHOWN = {
    "error": "error rate", "log_likelihood": "log-likelihood, nats an image", "brier": "Brier score",
    "calibration_error": "calibration error, 15 bins", "auroc_entropy": "AUROC of entropy",
    "auroc_information": "AUROC of mutual information",
}  # fmt: skip
FIGURE = "reliability.png"
SCORES = {"entropy": "entropy of the prediction, nats", "information": "mutual information of class and weights, nats"}
IDLE = 0.9  # from this part of the errors of a guess on, hardly anything was learnt


def report(experiment: Experiment, folder: Path) -> Report:
    """All of it; the picture is drawn into the folder."""
    finished = experiment.finished
    assert finished is not None
    values = metrics(finished)
    drawn = {f"{name}.png": figure for name, figure in pictures(experiment, finished).items()}
    for file, figure in drawn.items():
        save(figure, folder / file)
    part = "validation" if experiment.settings.validation else "test"
    table = Table("metric", part)
    table.columns[1].justify = "right"
    for name, called in SHOWN.items():
        if name in values:
            against = f", against {_others(experiment)}" if name.startswith("auroc") else ""
            table.add_row(called + against, _text(values[name]))
    failures = [] if finished.alive else ["the fit failed and was stopped where it stood."]
    most = experiment.task.test_y.bincount().max().item() / len(experiment.task.test_y)
    if finished.alive and values["error"] > IDLE * (1 - most):
        failures.append(
            f"hardly anything was learnt: the most frequent class alone would be wrong on {100 * (1 - most):.2f} %; "
            "take more --epochs, smaller batches (-p batch_size=32), another step (-p lr=...) or another posterior."
        )
    if finished.alive and (note := curvature_note([finished.initial_curvature_share])):
        failures.append(note)
    facts = [("epoch", f"{finished.epoch_seconds:.3g} s"), ("model", saved.said(folder))]
    facts += [("figure", str(folder / file)) for file in drawn if file != FIGURE]
    verdict = (
        f"{experiment.settings.posterior} on {experiment.settings.net}: {100 * values['error']:.2f} % of the {part} "
        f"images of {experiment.name} are wrong, log-likelihood {_text(values['log_likelihood'])}."
    )
    title = f"{experiment.name}, {len(experiment.task.test_y)} {part} images"
    return Report(failures, [(title, table)], summary(experiment, values, folder), verdict, facts, FIGURE)


def _text(value: float) -> str:
    """With four places; that of a fit which diverged may have dozens before the point."""
    return f"{value:{'.4f' if abs(value) < 1e6 else '.4g'}}"


def metrics(finished: Finished) -> dict[str, float]:
    """Those of the test images, and of how well images of another kind are told apart from them."""
    values = {tag.removeprefix("test/"): v for tag, v in finished.scalars.items() if tag.startswith("test/")}
    if finished.others is not None:
        known, others = finished.found, finished.others
        values["auroc_entropy"] = classification.auroc(known.entropy, others.entropy)
        values["auroc_information"] = classification.auroc(known.information, others.information)
    return values


def pictures(experiment: Experiment, finished: Finished) -> dict[str, Figure]:
    """By name: that of the probabilities, and that of how images of another kind are told apart, if there are any."""
    drawn = {"reliability": reliability(experiment, finished)}
    if finished.others is not None:
        drawn["others"] = told_apart(finished.found, finished.others, (experiment.name, _others(experiment)))
    return drawn


def reliability(experiment: Experiment, finished: Finished) -> Figure:
    """Accuracy against confidence, with the share of the predictions in each bin."""
    y = experiment.task.test_y.to(finished.found.probabilities.device)
    bins = confidence_bins(finished.found.probabilities[None], y[None])
    expected, observed, weight = (t[0].cpu().numpy() for t in bins)
    there = weight > 0
    figure, (axes,) = panels(1, width=4.2, height=4)
    axes.bar(
        (0.5 + np.arange(len(weight))) / len(weight), weight, 1 / len(weight), color="C0", alpha=0.2, label="share"
    )
    axes.plot([0, 1], [0, 1], "k--", linewidth=1, label="perfect")
    axes.plot(expected[there], observed[there], "C0o-", markersize=4, label=literal(experiment.settings.posterior))
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", title=literal(experiment.name))
    axes.legend(fontsize="x-small", loc="upper left")
    return figure


def told_apart(known: Classified, others: Classified, names: tuple[str, str]) -> Figure:
    """How the two scores are spread over the test images and over the others, of these names."""
    figure, every = panels(2, width=4, height=3.4)
    for axes, score in zip(every, SCORES, strict=True):
        values = [getattr(found, score) for found in (known, others)]
        both = [v[v.isfinite()].double().cpu().numpy() for v in values]  # a fit that diverged has others
        bins = np.linspace(0, max(part.max(initial=0) for part in both) or 1, 41).tolist()
        for part, called in zip(both, names, strict=True):
            share = np.full(len(part), 1 / max(1, len(part)))
            axes.hist(part, bins, weights=share, histtype="step", linewidth=2, label=literal(called))
        axes.set(xlabel=SCORES[score], ylabel="share of the images")
        axes.set_title(f"AUROC {classification.auroc(*values):.3f}", fontsize="medium")
    axes.legend(fontsize="x-small")
    return figure


def _others(experiment: Experiment) -> str:
    """What the images of another kind are called."""
    return Path(str(experiment.settings.ood)).name


def summary(experiment: Experiment, values: dict[str, float], folder: Path) -> dict[str, Any]:
    """The results as JSON can hold them (null: unknown)."""
    s, finished = experiment.settings, experiment.finished
    assert finished is not None
    what = {"dataset": experiment.name, "net": s.net, "posterior": s.posterior, "epochs": experiment.total}
    times = {"seconds": round(finished.seconds, 3), "epoch_seconds": round(finished.epoch_seconds, 3)}
    known = {"validation": s.validation, "ood": s.ood if finished.others else None, "alive": finished.alive}
    result: dict[str, Any] = plain(what | {"test": values} | known | times | {"run": str(folder)})
    return result
