"""Results of `explore rl`: the files of a run (see docs/rl.md), terminal output, and report sections."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import trim_mean

from explore.cli.display import literal
from explore.cli.estimate import decimals, estimate
from explore.cli.report import drawing
from explore.cli.report.page import Section, cells, save
from explore.cli.report.session import Opened
from explore.cli.rl.experiment import Experiment
from explore.cli.rl.settings import OFF_POLICY, Settings
from explore.cli.rl.training import Piece, series
from explore.cli.start import Report
from explore.core.errors import curvature_note
from explore.runs.record import Run
from explore.runs.recorded import flat

LAST = 10  # number of final iterations that the results average over
TITLE = (
    f"The last {LAST} iterations: mean return of an episode (without bonus), share of episodes with a success "
    "and of iterations with a positive reward (paid)"
)
PLACES = {"return": 3, "success": 2, "paid": 2, "seconds": 1, "first_paid": 0}  # columns and their decimals
FIGURE = "curves.png"
RETURN = "ep_extrinsic_mean"
PANELS = {
    RETURN: "episode return, without bonus",
    "success": "share of episodes with a success",
    "extrinsic_total": "reward per iteration",
    "bonus_mean": "bonus per transition",
    "dyn_nll_before": "dynamics model: NLL of new transitions",
}
RESAMPLED, LEAST = 2000, 5  # bootstrap samples of the seeds, and fewest seeds for an answer
NESTED = {"algo_settings": "algo", "env_kwargs": "env", "vime": "vime", "conditions": ""}  # settings -> prefixes
COUNTS = ("dropped", "restarts")  # ignored non-finite transitions; restarts of the dynamics model, if there is one


def write(run: Run, experiment: Experiment, event: Piece | int) -> dict[str, int] | None:
    """Write an event. If a checkpoint is now due, return series -> number of timesteps, else None."""
    if isinstance(event, int):
        return None
    every = experiment.settings
    s = every.each[event.condition]
    name = series(s, event.seed)
    if event.begins:
        settings = flat(s, NESTED) | {"seed": event.seed}
        posterior = settings.pop("vime.posterior_settings", {})
        settings |= {f"posterior.{key}": value for key, value in posterior.items()}
        run.hparams(name, settings, ["rollout/ep_extrinsic_mean", "rollout/success"])
    for row in event.events:
        if isinstance(row, dict):
            run.rows("results.csv", [{"condition": event.condition} | row if every.conditions else row])
        else:
            run.scalars(name, *row)
    return {series(every.each[name], seed): p.timesteps for (name, seed), p in experiment.positions.items()}


def by_condition(table: pd.DataFrame, name: str) -> dict[str, pd.DataFrame]:
    """Return the rows of results.csv by condition; without a comparison, all of them by `name`."""
    if "condition" not in table:
        return {name: table}
    return {str(condition): rows for condition, rows in table.groupby("condition", sort=False)}


def results(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a dict for each seed: means over the last iterations, the first rewarded iteration, and counts."""
    seeds: list[dict[str, Any]] = []
    for _, rows in table.groupby("seed"):
        last, paid = rows.tail(LAST), rows[rows.extrinsic_total > 0]
        row = {
            "seed": int(rows.seed.iloc[0]),
            "return": float(last.ep_extrinsic_mean.mean()),  # skips iterations in which no episode ended
            "success": float(last.success.mean()),
            "paid": float((last.extrinsic_total > 0).mean()),
            "first_paid": int(paid.iteration.iloc[0]) if len(paid) else None,
            "seconds": round(float(rows.seconds.sum()), 3),
            **{name: None if rows[name].isna().all() else int(rows[name].max()) for name in COUNTS},
            "bonus_paid": None if rows.bonus_mean.isna().all() else bool((rows.bonus_mean > 0).any()),
            "bonus_share": float((rows.bonus_share * rows.seconds).sum(skipna=False) / rows.seconds.sum()),
        }
        seeds.append(row)
    return seeds


def report(experiment: Experiment, folder: Path) -> Report:
    """Return the result, and save the figure in the run folder."""
    settings, each = experiment.settings, experiment.settings.each
    tables = by_condition(pd.read_csv(folder / "results.csv"), settings.posterior)
    seeds = {name: results(table) for name, table in tables.items()}
    note = curvature_note([position.initial_curvature_share for position in experiment.positions.values()])
    failures = [f"Dynamics model, in the end: {note}"] if note else []
    save(_figure(tables, [RETURN, "bonus_mean"]), folder / FIGURE)
    summaries = {name: summary(own, each[name], folder) for name, own in seeds.items()}
    if not settings.conditions:
        (own,), (whole,) = seeds.values(), summaries.values()
        return Report(failures, [(TITLE, table(own))], whole, "", list(facts(own, settings)), FIGURE)
    rows = [table(own).tail(1).assign(seed=name) for name, own in seeds.items()]
    means = pd.concat(rows).fillna("").rename(columns={"seed": "bonus"})
    shown = [(TITLE, means.loc[:, (means != "").any()])]  # counts have no means
    named = [(f"{name} {key}", value) for name, own in seeds.items() for key, value in facts(own, each[name])]
    verdict, gains = helps(seeds)
    return Report(failures, shown, {"conditions": summaries, "gains": gains}, verdict, named, FIGURE)


