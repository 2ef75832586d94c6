"""Figures that several commands share, and report sections on predictions for held-out data."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from explore.cli.display import literal
from explore.cli.report.page import Section, cells
from explore.cli.report.session import Opened, readable
from explore.core.errors import InputError
from explore.data import Dataset
from explore.learning import saved
from explore.learning.compare import confidence_bins
from explore.learning.model import FittedModel

Lines = Mapping[str, pd.DataFrame]  # label -> values, one row per step and one column per replica
LEVELS = np.linspace(0, 1, 21)
MOST = 2_000  # maximum number of points to draw
TRIALS = 40  # maximum number of trials or splits whose held-out points are predicted


def panels(count: int, columns: int = 2, width: float = 5.0, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` axes, created without pyplot's global state."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    every = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
    for axes in every:
        axes.grid(alpha=0.3)
    return figure, every


def curves(
    metrics: Mapping[str, Lines], xlabel: str, styles: Sequence[str] = ("-",), partial: bool = False, **size: Any
) -> Figure:
    """Draw one panel per metric, with a `band` per label. `metrics` has the lines by panel title."""
    figure, every = panels(len(metrics), **size)
    for axes, (title, lines) in zip(every, metrics.items(), strict=True):
        for (label, values), style in zip(lines.items(), cycle(styles), strict=False):
            band(axes, values, label, style, partial)
        axes.set(xlabel=xlabel, ylabel=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if every[0].lines:
        every[0].legend(fontsize="small")
    return figure


def band(axes: Axes, values: pd.DataFrame, label: str, style: str = "-", partial: bool = False) -> None:
    """Draw the mean over the columns of `values`, with a band of ± one standard error.

    If a step lacks a value, leave a gap or, with `partial`, draw the mean of the other columns. Points without
    neighbours get markers, because a line would not show such points.
    """
    values = values if partial else values.where(values.notna().all(axis=1))
    mean, error = values.mean(axis=1), values.sem(axis=1).fillna(0.0)
    finite = pd.Series(np.isfinite(mean), mean.index)
    has_neighbour = finite.shift(1, fill_value=False) | finite.shift(-1, fill_value=False)
    style = ".-" if style == "-" and (finite & ~has_neighbour).any() else style
    (line,) = axes.plot(mean.index, mean, style, markersize=3, label=literal(label))
    axes.fill_between(mean.index, mean - error, mean + error, alpha=0.2, color=line.get_color(), linewidth=0)


def learning_curves(runs: Sequence[Opened], titles: Mapping[str, str], note: str = "") -> Section:
    """Draw the training curves of the runs, one panel per test metric. `titles` maps metrics to panel titles."""
    series = {run.prefix + name: steps for run in runs for name, steps in run.curves().items()}
    metrics = {
        title: {name: steps.reindex(columns=[f"test/{metric}"]) for name, steps in series.items()}
        for metric, title in titles.items()
    }
    return Section("Training curves", curves(metrics, "epoch"), [note] if note else [])


def reliability(axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw a reliability diagram with its diagonal. `lines` maps labels to (expected, observed) shares."""
    axes.plot([0, 1], [0, 1], "k--", linewidth=1, label="perfect")
    for i, (label, (expected, observed)) in enumerate(lines.items()):
        axes.plot(expected, observed, "o-", color=f"C{i}", markersize=4, label=literal(label))
    axes.set(xlim=(0, 1), ylim=(0, 1))


