"""What a finished comparison says: tables, failures, a JSON object, pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explore.cli import saved
from explore.cli.compare import figures
from explore.cli.compare.experiment import Experiment
from explore.cli.compare.settings import LIKELIHOOD
from explore.cli.console import Table
from explore.cli.estimate import SIGN, clipped, decimals, estimate, title, unit
from explore.cli.report.drawing import save
from explore.cli.run import Report
from explore.core.errors import curvature_note, listed
from explore.learning.compare import OWN
from explore.runs.record import plain

WORSE = 1.1  # times the error of the training targets' mean: from here on a fit has learnt nothing, or diverged
BESIDE = {"coverage_95": "95 % coverage", "calibration_error": "calibration error"}


def report(comparison: Experiment, folder: Path) -> Report:
    """All of it; the pictures are drawn into the folder."""
    for picture in figures.PICTURES:
        if (figure := figures.plot(picture, comparison.finished)) is not None:
            save(figure, folder / f"{picture}.png")
    facts, verdict = [("model", saved.said(folder))], "\n".join(verdicts(comparison))
    return Report(
        list(failures(comparison)), list(tables(comparison)), summary(comparison, folder), verdict, facts=facts
    )


def values(comparison: Experiment, metric: str) -> dict[str, Tensor]:
    """Posterior -> the metric on each split, [R]."""
    return {name: f.scalars[f"test/{metric}"].double() for name, f in comparison.finished.items()}


def metrics(comparison: Experiment) -> list[str]:
    """The metrics to show, the one that decides first."""
    return ["error" if comparison.dataset.classes else "rmse", "log_likelihood"]


def best(comparison: Experiment, metric: str) -> str:
    """The posterior with the best mean; a mean that is not finite is never the best."""
    means = {name: SIGN[metric] * float(v.mean()) for name, v in values(comparison, metric).items()}
    return min(means, key=lambda name: means[name] if math.isfinite(means[name]) else math.inf)


def tables(comparison: Experiment) -> Iterator[tuple[str, Table]]:
    """A title and a table for each metric, a row a posterior; that of the log-likelihood has the bound too."""
    splits, validation = comparison.settings.splits, comparison.settings.validation > 0
    spread = f"mean ± s.e. over {splits} splits" if splits > 1 else "one split"
    first, second = metrics(comparison)
    for metric in (first, second):
        each, winner = values(comparison, metric), best(comparison, metric)
        beside = "calibration_error" if comparison.dataset.classes else "coverage_95"
        further = ["seconds"] if metric == first else [BESIDE[beside], "bound, nats per training point"]
        table = Table("posterior", title(metric, validation), "minus the best", *further)
        for column in table.columns[1:]:
            column.justify = "right"
        places = decimals(torch.cat(list(each.values())))
        for name, v in each.items():
            difference = "best" if name == winner else estimate(v - each[winner]).text(places)
            finished = comparison.finished[name]
            extra = [f"{finished.seconds:.1f}"]
            if metric != first:
                bound = float(finished.scalars["train/bound"].double().mean())
                said = "no density" if math.isnan(bound) else f"{bound:.3f}"
                extra = [f"{float(values(comparison, beside)[name].mean()):.3f}", said]
            style = "bold" if name == winner else None
            table.add_row(name, estimate(v).text(places), difference, *extra, style=style)
        yield f"{title(metric, validation)}{unit(metric)}, {spread}", table


def ranked(comparison: Experiment) -> dict[str, dict[str, Tensor]]:
    """Posterior -> its candidates of a grid, the best one first, with what they were ranked by on each split [R].

    That is the log-likelihood of the validation parts or, if there are none, the bound: the test parts choose nothing.
    A candidate whose fit failed on some split is left out.
    """
    tag = "test/log_likelihood" if comparison.settings.validation else "train/bound"
    found: dict[str, dict[str, Tensor]] = {}
    for label, own in comparison.settings.posteriors.items():
        fitted = comparison.finished[label]
        if own.chosen:
            found.setdefault(own.name, {}).update({label: fitted.scalars[tag]} if fitted.alive.all() else {})
    return {name: dict(sorted(each.items(), key=lambda e: -float(e[1].mean()))) for name, each in found.items()}


def verdicts(comparison: Experiment) -> Iterator[str]:
    """What a grid says of each posterior, in a sentence."""
    by = "validation log-likelihood" if comparison.settings.validation else "bound"
    for name, each in ranked(comparison).items():
        if not each:
            yield f"{name}: none is chosen, since every candidate failed on some split."
            continue
        (best, values), *others = each.items()
        lead = [values - other for _, other in others[:1]]
        ahead = "".join(f", {estimate(v).text(decimals(v))} above the next" for v in lead)
        chosen = comparison.settings.posteriors[best].chosen.items()
        options = " ".join(f"-p {key if key.startswith(LIKELIHOOD) else f'{name}.{key}'}={v}" for key, v in chosen)
        yield f"{name}: best of {len(each)} by the {by}{ahead}: {options}"


def failures(comparison: Experiment) -> Iterator[str]:
    """One sentence for every fit that failed, and for what else a posterior's numbers are not to be trusted for."""
    splits = comparison.splits
    known = None if splits.scale is None else (splits.test_y * splits.scale.unsqueeze(1)).square().mean((1, 2)).sqrt()
    for name, f in comparison.finished.items():
        learned = {tag.removeprefix("train/"): v for tag, v in f.scalars.items() if tag.startswith(OWN)}
        if said := clipped(learned, "splits"):
            yield f"{name}: {said}"
        shares = f.scalars.get("structure/initial_curvature_share", None)
        if shares is not None and (note := curvature_note(shares[f.alive].tolist())):
            yield f"{name}: {note}"
        for (r,) in (~f.alive).nonzero().tolist():
            yield f"Split {r + 1}, {name}: the fit failed and was stopped where it stood."
        if known is not None:
            worse = (f.scalars["test/rmse"].to(known) > WORSE * known).nonzero().flatten().tolist()
            if worse := [str(r + 1) for r in worse if f.alive[r]]:
                yield (
                    f"{name} predicts worse than the mean of the training targets would on {len(worse)} of "
                    f"{len(known)} splits ({listed(worse, 5)}): its training has diverged, or hardly begun."
                )