def helps(seeds: Mapping[str, list[dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
    """Say whether each condition has a higher return than the first one, and return the differences.

    A difference is the interquartile mean over paired seeds, with its 90 % bootstrap interval.
    """
    (first, baseline), *compared = seeds.items()
    lines, gains, draw = [], {}, np.random.default_rng(0)
    for name, rows in compared:
        pairs = zip(rows, baseline, strict=True)
        difference = np.array([with_it["return"] - without["return"] for with_it, without in pairs])
        count = len(difference)
        middle = float(trim_mean(difference, 0.25))
        resampled = trim_mean(difference[draw.integers(0, count, (RESAMPLED, count))], 0.25, axis=1)
        low, high = map(float, np.quantile(resampled, [0.05, 0.95]))
        gains[name] = {"mean": middle, "low": low, "high": high, "beside": first}
        answer = "not settled" if low <= 0 <= high else "yes" if low > 0 else "no, it does harm"
        span = f"{count} paired seeds, 90 % interval {low:.3g} to {high:.3g}"
        if count < LEAST:
            answer, span = f"pass --seeds {LEAST} or more to know", f"paired seeds: {count}"
        lines.append(f"Does {name} help? Its return is {middle:+.3g} beside {first} ({span}): {answer}.")
    return "\n".join(lines), gains


def facts(seeds: list[dict[str, Any]], settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (name, value) pairs: why the bonus was always 0 (if it was), and the share of time spent on the bonus."""
    reason, frame = settings.unpaid, pd.DataFrame(seeds)
    # Off-policy, the rewards of a batch do not include the bonus.
    if settings.algo not in OFF_POLICY and settings.vime and not frame.bonus_paid.any():
        reason = reason or "the dynamics model learnt nothing from any transition"
    if reason:
        yield "bonus", f"always 0: {reason}"
    share = (frame.bonus_share * frame.seconds).sum(skipna=False) / frame.seconds.sum()
    if not math.isnan(share):
        yield "time", f"{share:.0%} for the bonus and the dynamics model"


def table(seeds: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table with one row per seed and, for several seeds, a row of means and standard errors."""
    places = PLACES if seeds[0]["restarts"] is None else PLACES | dict.fromkeys(COUNTS, 0)
    rows = [
        {"seed": str(row["seed"])}
        | {name: "never" if row[name] is None else f"{row[name]:.{n}f}" for name, n in places.items()}
        for row in seeds
    ]
    if len(seeds) > 1:
        averaged = [name for name in PLACES if name != "first_paid"]
        means = {name: estimate([row[name] for row in seeds]).text(PLACES[name]) for name in averaged}
        rows.append({"seed": "mean"} | means)
    return pd.DataFrame(rows).fillna("").rename(columns={"first_paid": "first paid"})


def summary(seeds: list[dict[str, Any]], settings: Settings, folder: Path) -> dict[str, Any]:
    """Return the result as JSON-compatible values; docs/rl.md explains the keys."""
    named = {name: getattr(settings, name) for name in ("env", "algo", "posterior")}
    named |= {name: (settings.vime or {}).get(name) for name in ("bonus", "eta")}
    averaged = ("return", "success", "paid", "seconds", "bonus_share")
    overall: dict[str, Any] = {name: estimate([row[name] for row in seeds])._asdict() for name in averaged}
    overall["solved"] = sum(row["paid"] == 1 for row in seeds)
    return named | {"seeds": seeds, "overall": overall, "run": str(folder)}


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """Yield the report sections for all runs, returns first."""
    posteriors = [str(run.config["posterior"]) for run in runs]
    labels = [p if posteriors.count(p) == 1 else f"{p} ({run.name})" for p, run in zip(posteriors, runs, strict=True)]
    tables: dict[str, pd.DataFrame] = {}
    for label, run in zip(labels, runs, strict=True):
        parts = by_condition(run.table("results.csv"), label)
        tables |= {name if name == label or len(runs) == 1 else f"{label}: {name}": own for name, own in parts.items()}
    environments = sorted({str(run.config["env"]) for run in runs})
    figure = _figure(tables, [RETURN], width=8, height=4.5)
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
    yield Section("Rewards, bonus and dynamics", _figure(tables, [name for name in PANELS if name != RETURN]))


def _figure(tables: Mapping[str, pd.DataFrame], columns: Sequence[str], **size: Any) -> Figure:
    """Draw returns, and other columns of results.csv that have a value, over environment steps."""
    lines = {
        PANELS[name]: {
            label: table.pivot(index="timesteps", columns="seed", values=name)
            for label, table in tables.items()
            if name in table  # without any value, too, so that a label has the same colour in all panels
        }
        for name in columns
        if name == RETURN or any(name in table and table[name].notna().any() for table in tables.values())
    }
    return drawing.curves(lines, "steps of the environment", partial=True, **size)
