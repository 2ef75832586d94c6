"""The result of a run of `explore rl`: a table, notes on the bonus, a JSON object."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from explore.cli.console import Table
from explore.cli.estimate import estimate
from explore.cli.report.rl import LAST
from explore.cli.rl.experiment import Experiment
from explore.cli.rl.settings import Settings
from explore.cli.start import Report
from explore.core.errors import curvature_note
from explore.runs.record import plain

TITLE = (
    f"The last {LAST} iterations: mean return of an episode (without bonus), share of episodes with a success "
    "and of iterations with a positive reward (paid)"
)
PLACES = {"return": 3, "success": 2, "paid": 2, "seconds": 1, "first_paid": 0}  # columns and their decimals
COUNTS = ("dropped", "restarts")  # of transitions that were not finite, and of the dynamics model, if there is one


def report(experiment: Experiment, folder: Path) -> Report:
    """Return the result."""
    seeds, settings = results(folder), experiment.settings
    note = curvature_note([position.initial_curvature_share for position in experiment.positions.values()])
    failures = [f"Dynamics model, in the end: {note}"] if note else []
    tables = [(TITLE, table(seeds))]
    return Report(failures, tables, summary(seeds, settings, folder), facts=list(facts(seeds, settings)))


def facts(seeds: list[dict[str, Any]], settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield why there was no bonus, if there was none, and its share of the time."""
    reason = settings.unpaid
    # Off-policy the bonus is no part of the rewards of a batch.
    if settings.algo != "sac" and settings.vime and not any(row["bonus_paid"] for row in seeds):
        reason = reason or "no transition gave the dynamics model anything to learn"
    if reason:
        yield "bonus", f"0 throughout: {reason}"
    share = float((_values(seeds, "bonus_share") * _values(seeds, "seconds")).sum() / _values(seeds, "seconds").sum())
    if not math.isnan(share):
        yield "time", f"{share:.0%} went into the bonus and its model"


def results(folder: Path) -> list[dict[str, Any]]:
    """Return means of each seed's last iterations, and the iteration of its first reward."""
    return [_seed(seed, rows) for seed, rows in pd.read_csv(folder / "results.csv").groupby("seed")]


def _seed(seed: Any, rows: pd.DataFrame) -> dict[str, Any]:
    last, paid = rows.tail(LAST), rows[rows.extrinsic_total > 0]
    return {
        "seed": int(seed),
        "return": float(last.ep_extrinsic_mean.mean()),  # without iterations in which no episode ended
        "success": float(last.success.mean()),
        "paid": float((last.extrinsic_total > 0).mean()),
        "first_paid": int(paid.iteration.iloc[0]) if len(paid) else None,
        "seconds": round(float(rows.seconds.sum()), 3),
        **{name: None if rows[name].isna().all() else int(rows[name].max()) for name in COUNTS},
        "bonus_paid": None if rows.bonus_mean.isna().all() else bool((rows.bonus_mean > 0).any()),
        "bonus_share": float((rows.bonus_share * rows.seconds).sum(skipna=False) / rows.seconds.sum()),
    }


def table(seeds: list[dict[str, Any]]) -> Table:
    """Return a table with a row a seed, and their means with standard errors."""
    places = PLACES if seeds[0]["restarts"] is None else PLACES | dict.fromkeys(COUNTS, 0)
    table = Table("seed", *(name.replace("_", " ") for name in places))
    for column in table.columns:
        column.justify = "right"
    for row in seeds:
        cells = ("never" if row[name] is None else f"{row[name]:.{n}f}" for name, n in places.items())
        table.add_row(str(row["seed"]), *cells)
    if len(seeds) > 1:
        table.add_section()
        table.add_row("mean", *(estimate(_values(seeds, name)).text(PLACES[name]) for name in list(PLACES)[:-1]))
    return table


def _values(seeds: list[dict[str, Any]], name: str) -> torch.Tensor:
    return torch.tensor([row[name] for row in seeds], dtype=torch.float64)


def summary(seeds: list[dict[str, Any]], settings: Settings, folder: Path) -> dict[str, Any]:
    """Return the result as JSON can hold it (null: unknown).

    Of the last iterations: `return` is the mean of the episodes' extrinsic returns, `success` the share of episodes
    with a success, `paid` the share of iterations with one; `first_paid` is the first iteration with one, or
    null. `dropped` counts the transitions that were not finite, `restarts` those of the dynamics model; `bonus_paid`
    says whether any batch had a bonus that was not 0. `overall` has means and standard errors over seeds; `solved`
    counts the seeds that every one of the last iterations paid.
    """
    named = {name: getattr(settings, name) for name in ("env", "algo", "posterior")}
    named |= {name: (settings.vime or {}).get(name) for name in ("bonus", "eta")}
    overall: dict[str, Any] = {}
    for name in ("return", "success", "paid", "seconds", "bonus_share"):
        overall[name] = estimate(_values(seeds, name))._asdict()
    overall["solved"] = sum(row["paid"] == 1 for row in seeds)
    return plain(named | {"seeds": seeds, "overall": overall, "run": str(folder)})
