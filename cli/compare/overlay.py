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
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from explore.cli import console, display, start, trust
from explore.cli.run import echo, places
from explore.core.errors import InputError
from explore.runs.provenance import session
from explore.runs.record import plain, read_run


class Series(NamedTuple):
    """The curves of one series."""

    command: str  # that wrote it
    steps: list[int]
    tags: dict[str, list[float]]  # a value a step
    data: str = ""  # of the run: a set's name or a path


def run(folders: Sequence[str], options: Mapping[str, Any]) -> None:
    """Lay runs over each other, if they have something recorded and names that differ."""
    paths = [Path(folder) for folder in folders]
    names = [path.resolve().name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"several runs are called {', '.join(twice)}; their series would mix: rename a folder")
    every: dict[str, Series] = {}
    for name, path in zip(names, paths, strict=True):
        every |= {f"{name}/{series}": curves for series, curves in read(path).items()}
    settings = {"command": "compare", "overlay": [str(path.resolve()) for path in paths]}
    with start.create(Path(options["out"]), options["name"], ("compare", "overlay"), settings, {}, session()) as here:
        with open(here.folder / "metrics.jsonl", "w", encoding="utf-8") as file:
            for series, curves in every.items():
                for i, step in enumerate(curves.steps):
                    line = {"series": series, "step": step} | {tag: v[i] for tag, v in curves.tags.items()}
                    file.write(json.dumps(plain(line)) + "\n")
        for name, path in zip(names, paths, strict=True):
            shutil.copytree(path / "tensorboard", here.folder / "tensorboard" / name)
        rows = [
            dict(zip(("run", "series"), series.split("/", 1), strict=True))
            | {"step": curves.steps[-1], "tag": tag, "value": values[-1]}
            for series, curves in every.items()
            for tag, values in curves.tags.items()
        ]
        here.rows("results.csv", rows)
        tags = shared(every)
        if tags:
            plot(every, tags, here.folder / "curves.png")
        here.checkpoint({}, 0)
    if options["as_json"]:
        last = {series: {"step": c.steps[-1]} | {t: v[-1] for t, v in c.tags.items()} for series, c in every.items()}
        display.echo(json.dumps(plain({"series": last, "run": str(here.folder)})))
        return
    sets = {c.data for c in every.values()}
    if len(sets) > 1 and not options["quiet"]:
        display.echo(f"Note: the runs are on several sets of data, {', '.join(sorted(sets))}.", err=True)
    commands = {c.command for c in every.values()}
    if len(commands) > 1 and not options["quiet"]:
        display.echo(f"Note: the steps of {' and '.join(sorted(commands))} do not count the same things.", err=True)
    console.show(table(every, tags))
    echo(places(here.folder, "curves.png" if tags else ""))


def read(folder: Path) -> dict[str, Series]:
    """The curves of a run by series."""
    trust.check_links(folder)
    config, _, tables = read_run(folder)
    counted = tables["metrics.jsonl"].size if "metrics.jsonl" in tables else 0  # the run may be writing more
    try:
        text = (folder / "metrics.jsonl").read_bytes()[:counted] if counted else b""
        rows = [_row(line) for line in text.decode().splitlines()]
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{folder} is no run folder, or is damaged: {error}") from error
    every: dict[str, Series] = {}
    settings = config["settings"]
    data = next((str(v) for key in ("dataset", "data", "images", "env") if (v := settings.get(key))), "none")
    for series, step, values in rows:
        curves = every.setdefault(series, Series(str(settings.get("command")), [], {}, data))
        if curves.steps[-1:] != [step]:  # a step may be told in several lines
            curves.steps.append(step)
            for known in curves.tags.values():
                known.append(math.nan)
        for tag, value in values.items():
            curves.tags.setdefault(tag, [math.nan] * len(curves.steps))[-1] = value
    if not every:
        raise InputError(f"{folder} has no curves yet; let the run measure something first")
    if not (folder / "tensorboard").is_dir():
        raise InputError(f"{folder} is damaged: it has no folder tensorboard")
    return every


def _row(line: str) -> tuple[str, int, dict[str, float]]:
    """Series, step and values by tag of a line of metrics.jsonl."""
    row: dict[str, Any] = json.loads(line)
    match row:
        case {"series": str(series), "step": int(step), **tags} if all(map(str.isprintable, [series, *tags])):
            return series, step, {tag: math.nan if value is None else float(value) for tag, value in tags.items()}
    raise ValueError("a line of metrics.jsonl has no series, step and numbers")


def shared(every: Mapping[str, Series]) -> list[str]:
    """The tags that all series have, in order."""
    return sorted(set.intersection(*(set(curves.tags) for curves in every.values())))


def table(every: Mapping[str, Series], tags: Sequence[str]) -> console.Table:
    """The last values of the test metrics that all share, a row a series."""
    tested = [tag for tag in tags if tag.startswith("test/") and not tag.endswith("_se")]
    heads = (tag.removeprefix("test/").replace("_", " ") for tag in tested)  # which break at spaces
    shown = console.Table("series", "step", *heads)
    for column in shown.columns:
        column.overflow = "fold"  # whole names, on several lines if need be
    for column in shown.columns[1:]:
        column.justify = "right"
    for series, curves in every.items():
        shown.add_row(series, str(curves.steps[-1]), *(f"{curves.tags[tag][-1]:.4g}" for tag in tested))
    return shown


def marker(values: Sequence[float]) -> str:
    """A line, and the points too where one stands alone, which a line does not show."""
    known = [math.isfinite(value) for value in values]
    alone = any(k and not any(known[max(0, i - 1) : i] + known[i + 1 : i + 2]) for i, k in enumerate(known))
    return ".-" if alone else "-"


def plot(every: Mapping[str, Series], tags: Sequence[str], path: Path) -> None:
    """One panel a tag."""
    columns = min(4, len(tags))
    rows = math.ceil(len(tags) / columns)
    figure = Figure(figsize=(4 * columns, 0.5 + 3 * rows), layout="constrained")
    for i, tag in enumerate(tags):
        axes = figure.add_subplot(rows, columns, i + 1)
        for series, curves in every.items():
            axes.plot(curves.steps, curves.tags[tag], marker(curves.tags[tag]), label=display.literal(series))
        axes.set_title(display.literal(tag), fontsize=10)
        axes.grid(alpha=0.3)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", fontsize="small")
    figure.savefig(path, dpi=100)
