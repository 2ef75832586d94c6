"""Figures that several commands share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from explore.cli.display import literal
from explore.core import files

Lines = Mapping[str, pd.DataFrame]  # by label: a row a step, a column a replica


def panels(count: int, columns: int = 2, width: float = 5.0, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` axes; not pyplot's, which keeps global state."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    every = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
    for axes in every:
        axes.grid(alpha=0.3)
    return figure, every


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, replacing an old file in one step."""
    with files.replacing(path) as draft:
        figure.savefig(draft, dpi=120)


def curves(
    metrics: Mapping[str, Lines], xlabel: str, styles: Sequence[str] = ("-",), partial: bool = False, **size: Any
) -> Figure:
    """Draw a panel for each metric, by its title, with a band for each label."""
    figure, every = panels(len(metrics), **size)
    for axes, (title, lines) in zip(every, metrics.items(), strict=True):
        for (label, values), style in zip(lines.items(), cycle(styles), strict=False):
            band(axes, values, label, style, partial)
        axes.set(xlabel=xlabel, ylabel=title)
        whole(axes)
    if every[0].lines:
        every[0].legend(fontsize="small")
    return figure


def band(axes: Axes, values: pd.DataFrame, label: str, style: str = "-", partial: bool = False) -> None:
    """Draw the mean over columns with a band of one standard error.

    A step with a missing value is a gap, unless `partial`. A point without neighbours gets a marker, as no line shows
    it.
    """
    values = values if partial else values.where(values.notna().all(axis=1))
    mean, error = values.mean(axis=1), values.sem(axis=1).fillna(0.0)
    finite = pd.Series(np.isfinite(mean), mean.index)
    has_neighbour = finite.shift(1, fill_value=False) | finite.shift(-1, fill_value=False)
    style = ".-" if style == "-" and (finite & ~has_neighbour).any() else style
    (line,) = axes.plot(mean.index, mean, style, markersize=3, label=literal(label))
    axes.fill_between(mean.index, mean - error, mean + error, alpha=0.2, color=line.get_color(), linewidth=0)


def reliability(axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw the diagonal, and by label the observed shares against the expected ones."""
    axes.plot([0, 1], [0, 1], "k--", linewidth=1, label="perfect")
    for i, (label, (expected, observed)) in enumerate(lines.items()):
        axes.plot(expected, observed, "o-", color=f"C{i}", markersize=4, label=literal(label))
    axes.set(xlim=(0, 1), ylim=(0, 1))


def whole(axes: Axes) -> None:
    """Label the x axis with whole numbers only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def components(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first two principal components of standardised inputs, [P, 2], and their shares of the variance.

    A single feature is its own first component; the second is 0. Of images the components are approximate.
    """
    from sklearn.decomposition import PCA  # noqa: PLC0415 - it takes seconds, for a map only
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    z = x.reshape(len(x), -1).astype(np.float32) if x.ndim > 2 else StandardScaler().fit_transform(x)
    pca = PCA(min(2, z.shape[1]), svd_solver="randomized" if x.ndim > 2 else "full", random_state=0)
    with np.errstate(invalid="ignore"):  # the shares of constant features
        scores = pca.fit_transform(z)
    shares = np.nan_to_num(pca.explained_variance_ratio_)
    missing = 2 - len(shares)
    return np.pad(scores, ((0, 0), (0, missing))), np.pad(shares, (0, missing))


def map_of(axes: Axes, x: np.ndarray, start: Sequence[int], chosen: Sequence[int], when: Sequence[float]) -> None:
    """Draw points x [P, 2], mark those labelled at the start, and colour the chosen ones by their round."""
    axes.plot(*x.T, ".", color="lightgrey", markersize=4, zorder=1, rasterized=len(x) > 5_000)
    axes.plot(*x[list(start)].T, "kx", markersize=5, label="labelled at the start", zorder=2)
    across, up = x[list(chosen)].T
    shown = axes.scatter(across, up, 30, list(when), cmap="viridis", edgecolors="black", linewidths=0.4, zorder=3)
    assert axes.figure is not None
    axes.figure.colorbar(shown, ax=axes, label="round", ticks=MaxNLocator(integer=True))
