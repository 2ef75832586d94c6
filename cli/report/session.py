"""The `explore report` command: opens the runs, draws the sections of their command, and writes the page."""

import importlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from explore.cli import display, start
from explore.cli.report import page
from explore.core.errors import InputError, counted, listed
from explore.learning import trust
from explore.runs.record import read_run
from explore.runs.recorded import recorded

PAGES = {name: f"explore.cli.{name}.report" for name in ("active", "classify", "compare", "rl")}
PAGES["suggest"] = "explore.cli.report.suggest"
SHARED = ("dataset", "data", "images", "target", "task", "validation")  # settings in which compared runs must agree
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Opened:
    """A run to show in the report."""

    name: str  # of the run folder
    folder: Path
    command: str  # that wrote the run
    config: dict[str, Any]  # settings as JSON values
    trusted: Sequence[str]  # modules that the settings may import
    sizes: Mapping[str, int]  # of each table at the last checkpoint, in bytes
    prefix: str = ""  # of the run's labels, if the page shows several runs

    @property
    def settings(self) -> Any:
        """The settings of the run. Raises InputError if they name an untrusted module."""
        cls = importlib.import_module(f"explore.cli.{self.command}.experiment").Settings
        return start.settings(cls, self.folder, self.command, self.trusted)

    def table(self, name: str) -> pd.DataFrame:
        """Read the CSV file `name` as of the last checkpoint, even while the run appends rows."""
        return pd.read_csv(io.BytesIO(self._bytes(name)))

    def curves(self) -> dict[str, pd.DataFrame]:
        """Return series -> table of metrics.jsonl, with one row per step and one column per tag."""
        content = self._bytes("metrics.jsonl")
        try:
            table = pd.DataFrame([dict(json.loads(line)) for line in content.decode().splitlines()])
            series = table.pop("series")
            if table.step.dtype.kind != "i" or not all(map(str.isprintable, [*series, *table])):
                raise ValueError("a line of metrics.jsonl lacks a series, a step or printable tags")
            groups = table.astype(float).groupby(series, sort=False)
            # A step may be spread over several lines.
            return {str(name): rows.groupby("step", sort=False).last() for name, rows in groups}
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise InputError(f"{self.folder} is not a run folder, or it is damaged: {error}") from error

    def _bytes(self, name: str) -> bytes:
        if not self.sizes.get(name):
            raise InputError(f"{self.folder} has no {name} yet. Let the run go on until its first results")
        return (self.folder / name).read_bytes()[: self.sizes[name]]


def readable(runs: Sequence[Opened], part: str, read: Callable[[Opened], T]) -> tuple[dict[str, T], list[page.Section]]:
    """Apply `read` to each run. Return run name -> result, and a section with a warning for each unreadable run."""
    parts, missing = {}, []
    for run in runs:
        try:
            parts[run.name] = read(run)
        except InputError as error:
            warning = f"Skipped the figures that need the {part} of {run.name}: {error}."
            missing.append(page.Section(f"{part.capitalize()} of {run.name}", warnings=[warning]))
    return parts, missing


def run(options: Mapping[str, Any]) -> None:
    """Run `explore report` with its command-line options."""
    out = Path(options["out"])
    page.check(out)
    runs = [_open(Path(folder), options["trust"]) for folder in options["runs"]]
    names = [one.name for one in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"several runs have the name {', '.join(twice)}. Rename a folder")
    commands = sorted({one.command for one in runs})
    if len(commands) > 1:
        raise InputError(f"a report shows runs of one command, not of {' and '.join(commands)}. Pass runs of one only")
    _check_data(commands[0], runs)
    if len(runs) > 1:
        runs = [replace(one, prefix=f"{one.name}: ") for one in runs]
    command = importlib.import_module(PAGES[commands[0]])
    sections = [*command.sections(runs), page.settings({one.name: one.config for one in runs})]
    pictures = page.write(out, f"explore {commands[0]}: {', '.join(names)}", sections)
    if not options["quiet"]:
        for warning in (warning for section in sections for warning in section.warnings):
            display.echo(warning, err=True)
    if options["as_json"]:
        display.echo(json.dumps({"report": str(out), "figures": [str(path) for path in pictures], "runs": names}))
    else:
        display.echo(f"Wrote {out} and {counted(len(pictures), 'figure')}.")


def _check_data(command: str, runs: Sequence[Opened]) -> None:
    sources = {str([one.config.get(key) for key in SHARED]) for one in runs}
    if command in ("active", "classify", "compare") and len(sources) > 1:
        names = ", ".join(one.name for one in runs)
        raise InputError(f"{names} differ in data, target or validation. Write a separate report for each of them")


def _open(folder: Path, trusted: Sequence[str]) -> Opened:
    trust.check_links(folder)
    settings, sizes = recorded(folder), {}
    command = settings["command"]
    if command not in PAGES:
        raise InputError(f"{folder} was written by explore {command}, which has no report. Use runs of {listed(PAGES)}")
    if command != "suggest":
        config, checkpoint = read_run(folder)
        settings, sizes = config["settings"], {file: table["size"] for file, table in checkpoint["tables"].items()}
    return Opened(folder.resolve().name, folder, command, settings, trusted, sizes)
