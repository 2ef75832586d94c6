"""Microcanonical Langevin ensembles of the library bde on the standard UCI splits, with its README's settings.

    experiments/sampling/environment.sh FOLDER
    python -m experiments.sampling.bde yacht boston --python FOLDER/bin/python --splits 5

Sommer et al.: Microcanonical Langevin Ensembles (2025). Eight networks of 16-16 ReLU with a mean and a standard
deviation as outputs, 1,000 samples of each, one thread. Chains with values that are not finite are counted and left
out of the mixture; bde itself would average over them.

Writes results/bde.csv, a line per set, split (from 1) and number of training rows. `coverage_90` is the share of
targets in the central 90 % interval of the mixture; `cpu` are the seconds of compilation, fit and prediction; `failed`
is the number of chains left out. Finished lines are not run again.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from pathlib import Path

import click
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.driver import experiment, run_missing
from experiments.sampling import data
from explore.learning.compare import Splits

WORKER = Path(__file__).with_name("bde_worker.py")
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "OMP_NUM_THREADS": "1",
    "NPROC": "1", "JAX_PLATFORMS": "cpu", "TQDM_DISABLE": "1",
}  # fmt: skip


def predict(python: Path, parts: Splits) -> tuple[Tensor, Tensor, float]:
    """Return bde's means and standard deviations [members, samples, P] at the test points, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "split.npz"), Path(folder, "out.npz")
        np.savez(path, x=parts.x[0].numpy(), y=parts.y[0, :, 0].numpy(), test_x=parts.test_x[0].numpy())
        command = [str(python), "-I", str(WORKER), str(path), str(out)]
        subprocess.run(command, check=True, env=os.environ | ONE_THREAD)
        with np.load(out) as found:
            return torch.from_numpy(found["mean"]), torch.from_numpy(found["std"]), float(found["cpu"])


def scores(mean: Tensor, std: Tensor, y: Tensor, scale: float) -> dict[str, float]:
    """Return test scores in original units, for targets y [P] and the mixture of Gaussians [members, samples, P]."""
    finite = (mean.isfinite() & std.isfinite()).all(2).all(1)
    if not finite.any():
        return dict.fromkeys(("log_likelihood", "rmse", "coverage_90"), math.nan) | {"failed": len(finite)}
    mean, std = (t[finite].flatten(0, 1).double() for t in (mean, std))
    components = torch.distributions.Normal(mean, std)
    log_density = components.log_prob(y).logsumexp(0) - math.log(len(mean))
    below = components.cdf(y).mean(0)
    return {
        "log_likelihood": float(log_density.mean()) - math.log(scale),
        "rmse": scale * float((y - mean.mean(0)).square().mean().sqrt()),
        "coverage_90": float(((below - 0.5).abs() <= 0.45).double().mean()),
        "failed": int((~finite).sum()),
    }


@experiment(__file__)
@click.argument("sets", nargs=-1, required=True, type=click.Choice([*data.SETS, *data.OTHERS]))
@click.option("--python", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True, help="Of bde.")
@click.option("--splits", type=click.IntRange(min=1), default=10, show_default=True, help="Of each set.")
@data.rows
@data.tables
def main(sets: tuple[str, ...], python: Path, splits: int, rows: int | None, tables: Path | None, out: Path) -> None:
    """Run what is missing."""
    python = python.absolute()  # not resolved: a virtual environment is found by its link
    loaded = {name: data.table(name, tables) for name in sets}
    cells = [(name, number, data.size(one, rows)) for name, one in loaded.items() for number in range(1, splits + 1)]

    def run(name: str, number: int, size: int) -> pd.DataFrame:
        one = data.parts(loaded[name], slice(number - 1, number), size)
        assert one.scale is not None  # these sets are regressions
        mean, std, cpu = predict(python, one)
        found = scores(mean, std, one.test_y[0, :, 0].double(), float(one.scale))
        return pd.DataFrame([found | {"cpu": cpu}])

    run_missing(out / "bde.csv", ["set", "split", "rows"], cells, run, ["log_likelihood", "rmse", "cpu", "failed"])


if __name__ == "__main__":
    main()
