"""Settings that go by the number of rows beside the presets that were chosen by it before.

    python -m experiments.few_rows.run

A net of one hidden layer of 50 units is fitted to a few rows of each data set, and is tested on others. `before` is the
preset `small` with the prior Gam(6, 6) of the noise below 64 rows, and then `hundreds` and `default` with Gam(1, 0.01).
The sets of a group are replicas of one fit, in which those of fewer columns have columns of zeros. Writes
results/fits.csv, a line a group, number of rows, posterior, settings, data set and draw, and prints the tables. What is
there is not run again.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

from experiments.driver import experiment, fit, run_missing
from experiments.tables import markdown, sections
from explore import data, registry
from explore.core.rng import Rng
from explore.inference import presets
from explore.inference.predict import Predictor
from explore.learning.scaling import Standardiser
from explore.nets.likelihoods import Gaussian
from explore.nets.net import mlp

DRAWS, SEED, TEST, UNITS, SAMPLES, MOST = 8, 7, 200, 50, 100, 500
KEY = ["group", "rows", "posterior", "settings"]
GROUPS = {
    "tables": ("energy", "wine", "kin8nm", "naval"),
    "noise": ("0.02", "0.1", "0.5"),  # its deviation, on a sine
}
TASKS = (
    *(("tables", rows, "noisy-kfac") for rows in (20, 60, 64, 100)),
    *(("tables", rows, "ensemble") for rows in (64, 100, 250)),
    *(("noise", rows, "noisy-kfac") for rows in (40, 120)),
    *(("tables", rows, "noisy-kfac") for rows in (40, 250)),
    *(("tables", rows, "ensemble") for rows in (20, 60)),
    ("noise", 300, "noisy-kfac"),
)


def draw(name: str, rows: int) -> tuple[Tensor, ...]:
    """X, y and those to test on, of each draw [R, n, D] and [R, n, 1]; fewer rows are among more."""
    every = []
    for r in range(DRAWS):
        rng = np.random.default_rng([SEED, r])
        if name in GROUPS["noise"]:
            x = rng.uniform(-1, 1, (TEST + MOST, 1))
            y = np.sin(6 * x) + float(name) * rng.normal(size=x.shape)
        else:
            whole = data.load(name)
            order = rng.permutation(len(whole.x))[: TEST + MOST]
            x, y = whole.x[order], whole.y[order]
        every.append((x[TEST : TEST + rows], y[TEST : TEST + rows], x[:TEST], y[:TEST]))
    return tuple(torch.tensor(np.stack(part)) for part in zip(*every, strict=True))


def standardised(name: str, rows: int, columns: int) -> tuple[Tensor, ...]:
    """The same in standard scores and so many columns, and the targets' deviation."""
    x, y, test_x, test_y = draw(name, rows)
    of_x, of_y = Standardiser.fit(x, math.inf), Standardiser.fit(y)
    wide = (pad(of_x.apply(part, torch.float32), (0, columns - x.shape[2])) for part in (x, test_x))
    narrow = (of_y.apply(part, torch.float32) for part in (y, test_y))
    return (*wide, *narrow, of_y.scale.squeeze(1).float())


def settings(posterior: str, rows: int, before: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """Of the posterior and of the noise."""
    cls = registry.find("posteriors", posterior)
    if not before:
        chosen = presets.recommended_settings(cls, rows, units=UNITS)
        return chosen.settings, chosen.noise
    known, wanted = registry.presets(cls), "small" if rows < 64 else "hundreds" if rows < 250 else "default"
    preset = wanted if wanted in known else "default"
    return known[preset], presets.noise_for(preset)


def score(group: str, rows: int, posterior: str, which: str) -> pd.DataFrame:
    """Fit and measure: a row a data set and draw."""
    names, begin, rng = GROUPS[group], time.process_time(), Rng(SEED)
    columns = max(draw(name, 2)[0].shape[2] for name in names)
    parts = [standardised(name, rows, columns) for name in names]
    x, test_x, y, test_y, unit = (torch.cat(part) for part in zip(*parts, strict=True))
    own, noise = settings(posterior, rows, which == "before")
    done = fit(posterior, mlp(columns, [UNITS], 1), Gaussian(**noise), x, y, rng, preset="plain", **own)
    predictor = Predictor.sample(done.posterior, done.state, SAMPLES, rng.stream("test"))
    found = predictor.evaluate(test_x, test_y, unit)
    mean, variance, scatter = predictor.label_moments(test_x)
    half = 1.645 * (variance + scatter).sqrt()
    return pd.DataFrame(
        {
            "dataset": np.repeat(names, DRAWS), "draw": list(range(1, DRAWS + 1)) * len(names), "rmse": found["rmse"],
            "log_likelihood": found["log_likelihood"],
            "coverage_90": ((test_y - mean).abs() <= half).float().mean((1, 2)),
            "width_90": 2 * half.mean((1, 2)) * unit[:, 0], "cpu": time.process_time() - begin,
        }
    )  # fmt: skip


def differences(every: pd.DataFrame) -> str:
    """A line a posterior and number of rows: of each set the mean and the median over draws, now beside before."""
    lines, names = [], GROUPS["tables"]
    for (posterior, rows), part in every.groupby(["posterior", "rows"]):
        wide = part.pivot(index=["dataset", "draw"], columns="settings", values=["rmse", "log_likelihood"]).dropna()
        ratio = (wide.rmse.now / wide.rmse.before).groupby("dataset")
        gain = (wide.log_likelihood.now - wide.log_likelihood.before).groupby("dataset")
        cells = [f"{ratio.mean()[name]:.3f} ({ratio.median()[name]:.3f})" for name in names]
        cells += [f"{gain.mean()[name]:+.3f} ({gain.median()[name]:+.3f})" for name in names]
        lines.append([str(posterior), str(rows), *cells])
    heads = [f"RMSE, {name}" for name in names] + [f"log-likelihood, {name}" for name in names]
    return markdown(["posterior", "rows", *heads], lines)


def intervals(every: pd.DataFrame) -> str:
    """A line a deviation of the noise and number of rows."""
    means = every.groupby(["dataset", "rows", "settings"])[["coverage_90", "width_90"]].mean()
    keys, values = means.index.to_list(), means.to_numpy()
    lines = [
        [noise, str(rows), which, f"{coverage:.0%}", f"{width / (3.29 * float(noise)):.2f}"]
        for (noise, rows, which), (coverage, width) in zip(keys, values, strict=True)
    ]
    return markdown(["noise", "rows", "settings", "90 % intervals hold", "width / that of the noise alone"], lines)


@experiment(__file__)
def main(out: Path) -> None:
    """Run what is missing, and print the tables."""
    cells = ((*task, which) for task in TASKS for which in ("now", "before"))
    fits = run_missing(out / "fits.csv", KEY, cells, score, ["cpu"])
    tables, noise = fits[fits.group == "tables"], fits[fits.group == "noise"]
    click.echo(sections({"Now beside before": differences(tables), "Intervals of a sine": intervals(noise)}))


if __name__ == "__main__":
    main()
