"""Processor seconds that every posterior takes for a split of Boston and 100 epochs, beside Adam and other libraries.

    experiments/benchmarks/peers_environment.sh FOLDER
    python -m experiments.benchmarks.uci_speed --peers FOLDER/bin/python

A net 13-50-1, 455 training examples, batches of 10, one thread, updates alone: no predictions, no metrics. Posteriors
have the papers' settings or what their fields say, but ten weight samples (or members) an update, or one; those with
Kronecker factors also their preset `default`, in which half of the updates are without samples. Twenty splits side by
side, whose time is divided by twenty, or one split alone. Peers train one split at a time.
`--tree before=FOLDER` measures the library of another checkout too. Checkouts and peers take turns, `--repeats` times,
each time in a process of its own, and the numbers are medians: so all meet the same machine, however busy.

Writes results/uci_speed.csv (a line a measurement) and results/uci_speed.md beside this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pandas as pd

from experiments.driver import FOLDER
from experiments.tables import markdown
from explore.cli.script import Script

HERE = Path(__file__).parent
FORMS = {(10, 20): "10 samples, 20 splits", (1, 20): "1 sample, 20 splits", (10, 1): "10 samples, 1 split",
         (1, 1): "1 sample, 1 split"}  # fmt: skip


def worker(python: str, script: str, tree: Path, *arguments: str) -> pd.DataFrame:
    """What a script beside this file measures with the library of a checkout."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree.resolve())}
    command = [python, str(HERE / script), *arguments]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True, cwd=tree)
    return pd.DataFrame([json.loads(line) for line in done.stdout.splitlines()])


def table(rows: pd.DataFrame) -> str:
    """Medians over the repeats; where there are several checkouts, a line for each of a posterior."""
    medians = rows.groupby(["method", "tree", "samples", "splits"], sort=False)["seconds"].median().unstack([2, 3])
    forms = [form for form in FORMS if form in medians]
    lines = zip(medians.index.to_list(), medians[forms].to_numpy(), strict=True)
    cells = [[method, tree, *("" if pd.isna(v) else f"{v:.2f}" for v in values)] for (method, tree), values in lines]
    return markdown(["method", "checkout", *(FORMS[form] for form in forms)], cells)


@click.command(cls=Script)
@click.option("--tree", "trees", multiple=True, default=["now=."], show_default=True, help="NAME=FOLDER of a checkout.")
@click.option("--peers", default=sys.executable, help="Python of the peers' environment.  [default: Adam alone]")
@click.option("--posterior", "names", multiple=True, help="Names; all that are updated step by step by default.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--seconds", default=1.0, show_default=True, help="Of each measurement, about.")
@click.option("--out", type=FOLDER, default=HERE / "results")
def main(trees: tuple[str, ...], peers: str, names: tuple[str, ...], repeats: int, seconds: float, out: Path) -> None:
    """Measure everything in turn, and write the table."""
    places = [tree.partition("=")[::2] for tree in trees]
    found = []
    for repeat in range(repeats):
        print(f"round {repeat + 1} of {repeats}", flush=True)
        for label, place in places:
            rows = worker(sys.executable, "uci_speed_ours.py", Path(place), str(seconds), *names)
            found.append(rows.assign(tree=label, repeat=repeat))
        found.append(worker(peers, "uci_speed_peers.py", HERE, str(seconds)).assign(tree="", repeat=repeat))
    rows = pd.concat(found)[["method", "tree", "samples", "splits", "repeat", "seconds"]]
    out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(out / "uci_speed.csv", index=False, float_format="%.4g")
    (out / "uci_speed.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
