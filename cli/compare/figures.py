"""Pictures of a comparison, one panel a posterior."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from explore.cli.compare.experiment import Finished
from explore.cli.display import literal
from explore.cli.report.drawing import panels


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
    axes.plot([0, 1], [0, 1], "k--", linewidth=1, label="perfect")
    axes.plot(expected, observed, "C0o-", markersize=4, label="all splits")  # empty bins are NaN: left out
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("confidence, or level of an interval")
    axes.set_ylabel("accuracy, or coverage")
    axes.set_aspect("equal")


PICTURES: dict[str, tuple[str, Callable[[Axes, Finished], None]]] = {
    "bands": ("Predictive bands", _bands),
    "boundary": ("Probability of class 1, and the decision boundary", _boundary),
    "reliability": ("Reliability on held-out examples", _reliability),
}


def plot(picture: str, finished: Mapping[str, Finished]) -> Figure | None:
    """One of the pictures with a panel for each posterior; None where it was not wanted."""
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


def pixels(figure: Figure) -> np.ndarray:
    """The picture as uint8 [height, width, 4]."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
