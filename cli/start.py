"""The start of a command: settings of a recorded run, device and threads, a new run folder."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from explore.cli import parameters, ranks
from explore.cli.options import THREADS
from explore.core import machine
from explore.core.context import execute
from explore.core.errors import InputError, shown
from explore.execution import parallel
from explore.learning import trust
from explore.runs.provenance import session
from explore.runs.record import FolderExists, Run

Settings = TypeVar("Settings")

GRAPHS = {"auto": None, "on": True, "off": False}
# Errors that foreign settings and checkpoints may raise in their readers.
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def compute(options: Mapping[str, Any], old: Run | None = None) -> tuple[str, dict[str, Any]]:
    """Set the number of threads and whether graphs are recorded; return the device and the metadata of this start."""
    last: dict[str, Any] = old.config["sessions"][-1] if old else {}
    device = _device(options["device"] or last.get("device", "auto"))
    threads, graphs = options.get("threads") or last.get("threads", 1), options.get("graphs")
    if type(threads) is not int or not 1 <= threads <= (THREADS.max or 1):  # as a folder may have it
        raise InputError(f"a run recorded {shown(threads)} threads; give --threads from 1 to {THREADS.max:g}")
    processes = parallel.world().processes
    if graphs and processes > 1:
        raise InputError(f"--graphs records the updates of one process, and there are {processes}; leave it out")
    jobs = (old.config["settings"] if old else options).get("jobs") or 1
    if graphs and jobs > 1 and device == "cpu":  # each process would compile for itself, for minutes
        raise InputError(
            f"--graphs compiles the updates of one process, and --jobs asks for {jobs}; leave one of them out"
        )
    recorded = last.get("graphs", "auto") if graphs is None else "on" if graphs else "off"
    torch.set_num_threads(threads)
    execute(record=GRAPHS[recorded])
    return device, session(device=device, threads=threads, graphs=recorded, processes=processes)


@contextmanager
def reading(folder: Path | None) -> Iterator[None]:
    """Report any error in reading a run folder, if there is one, as damage of the folder."""
    try:
        yield
    except WRONG as error:
        if folder is None or isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise InputError(f"{folder} is damaged: its settings and its checkpoint make no run ({reason})") from error


def settings(cls: type[Settings], folder: Path, command: str, trusted: Sequence[str]) -> Settings:
    """Read the settings of a run of this command, unless they name modules that are not trusted."""
    recorded = trust.settings(folder, [command], trusted)
    return parameters.read(cls, recorded, str(folder / "config.json"))


def extended(old: Any, totals: Mapping[str, int]) -> Any:
    """Return settings with larger totals, by name; refuse smaller ones."""
    for name, value in totals.items():
        if value < (before := getattr(old, name)):
            raise InputError(f"--{name} is {value}, but the run has {before}; give the new total, or leave it out")
    return replace(old, **totals)


def _device(name: str) -> str:
    if name == "auto":
        return ranks.device("cuda" if torch.cuda.is_available() else "cpu")
    allowed = ["auto", *machine.devices()]
    if name not in allowed:
        raise InputError(f"there is no device {shown(name)} here; allowed: {', '.join(allowed)}")
    return ranks.device(name)


def create(out: Path, name: str | None, parts: tuple[str, ...], settings: Any, state: Any, session: Any) -> Run:
    """Create a run folder under --out, named by --name, else by these parts and the first number that is free."""
    if name is not None and not re.fullmatch(r"\w[\w.+-]*", name):
        raise InputError(f"--name is {shown(name)}; it may have letters, digits and . _ + -")
    base = file_name(*parts) if name is None else f"{parts[0]}-{name}"
    for number in itertools.count(1):
        folder = out / (base if number == 1 else f"{base}-{number}")
        try:
            return Run.create(folder, settings, state, session)
        except FolderExists:
            if name is not None:
                message = f"{folder} exists; continue it with --resume {folder}, or choose another --name"
                raise InputError(message) from None
    raise AssertionError


def file_name(*parts: str) -> str:
    """Join names to a valid file name; "module:Class" is a name too."""
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))
