"""The page on runs of `explore rl`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from explore.cli.display import literal
from explore.cli.report.drawing import band, center, panels
from explore.cli.report.page import Section
from explore.cli.report.session import Opened

LAST = 10  # iterations by which a policy is judged in the end
FURTHER = {
    "success": "share of episodes with a success",
    "extrinsic_total": "reward of an iteration",
    "bonus_mean": "bonus of a transition",
    "dyn_nll_before": "dynamics model: NLL of new transitions",
}


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """Yield all sections, returns first."""
    tables = {_label(run, runs): run.table("results.csv") for run in runs}
    yield _returns(tables, runs)
    if measured := [name for name in FURTHER if any(_has(table, name) for table in tables.values())]:
        figure, every = panels(len(measured))
        for axes, name in zip(every, measured, strict=True):
            for label, table in tables.items():
                if _has(table, name):
                    _draw(axes, table, name, label)
            axes.set(xlabel="steps of the environment", ylabel=FURTHER[name])
        every[0].legend(fontsize="small")
        yield Section("Rewards, bonus and dynamics", figure)


def _label(run: Opened, runs: Sequence[Opened]) -> str:
    """Return the posterior, with the run's name where several runs have it."""
    posterior = str(run.config["posterior"])
    unique = [str(other.config["posterior"]) for other in runs].count(posterior) == 1
    return posterior if unique else f"{posterior} ({run.name})"


def _has(table: pd.DataFrame, name: str) -> bool:
    return name in table and bool(table[name].notna().any())


def _draw(axes: Axes, table: pd.DataFrame, name: str, label: str) -> None:
    values = table.pivot(index="timesteps", columns="seed", values=name)
    band(axes, values.index.to_list(), values.to_numpy(), label, "-", partial=True)


def _returns(tables: dict[str, pd.DataFrame], runs: Sequence[Opened]) -> Section:
    figure, (axes,) = panels(1, width=8, height=4.5)
    rows = []
    for label, table in tables.items():
        _draw(axes, table, "ep_extrinsic_mean", label)
        last = table.groupby("seed").tail(LAST).groupby("seed").ep_extrinsic_mean.mean()
        mean, se = center(last.to_numpy()[None])
        rows.append([label, str(table.seed.nunique()), str(table.timesteps.max()), f"{mean[0]:.4g} ± {se[0]:.2g}"])
    environments = sorted({str(run.config["env"]) for run in runs})
    axes.set(xlabel="steps of the environment", ylabel="return of an episode, without bonus")
    axes.set_title(literal(", ".join(environments)))
    axes.legend(fontsize="small")
    notes = ["Mean over seeds with a band of one standard error; iterations in which no episode ended are left out."]
    if len(environments) > 1:
        notes.append("These runs are of several environments, whose returns do not count the same things.")
    header = ("posterior", "seeds", "steps", f"return in the last {LAST} iterations")
    return Section("Returns", figure, notes, header=header, rows=rows)
