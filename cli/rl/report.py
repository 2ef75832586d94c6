"""Results of `explore rl`: the files of a run, the result in the terminal, the page of a report.

metrics.jsonl and TensorBoard: a series a seed, `<posterior>-seed-<n>`; a step is a step of the environment, all copies
together. results.csv: a row a seed and iteration. models/<series>/<steps>/: the last checkpoint, which is model.pt
(policy, optimisers, counts), bonus.pt (state of the dynamics model and its replay) and replay_buffer.pt (off-policy),
and for users of stable-baselines3 model.zip and vecnormalize.pkl; models/<series>/best-<steps>/: the policy that was
best in an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from explore.cli.display import literal
from explore.cli.estimate import Estimate, decimals, estimate
from explore.cli.report import drawing
from explore.cli.report.page import Section, cells
from explore.cli.report.session import Opened
from explore.cli.rl.experiment import Experiment
from explore.cli.rl.settings import Settings
from explore.cli.rl.training import Piece, series
from explore.cli.start import Report
from explore.core.errors import curvature_note
from explore.runs.record import Run, plain
from explore.runs.recorded import flat

LAST = 10  # iterations by which a policy is judged in the end
TITLE = (
    f"The last {LAST} iterations: mean return of an episode (without bonus), share of episodes with a success "
    "and of iterations with a positive reward (paid)"
)
PLACES = {"return": 3, "success": 2, "paid": 2, "seconds": 1, "first_paid": 0}  # columns and their decimals
COUNTS = ("dropped", "restarts")  # of transitions that were not finite, and of the dynamics model, if there is one
FURTHER = {
    "success": "share of episodes with a success",
    "extrinsic_total": "reward per iteration",
    "bonus_mean": "bonus per transition",
    "dyn_nll_before": "dynamics model: NLL of new transitions",
}


def write(run: Run, experiment: Experiment, event: Piece | int) -> dict[str, int] | None:
    """Write an event; return the steps of the checkpoint that is due, if one is, by series."""
    if isinstance(event, int):
        return None
    s = experiment.settings
    name = series(s, event.seed)
    if event.begins:
        settings = flat(s, {"algo_settings": "algo", "env_kwargs": "env", "vime": "vime"}) | {"seed": event.seed}
        posterior = settings.pop("vime.posterior_settings", {})
        settings |= {f"posterior.{key}": value for key, value in posterior.items()}
        run.hparams(name, settings, ["rollout/ep_extrinsic_mean", "rollout/success"])
    for row in event.events:
        if isinstance(row, dict):
            run.rows("results.csv", [row])
        else:
            run.scalars(name, *row)
    return {series(s, seed): position.timesteps for seed, position in experiment.positions.items()}


def results(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the means of each seed's last iterations, and the iteration of its first reward, from results.csv."""
    return [_seed(seed, rows) for seed, rows in table.groupby("seed")]


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


def report(experiment: Experiment, folder: Path) -> Report:
    """Return the result."""
    seeds, settings = results(pd.read_csv(folder / "results.csv")), experiment.settings
    note = curvature_note([position.initial_curvature_share for position in experiment.positions.values()])
    failures = [f"Dynamics model, in the end: {note}"] if note else []
    return Report(
        failures, [(TITLE, table(seeds))], summary(seeds, settings, folder), facts=list(facts(seeds, settings))
    )


def facts(seeds: list[dict[str, Any]], settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield why there was no bonus, if there was none, and its share of the time."""
    reason, frame = settings.unpaid, pd.DataFrame(seeds)
    # Off-policy the bonus is no part of the rewards of a batch.
    if settings.algo != "sac" and settings.vime and not frame.bonus_paid.any():
        reason = reason or "the dynamics model learnt nothing from any transition"
    if reason:
        yield "bonus", f"always 0: {reason}"
    share = (frame.bonus_share * frame.seconds).sum(skipna=False) / frame.seconds.sum()
    if not math.isnan(share):
        yield "time", f"{share:.0%} for the bonus and the dynamics model"


def table(seeds: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table with a row a seed, and their means with standard errors."""
    places = PLACES if seeds[0]["restarts"] is None else PLACES | dict.fromkeys(COUNTS, 0)
    rows = [
        {"seed": str(row["seed"])}
        | {name: "never" if row[name] is None else f"{row[name]:.{n}f}" for name, n in places.items()}
        for row in seeds
    ]
    if len(seeds) > 1:
        means = {name: _over_seeds(seeds, name).text(PLACES[name]) for name in PLACES if name != "first_paid"}
        rows.append({"seed": "mean"} | means)
    return pd.DataFrame(rows).fillna("").rename(columns={"first_paid": "first paid"})


def _over_seeds(seeds: list[dict[str, Any]], name: str) -> Estimate:
    return estimate([row[name] for row in seeds])


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
    averaged = ("return", "success", "paid", "seconds", "bonus_share")
    overall: dict[str, Any] = {name: _over_seeds(seeds, name)._asdict() for name in averaged}
    overall["solved"] = sum(row["paid"] == 1 for row in seeds)
    return plain(named | {"seeds": seeds, "overall": overall, "run": str(folder)})


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """Yield the sections of all runs, returns first."""
    posteriors = [str(run.config["posterior"]) for run in runs]
    labels = [p if posteriors.count(p) == 1 else f"{p} ({run.name})" for p, run in zip(posteriors, runs, strict=True)]
    tables = {label: run.table("results.csv") for label, run in zip(labels, runs, strict=True)}
    environments = sorted({str(run.config["env"]) for run in runs})
    figure = _figure(tables, {"ep_extrinsic_mean": "episode return, without bonus"}, width=8, height=4.5)
    figure.axes[0].set_title(literal(", ".join(environments)))
    notes = ["Mean over seeds ± one standard error. Iterations in which no episode ended are left out."]
    if len(environments) > 1:
        notes.append("These runs use different environments, so their returns are not comparable.")
    rows = []
    for label, table in tables.items():
        returns = [row["return"] for row in results(table)]
        rows.append({"posterior": label, "seeds": str(len(returns)), "steps": str(table.timesteps.max())})
        rows[-1][f"return in the last {LAST} iterations"] = estimate(returns).text(decimals(returns))
    yield Section("Returns", figure, notes, **cells(pd.DataFrame(rows)))
    if further := {name: title for name, title in FURTHER.items() if any(_has(t, name) for t in tables.values())}:
        yield Section("Rewards, bonus and dynamics", _figure(tables, further))


def _figure(tables: Mapping[str, pd.DataFrame], columns: Mapping[str, str], **size: Any) -> Figure:
    """Draw columns of results.csv, by their titles, over steps of the environment."""
    lines = {
        title: {
            label: table.pivot(index="timesteps", columns="seed", values=name)
            for label, table in tables.items()
            if _has(table, name)
        }
        for name, title in columns.items()
    }
    return drawing.curves(lines, "steps of the environment", partial=True, **size)


def _has(table: pd.DataFrame, name: str) -> bool:
    return name in table and bool(table[name].notna().any())
