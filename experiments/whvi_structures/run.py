"""The structures of WHVI, and WHVI against factorised tensors and mean field over width and depth.

    python -m experiments.whvi_structures.run

Rossi et al.: Walsh-Hadamard Variational Inference (2020), Table 2 and Figures 2, 3 and 11, on UCI regression. The
splits of a set are the replicas of one run. Writes results/structures.csv and results/sizes.csv (one line a net,
posterior and split; what is not asked for keeps its lines), results/table.md and results/sizes.png.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Integers, experiment, fit, merge, split, write
from experiments.tables import markdown, mean_sd, mean_se, sections
from experiments.whvi_toy.run import parameters
from experiments.whvi_uci import run as uci
from explore.core.rng import Rng
from explore.data import load
from explore.learning import compare
from explore.nets.net import mlp
from explore.posteriors.whvi import Structure

WHVI = "S1HGHS2"
COMMON: dict[str, Any] = {"batch_size": 64, "samples": 1, "initial_std": 0.01, "lr": 0.03}
AS_OTHERS: dict[str, Any] = {"preset": "power", "schedule": "cosine", "noise_start": 0}  # the preset's are the paper's
# Prior variances, tried on Boston's splits 9 to 16 (--skip 8 --prior-variance), which are not in the table. That of a
# structure is for every Gaussian number, of which a weight is the product of one to three.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("whvi", {"structure": name, "prior_variance": 0.1, **AS_OTHERS}) for name in get_args(Structure)},
    "tensor-factorised": ("tensor-factorised", {"preset": "plain", "prior_variance": 0.1}),
    "bbb": ("bbb", {"preset": "plain", "prior_variance": 0.01}),
}
STRUCTURES = [name for name in METHODS if name != "bbb"]
SIZES = [WHVI, "tensor-factorised", "bbb"]
WIDTHS, DEPTHS = (32, 64, 128, 256), (1, 2, 4)


def train(
    method: str, splits: compare.Splits, hidden: list[int], steps: int, samples: int, variance: float | None, rng: Rng
) -> pd.DataFrame:
    """A line a split; `variance` replaces the method's own prior variance."""
    name, settings = METHODS[method]
    settings = COMMON | settings | ({} if variance is None else {"prior_variance": variance})
    net = mlp(splits.x.shape[2], hidden, splits.y.shape[2])
    done = fit(name, net, uci.NOISE, splits.x, splits.y, rng, steps=steps, **settings)
    found = uci.scores(done.posterior, done.state, splits, rng, samples)
    first = {"method": method, "width": hidden[0], "depth": len(hidden), "parameters": parameters(done.posterior)}
    numbers = {"split": range(1, len(splits.x) + 1)} | {k: v.numpy() for k, v in found.items()}
    return pd.DataFrame(first | numbers | {"cpu": done.cpu})


def structures_table(rows: pd.DataFrame) -> str:
    """Means with standard deviations over splits in brackets; paired differences with standard errors."""
    headings = ["structure", "parameters", *uci.COLUMNS.values(), f"its RMSE − that of {WHVI}", "CPU s"]
    tables = {}
    for dataset, here in rows.groupby("dataset", sort=False):
        rmse = here.pivot(index="split", columns="method", values="rmse")
        lines = []
        for method, own in here.groupby("method", sort=False):
            paired = "" if method == WHVI or WHVI not in rmse else mean_se(rmse[method] - rmse[WHVI])
            cells = [own["parameters"].iloc[0], *(mean_sd(own[c]) for c in uci.COLUMNS)]
            lines.append([method, *cells, paired, f"{own['cpu'].mean():.0f}"])
        tables[str(dataset)] = markdown(headings, lines)
    return sections(tables)


def sizes_table(rows: pd.DataFrame) -> str:
    """RMSE of the mean, its standard deviation over splits, and the number of parameters."""
    methods = list(rows["method"].unique())
    headings = ["depth", "width", *(text for m in methods for text in (m, "its parameters"))]
    tables = {}
    for dataset, here in rows.groupby("dataset", sort=False):
        lines = []
        for (depth, width), net in here.groupby(["depth", "width"]):
            parts = [net[net["method"] == method] for method in methods]
            cells = [cell for own in parts for cell in (mean_sd(own["rmse"]), own["parameters"].iloc[0])]
            lines.append([depth, width, *cells])
        tables[str(dataset)] = markdown(headings, lines)
    return sections(tables)


