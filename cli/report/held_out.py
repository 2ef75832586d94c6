"""Predictions of held-out data: coverage of intervals, residuals, reliability of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from explore.cli.display import literal
from explore.cli.report.drawing import panels, reliability
from explore.cli.report.page import Section
from explore.learning.compare import confidence_bins
from explore.learning.model import FittedModel

LEVELS = np.linspace(0, 1, 21)
MOST = 2_000  # points that are drawn


class HeldOut(NamedTuple):
    """Targets and predictions of held-out points of all replicas, [n, O] each; or classes."""

    y: np.ndarray  # or [n] class indices
    mean: np.ndarray  # or [n, C] probabilities
    total: np.ndarray  # standard deviations; none of classes
    below: np.ndarray  # predictive probability that a target lies below the measured one


def collect(
    model: FittedModel, x: np.ndarray, y: np.ndarray, test: Sequence[np.ndarray], used: Sequence[int]
) -> HeldOut:
    """Predict with some replicas, each on its own held-out rows of the data x [P, D], y [P, O] or [P]."""
    parts = []
    for r in used:
        one, rows = model.replica(r), test[r]
        if model.posterior.likelihood.discrete:
            p = one.probabilities(x[rows])[0].double().cpu().numpy()
            parts.append((y[rows], p, np.empty((len(rows), 0)), np.empty((len(rows), 0))))
        else:
            predicted, below = one.predict(x[rows]), one.below(x[rows], y[rows])
            tensors = (t[0].double().cpu().numpy() for t in (predicted.mean, predicted.total, below))
            parts.append((y[rows], *tensors))
    return HeldOut(*map(np.concatenate, zip(*parts, strict=True)))


def section(every: Mapping[str, HeldOut], sentence: str) -> Section:
    """Return calibration and residuals by name of a model; the sentence says which data were held out."""
    first = next(iter(every.values()))
    return _classes(every, sentence) if first.y.ndim == 1 else _numbers(every, sentence)


def coverage(held_out: HeldOut) -> np.ndarray:
    """Return the share of targets within the central intervals of `LEVELS`."""
    inner = np.abs(2 * held_out.below - 1)
    return np.array([(inner <= level).mean() for level in LEVELS])


def _numbers(every: Mapping[str, HeldOut], sentence: str) -> Section:
    figure, (calibration, predicted, residuals) = panels(3, columns=3, width=4.2)
    calibration.plot([0, 1], [0, 1], "k--", linewidth=1)
    rows = []
    for i, (name, held_out) in enumerate(every.items()):
        share, colour = coverage(held_out), f"C{i}"
        calibration.plot(LEVELS, share, "o-", markersize=3, color=colour, label=literal(name))
        some = np.random.default_rng(0).permutation(len(held_out.y))[:MOST]
        error = held_out.y - held_out.mean
        style: Any = {"markersize": 3, "alpha": 0.4, "color": colour, "rasterized": True}
        predicted.plot(held_out.mean[some].ravel(), held_out.y[some].ravel(), ".", **style)
        residuals.plot(held_out.mean[some].ravel(), (error / held_out.total)[some].ravel(), ".", **style)
        at = np.searchsorted(LEVELS, 0.9 - 1e-9)
        scores = (np.sqrt((error**2).mean()), np.abs(error).mean(), share[at], np.abs(share - LEVELS).mean())
        rows.append([name, str(len(held_out.y)), *(f"{score:.4g}" for score in scores)])
    ends = np.concatenate([np.concatenate([h.y.ravel(), h.mean.ravel()]) for h in every.values()])
    predicted.plot([ends.min(), ends.max()], [ends.min(), ends.max()], "k--", linewidth=1)
    for height in (-2, 0, 2):
        residuals.axhline(height, color="black", linestyle="--", linewidth=1 if height == 0 else 0.5)
    calibration.set(xlabel="level of a central interval", ylabel="share of targets in it", title="Calibration")
    predicted.set(xlabel="predicted mean", ylabel="measured", title="Predicted and measured")
    residuals.set(xlabel="predicted mean", ylabel="residual / predictive deviation", title="Residuals")
    calibration.legend(fontsize="small")
    header = ["model", "held-out targets", "RMSE", "mean absolute error", "in the 90 % interval"]
    header.append("distance from the diagonal")
    return Section("Calibration and residuals", figure, [sentence], header=header, rows=rows)


def _classes(every: Mapping[str, HeldOut], sentence: str) -> Section:
    figure, (axes,) = panels(1, width=5)
    rows, lines = [], {}
    for name, held_out in every.items():
        confidence, right = held_out.mean.max(1), held_out.mean.argmax(1) == held_out.y
        bins = confidence_bins(torch.from_numpy(held_out.mean)[None], torch.from_numpy(held_out.y)[None])
        expected, observed, weight = (part[0].numpy() for part in bins)
        lines[name] = expected[weight > 0], observed[weight > 0]
        scores = (right.mean(), confidence.mean(), (weight * np.abs(expected - observed)).sum())
        rows.append([name, str(len(held_out.y)), *(f"{score:.4g}" for score in scores)])
    reliability(axes, lines)
    axes.set(xlabel="confidence", ylabel="share that is right", title="Reliability")
    axes.legend(fontsize="small")
    header = ("model", "held-out points", "accuracy", "mean confidence", "calibration error")
    return Section("Calibration", figure, [sentence], header=header, rows=rows)
