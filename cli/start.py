"""Execution of a command that writes a run folder, new or resumed: from its options to its report.

A command is a package with two modules:

- experiment: `resolve(options)` returns a frozen dataclass `Settings`, and `Experiment` does the work.
- report: `write(run, experiment, event)` writes an event into the run folder. If a checkpoint is
  now due, it returns the step (a number, or a dict of steps by series), else None. `report(experiment, folder)` saves
  the figures and returns the result. `sections(runs)` yields the sections of `explore report`.
"""

import importlib
import itertools
import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import click
import pandas as pd
import torch

from explore.cli import cluster, display, ranks, script
from explore.core import machine
from explore.core.context import execute
from explore.core.errors import InputError, shown
from explore.execution import parallel
from explore.learning import saved, trust
from explore.runs.provenance import differences, history, session
from explore.runs.record import FolderExists, Run, plain
from explore.runs.recorded import read, written

WARNING = "Warning: "
Settings = TypeVar("Settings")
GRAPHS = {"auto": None, "on": True, "off": False}
# Errors that damaged or foreign settings and checkpoints may raise when they are read.
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Experiment(Protocol):
    """The work of a command. The constructor takes settings, a device, and the run to resume (None for a new run)."""

    settings: Any
    parts: tuple[str, ...]  # parts of the run folder's name, after the command
    plan: str  # a sentence that describes the run, printed at the start
    notes: Sequence[str]  # printed at the start; with --quiet, only those that begin with WARNING
    unit: str  # of `total` and `done`, in the plural
    total: int  # length of the progress bar
    done: float  # position of the progress bar

    # Do the remaining work. Pass each event to `emit`, which writes it into the run folder.
    def events(self, folder: Path, emit: Callable[[Any], None]) -> None: ...
    # Tensors and plain values that a checkpoint saves, in order to resume. `done` counts the units finished by then.
    def state_dict(self) -> dict[str, Any]: ...


class Report(NamedTuple):
    """The result of a finished run."""

    failures: Sequence[str]  # one sentence each
    tables: Sequence[tuple[str, pd.DataFrame]]  # titles, with tables of strings
    summary: dict[str, Any]  # the result, to be printed as JSON with the run folder
    verdict: str = ""
    facts: Sequence[tuple[str, str]] = ()  # names and values
    figure: str = ""  # name of a file in the run folder


def run(command: str, options: Mapping[str, Any]) -> None:
    """Run a command with its options, alone or as one process of a `torchrun` job."""
    module, report = (importlib.import_module(f"explore.cli.{command}.{file}") for file in ("experiment", "report"))
    folder = Path(options["resume"]) if options["resume"] else None
    if parallel.attempt() and not folder:
        raise InputError("torchrun restarted this job, which may have a run folder. Continue it with --resume")
    with reading(folder):
        recorded = wanted = old = None
        if folder:
            recorded = settings(module.Settings, folder, command, options["trust"])
            wanted = extended(recorded, options.get("extend") or {})
            old = ranks.opened(folder, recorded)
            saved.check(folder)
        device, metadata = compute(options, old)
        experiment: Experiment = module.Experiment(wanted or module.resolve(options), device, old)
    if parallel.world().rank:
        experiment.events(Path(), lambda event: None)
        return
    if old:
        if wanted != recorded:
            old.extend(written(wanted))
        if experiment.done < experiment.total:
            for change in differences(old.config["sessions"][-1], metadata):
                display.echo(f"Warning: {change}", err=True)
            old.resumed(metadata)
    plan = f"{old.folder}: {_progress(experiment, experiment.done)} are done." if old else experiment.plan
    notes = [line for note in experiment.notes for line in note.splitlines()]
    for note in (*notes, plan):
        if note.startswith(WARNING) or not options["quiet"]:
            display.echo(note, err=True)
    content = written(experiment.settings), experiment.state_dict(), metadata
    with cluster.within(options.get("cluster"), getattr(experiment.settings, "jobs", 1)):
        record = old or create(Path(options["out"]), options["name"], (command, *experiment.parts), *content)
        with _closing(command, record, experiment):
            _work(experiment, record, report.write, options["quiet"] or options["as_json"])
            result: Report = report.report(experiment, record.folder)
    _print(result, record, notes, options["as_json"], options["quiet"])


def _work(experiment: Experiment, run: Run, write: Callable[[Run, Experiment, Any], Any], silent: bool) -> None:
    """Do the work with a progress bar, and write every event."""
    with display.progress(silent, experiment.unit, experiment.total, int(experiment.done)) as update:

        def emit(event: Any) -> None:
            step = write(run, experiment, event)
            if step is not None:
                run.checkpoint(experiment.state_dict(), step)
            update(completed=experiment.done)

        with cluster.watched():
            experiment.events(run.folder, emit)


def _print(report: Report, run: Run, notes: list[str], as_json: bool, quiet: bool) -> None:
    for failure in report.failures:
        display.echo(f"Warning: {failure}", err=True)
    if as_json:
        if report.verdict and not quiet:
            display.echo(report.verdict, err=True)
        warnings = [*report.failures, *history(run.config["sessions"])]
        more = {"run": str(run.folder), "notes": notes, "warnings": warnings}
        display.echo(json.dumps(plain(report.summary | more)))
        return
    for title, table in report.tables:
        display.show(title, display.table(table, table.to_numpy()))
    if report.verdict:
        display.echo(report.verdict)
    figure = [("figure", str(run.folder / report.figure))] if report.figure else []
    tensorboard = f"tensorboard --logdir {shlex.quote(str(run.folder / 'tensorboard'))}"
    for name, value in (*report.facts, ("run", str(run.folder)), *figure, ("tensorboard", tensorboard)):
        display.echo(f"{name:<12} {value}")