def components(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project P inputs onto the first two principal components. Return scores [P, 2] and shares of the variance [2].

    Features are standardised first; pixels are not, and their PCA is approximate (randomized).
    """
    from sklearn.decomposition import PCA  # noqa: PLC0415 - slow to import, needed for maps only
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    z = x.reshape(len(x), -1).astype(np.float32) if x.ndim > 2 else StandardScaler().fit_transform(x)
    pca = PCA(min(2, z.shape[1]), svd_solver="randomized" if x.ndim > 2 else "full", random_state=0)
    with np.errstate(invalid="ignore"):  # shares are 0 / 0 if all features are constant
        scores = pca.fit_transform(z)
    shares = np.nan_to_num(pca.explained_variance_ratio_)
    missing = 2 - len(shares)
    return np.pad(scores, ((0, 0), (0, missing))), np.pad(shares, (0, missing))


def map_of(axes: Axes, x: np.ndarray, start: Sequence[int], chosen: Sequence[int], when: Sequence[float]) -> None:
    """Draw the first two `components` of P inputs x.

    Mark the points labelled at the `start`, and colour the `chosen` ones by round `when`.
    """
    x, shares = components(x)
    axes.plot(*x.T, ".", color="lightgrey", markersize=4, zorder=1, rasterized=len(x) > 5_000)
    axes.plot(*x[list(start)].T, "kx", markersize=5, label="labelled at the start", zorder=2)
    across, up = x[list(chosen)].T
    shown = axes.scatter(across, up, 30, list(when), cmap="viridis", edgecolors="black", linewidths=0.4, zorder=3)
    assert axes.figure is not None
    axes.figure.colorbar(shown, ax=axes, label="round", ticks=MaxNLocator(integer=True))
    axes.set(xlabel=f"first component ({shares[0]:.0%})", ylabel=f"second component ({shares[1]:.0%})")


class HeldOut(NamedTuple):
    """Targets and predictions for n held-out points of all replicas; for regression of O targets, arrays [n, O]."""

    y: np.ndarray  # for classes: [n] class indices
    mean: np.ndarray  # for classes: [n, C] probabilities
    total: np.ndarray = np.empty(0)  # standard deviations; empty for classes
    below: np.ndarray = np.empty(0)  # predictive CDF at the measured target; empty for classes


def held_out(
    runs: Sequence[Opened], sets: Mapping[str, Dataset], test: Callable[[int, Any], Any], note: str
) -> Iterator[Section]:
    """Yield a section for each run whose model cannot be read, and one on the calibration of all other models.

    `test(count, settings)` returns, for each trial or split, the indices of the held-out rows among `count` rows. In
    `note`, `{first}` is replaced by a remark if only the first trials are shown.
    """

    def predict(run: Opened) -> dict[str, HeldOut]:
        if not (run.folder / saved.MODEL).exists():
            raise InputError(f"{run.folder} has no {saved.MODEL} yet: the run is unfinished")
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
        yield calibration(every, note.format(first=f", of the first {TRIALS}" if many else ""))


def collect(model: FittedModel, x: np.ndarray, y: np.ndarray, test: Sequence[np.ndarray], used: list[int]) -> HeldOut:
    """For each replica r in `used`, predict the held-out rows `test[r]` of the data x [P, D], y [P, O] or [P]."""
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


def calibration(every: Mapping[str, HeldOut], note: str) -> Section:
    """Return a section on the calibration and residuals of each model. `note` says which data were held out."""
    of_classes = next(iter(every.values())).y.ndim == 1
    figure, rows = (_classes if of_classes else _numbers)(every)
    table = pd.DataFrame(rows).map(lambda score: score if isinstance(score, str) else f"{score:.4g}")
    return Section("Calibration" if of_classes else "Calibration and residuals", figure, [note], **cells(table))


def coverage(tested: HeldOut) -> np.ndarray:
    """For each level in `LEVELS`, return the share of targets within the central predictive interval."""
    inner = np.abs(2 * tested.below - 1)
    return np.array([(inner <= level).mean() for level in LEVELS])


def _numbers(every: Mapping[str, HeldOut]) -> tuple[Figure, list[dict[str, Any]]]:
    """Draw calibration and residuals. Return the figure, and the scores of each model."""
    figure, (calibration, predicted, residuals) = panels(3, columns=3, width=4.2)
    lines, rows = {}, []
    for i, (name, tested) in enumerate(every.items()):
        lines[name] = LEVELS, (share := coverage(tested))
        some = np.random.default_rng(0).permutation(len(tested.y))[:MOST]
        error = tested.y - tested.mean
        style: Any = {"markersize": 3, "alpha": 0.4, "color": f"C{i}", "rasterized": True}
        predicted.plot(tested.mean[some].ravel(), tested.y[some].ravel(), ".", **style)
        residuals.plot(tested.mean[some].ravel(), (error / tested.total)[some].ravel(), ".", **style)
        at = np.searchsorted(LEVELS, 0.9 - 1e-9)
        scores = {
            "RMSE": np.sqrt((error**2).mean()), "mean absolute error": np.abs(error).mean(),
            "in the 90 % interval": share[at], "distance from the diagonal": np.abs(share - LEVELS).mean(),
        }  # fmt: skip
        rows.append({"model": name, "held-out targets": str(len(tested.y))} | scores)
    reliability(calibration, lines)
    ends = np.concatenate([np.concatenate([h.y.ravel(), h.mean.ravel()]) for h in every.values()])
    predicted.plot([ends.min(), ends.max()], [ends.min(), ends.max()], "k--", linewidth=1)
    for height in (-2, 0, 2):
        residuals.axhline(height, color="black", linestyle="--", linewidth=1 if height == 0 else 0.5)
    calibration.set(xlabel="level of a central interval", ylabel="share of targets in it", title="Calibration")
    predicted.set(xlabel="predicted mean", ylabel="measured", title="Predicted and measured")
    residuals.set(xlabel="predicted mean", ylabel="residual / predictive deviation", title="Residuals")
    calibration.legend(fontsize="small")
    return figure, rows


def _classes(every: Mapping[str, HeldOut]) -> tuple[Figure, list[dict[str, Any]]]:
    """Draw a reliability diagram. Return the figure, and the scores of each model."""
    figure, (axes,) = panels(1, width=5)
    rows, lines = [], {}
    for name, tested in every.items():
        confidence, right = tested.mean.max(1), tested.mean.argmax(1) == tested.y
        bins = confidence_bins(torch.from_numpy(tested.mean)[None], torch.from_numpy(tested.y)[None])
        expected, observed, weight = (part[0].numpy() for part in bins)
        lines[name] = expected[weight > 0], observed[weight > 0]
        if len(every) == 1:
            middles = (0.5 + np.arange(len(weight))) / len(weight)
            axes.bar(middles, weight, 1 / len(weight), color="C0", alpha=0.2, label="share of the points")
        error = (weight * np.abs(expected - observed)).sum()
        scores = {"accuracy": right.mean(), "mean confidence": confidence.mean(), "calibration error": error}
        rows.append({"model": name, "held-out points": str(len(tested.y))} | scores)
    reliability(axes, lines)
    axes.set(xlabel="confidence", ylabel="share correct", title="Reliability")
    axes.legend(fontsize="small")
    return figure, rows
