"""Predictions of held-out data: coverage of intervals, residuals, reliability of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from explore.cli.report.drawing import panels, reliability
from explore.cli.report.page import Section, cells
from explore.cli.report.session import Opened, readable
from explore.core.errors import InputError
from explore.data import Dataset
from explore.learning import saved
from explore.learning.compare import confidence_bins
from explore.learning.model import FittedModel

LEVELS = np.linspace(0, 1, 21)
MOST = 2_000  # points that are drawn
TRIALS = 40  # or splits, whose held-out points are predicted


class HeldOut(NamedTuple):
    """Targets and predictions of held-out points of all replicas, [n, O] each; or classes."""

    y: np.ndarray  # or [n] class indices
    mean: np.ndarray  # or [n, C] probabilities
    total: np.ndarray = np.empty(0)  # standard deviations; none of classes
    below: np.ndarray = np.empty(0)  # predictive probability that a target lies below the measured one


def sections(
    runs: Sequence[Opened], sets: Mapping[str, Dataset], test: Callable[[int, Any], Any], note: str
) -> Iterator[Section]:
    """Yield the calibration of the models of runs on their data sets, and the models that cannot be read.

    `test` returns the held-out rows of each trial or split, from the number of rows and the settings; `{first}` in the
    note becomes how many of them are shown.
    """

    def predict(run: Opened) -> dict[str, HeldOut]:
        if not (run.folder / saved.MODEL).exists():
            raise InputError(f"{run.folder} has no {saved.MODEL} yet: no fit is finished")
        data, content = sets[run.name], saved.read(run.folder, run.trusted)
        every, replicas = test(len(data.x), run.settings), pd.DataFrame(content.replicas)
        rows = [every[number - 1] for number in replicas["trial" if "trial" in replicas else "split"]]
        return {
            run.prefix + str(arm): collect(model, data.x, data.y, rows, used.index[:TRIALS].tolist())
            for name, model in content.models.items()
            for arm, used in replicas.groupby(replicas.get("arm", [name] * len(replicas)), sort=False)
        }

    predictions, missing = readable([run for run in runs if run.name in sets], "model", predict)
    yield from missing
    if predictions:
        many = any(run.config.get("trials", run.config.get("splits", 0)) > TRIALS for run in runs)
        every = {label: each for labels in predictions.values() for label, each in labels.items()}
        yield section(every, note.format(first=f", of the first {TRIALS}" if many else ""))


def collect(
    model: FittedModel, x: np.ndarray, y: np.ndarray, test: Sequence[np.ndarray], used: Sequence[int]
) -> HeldOut:
    """Predict with some replicas, each on its own held-out rows of the data x [P, D], y [P, O] or [P]."""
    parts = []
    for r in used:
        one, rows = model.replica(r), test[r]
        if model.posterior.likelihood.discrete:
            tensors = [one.probabilities(x[rows])[0]]
        else:
            predicted = one.predict(x[rows])
            tensors = [t[0] for t in (predicted.mean, predicted.total, one.below(x[rows], y[rows]))]
        parts.append((y[rows], *(t.double().cpu().numpy() for t in tensors)))
    return HeldOut(*map(np.concatenate, zip(*parts, strict=True)))


def section(every: Mapping[str, HeldOut], note: str) -> Section:
    """Return calibration and residuals by name of a model; the note says which data were held out."""
    first = next(iter(every.values()))
    return _classes(every, note) if first.y.ndim == 1 else _numbers(every, note)


def coverage(held_out: HeldOut) -> np.ndarray:
    """Return the share of targets within the central intervals of `LEVELS`."""
    inner = np.abs(2 * held_out.below - 1)
    return np.array([(inner <= level).mean() for level in LEVELS])


def _numbers(every: Mapping[str, HeldOut], note: str) -> Section:
    figure, (calibration, predicted, residuals) = panels(3, columns=3, width=4.2)
    lines, rows = {}, []
    for i, (name, held_out) in enumerate(every.items()):
        lines[name] = LEVELS, (share := coverage(held_out))
        some = np.random.default_rng(0).permutation(len(held_out.y))[:MOST]
        error = held_out.y - held_out.mean
        style: Any = {"markersize": 3, "alpha": 0.4, "color": f"C{i}", "rasterized": True}
        predicted.plot(held_out.mean[some].ravel(), held_out.y[some].ravel(), ".", **style)
        residuals.plot(held_out.mean[some].ravel(), (error / held_out.total)[some].ravel(), ".", **style)
        at = np.searchsorted(LEVELS, 0.9 - 1e-9)
        scores = {
            "RMSE": np.sqrt((error**2).mean()), "mean absolute error": np.abs(error).mean(),
            "in the 90 % interval": share[at], "distance from the diagonal": np.abs(share - LEVELS).mean(),
        }  # fmt: skip
        rows.append({"model": name, "held-out targets": str(len(held_out.y))} | _texts(scores))
    reliability(calibration, lines)
    ends = np.concatenate([np.concatenate([h.y.ravel(), h.mean.ravel()]) for h in every.values()])
    predicted.plot([ends.min(), ends.max()], [ends.min(), ends.max()], "k--", linewidth=1)
    for height in (-2, 0, 2):
        residuals.axhline(height, color="black", linestyle="--", linewidth=1 if height == 0 else 0.5)
    calibration.set(xlabel="level of a central interval", ylabel="share of targets in it", title="Calibration")
    predicted.set(xlabel="predicted mean", ylabel="measured", title="Predicted and measured")
    residuals.set(xlabel="predicted mean", ylabel="residual / predictive deviation", title="Residuals")
    calibration.legend(fontsize="small")
    return Section("Calibration and residuals", figure, [note], **cells(pd.DataFrame(rows)))


def _classes(every: Mapping[str, HeldOut], note: str) -> Section:
    figure, (axes,) = panels(1, width=5)
    rows, lines = [], {}
    for name, held_out in every.items():
        confidence, right = held_out.mean.max(1), held_out.mean.argmax(1) == held_out.y
        bins = confidence_bins(torch.from_numpy(held_out.mean)[None], torch.from_numpy(held_out.y)[None])
        expected, observed, weight = (part[0].numpy() for part in bins)
        lines[name] = expected[weight > 0], observed[weight > 0]
        if len(every) == 1:
            middles = (0.5 + np.arange(len(weight))) / len(weight)
            axes.bar(middles, weight, 1 / len(weight), color="C0", alpha=0.2, label="share of the points")
        error = (weight * np.abs(expected - observed)).sum()
        scores = {"accuracy": right.mean(), "mean confidence": confidence.mean(), "calibration error": error}
        rows.append({"model": name, "held-out points": str(len(held_out.y))} | _texts(scores))
    reliability(axes, lines)
    axes.set(xlabel="confidence", ylabel="share that is right", title="Reliability")
    axes.legend(fontsize="small")
    return Section("Calibration", figure, [note], **cells(pd.DataFrame(rows)))


def _texts(scores: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{score:.4g}" for name, score in scores.items()}
