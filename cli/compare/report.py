"""The result of a comparison: tables, failures, a JSON object, pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from explore.cli.compare.experiment import Experiment, Finished
from explore.cli.console import Table
from explore.cli.display import literal
from explore.cli.estimate import SIGN, clipped, decimals, estimate, title, unit
from explore.cli.report.drawing import panels, reliability, save
from explore.cli.start import Report
from explore.core.errors import curvature_note, listed
from explore.learning import saved
from explore.learning.compare import OWN
from explore.learning.saved import LIKELIHOOD
from explore.runs.record import plain

WORSE = 1.1  # times the error of the training targets' mean: from here on a fit has learnt nothing, or diverged
BESIDE = {"coverage_95": "95 % coverage", "calibration_error": "calibration error"}


def report(comparison: Experiment, folder: Path) -> Report:
    """Return the result, and draw the pictures into the folder."""
    for picture in PICTURES:
        if (figure := plot(picture, comparison.finished)) is not None:
            save(figure, folder / f"{picture}.png")
    return Report(
        list(failures(comparison)), list(tables(comparison)), summary(comparison, folder),
        "\n".join(verdicts(comparison)), [("model", saved.location(folder))],
    )  # fmt: skip


def values(comparison: Experiment, metric: str) -> dict[str, Tensor]:
    """Return the metric on each split, [R], by posterior."""
    return {name: f.scalars[f"test/{metric}"].double() for name, f in comparison.finished.items()}


def metrics(comparison: Experiment) -> tuple[str, str]:
    """Return the metrics to show, the decisive one first."""
    return "error" if comparison.dataset.classes else "rmse", "log_likelihood"


def best(metric: str, means: dict[str, float]) -> str:
    """Return the name of the best mean; a mean that is not finite is never the best."""
    return min(means, key=lambda name: SIGN[metric] * means[name] if math.isfinite(means[name]) else math.inf)


def differences(comparison: Experiment, metric: str) -> tuple[str, dict[str, Tensor]]:
    """Return the best posterior, and for each one its values minus those of the best, split by split."""
    each = values(comparison, metric)
    winner = best(metric, {name: float(v.mean()) for name, v in each.items()})
    return winner, {name: v - each[winner] for name, v in each.items()}


def tables(comparison: Experiment) -> Iterator[tuple[str, Table]]:
    """Yield a title and a table for each metric, a row a posterior; log-likelihood includes the bound."""
    splits, validation = comparison.settings.splits, comparison.settings.validation > 0
    spread = f"mean ± s.e. over {splits} splits" if splits > 1 else "one split"
    decisive, _ = metrics(comparison)
    for metric in metrics(comparison):
        each, (winner, apart) = values(comparison, metric), differences(comparison, metric)
        beside = "calibration_error" if comparison.dataset.classes else "coverage_95"
        further = ["seconds"] if metric == decisive else [BESIDE[beside], "bound, nats per training point"]
        table = Table("posterior", title(metric, validation), "minus the best", *further)
        for column in table.columns[1:]:
            column.justify = "right"
        places = decimals(torch.cat(list(each.values())))
        for name, v in each.items():
            finished = comparison.finished[name]
            cells = [f"{finished.seconds:.1f}"]
            if metric != decisive:
                bound = float(finished.scalars["train/bound"].double().mean())
                text = "no density" if math.isnan(bound) else f"{bound:.3f}"
                cells = [f"{float(values(comparison, beside)[name].mean()):.3f}", text]
            difference = "best" if name == winner else estimate(apart[name]).text(places)
            style = "bold" if name == winner else None
            table.add_row(name, estimate(v).text(places), difference, *cells, style=style)
        yield f"{title(metric, validation)}{unit(metric)}, {spread}", table


def ranked(comparison: Experiment) -> dict[str, dict[str, Tensor]]:
    """Return by posterior its candidates of a grid, the best one first, with their scores on each split [R].

    The score is the log-likelihood of the validation parts or, without any, the bound: the test parts choose nothing.
    A candidate whose fit failed on some split is left out.
    """
    tag = "test/log_likelihood" if comparison.settings.validation else "train/bound"
    scores: dict[str, dict[str, Tensor]] = {}
    for label, candidate in comparison.settings.posteriors.items():
        fitted = comparison.finished[label]
        if candidate.chosen:
            scores.setdefault(candidate.name, {}).update({label: fitted.scalars[tag]} if fitted.alive.all() else {})
    return {name: dict(sorted(each.items(), key=lambda e: -float(e[1].mean()))) for name, each in scores.items()}


def verdicts(comparison: Experiment) -> Iterator[str]:
    """Yield a sentence on the best candidate of each posterior."""
    by = "validation log-likelihood" if comparison.settings.validation else "bound"
    for name, each in ranked(comparison).items():
        if not each:
            yield f"{name}: none is chosen, since every candidate failed on some split."
            continue
        (label, scores), *rivals = each.items()
        lead = [scores - other for _, other in rivals[:1]]
        ahead = "".join(f", {estimate(v).text(decimals(v))} above the next" for v in lead)
        chosen = comparison.settings.posteriors[label].chosen.items()
        options = " ".join(f"-p {key if key.startswith(LIKELIHOOD) else f'{name}.{key}'}={v}" for key, v in chosen)
        yield f"{name}: best of {len(each)} by the {by}{ahead}: {options}"


def failures(comparison: Experiment) -> Iterator[str]:
    """Yield a sentence for every fit that failed, and for other reasons to distrust a posterior's results."""
    s = comparison.splits
    constant = None if s.scale is None else (s.test_y * s.scale.unsqueeze(1)).square().mean((1, 2)).sqrt()
    for name, f in comparison.finished.items():
        learned = {tag.removeprefix("train/"): v for tag, v in f.scalars.items() if tag.startswith(OWN)}
        if note := clipped(learned, "splits"):
            yield f"{name}: {note}"
        shares = f.scalars.get("structure/initial_curvature_share", None)
        if shares is not None and (note := curvature_note(shares[f.alive].tolist())):
            yield f"{name}: {note}"
        for (r,) in (~f.alive).nonzero().tolist():
            yield f"Split {r + 1}, {name}: the fit failed and was stopped where it stood."
        if constant is not None:
            worse = (f.scalars["test/rmse"].to(constant) > WORSE * constant).nonzero().flatten().tolist()
            if worse := [str(r + 1) for r in worse if f.alive[r]]:
                yield (
                    f"{name} predicts worse than the mean of the training targets would on {len(worse)} of "
                    f"{len(constant)} splits ({listed(worse, 5)}): its training has diverged, or hardly begun."
                )


