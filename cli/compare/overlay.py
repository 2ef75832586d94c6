"""`explore compare RUN RUN ...`: the curves of finished runs laid over each other.

A new folder gets the event files of every run under `tensorboard/<run>/<series>`, metrics.jsonl with the same names of
series, the last value of every tag in results.csv, and a picture with one panel for each tag that all series share.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from explore.cli import console, display, start, trust
from explore.cli.report.drawing import curve, panels, save
from explore.cli.run import echo, places
from explore.core.errors import InputError
from explore.runs.provenance import session
from explore.runs.record import plain, read_config, read_run


def run(folders: Sequence[str], options: Mapping[str, Any]) -> None:
    """Lay runs over each other, if they have something recorded and names that differ."""
    paths = [Path(folder) for folder in folders]
    names = [path.resolve().name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"several runs are called {', '.join(twice)}; their series would mix: rename a folder")
    runs = dict(zip(names, paths, strict=True))
    every = {f"{name}/{series}": steps for name, path in runs.items() for series, steps in read(path).items()}
    tags = shared(every)
    settings = {"command": "compare", "overlay": [str(path.resolve()) for path in paths]}
    with start.create(Path(options["out"]), options["name"], ("compare", "overlay"), settings, {}, session()) as here:
        with open(here.folder / "metrics.jsonl", "w", encoding="utf-8") as file:
            for series, steps in every.items():
                for step, values in steps.iterrows():
                    file.write(json.dumps(plain({"series": series, "step": step, **values})) + "\n")
        for name, path in runs.items():
            shutil.copytree(path / "tensorboard", here.folder / "tensorboard" / name)
        rows = [
            dict(zip(("run", "series"), series.split("/", 1), strict=True))
            | {"step": steps.index[-1], "tag": tag, "value": value}
            for series, steps in every.items()
            for tag, value in steps.iloc[-1].items()
        ]
        here.rows("results.csv", rows)
        if tags:
            plot(every, tags, here.folder / "curves.png")
        here.checkpoint({}, 0)
    if options["as_json"]:
        last = {series: {"step": int(steps.index[-1]), **steps.iloc[-1]} for series, steps in every.items()}
        display.echo(json.dumps(plain({"series": last, "run": str(here.folder)})))
        return
    if not options["quiet"]:
        _warn_of_differences(paths)
    console.show(table(every, tags))
    echo(places(here.folder, "curves.png" if tags else ""))


def _warn_of_differences(paths: Sequence[Path]) -> None:
    every = [read_config(path)["settings"] for path in paths]
    sets = {
        next((str(v) for key in ("dataset", "data", "images", "env") if (v := settings.get(key))), "none")
        for settings in every
    }
    if len(sets) > 1:
        display.echo(f"Note: the runs are on several sets of data, {', '.join(sorted(sets))}.", err=True)
    commands = {str(settings.get("command")) for settings in every}
    if len(commands) > 1:
        display.echo(f"Note: the steps of {' and '.join(sorted(commands))} do not count the same things.", err=True)


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """The curves of a run by series: a row a step, a column a tag."""
    trust.check_links(folder)
    _, _, tables = read_run(folder)
    counted = tables["metrics.jsonl"].size if "metrics.jsonl" in tables else 0  # the run may be writing more
    rows: dict[str, list[dict[str, float]]] = {}
    try:
        text = (folder / "metrics.jsonl").read_bytes()[:counted] if counted else b""
        for line in text.decode().splitlines():
            series, row = _row(line)
            rows.setdefault(series, []).append(row)
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{folder} is no run folder, or is damaged: {error}") from error
    if not rows:
        raise InputError(f"{folder} has no curves yet; let the run measure something first")
    if not (folder / "tensorboard").is_dir():
        raise InputError(f"{folder} is damaged: it has no folder tensorboard")
    # A step may stand in several lines.
    return {series: pd.DataFrame(lines).groupby("step", sort=False).last() for series, lines in rows.items()}


def _row(line: str) -> tuple[str, dict[str, float]]:
    """Series of a line of metrics.jsonl, and its step and values by tag."""
    row: dict[str, Any] = json.loads(line)
    match row:
        case {"series": str(series), "step": int(step), **tags} if all(map(str.isprintable, [series, *tags])):
            values = {tag: math.nan if value is None else float(value) for tag, value in tags.items()}
            return series, {"step": step, **values}
    raise ValueError("a line of metrics.jsonl has no series, step and numbers")


def shared(every: Mapping[str, pd.DataFrame]) -> list[str]:
    """The tags that all series have, in order."""
    return sorted(set.intersection(*(set(steps.columns) for steps in every.values())))


def table(every: Mapping[str, pd.DataFrame], tags: Sequence[str]) -> console.Table:
    """The last values of the test metrics that all share, a row a series."""
    tested = [tag for tag in tags if tag.startswith("test/") and not tag.endswith("_se")]
    heads = (tag.removeprefix("test/").replace("_", " ") for tag in tested)  # which break at spaces
    shown = console.Table("series", "step", *heads)
    for column in shown.columns:
        column.overflow = "fold"  # whole names, on several lines if need be
    for column in shown.columns[1:]:
        column.justify = "right"
    for series, steps in every.items():
        shown.add_row(series, str(steps.index[-1]), *(f"{value:.4g}" for value in steps[tested].iloc[-1]))
    return shown


def plot(every: Mapping[str, pd.DataFrame], tags: Sequence[str], path: Path) -> None:
    """One panel a tag."""
    figure, panel = panels(len(tags), columns=4, width=4, height=3.3)
    for axes, tag in zip(panel, tags, strict=True):
        for series, steps in every.items():
            curve(axes, steps[tag], series)
        axes.set_title(display.literal(tag), fontsize=10)
    figure.legend(*panel[0].get_legend_handles_labels(), loc="outside lower center", fontsize="small")
    save(figure, path)