@contextmanager
def _closing(command: str, run: Run, experiment: Experiment) -> Iterator[None]:
    """Close the run at the end. If the run is interrupted or cannot be written, print how to resume, and exit."""
    hook = threading.excepthook
    # TensorBoard's threads print write errors; the next write of the run raises the same error in this thread.
    threading.excepthook = lambda failed: None if issubclass(failed.exc_type, OSError) else hook(failed)
    try:
        with script.interrupts(), run:
            yield
    except (KeyboardInterrupt, OSError, parallel.ProcessLost) as error:
        ranks.ending()
        if isinstance(error, KeyboardInterrupt):
            code, reason = script.ending(error)
        elif isinstance(error, parallel.ProcessLost):
            code, reason = 1, f"Error: {error}. Stopped"
        else:
            code, reason = 1, f"Error: cannot write to the run folder {run.folder}: {error.strerror or error}. Stopped"
        display.echo(f"{reason} after {_progress(experiment, run.last()['done'])}.", err=True)
        display.echo(f"Continue: {ranks.again(command, run.folder, run.config['settings'])}", err=True)
        raise click.exceptions.Exit(code) from error
    finally:
        threading.excepthook = hook


def _progress(experiment: Experiment, done: float) -> str:
    return f"{int(done)} of {experiment.total} {experiment.unit}"


def compute(options: Mapping[str, Any], old: Run | None = None) -> tuple[str, dict[str, Any]]:
    """Set the number of threads, and whether updates run as graphs. Return the device and the session metadata."""
    last: dict[str, Any] = old.config["sessions"][-1] if old else {}
    device = options["device"] or last.get("device", "auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device not in (allowed := machine.devices()):
        raise InputError(f"device {shown(device)} is not available; allowed: auto, {', '.join(allowed)}")
    device = ranks.device(device)
    threads, graphs = options.get("threads") or last.get("threads", 1), options.get("graphs")
    if type(threads) is not int or not 1 <= threads <= machine.THREADS:  # a run folder may contain anything
        raise InputError(
            f"the run folder records an invalid number of threads, {shown(threads)}. "
            f"Pass --threads from 1 to {machine.THREADS}"
        )
    processes, jobs = parallel.world().processes, (old.config["settings"] if old else options).get("jobs") or 1
    if graphs and max(processes, jobs) > 1:
        raise InputError("--graphs supports a single process. Leave out --graphs, or --jobs and torchrun")
    if graphs and not device.startswith("cuda"):
        raise InputError(f"--graphs needs a GPU, and the device is {device}. Leave out --graphs, or pass --device cuda")
    recorded = last.get("graphs", "auto") if graphs is None else "on" if graphs else "off"
    torch.set_num_threads(threads)
    execute(record=GRAPHS[recorded])
    return device, session(device=device, threads=threads, graphs=recorded, processes=processes)


def as_dict(results: Any) -> dict[str, Any]:
    """Return a NamedTuple as a dict, and also the NamedTuples in it, so that a checkpoint can save them."""
    return {key: part._asdict() if hasattr(part, "_asdict") else part for key, part in results._asdict().items()}


@contextmanager
def reading(folder: Path | None) -> Iterator[None]:
    """Re-raise errors in the block as `InputError`: the run folder is damaged. If `folder` is None, do nothing."""
    try:
        yield
    except WRONG as error:
        if folder is None or isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise InputError(f"{folder} is damaged: cannot restore its settings and checkpoint ({reason})") from error


def settings(cls: type[Settings], folder: Path, command: str, trusted: Sequence[str]) -> Settings:
    """Read the settings of a run of `command`. Raise InputError if the settings name untrusted modules."""
    return read(cls, trust.settings(folder, [command], trusted), str(folder / "config.json"))


def extended(old: Any, totals: Mapping[str, int]) -> Any:
    """Return a copy of settings with new `totals` (name -> value). Raise InputError if a total is less than before."""
    for name, value in totals.items():
        if value < (before := getattr(old, name)):
            advice = f"Pass at least {before}, or leave it out"
            raise InputError(f"--{name} is {value}, but the run already has {before}. {advice}")
    return replace(old, **totals)


def create(out: Path, name: str | None, parts: tuple[str, ...], settings: Any, state: Any, session: Any) -> Run:
    """Create a run folder in `out`. If `name` is None, name the folder after `parts` and the first free number."""
    if name is not None and not re.fullmatch(r"\w[\w.+-]*", name):
        allowed = "it must start with a letter, digit or _, followed by letters, digits or . _ + -"
        raise InputError(f"--name is {shown(name)}; {allowed}")
    base = file_name(*parts) if name is None else f"{parts[0]}-{name}"
    for number in itertools.count(1):
        folder = out / (base if number == 1 else f"{base}-{number}")
        try:
            return Run.create(folder, settings, state, session)
        except FolderExists:
            if name is not None:
                advice = f"Continue it with --resume {folder}, or choose another --name"
                raise InputError(f"{folder} exists. {advice}") from None
    raise AssertionError


def file_name(*parts: str) -> str:
    """Join names into a valid file name, replacing characters such as the colon of "module:Class"."""
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))