def summary(comparison: Experiment, folder: Path) -> dict[str, Any]:
    """Return the results as JSON can hold them (null: unknown).

    `validation` is the share of the training parts that the metrics were taken on, 0 for the test parts; `bound` the
    evidence lower bound at KL weight 1 in nats per training point, of targets in original units; `minus_best` the
    difference to the posterior with the best mean, split by split; `failed` the splits on which the fit failed;
    `chosen` the best settings of a grid.
    """
    apart = {metric: differences(comparison, metric) for metric in metrics(comparison)}
    posteriors: dict[str, Any] = {}
    for name, f in comparison.finished.items():
        tested = {tag.removeprefix("test/"): v for tag, v in f.scalars.items() if tag.startswith("test/")}
        posteriors[name] = {metric: estimate(v)._asdict() for metric, v in tested.items()} | {
            "bound": estimate(f.scalars["train/bound"].double())._asdict(),
            "minus_best": {metric: estimate(each[name])._asdict() for metric, (_, each) in apart.items()},
            "failed": [r + 1 for (r,) in (~f.alive).nonzero().tolist()],
            "seconds": round(f.seconds, 3),
        }
    chosen = {name: comparison.settings.posteriors[next(iter(e))].chosen for name, e in ranked(comparison).items() if e}
    return plain(
        {
            "dataset": comparison.dataset.name,
            "splits": comparison.settings.splits,
            "validation": comparison.settings.validation,
            "best": {metric: winner for metric, (winner, _) in apart.items()},
            "posteriors": posteriors,
            "chosen": chosen,
            "run": str(folder),
        }
    )


def _bands(axes: Axes, f: Finished) -> None:
    assert f.bands is not None
    b = f.bands
    axes.fill_between(b.x, b.mean - 2 * b.total, b.mean + 2 * b.total, color="C0", alpha=0.15, linewidth=0)
    axes.fill_between(b.x, b.mean - 2 * b.epistemic, b.mean + 2 * b.epistemic, color="C0", alpha=0.35, linewidth=0)
    axes.plot(b.x, b.mean, color="C0", label="mean; ± 2 epistemic, total deviations")
    axes.plot(b.x, (2 * b.x).sin(), "k--", linewidth=1, label="truth")
    axes.plot(b.data_x, b.data_y, "k.", markersize=3, label="data")
    axes.set_ylim(-4, 4)


def _boundary(axes: Axes, f: Finished) -> None:
    assert f.boundary is not None
    b = f.boundary
    axes.contourf(b.axis, b.axis, b.probability, levels=np.linspace(0, 1, 21), cmap="RdBu_r")
    if float(b.probability.min()) < 0.5 < float(b.probability.max()):
        axes.contour(b.axis, b.axis, b.probability, levels=[0.5], colors="k")
    for value, colour in ((0, "tab:blue"), (1, "tab:red")):
        x, y = b.data_x[b.data_y == value].T
        axes.plot(x, y, ".", color=colour, markeredgecolor="white", markeredgewidth=0.5, label=f"class {value}")
    axes.set_aspect("equal")


def _reliability(axes: Axes, f: Finished) -> None:
    weight = f.reliability.weight
    expected, observed = ((v * weight).sum(0) / weight.sum(0) for v in (f.reliability.expected, f.reliability.observed))
    reliability(axes, {"all splits": (expected.numpy(), observed.numpy())})
    axes.set(xlabel="confidence, or level of an interval", ylabel="accuracy, or coverage", aspect="equal")


PICTURES: dict[str, tuple[str, Callable[[Axes, Finished], None]]] = {
    "bands": ("Predictive bands", _bands),
    "boundary": ("Probability of class 1, and the decision boundary", _boundary),
    "reliability": ("Reliability on held-out examples", _reliability),
}


def plot(picture: str, finished: Mapping[str, Finished]) -> Figure | None:
    """Draw one of the pictures with a panel for each posterior; None if --no-figures left it out."""
    title, panel = PICTURES[picture]
    if any(getattr(f, picture) is None for f in finished.values()):
        return None
    figure, every = panels(len(finished), columns=4, width=3.6, height=3.6)
    for axes, (name, f) in zip(every, finished.items(), strict=True):
        axes.grid(visible=False)
        panel(axes, f)
        axes.set_title(literal(name))
    every[0].legend(fontsize="x-small", loc="upper left")
    if len(finished) > 1:
        figure.suptitle(title, fontsize=11)
    return figure
