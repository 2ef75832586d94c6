"""One start of a command: a new run or the rest of one, from its options to its report.

A command is a package of four files. Data flow one way: `settings.resolve(options)` gives a frozen dataclass `Settings`
and `experiment.Experiment` works by it; `recording.write(run, experiment, event)` writes an event into the run folder,
and says at which step, or steps by series, a checkpoint is due, if one is; `report.report(experiment, folder)` draws
and tells.
"""

from __future__ import annotations

import importlib
import json
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from explore.cli import console, display, parameters, ranks, saved, script, start, trust
from explore.execution import parallel
from explore.runs.provenance import differences, history
from explore.runs.record import Run

FILES = ("settings", "experiment", "recording", "report")


class Experiment(Protocol):
    """What a command does with its settings; made of these, the device, and the run to continue or None."""

    settings: Any
    parts: tuple[str, ...]  # of the run folder's name, behind the command
    plan: str  # what it is to do, in words
    note: str  # on the data, if there is anything to say
    total: int  # steps of the progress bar ...
    done: int  # ... and how many of them are done

    @property
    def doing(self) -> str:
        """What it is at, to stand before the bar."""

    def warnings(self) -> Iterator[str]:
        """What to say before it goes on."""

    def events(self, folder: Path, emit: Callable[[Any], None]) -> None:
        """Do what is left; `emit` writes each event into the run, which is in `folder`."""

    def where(self, saved: Any) -> str:
        """How far a `state_dict` is, in words."""

    def state_dict(self) -> dict[str, Any]:
        """What continues it after the last event with a checkpoint, as tensors and plain values."""


class Report(NamedTuple):
    """What a finished run says."""

    failures: Sequence[str]  # a sentence each
    tables: Sequence[tuple[str, console.Table]]  # with titles
    summary: dict[str, Any]  # the result as JSON
    verdict: str = ""
    facts: Sequence[tuple[str, str]] = ()  # names and values
    figure: str = ""  # name of a file in the run folder


def run(command: str, options: Mapping[str, Any]) -> None:
    """Do what the options of a command ask for."""
    with ranks.joined(command):
        _run(command, options)


def _run(command: str, options: Mapping[str, Any]) -> None:
    files = (importlib.import_module(f"explore.cli.{command}.{file}") for file in FILES)
    settings, experiments, recording, report = files
    folder = Path(options["resume"]) if options["resume"] else ranks.continued()
    # A job that is restarted names its functions once more.
    named = {key: options.get(key) for key in ("net", "posterior", "acquisition")}
    trusted = (*options["trust"], *trust.references(named))
    with start.reading(folder):
        recorded = start.settings(settings.Settings, folder, command, trusted) if folder else None
        wanted = start.extended(recorded, options["extend"]) if options.get("extend") else recorded
        old = ranks.opened(folder, recorded) if folder else None
        if folder:
            saved.check(folder)
        device, now = start.compute(options, old)
        experiment: Experiment = experiments.Experiment(wanted or settings.resolve(options), device, old)
    if parallel.world().rank:
        experiment.events(Path(), lambda event: None)
        return
    if old and wanted != recorded:
        old.extend(parameters.written(wanted))
    if old and experiment.done < experiment.total:
        for change in differences(old.config["sessions"][-1], now):
            display.echo(f"Warning: {change}", err=True)
        old.resumed(now)
    warnings = _announce(experiment, old, options["quiet"])
    new = (command, *experiment.parts), parameters.written(experiment.settings), experiment.state_dict(), now
    here = old or start.create(Path(options["out"]), options["name"], *new)
    ranks.remember(here.folder)
    with _closing(command, here, experiment.where):
        with _progress(options["quiet"] or options["as_json"]) as bar:
            task = bar.add_task(experiment.doing, total=experiment.total, completed=experiment.done)

            def emit(event: Any) -> None:
                step = recording.write(here, experiment, event)
                if step is not None:
                    here.checkpoint(experiment.state_dict(), step)
                bar.update(task, description=experiment.doing, completed=experiment.done)

            experiment.events(here.folder, emit)
        result: Report = report.report(experiment, here.folder)
    ranks.forget()
    said = {"notes": [note for note in experiment.note.splitlines() if note], "warnings": warnings}
    _print(result, here, said, options["as_json"], options["quiet"])


def _announce(experiment: Experiment, old: Run | None, quiet: bool) -> list[str]:
    """Print what is planned and what to keep in mind; the warnings among it."""
    plan = f"{old.folder}: {experiment.where(old.state)} are done." if old else experiment.plan
    for note in () if quiet else filter(None, (experiment.note, plan)):
        display.echo(note, err=True)
    warnings = list(experiment.warnings())
    for warning in warnings:
        display.echo(f"Warning: {warning}", err=True)
    return warnings


def places(folder: Path, figure: str = "") -> Iterator[tuple[str, str]]:
    """Where a run and its pictures are."""
    yield "run", str(folder)
    if figure:
        yield "figure", str(folder / figure)
    yield "tensorboard", f"tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}"


def echo(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one under the other."""
    for name, value in facts:
        display.echo(f"{name:<13}{value}")


def _print(report: Report, run: Run, said: dict[str, list[str]], as_json: bool, quiet: bool) -> None:
    for failure in report.failures:
        display.echo(f"Warning: {failure}", err=True)
    if as_json:
        if report.verdict and not quiet:
            display.echo(report.verdict, err=True)
        warnings = [*said["warnings"], *report.failures, *history(run.config["sessions"])]
        display.echo(json.dumps(report.summary | said | {"warnings": warnings}))
        return
    for title, table in report.tables:
        console.show(title, table)
    if report.verdict:
        display.echo(report.verdict)
    echo((*report.facts, *places(run.folder, report.figure)))


def _progress(silent: bool) -> Progress:
    share, left = TextColumn("{task.percentage:>3.0f}%"), TextColumn("left")
    columns = console.Description(), BarColumn(), share, TimeElapsedColumn(), left, TimeRemainingColumn()
    return console.progress(silent, *columns)


@contextmanager
def _closing(command: str, run: Run, where: Callable[[Any], str]) -> Iterator[None]:
    """Close the run at the end; when it is interrupted, or cannot be written, say how to continue, and exit."""
    hook = threading.excepthook
    # TensorBoard's threads print what they cannot write; the next write of the run raises it again, here.
    threading.excepthook = lambda failed: None if issubclass(failed.exc_type, OSError) else hook(failed)
    try:
        with script.interrupts(), run:
            yield
    except (KeyboardInterrupt, OSError, parallel.ProcessLost) as error:
        ranks.ending()
        if isinstance(error, KeyboardInterrupt):
            code, what = script.ending(error)
        elif isinstance(error, parallel.ProcessLost):
            code, what = 1, f"Error: {error}. Stopped"
        else:
            code, what = 1, f"Error: cannot write to the run folder {run.folder}: {error.strerror or error}. Stopped"
        display.echo(f"{what} after {where(run.last())}.", err=True)
        display.echo(f"Continue: {ranks.again(command, run.folder, run.config['settings'])}", err=True)
        raise click.exceptions.Exit(code) from error
    finally:
        threading.excepthook = hook