def plot(rows: pd.DataFrame) -> Figure:
    """For each set the RMSE over the number of parameters, and over the width for each depth."""
    sets, depths = rows["dataset"].unique(), sorted(rows["depth"].unique())
    figure = Figure(figsize=(3.2 * (1 + len(depths)), 3.2 * len(sets)), layout="constrained")
    grid = figure.subplots(len(sets), 1 + len(depths), sharey="row", squeeze=False)
    for line, dataset in zip(grid, sets, strict=True):
        here = rows[rows["dataset"] == dataset]
        for colour, (method, own) in enumerate(here.groupby("method", sort=False)):
            look: dict[str, Any] = {"color": f"C{colour}", "marker": "o", "markersize": 4, "capsize": 2}
            nets = own.groupby(["depth", "width"], as_index=False).agg(
                parameters=("parameters", "first"), mean=("rmse", "mean"), error=("rmse", "sem")
            )
            line[0].errorbar(nets["parameters"], nets["mean"], nets["error"], linestyle="none", label=method, **look)
            for axes, depth in zip(line[1:], depths, strict=True):
                part = nets[nets["depth"] == depth]
                axes.errorbar(part["width"], part["mean"], part["error"], **look)
        line[0].set(xscale="log", xlabel="parameters", ylabel=f"{dataset}: RMSE of the mean", title="every net")
        for axes, depth in zip(line[1:], depths, strict=True):
            axes.set(xscale="log", xlabel="width", title=f"hidden layers: {depth}")
            axes.set_xticks(sorted(rows["width"].unique()), labels=map(str, sorted(rows["width"].unique())))
            axes.minorticks_off()
    grid[0, 0].legend(fontsize="small")
    return figure


@experiment(__file__)
@click.option("--datasets", default="concrete,yacht,power", show_default=True, help="For the structures.")
@click.option("--sizes", default="concrete", show_default=True, help="The sets for width and depth.")
@click.option("--widths", type=Integers(), default=WIDTHS, show_default=True)
@click.option("--depths", type=Integers(), default=DEPTHS, show_default=True)
@click.option("--splits", type=click.IntRange(min=2), default=8, show_default=True)
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out so many splits before them.")
@click.option("--steps", type=click.IntRange(min=1), default=2000, show_default=True, help="For the structures.")
@click.option("--size-steps", type=click.IntRange(min=1), default=1200, show_default=True, help="For width and depth.")
@click.option("--samples", type=click.IntRange(min=1), default=64, show_default=True, help="For predictions.")
@click.option("--prior-variance", type=float, help="The same for every method, instead of the chosen ones.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(
    datasets: str, sizes: str, widths: tuple[int, ...], depths: tuple[int, ...], splits: int, skip: int, steps: int,
    size_steps: int, samples: int, prior_variance: float | None, seed: int, out: Path,
) -> None:  # fmt: skip
    """Run everything, and write the tables and the figure."""
    nets = [[width] * depth for depth in depths for width in widths]
    plan = [("structures", d, STRUCTURES, [[128, 128]], steps) for d in datasets.split(",") if d]
    plan += [("sizes", d, SIZES, nets, size_steps) for d in sizes.split(",") if d]
    found = {}
    for part, dataset, methods, shapes, count in plan:
        rng = Rng(seed)
        parts = split(load(dataset), slice(skip, skip + splits), rng)
        for hidden in shapes:
            for method in methods:
                rows = train(method, parts, hidden, count, samples, prior_variance, rng)
                rows.insert(0, "dataset", dataset)
                found[part] = merge(out / f"{part}.csv", rows, ["dataset", "method", "width", "depth"])
                print(f"{dataset}, {hidden}: {method}, test RMSE {rows['rmse'].mean():.3f}", flush=True)
    if "sizes" in found:
        plot(found["sizes"]).savefig(out / "sizes.png", dpi=100)
    makers = {"structures": structures_table, "sizes": sizes_table}
    write(out / "table.md", "\n".join(makers[part](rows) for part, rows in found.items()))


if __name__ == "__main__":
    main()
