"""One start of `explore report`: open the runs, make the sections of their kind, write the page, say it."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from explore.cli import display, loaded, trust
from explore.cli.report import page
from explore.core.errors import InputError, listed
from explore.runs.record import read_run

KINDS = ("active", "classify", "compare", "rl", "suggest")


@dataclass(frozen=True)
class Opened:
    """A run to be drawn.

    Attributes:
        name: of its folder.
        folder: of the run.
        command: that wrote it.
        config: its settings as JSON has them.
        trusted: modules that it may import.
        sizes: bytes of each table that are known to be whole.
    """

    name: str
    folder: Path
    command: str
    config: dict[str, Any]
    trusted: Sequence[str]
    sizes: Mapping[str, int]

    @property
    def settings(self) -> Any:
        """Its settings, read; modules that they name are imported if they are trusted."""
        return loaded.settings_of(self.folder, self.trusted)

    def table(self, name: str) -> pd.DataFrame:
        """One of its tables, which the run may be adding to.

        Raises:
            InputError: when nothing is in it yet.
        """
        if not self.sizes.get(name):
            raise InputError(f"{self.folder} has no {name} yet; let the run measure something first")
        return pd.read_csv(io.BytesIO((self.folder / name).read_bytes()[: self.sizes[name]]))


def run(options: Mapping[str, Any]) -> None:
    """Do what the options ask for."""
    out = Path(options["out"])
    page.check(out)
    runs = [_open(Path(folder), options["trust"]) for folder in options["runs"]]
    names = [one.name for one in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"several runs are called {', '.join(twice)}; rename a folder, so that they can be told apart")
    kinds = sorted({one.command for one in runs})
    if len(kinds) > 1:
        raise InputError(f"runs of {' and '.join(kinds)} have no page in common; give those of one command")
    _check_data(kinds[0], runs)
    make = importlib.import_module(f"explore.cli.report.{kinds[0]}").sections
    sections = [*make(runs), page.settings({one.name: one.config for one in runs})]
    pictures = page.write(out, f"explore {kinds[0]}: {', '.join(names)}", sections)
    if not options["quiet"]:
        for warning in (warning for section in sections for warning in section.warnings):
            display.echo(warning, err=True)
    if options["as_json"]:
        display.echo(json.dumps({"report": str(out), "figures": [str(path) for path in pictures], "runs": names}))
    else:
        display.echo(f"{out} and {len(pictures)} figures are written.")


def _check_data(command: str, runs: Sequence[Opened]) -> None:
    """Refuse runs on several data sets where they share figures and are subtracted from each other."""
    source = {
        one.name: [one.config.get(key) for key in ("dataset", "data", "images", "target", "task", "validation")]
        for one in runs
    }
    if command in ("active", "classify", "compare") and len({str(parts) for parts in source.values()}) > 1:
        raise InputError(f"{', '.join(source)} differ in their data, target or validation; give each a page of its own")


def _open(folder: Path, trusted: Sequence[str]) -> Opened:
    trust.check_links(folder)
    command = loaded.command_of(folder)
    if command not in KINDS:
        raise InputError(
            f"{folder} is a run of explore {command}, of which there is no report; those of {listed(KINDS)} have one"
        )
    name = folder.resolve().name
    if command == "suggest":
        return Opened(name, folder, command, loaded.recorded(folder), trusted, {})
    config, _, tables = read_run(folder)
    if "overlay" in config["settings"]:
        raise InputError(f"{folder} lays finished runs over each other; give those runs")
    sizes = {file: prefix.size for file, prefix in tables.items()}
    return Opened(name, folder, command, config["settings"], trusted, sizes)
