"""WHVI, WHVI with flows, mean field and MC dropout on a regression with one input and a gap.

    python -m experiments.whvi_toy.run

Rossi et al.: Walsh-Hadamard Variational Inference (2020), Figure 4, with two hidden layers of 128 ReLU; the function is
that of `sine.bands`. Writes results/table.md and results/bands.png.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure

from experiments.driver import experiment, write
from experiments.tables import markdown
from experiments.whvi_toy import sine
from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.inference.base import Predictive
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

HIDDEN = (128, 128)
NOISE = Gaussian(prior_shape=1.0, prior_rate=0.01)
WALSH = {
    "preset": "power", "samples": 1, "vectors": "stack", "prior_variance": 0.03, "initial_std": 0.01, "lr": 0.01,
    "schedule": "cosine", "noise_start": 0,
}  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "WHVI": ("whvi", WALSH),
    "WHVI, 10 flows": ("whvi", WALSH | {"flows": 10}),
    "mean field": ("bbb", {"preset": "plain", "samples": 1, "prior_variance": 0.01, "initial_std": 0.01}),
    "MC dropout": ("mc-dropout", {"preset": "plain"}),
}
# The paper's numbers of parameters. No plain net of this shape has its last two.
PAPER = {"WHVI": "1541", "WHVI, 10 flows": "4141", "mean field": "35k", "MC dropout": "17154"}


def build(method: str) -> Predictive:
    name, settings = METHODS[method]
    made: Predictive = registry.posterior(name, Net(mlp(1, HIDDEN, 1)), NOISE, batch_size=64, epochs=2000, **settings)
    return made


def parameters(posterior: Predictive) -> int:
    """How many numbers are learnt of the weights: those that Adam keeps averages for."""
    state = posterior.init(1, 1, Rng(0))
    return sum(t.numel() for _, t in tree.leaves(state.moving.first))


def plot(found: dict[str, sine.Bands]) -> Figure:
    """A panel for each method."""
    figure = Figure(figsize=(14, 3.6), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (method, b) in zip(panels, found.items(), strict=True):
        for deviation, opacity, label in ((b.total, 0.15, "± 2 total"), (b.epistemic, 0.35, "± 2 epistemic")):
            low, high = b.mean - 2 * deviation, b.mean + 2 * deviation
            axes.fill_between(b.x, low, high, color="C0", alpha=opacity, linewidth=0, label=label)
        axes.plot(b.x, b.mean, color="C0", label="mean")
        axes.plot(b.x, (2 * b.x).sin(), "k--", linewidth=1, label="truth")
        axes.plot(b.data_x, b.data_y, "k.", markersize=3, label="data")
        axes.set(title=method, ylim=(-4, 4))
    panels[0].legend(fontsize="x-small", loc="upper left")
    return figure


def row(method: str, b: sine.Bands, seconds: float) -> list[str]:
    """Its line of the table: the deviation over the weights where there are data, in the gap and outside."""
    where = b.x.abs()
    parts = ((where >= 0.7) & (where <= 2), where < 0.7, where > 2)
    deviations = [f"{b.epistemic[part].mean():.3f}" for part in parts]
    error = (b.mean - (2 * b.x).sin())[parts[0]].square().mean().sqrt()
    noise = (b.total.square() - b.epistemic.square()).mean().sqrt()
    count = parameters(build(method))
    counts = [str(count), str(count + 1), PAPER[method]]
    return [method, *counts, *deviations, f"{error:.3f}", f"{noise:.3f}", f"{seconds:.0f}"]


@experiment(__file__)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--samples", type=click.IntRange(min=2), default=1000, show_default=True, help="For the bands.")
def main(seed: int, samples: int, out: Path) -> None:
    """Fit everything and draw it."""
    heads = ["posterior", "parameters", "with the noise", "paper", "epistemic, data", "gap", "outside",
             "RMSE to the truth, data", "noise", "CPU s"]  # fmt: skip
    found, rows = {}, []
    for method in METHODS:
        begin = time.process_time()
        found[method] = sine.bands(build(method), NOISE, HIDDEN, Rng(seed), samples)
        rows.append(row(method, found[method], time.process_time() - begin))
        print(*rows[-1], flush=True)
    write(out / "table.md", markdown(heads, rows))
    plot(found).savefig(out / "bands.png", dpi=100)


if __name__ == "__main__":
    main()
