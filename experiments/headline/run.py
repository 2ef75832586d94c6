"""Default settings on tables, beside the strongest other models.

    python -m experiments.headline.run --tables FOLDER

Nine UCI sets, and three tables of a folder (`experiments.sampling.data`), on the splits of `experiments.sampling`. All
methods learn noise that depends on the input, except the ARD process. `five fits` are of noisy K-FAC; `default` is the
recommended posterior of the estimators, `gp` up to 512 rows and one fit of noisy K-FAC beyond. `ensemble` is a deep
ensemble with weight decay. The settings of these three follow the number of rows, and were chosen on other tables.
`ARD process` has hyperparameters of maximum likelihood; it gets at most 2,000 rows, and its noise is at least 1e-4 of
the targets' variance. `boosting` is tuned on a tenth of each training part (`experiments.large_tables`); its density is
a Gaussian between its quantiles. `mclmc` and `bde` are from the results of `experiments.sampling`. Writes
results/ours.csv, a line per set, method and split, and results/table.md; what is there is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.driver import Key, experiment, fit, names, run_missing, write
from experiments.large_tables.run import boosted
from experiments.sampling import data, run as sampling
from experiments.tables import corrected, markdown, mean_se, paired, sections
from explore import registry
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.inference.presets import recommended, recommended_settings, recommended_widths
from explore.learning.compare import Splits
from explore.nets.likelihoods import Gaussian
from explore.nets.net import mlp

SAMPLED = Path(sampling.__file__).parent / "results"
ROWS = {"kin8nm": 2000, "protein": 2000}
FIVE = {"naval", "power", "abalone", "kin8nm", "protein", "airfoil"}  # sets with five splits; the others have ten
DRAWS, MOST, TOGETHER = 100, 2000, 5
LEAST_NOISE = 1e-4  # in standard scores: the ARD process would be certain of sets without noise
KEY = ["set", "rows", "method", "first"]
BOOSTING = "boosting"
BASE = "five fits"
TAGS = {"log_likelihood": 1, "rmse": -1, "crps": -1}  # 1: higher is better


class Method(NamedTuple):
    """A posterior (None: the recommended one), settings beside recommended ones, a likelihood, and limits."""

    posterior: str | None
    settings: dict[str, Any] = {}  # noqa: RUF012
    likelihood: Any = sampling.INPUT_NOISE
    most: int | None = None  # rows
    least_noise: float = 0.0  # variance, in predictions


METHODS = {
    BASE: Method("noisy-kfac", {"members": 5}),
    "default": Method(None),
    "ensemble": Method("ensemble"),
    "ARD process": Method("gp", {"draws": 1, "hyperprior": False}, Gaussian(), MOST, LEAST_NOISE),
}


def scores(method: Method, parts: Splits, y: Any) -> pd.DataFrame:
    """A line per split, for a data set with targets y."""
    begin, rng = time.process_time(), Rng(0)
    parts = parts._replace(x=parts.x[:, : method.most], y=parts.y[:, : method.most])
    rows, columns = parts.x.shape[1:]
    likelihood, hidden = sampling.likelihood_of(method.likelihood, y), recommended_widths(rows)
    kind = "gaussian" if likelihood.outputs_per_target == 1 else "heteroscedastic"
    name = method.posterior or recommended(rows, columns, kind)[0]
    cls = registry.find("posteriors", name)
    chosen = recommended_settings(cls, rows, columns, units=max(hidden), likelihood=kind).settings | method.settings
    module = mlp(columns, hidden, likelihood.outputs_per_target)
    done = fit(name, module, likelihood, parts.x, parts.y, rng, **chosen)
    predictor = Predictor.sample(done.posterior, done.state, DRAWS, rng.stream("test"))
    if method.least_noise:
        predictor = replace(predictor, noise=predictor.noise.clamp_max(1 / method.least_noise))
    found = predictor.evaluate(parts.test_x, parts.test_y, parts.scale)
    found["coverage_90"] = sampling.covered(predictor, parts.test_x, parts.test_y).mean((1, 2))
    line = {tag: found[tag].numpy() for tag in (*TAGS, "coverage_90")}
    return pd.DataFrame(line | {"cpu": (time.process_time() - begin) / len(parts.x)})


def counted(differences: pd.Series) -> str:
    """Format numbers of sets: better, no significant difference and worse, and the sets that are worse."""
    sets = {str(name): corrected(own) for name, own in differences.dropna().groupby("set", sort=False)}
    worse = [f"{name} {v.mean:.2g}" for name, v in sets.items() if v.significant and v.mean < 0]
    better = sum(v.significant and v.mean > 0 for v in sets.values())
    names = f" ({', '.join(worse)})" if worse else ""
    return f"{better}, {len(sets) - better - len(worse)}, {len(worse)}{names}"


def summary(rows: pd.DataFrame) -> str:
    """Counts of sets, then means and paired differences of every score."""
    methods = [*dict.fromkeys(rows.method)]
    wide = rows.pivot_table(index=["set", "split"], columns="method", values=[*TAGS, "cpu"], sort=False)
    apart = {tag: wide[tag].sub(wide[tag][BASE], axis=0).mul(-sign) for tag, sign in TAGS.items() if tag in wide}
    rivals = [method for method in methods if method != BASE]
    lines = [[rival, *(counted(apart[tag][rival]) if rival in apart[tag] else "" for tag in TAGS)] for rival in rivals]
    made = {f"{BASE}: better, no significant difference, worse": markdown(["beside", *TAGS], lines)}
    sets = [*dict.fromkeys(rows.set)]
    for tag in [*TAGS, "coverage_90", "cpu"]:
        form = ".1f" if tag == "cpu" else ".3f"
        cells = rows.groupby(["method", "set"])[tag]
        every = {key: mean_se(own.dropna(), form) for key, own in cells if own.notna().any()}
        made[tag] = markdown(["", *sets], ([m, *(every.get((m, s), "") for s in sets)] for m in methods))
    for tag in TAGS:
        at = {(m, s): apart[tag][m].loc[s].dropna() for m in rivals for s in sets if m in apart[tag]}
        each = ([m, *(paired(at[m, s]) if (m, s) in at and len(at[m, s]) > 1 else "" for s in sets)] for m in rivals)
        made[f"{tag}, gain of {BASE} over"] = markdown(["", *sets], each)
    return sections(made)


def sampled(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `experiments.sampling` on the same splits."""
    ours = pd.read_csv(SAMPLED / "ours.csv").query("method == 'mclmc, input noise'").assign(method="mclmc")
    both = pd.concat([ours, pd.read_csv(SAMPLED / "bde.csv").assign(method="bde")])
    kept = rows[["set", "split", "rows"]].drop_duplicates()
    return both.merge(kept, on=["set", "split", "rows"])


@experiment(__file__)
@names("--sets", "set", [*data.SETS, *data.OTHERS])
@names("--methods", "method", [*METHODS, BOOSTING])
@data.tables
def main(sets: list[str], methods: list[str], tables: Path | None, out: Path) -> None:
    """Run what is missing."""
    loaded = {name: data.table(name, tables) for name in sets}

    def cells() -> Iterator[Key]:
        for name in sets:
            for method in methods:
                for first in (1,) if name in FIVE else (1, 1 + TOGETHER):
                    yield name, data.size(loaded[name], ROWS.get(name)), method, first

    def run(name: str, size: int, method: str, first: int) -> pd.DataFrame:
        parts = data.parts(loaded[name], slice(first - 1, first - 1 + TOGETHER), size)
        if method == BOOSTING:
            found = boosted(parts)
        else:
            found = scores(METHODS[method], parts, loaded[name].y)
        return found.assign(split=range(first, first + len(found)))

    rows = run_missing(out / "ours.csv", KEY, cells(), run, [*TAGS, "cpu"])
    write(out / "table.md", summary(pd.concat([rows, sampled(rows)])))


if __name__ == "__main__":
    main()
