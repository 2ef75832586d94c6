"""Candidates on validation parts of some splits, and those that were chosen on the test parts of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd

from experiments.driver import run_missing, score, split
from experiments.tables import markdown, mean_se, paired, sections
from explore.core.rng import Rng
from explore.data.base import Dataset
from explore.nets.net import mlp
from explore.nets.protocols import Likelihood

SAMPLES = 100
KEY = ["dataset", "candidate"]
EACH = "ensemble, chosen for each set"
Candidate = tuple[str, dict[str, Any]]  # a posterior and its settings


class Study(NamedTuple):
    """What is fitted to which sets."""

    load: Callable[[str], Dataset]
    likelihood: Likelihood
    units: int  # of the one hidden layer
    tags: Mapping[str, str]  # metric -> its name in tables
    tuned: Mapping[str, slice]  # set -> splits, from 0, on whose validation parts candidates are compared
    reported: Mapping[str, slice]  # set -> splits on whose test parts the chosen ones are
    candidates: Mapping[str, Candidate]
    chosen: Mapping[str, Candidate]  # one of them the "ensemble"
    samples: Mapping[str, int] = {}  # of weights for predictions, by candidate, where they are not 100

    def arms(self, out: Path, dataset: str) -> dict[str, Candidate]:
        """What is reported on a set: also the ensemble that `choose` found best there, if it is another."""
        if not self.tuned:
            return dict(self.chosen)
        rows = pd.read_csv(out / "choose.csv")
        own = rows[(rows.dataset == dataset) & rows.candidate.str.startswith("ensemble")]
        means = own.groupby("candidate").log_likelihood.mean()
        best = {} if means.empty else {EACH: self.candidates[str(means.idxmax())]}
        return {name: what for name, what in best.items() if what != self.chosen["ensemble"]} | dict(self.chosen)

    def score(self, dataset: str, candidate: str, what: Candidate, splits: slice, share: float) -> pd.DataFrame:
        """A line a split."""
        name, settings = what
        rng, data = Rng(0), self.load(dataset)
        parts = split(data, splits, rng, share)
        net = mlp(parts.x.shape[2], [self.units], len(data.classes) or 1)
        samples = self.samples.get(candidate, SAMPLES)
        rows = score(name, net, self.likelihood, parts, rng, self.tags, samples, **settings)
        return rows.assign(split=rows.split + splits.start)

    def ranking(self, rows: pd.DataFrame) -> str:
        """Mean log-likelihoods, and how far, over all sets, they are below the best candidate of the same posterior."""
        means = rows.pivot_table("log_likelihood", "candidate", "dataset", sort=False)
        kinds = means.index.map(lambda name: self.candidates[name][0])
        missing = (means.groupby(kinds).transform("max") - means).mean(axis=1)
        lines = [[name, *map(_rounded, means.loc[name]), _rounded(missing[name])] for name in means.index]
        return markdown(["candidate", *means.columns, "below the best"], lines)

    def tables(self, rows: pd.DataFrame) -> str:
        """Scores, differences to the ensembles paired by split, and seconds; see `tables.paired` for their errors."""
        sets = list(dict.fromkeys(rows.dataset))
        arms = [name for name in (EACH, *self.chosen) if name in set(rows.candidate)]
        ensembles = [name for name in arms if name.startswith("ensemble")]
        made = {}
        for tag, title in self.tags.items():
            wide = rows.pivot(index=["dataset", "split"], columns="candidate", values=tag)
            lines = [[name, *(_cell(wide[name][data]) for data in sets)] for name in arms]
            for name in (name for name in arms if name not in ensembles):
                for other in ensembles:
                    apart = wide[name] - wide[other]
                    lines.append([f"{name} − {other}", *(_cell(apart[data], paired) for data in sets)])
            made[title] = markdown(["", *sets], lines)
        cpu = rows.pivot_table("cpu", "candidate", "dataset")
        spent = {name: [cpu[data][name] for data in sets] for name in arms}
        splits = rows.groupby("dataset").split.nunique()
        made["splits"] = markdown(["", *sets], [["all methods", *(splits[data] for data in sets)]])
        lines = [[name, *("" if math.isnan(v) else f"{v:.0f}" for v in values)] for name, values in spent.items()]
        return sections(made | {"CPU seconds of all splits": markdown(["", *sets], lines)})

    def run(self, part: str, datasets: list[str] | None, out: Path) -> None:
        """Run the missing cells of `choose` or `report`, and print the tables."""
        choosing = part == "choose"
        splits, share = (self.tuned, 0.2) if choosing else (self.reported, 0.0)
        arms = {name: self.candidates if choosing else self.arms(out, name) for name in datasets or splits}

        def run(dataset: str, candidate: str) -> pd.DataFrame:
            return self.score(dataset, candidate, arms[dataset][candidate], splits[dataset], share)

        cells = ((dataset, candidate) for dataset in arms for candidate in arms[dataset])
        rows = run_missing(out / f"{part}.csv", KEY, cells, run, ["log_likelihood", "cpu"])
        click.echo(self.ranking(rows) if choosing else self.tables(rows))


def _rounded(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _cell(values: pd.Series, form: Callable[[pd.Series, str], str] = mean_se) -> str:
    return form(values, ".4f") if values.notna().all() else ""
