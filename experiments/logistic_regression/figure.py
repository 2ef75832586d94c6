"""The first split's posteriors against the exact one, as in SLANG's Figure 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.logistic_regression.exact import Normal

STYLES = {
    "exact": ("black", "o-"), "mf-exact": ("tab:red", "s--"), "mf-ef": ("tab:orange", "v-"),
    "slang-1": ("tab:cyan", "^:"), "slang-5": ("tab:blue", "^:"), "slang-10": ("navy", "^:"),
    "full-ef": ("tab:green", "x:"),
}  # fmt: skip


def plot(found: Mapping[str, Normal], weights: Sequence[str]) -> Figure:
    """Covariances above; means and variances below, the weights in the order of their exact variances."""
    exact = found["exact"].covariance[0].numpy()
    order = np.argsort(exact.diagonal())
    scale = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    shown = {name: style for name, style in STYLES.items() if name in found}
    structured = [name for name in shown if not name.startswith("mf-")]

    figure = Figure(figsize=(13, 7), layout="constrained")
    (top,), (bottom,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.4))
    axes = top.subplots(1, len(structured), squeeze=False)[0]
    for axis, name in zip(axes, structured, strict=True):
        picture = (found[name].covariance[0].numpy() / scale)[np.ix_(order, order)]
        np.fill_diagonal(picture, np.nan)
        image = axis.imshow(picture, cmap="RdBu_r", vmin=-1, vmax=1)
        axis.set(title=name, xticks=[], yticks=[])
    top.colorbar(image, ax=list(axes), shrink=0.8)
    top.suptitle("covariances between weights, in units of the exact deviations (mean field: none)")

    means, variances = bottom.subplots(1, 2)
    for name, (colour, style) in shown.items():
        mean, variance = found[name].mean[0].numpy(), found[name].covariance[0].numpy().diagonal()
        means.plot(mean[order], style, color=colour, label=name, markersize=4)
        variances.semilogy(variance[order], style, color=colour, label=name, markersize=4)
    for axis, title in ((means, "means"), (variances, "variances")):
        axis.set_title(title)
        axis.set_xticks(range(len(order)), [weights[i] for i in order], rotation=90, fontsize=7)
    variances.legend(loc="upper left")
    return figure
