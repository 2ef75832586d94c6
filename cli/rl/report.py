"""What a run of `explore rl` says at its end: a table, whether there was a bonus, a JSON object."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from explore.cli.console import Table
from explore.cli.estimate import estimate
from explore.cli.rl.experiment import Experiment
from explore.cli.rl.settings import Settings
from explore.cli.run import Report
from explore.core.errors import curvature_note
from explore.runs.record import plain

LAST = 10  # iterations that say how well a policy does in the end
TITLE = (
    f"The last {LAST} iterations: mean return of an episode (without bonus), share of episodes with a success "
    "and of iterations with a positive reward (paid)"
)
COLUMNS = ("return", "success", "paid", "seconds", "first_paid")
COUNTS = ("dropped", "restarts")  # of transitions that were not finite, and of the dynamics model; where there is one


def report(experiment: Experiment, folder: Path) -> Report:
    """All of it."""
    seeds, settings = results(folder), experiment.settings
    note = curvature_note([position.initial_curvature_share for position in experiment.positions.values()])
    failures = [f"Dynamics model, in the end: {note}"] if note else []
    return Report(
        failures, [(TITLE, table(seeds))], summary(seeds, settings, folder), facts=list(facts(seeds, settings))
    )


def facts(seeds: list[dict[str, Any]], settings: Settings) -> Iterator[tuple[str, str]]:
    """Why there was no bonus, if there was none, and what part of the time was spent on it."""
    why = settings.unpaid
    # Off-policy the bonus is no part of what a batch says.
    if settings.algo != "sac" and settings.vime and not any(row["bonus_paid"] for row in seeds):
        why = why or "no transition gave the dynamics model anything to learn"
    if why:
        yield "bonus", f"0 throughout: {why}"
    if not math.isnan(part := share(seeds)):
        yield "time", f"{part:.0%} went into the bonus and its model"


def results(folder: Path) -> list[dict[str, Any]]:
    """What each seed's last iterations earn, and when the environment first paid."""
    return [_seed(seed, rows) for seed, rows in pd.read_csv(folder / "results.csv").groupby("seed")]


def _seed(seed: Any, rows: pd.DataFrame) -> dict[str, Any]:
    last, paid = rows.tail(LAST), rows[rows.extrinsic_total > 0]
    return {
        "seed": int(seed),
        "return": float(last.ep_extrinsic_mean.mean()),  # an iteration in which no episode ended says nothing
        "success": float(last.success.mean()),
        "paid": float((last.extrinsic_total > 0).mean()),
        "first_paid": int(paid.iteration.iloc[0]) if len(paid) else None,
        "seconds": round(float(rows.seconds.sum()), 3),
        **{name: None if rows[name].isna().all() else int(rows[name].max()) for name in COUNTS},
        "bonus_paid": None if rows.bonus_mean.isna().all() else bool((rows.bonus_mean > 0).any()),
        "bonus_share": float((rows.bonus_share * rows.seconds).sum(skipna=False) / rows.seconds.sum()),
    }


def table(seeds: list[dict[str, Any]]) -> Table:
    """A row a seed, and their means with standard errors."""
    columns = COLUMNS if seeds[0]["restarts"] is None else (*COLUMNS, *COUNTS)
    shown = Table("seed", *(name.replace("_", " ") for name in columns))
    for column in shown.columns:
        column.justify = "right"
    for row in seeds:
        shown.add_row(str(row["seed"]), *(_text(row[name], name) for name in columns))
    if len(seeds) > 1:
        shown.add_section()
        shown.add_row("mean", *(estimate(_values(seeds, name)).text(_places(name)) for name in COLUMNS[:-1]))
    return shown


def share(seeds: list[dict[str, Any]]) -> float:
    """The bonus's share of the time of all seeds; NaN where it was not measured."""
    return float((_values(seeds, "bonus_share") * _values(seeds, "seconds")).sum() / _values(seeds, "seconds").sum())


def _values(seeds: list[dict[str, Any]], name: str) -> torch.Tensor:
    return torch.tensor([row[name] for row in seeds], dtype=torch.float64)


def _text(value: float | None, name: str) -> str:
    return "never" if value is None else f"{value:.{_places(name)}f}"


def _places(name: str) -> int:
    return {"return": 3, "seconds": 1, "first_paid": 0, "dropped": 0, "restarts": 0}.get(name, 2)


def summary(seeds: list[dict[str, Any]], settings: Settings, folder: Path) -> dict[str, Any]:
    """The result as JSON can hold it (null: unknown).

    Of the last iterations: `return` is the mean of the episodes' extrinsic returns, `success` the share of episodes
    with a success, `paid` the share of iterations with one; `first_paid` is the first iteration with one, or
    null. `dropped` counts the transitions that were not finite, `restarts` those of the dynamics model; `bonus_paid`
    says whether any batch had a bonus that was not 0. `overall` has means and standard errors over seeds; `solved`
    counts the seeds that every one of the last iterations paid.
    """
    vime = settings.vime or {}
    own = {name: getattr(settings, name) for name in ("env", "algo", "posterior")}
    own |= {name: vime.get(name) for name in ("bonus", "eta")}
    overall = {name: estimate(_values(seeds, name))._asdict() for name in (*COLUMNS[:-1], "bonus_share")}
    overall["solved"] = sum(row["paid"] == 1 for row in seeds)
    return plain(own | {"seeds": seeds, "overall": overall, "run": str(folder)})
