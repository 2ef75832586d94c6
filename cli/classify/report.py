"""The result of a fit to images: a table, a JSON object, a reliability diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from explore.cli.classify.experiment import Experiment, Finished
from explore.cli.console import Table
from explore.cli.display import literal
from explore.cli.report.drawing import panels, reliability, save
from explore.cli.start import Report
from explore.core.errors import curvature_note
from explore.learning import classification, saved
from explore.learning.classification import Classified
from explore.learning.compare import confidence_bins
from explore.runs.record import plain

METRICS = {
    "error": "error rate", "log_likelihood": "log-likelihood, nats an image", "brier": "Brier score",
    "calibration_error": "calibration error, 15 bins", "auroc_entropy": "AUROC of entropy",
    "auroc_information": "AUROC of mutual information",
}  # fmt: skip
FIGURE = "reliability.png"
SCORES = {"entropy": "entropy of the prediction, nats", "information": "mutual information of class and weights, nats"}
IDLE = 0.9  # from this part of the errors of a guess on, hardly anything was learnt


def report(experiment: Experiment, folder: Path) -> Report:
    """Return the result, and draw the pictures into the folder."""
    finished, s = experiment.finished, experiment.settings
    assert finished is not None
    values = metrics(finished)
    drawn = {f"{name}.png": figure for name, figure in pictures(experiment, finished).items()}
    for file, figure in drawn.items():
        save(figure, folder / file)
    part = "validation" if s.validation else "test"
    table = Table("metric", part)
    table.columns[1].justify = "right"
    for name, title in METRICS.items():
        if name in values:
            against = f", against {_ood_name(experiment)}" if name.startswith("auroc") else ""
            table.add_row(title + against, _text(values[name]))
    facts = [("epoch", f"{finished.epoch_seconds:.3g} s"), ("model", saved.location(folder))]
    facts += [("figure", str(folder / file)) for file in drawn if file != FIGURE]
    verdict = (
        f"{s.posterior} on {s.net}: {100 * values['error']:.2f} % of the {part} "
        f"images of {experiment.name} are wrong, log-likelihood {_text(values['log_likelihood'])}."
    )
    title = f"{experiment.name}, {len(experiment.task.test_y)} {part} images"
    failures = _failures(experiment, finished, values["error"])
    return Report(failures, [(title, table)], summary(experiment, values, folder), verdict, facts, FIGURE)


def _failures(experiment: Experiment, finished: Finished, error: float) -> list[str]:
    if not finished.alive:
        return ["the fit failed and was stopped where it stood."]
    failures = []
    y = experiment.task.test_y
    most = y.bincount().max().item() / len(y)
    if error > IDLE * (1 - most):
        failures.append(
            f"hardly anything was learnt: the most frequent class alone would be wrong on {100 * (1 - most):.2f} %; "
            "take more --epochs, smaller batches (-p batch_size=32), another step (-p lr=...) or another posterior."
        )
    if note := curvature_note([finished.initial_curvature_share]):
        failures.append(note)
    return failures


def _text(value: float) -> str:
    """Format a metric with four decimals; a diverged fit may have dozens of digits."""
    return f"{value:{'.4f' if abs(value) < 1e6 else '.4g'}}"


def metrics(finished: Finished) -> dict[str, float]:
    """Return the metrics of the test images, and of the detection of out-of-distribution images."""
    values = {tag.removeprefix("test/"): v for tag, v in finished.scalars.items() if tag.startswith("test/")}
    if finished.ood is not None:
        for score in SCORES:
            scores = getattr(finished.tested, score), getattr(finished.ood, score)
            values[f"auroc_{score}"] = classification.auroc(*scores)
    return values


def pictures(experiment: Experiment, finished: Finished) -> dict[str, Figure]:
    """Draw the reliability diagram, and the uncertainties of out-of-distribution images if there are any, by name."""
    y = experiment.task.test_y.to(finished.tested.probabilities.device)
    bins = confidence_bins(finished.tested.probabilities[None], y[None])
    expected, observed, weight = (t[0].cpu().numpy() for t in bins)
    figure, (axes,) = panels(1, width=4.2, height=4)
    axes.bar(
        (0.5 + np.arange(len(weight))) / len(weight), weight, 1 / len(weight), color="C0", alpha=0.2, label="share"
    )
    reliability(axes, {experiment.settings.posterior: (expected[weight > 0], observed[weight > 0])})
    axes.set(xlabel="confidence", ylabel="accuracy", title=literal(experiment.name))
    axes.legend(fontsize="x-small", loc="upper left")
    if finished.ood is None:
        return {"reliability": figure}
    names = (experiment.name, _ood_name(experiment))
    return {"reliability": figure, "others": uncertainties(finished.tested, finished.ood, names)}


def uncertainties(tested: Classified, ood: Classified, names: tuple[str, str]) -> Figure:
    """Draw the histograms of both uncertainties for the test images and for the others, of these names."""
    figure, every = panels(2, width=4, height=3.4)
    for axes, score in zip(every, SCORES, strict=True):
        values = [getattr(images, score) for images in (tested, ood)]
        both = [v[v.isfinite()].double().cpu().numpy() for v in values]  # a fit that diverged has others
        bins = np.linspace(0, max(part.max(initial=0) for part in both) or 1, 41).tolist()
        for part, name in zip(both, names, strict=True):
            share = np.full(len(part), 1 / max(1, len(part)))
            axes.hist(part, bins, weights=share, histtype="step", linewidth=2, label=literal(name))
        axes.set(xlabel=SCORES[score], ylabel="share of the images")
        axes.set_title(f"AUROC {classification.auroc(*values):.3f}", fontsize="medium")
    axes.legend(fontsize="x-small")
    return figure


def _ood_name(experiment: Experiment) -> str:
    return Path(str(experiment.settings.ood)).name


def summary(experiment: Experiment, values: dict[str, float], folder: Path) -> dict[str, Any]:
    """Return the results as JSON can hold them (null: unknown)."""
    s, finished = experiment.settings, experiment.finished
    assert finished is not None
    return plain(
        {
            "dataset": experiment.name, "net": s.net, "posterior": s.posterior, "epochs": experiment.total,
            "test": values, "validation": s.validation, "ood": s.ood if finished.ood else None,
            "alive": finished.alive, "seconds": round(finished.seconds, 3),
            "epoch_seconds": round(finished.epoch_seconds, 3), "run": str(folder),
        }
    )  # fmt: skip
