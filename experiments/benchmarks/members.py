"""What a mixture of several fits costs against one fit, in processor seconds of one thread.

    python -m experiments.benchmarks.members

A 13-50-1 net on Boston housing, with the preset `small` (batches of 30) and with the preset `default`:

* 100 labels: one replica, as in active learning with a pool of one's own.
* 20 splits: the training parts of the standard splits, 455 rows each, side by side.

Each time is for `--epochs` epochs, or for 100 pooled samples at 506 rows; all take turns `--repeats` times, and medians
count. Writes results/members.csv and .md.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import click
import pandas as pd
import torch
from torch import Tensor

from experiments.driver import FOLDER, Names
from experiments.tables import markdown
from explore import registry
from explore.core.rng import Rng
from explore.data import load
from explore.inference.predict import Predictor
from explore.learning.compare import split
from explore.learning.fit import last_epoch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

PRESETS = ("small", "default")


def cases() -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs [R, n, 13] and targets [R, n, 1] by name."""
    splits = split(load("boston"), 20, Rng(0))
    return {"100 labels": (splits.x[:1, :100], splits.y[:1, :100]), "20 splits": (splits.x, splits.y)}


def seconds(name: str, preset: str, members: int, x: Tensor, y: Tensor, epochs: int) -> tuple[float, float]:
    """Of a fit, and of its predictions."""
    net = Net(mlp(x.shape[2], [50], 1))
    posterior = registry.posterior(name, net, Gaussian(), preset, epochs=epochs, members=members)
    begin = time.process_time()
    state = last_epoch(posterior, x, y, Rng(0).stream("fit")).state
    middle = time.process_time()
    rows = Rng(1).normal(len(x), 506, x.shape[2])
    Predictor.sample(posterior, state, 100, Rng(0).stream("test")).moments(rows)
    return middle - begin, time.process_time() - middle


@click.command()
@click.option("--posterior", "names", type=Names("posterior", registry.names("posteriors")), default="noisy-kfac")
@click.option("--members", type=click.IntRange(2), default=5, show_default=True)
@click.option("--epochs", default=20, show_default=True)
@click.option("--repeats", default=5, show_default=True)
@click.option("--out", type=FOLDER, default=Path(__file__).parent / "results", show_default=False)
def main(names: list[str], members: int, epochs: int, repeats: int, out: Path) -> None:
    """Time fits and predictions of one member and of several."""
    torch.set_num_threads(1)
    data, rows = cases(), []
    for repeat in range(repeats + 1):  # the first one warms up
        for name, case, preset, k in itertools.product(names, data, PRESETS, (1, members)):
            fit, predict = seconds(name, preset, k, *data[case], epochs if repeat else 1)
            if repeat:
                rows.append((name, case, preset, k, fit, predict))
    columns = ["posterior", "data", "preset", "members", "fit_s", "predict_s"]
    table = pd.DataFrame(rows, columns=columns).groupby(columns[:4], sort=False).median()
    table.to_csv(out / "members.csv", float_format="%.4g")
    one, several = (table.xs(k, level="members") for k in (1, members))
    heads = ["posterior", "data", "preset", "fit 1, s", f"fit {members}, s", "ratio", "draw 1, s", f"draw {members}, s"]
    times = pd.concat([one.fit_s, several.fit_s, several.fit_s / one.fit_s, one.predict_s, several.predict_s], axis=1)
    cells = ((*key, *(f"{value:.3g}" for value in row)) for key, row in zip(times.index, times.to_numpy(), strict=True))
    command = f"python -m experiments.benchmarks.members --epochs {epochs} --repeats {repeats}"
    note = f"<!-- {command}, torch {torch.__version__} -->"
    (out / "members.md").write_text(f"{note}\n\n{markdown(heads, cells)}")


if __name__ == "__main__":
    main()
