"""Posteriors around a network that is trained already: five epochs from its weights, beside laplace-torch.

    python -m experiments.peers.trained

The networks are trained as those that laplace-torch approximates in `experiments.peers.run`, on the same splits: by
Adam, for as many epochs as were chosen for laplace-torch there, with the noise learnt and the prior N(0, 1). Ours begin
at their weights (`Net(module, trained=True)`) or anew, with the preset `default` but for the five epochs, which were
named beforehand.

Writes results/trained.csv (a line a set, method and split; CPU seconds without the training of the network) and
results/trained.md. What is there is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pandas as pd
import torch
from torch import nn

from experiments.driver import commit, experiment, merge, names, recorded, write
from experiments.peers import methods
from experiments.peers.run import HERE, SPLITS, TAGS, best
from experiments.table_defaults.run import NOISE
from experiments.tables import markdown, mean_se, sections
from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.data import load
from explore.learning import compare
from explore.learning.fit import last_epoch
from explore.nets.net import Net

EPOCHS = 5
NAMES = ("noisy-kfac", "noisy-ekfac", "slang", "bbb", "noisy-adam", "vogn")
ANEW = ", anew"
METHODS = (*NAMES, "noisy-kfac" + ANEW)
MODULE = "the network itself"
KEY = ["dataset", "method"]


def around(method: str, module: nn.Module, part: compare.Splits, split: int) -> dict[str, float]:
    """The scores of a posterior after five epochs on one split."""
    net = Net(module, trained=not method.endswith(ANEW))
    posterior = registry.posterior(method.removesuffix(ANEW), net, NOISE, "default", epochs=EPOCHS)
    begin, rng = time.process_time(), Rng(0)
    state = last_epoch(posterior, part.x, part.y, rng.stream("fit", split)).state
    found = compare.measure(posterior, state, part, rng.stream("test", split), methods.SAMPLES)
    return {tag: float(found[f"test/{tag}"]) for tag in TAGS} | {"cpu": time.process_time() - begin}


def lines(dataset: str, wanted: list[str], epochs: int, lr: float) -> Iterator[dict[str, object]]:
    """Each method's scores on each split, around a network that is trained as `methods.laplace_torch` trains it."""
    splits = compare.split(load(dataset), SPLITS[dataset], Rng(0))
    for r in range(SPLITS[dataset]):
        part: compare.Splits = tree.part(splits, slice(r, r + 1))
        assert part.scale is not None  # of regressions alone
        x, y, scale = part.x[0], part.y[0, :, 0], float(part.scale)
        torch.manual_seed(r)
        begin, module = time.process_time(), methods.net(x.shape[1])
        std = methods.trained(module, x, y, epochs, methods.prior_penalty(module, len(x)), lr).reshape(1, 1)
        with torch.no_grad():
            own = methods.Prediction(module(part.test_x[0]).T.numpy(), std.numpy())
        found = methods.scores(own, part.test_y[0, :, 0].numpy(), scale) | {"cpu": time.process_time() - begin}
        yield {"dataset": dataset, "method": MODULE, "split": r + 1, **found}
        for method in wanted:
            yield {"dataset": dataset, "method": method, "split": r + 1, **around(method, module, part, r + 1)}


def table(rows: pd.DataFrame) -> str:
    """Means and standard errors over the splits."""
    sets = [name for name in SPLITS if name in set(rows.dataset)]
    made = {}
    for tag, title in (TAGS | {"cpu": "CPU seconds a split"}).items():
        cells = {
            method: [rows[(rows.method == method) & (rows.dataset == name)][tag] for name in sets]
            for method in dict.fromkeys(rows.method)
        }
        form = [[m, *(f"{v.mean():.2f}" if tag == "cpu" else mean_se(v) for v in own)] for m, own in cells.items()]
        made[title] = markdown(["", *sets], form)
    return sections(made)


@experiment(__file__)
@names("--datasets", "data set", SPLITS)
def main(datasets: list[str], out: Path) -> None:
    """Run what is missing, and write the table."""
    path = out / "trained.csv"
    for dataset in datasets:
        if wanted := [method for method in METHODS if not recorded(path, KEY, (dataset, method))]:
            rows = pd.DataFrame(
                lines(dataset, wanted, **best(HERE / "results" / "choose.csv", dataset, "laplace-torch"))
            )
            merge(path, rows.assign(commit=commit()), KEY)
            click.echo(f"{dataset}: {len(rows)} lines", err=True)
    theirs = pd.read_csv(HERE / "results" / "report.csv")
    theirs = theirs[(theirs.method == "laplace-torch") & theirs.dataset.isin(datasets)]
    write(out / "trained.md", table(pd.concat([pd.read_csv(path), theirs])))


if __name__ == "__main__":
    main()