def summary(comparison: Experiment, folder: Path) -> dict[str, Any]:
    """The results as JSON can hold them (null: unknown).

    `validation` is the share of the training parts that the metrics were taken on, 0 for the test parts; `bound` the
    evidence lower bound at KL weight 1 in nats per training point, of targets in original units; `minus_best` the
    difference to the posterior with the best mean, split by split; `failed` the splits on which the fit failed;
    `chosen` the best settings of a grid.
    """
    posteriors: dict[str, Any] = {}
    for name, f in comparison.finished.items():
        shown = {tag.removeprefix("test/"): v for tag, v in f.scalars.items() if tag.startswith("test/")}
        posteriors[name] = {metric: estimate(v)._asdict() for metric, v in shown.items()} | {
            "bound": estimate(f.scalars["train/bound"].double())._asdict(),
            "minus_best": {
                m: estimate(values(comparison, m)[name] - values(comparison, m)[best(comparison, m)])._asdict()
                for m in metrics(comparison)
            },
            "failed": [r + 1 for (r,) in (~f.alive).nonzero().tolist()],
            "seconds": round(f.seconds, 3),
        }
    return plain(
        {
            "dataset": comparison.dataset.name,
            "splits": comparison.settings.splits,
            "validation": comparison.settings.validation,
            "best": {m: best(comparison, m) for m in metrics(comparison)},
            "posteriors": posteriors,
            "chosen": {
                name: comparison.settings.posteriors[next(iter(each))].chosen
                for name, each in ranked(comparison).items()
                if each
            },
            "run": str(folder),
        }
    )
