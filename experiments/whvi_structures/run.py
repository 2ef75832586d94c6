"""The structures of WHVI, and WHVI against factorised tensors and mean field over width and depth.

    python -m experiments.whvi_structures.run

Rossi et al.: Walsh-Hadamard Variational Inference (2020), Table 2 and Figures 2, 3 and 11, on UCI regression. The
splits of a set are the replicas of one run. Writes results/structures.csv and results/sizes.csv (one line a net,
posterior and split), results/table.md and results/sizes.png.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

import click
import pandas as pd
import torch
from matplotlib.figure import Figure

from experiments.whvi_toy.run import parameters
from experiments.whvi_uci import run as uci
from explore import compare, registry
from explore.cli.script import Integers, Script
from explore.fit import batches, last_epoch
from explore.nets import Net, mlp
from explore.posteriors.whvi import Structure
from explore.rng import Rng

HERE = Path(__file__).parent
WHVI = "S1HGHS2"
COMMON: dict[str, Any] = {"batch_size": 64, "samples": 1, "initial_std": 0.01, "lr": 0.03}
AS_OTHERS: dict[str, Any] = {"schedule": "cosine", "noise_start": 0}  # the preset's are the paper's
# Prior variances, tried on Boston's splits 9 to 16 (--skip 8 --prior-variance), which are not in the table. That of a
# structure is for every Gaussian number, of which a weight is the product of one to three.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("whvi", {"structure": name, "prior_variance": 0.1, **AS_OTHERS}) for name in get_args(Structure)},
    "tensor-factorised": ("tensor-factorised", {"prior_variance": 0.1}),
    "bbb": ("bbb", {"prior_variance": 0.01}),
}
STRUCTURES = [name for name in METHODS if name != "bbb"]
SIZES = [WHVI, "tensor-factorised", "bbb"]
WIDTHS, DEPTHS = (32, 64, 128, 256), (1, 2, 4)


def train(
    method: str, splits: compare.Splits, hidden: list[int], steps: int, samples: int, variance: float | None, rng: Rng
) -> pd.DataFrame:
    """A line a split; `variance` replaces the method's own prior variance."""
    replicas, n, inputs = splits.x.shape
    name, settings = METHODS[method]
    settings = COMMON | settings | ({} if variance is None else {"prior_variance": variance})
    epochs = max(1, round(steps / len(batches(n, COMMON["batch_size"]))))
    net = Net(mlp(inputs, hidden, splits.y.shape[2]))
    posterior = registry.posterior(name, net, uci.NOISE, epochs=epochs, **settings)
    start = time.process_time()
    last = last_epoch(posterior, splits.x, splits.y, rng.stream("fit"))
    seconds = time.process_time() - start
    if failed := int((~last.state.common.alive).sum()):
        raise RuntimeError(f"{method} failed on {failed} of {replicas} splits")
    found = uci.scores(posterior, last.state, splits, rng, samples)
    first = {"method": method, "width": hidden[0], "depth": len(hidden), "parameters": parameters(posterior)}
    numbers = {"split": range(1, replicas + 1)} | {k: v.numpy() for k, v in found.items()}
    return pd.DataFrame(first | numbers | {"cpu": seconds})


def structures_table(rows: pd.DataFrame) -> str:
    """Means with standard deviations over splits in brackets; paired differences with standard errors."""
    lines = []
    for dataset, here in rows.groupby("dataset", sort=False):
        rmse = here.pivot(index="split", columns="method", values="rmse")
        headings = ["structure", "parameters", *uci.COLUMNS.values(), f"its RMSE − that of {WHVI}", "CPU s"]
        lines += ["", f"**{dataset}**", "", "| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
        for method, own in here.groupby("method", sort=False):
            cells = [f"{own['parameters'].iloc[0]}"] + [
                f"{own[c].mean():.3f} ({own[c].std():.3f})" for c in uci.COLUMNS
            ]
            paired = "" if method == WHVI or WHVI not in rmse else uci.estimate(rmse[method] - rmse[WHVI], 3)
            lines.append(f"| {method} | " + " | ".join([*cells, paired, f"{own['cpu'].mean():.0f}"]) + " |")
    return "\n".join(lines[1:]) + "\n"


def sizes_table(rows: pd.DataFrame) -> str:
    """RMSE of the mean, its standard deviation over splits, and the number of parameters."""
    methods = list(rows["method"].unique())
    lines = []
    for dataset, here in rows.groupby("dataset", sort=False):
        headings = ["depth", "width", *(f"{m} | its parameters" for m in methods)]
        lines += ["", f"**{dataset}**", "", "| " + " | ".join(headings) + " |", "|---" * (2 + 2 * len(methods)) + "|"]
        for (depth, width), net in here.groupby(["depth", "width"]):
            cells = []
            for method in methods:
                own = net[net["method"] == method]
                cells.append(f"{own['rmse'].mean():.3f} ({own['rmse'].std():.3f}) | {own['parameters'].iloc[0]}")
            lines.append(f"| {depth} | {width} | " + " | ".join(cells) + " |")
    return "\n".join(lines[1:]) + "\n"


def draw(rows: pd.DataFrame) -> Figure:
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


@click.command(cls=Script)
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
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=HERE / "results")
def main(
    datasets: str, sizes: str, widths: tuple[int, ...], depths: tuple[int, ...], splits: int, skip: int, steps: int,
    size_steps: int, samples: int, prior_variance: float | None, seed: int, out: Path,
) -> None:  # fmt: skip
    """Run everything, and write the tables and the figure."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    nets = [[width] * depth for depth in depths for width in widths]
    plan = [("structures", d, STRUCTURES, [[128, 128]], steps) for d in datasets.split(",") if d]
    plan += [("sizes", d, SIZES, nets, size_steps) for d in sizes.split(",") if d]
    rows: dict[str, list[pd.DataFrame]] = {"structures": [], "sizes": []}
    for part, dataset, methods, shapes, count in plan:
        rng = Rng(seed)
        parts = uci.split(dataset, splits, skip, rng)
        for hidden in shapes:
            for method in methods:
                found = train(method, parts, hidden, count, samples, prior_variance, rng)
                found.insert(0, "dataset", dataset)
                rows[part].append(found)
                pd.concat(rows[part]).to_csv(out / f"{part}.csv", index=False, float_format="%.6g")
                print(f"{dataset}, {hidden}: {method}, test RMSE {found['rmse'].mean():.3f}", flush=True)
    text = []
    if rows["structures"]:
        text.append(structures_table(pd.concat(rows["structures"])))
    if rows["sizes"]:
        text.append(sizes_table(pd.concat(rows["sizes"])))
        draw(pd.concat(rows["sizes"])).savefig(out / "sizes.png", dpi=100)
    (out / "table.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
