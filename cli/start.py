"""How a command starts: the settings of a recorded run, device and threads, a new run folder."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from explore.cli import parameters, ranks, trust
from explore.cli.options import THREADS
from explore.core import machine
from explore.core.context import execute
from explore.core.errors import InputError, shown
from explore.execution import parallel
from explore.runs.provenance import session
from explore.runs.record import FolderExists, Run, read_config

Settings = TypeVar("Settings")


GRAPHS = {"auto": None, "on": True, "off": False}
# What settings and a checkpoint by unknown hands make of their readers.
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def compute(options: Mapping[str, Any], old: Run | None = None) -> tuple[str, dict[str, Any]]:
    """The device, and what to record about this start; sets the number of threads, and whether graphs are recorded.

    Raises:
        InputError: for a device that is not here, and graphs in several processes.
    """
    last: dict[str, Any] = old.config["sessions"][-1] if old else {}
    device = _device(options["device"] or last.get("device", "auto"))
    threads, asked = options.get("threads") or last.get("threads", 1), options.get("graphs")
    if type(threads) is not int or not 1 <= threads <= (THREADS.max or 1):  # what a folder may say
        raise InputError(f"a run recorded {shown(threads)} threads; give --threads from 1 to {THREADS.max:g}")
    if asked and parallel.world().processes > 1:
        raise InputError(
            f"--graphs records the updates of one process, and there are {parallel.world().processes}; leave it out"
        )
    jobs = (old.config["settings"] if old else options).get("jobs") or 1
    if asked and jobs > 1 and device == "cpu":  # each process would compile for itself, for minutes
        raise InputError(
            f"--graphs compiles the updates of one process, and --jobs asks for {jobs}; leave one of them out"
        )
    recorded = next((word for word, value in GRAPHS.items() if value == asked), "auto")
    recorded = last.get("graphs", "auto") if asked is None else recorded
    torch.set_num_threads(threads)
    execute(record=GRAPHS[recorded])
    return device, session(device=device, threads=threads, graphs=recorded, processes=parallel.world().processes)


@contextmanager
def reading(folder: Path | None) -> Iterator[None]:
    """Blame a run folder, if there is one, for whatever its settings and its checkpoint make of their readers."""
    try:
        yield
    except WRONG as error:
        if folder is None or isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise InputError(f"{folder} is damaged: its settings and its checkpoint make no run ({reason})") from error


def settings(cls: type[Settings], folder: Path, command: str, trusted: Sequence[str]) -> Settings:
    """The settings of a run, which may name modules that are trusted.

    Raises:
        InputError: when it is no run of this command, names other modules, or its settings are not those of `cls`.
    """
    trust.check_links(folder)
    recorded = read_config(folder)["settings"]
    if recorded.get("command") != command:
        raise InputError(f"{folder} is a run of explore {recorded.get('command')}, not of {command}")
    if "overlay" in recorded:
        raise InputError(f"{folder} lays finished runs over each other; there is nothing to continue")
    trust.check(folder, recorded, trusted)
    return parameters.read(cls, recorded, str(folder / "config.json"))


def extended(old: Any, asked: Mapping[str, int]) -> Any:
    """Settings of the same run with more of some: the new totals, by name.

    Raises:
        InputError: when it has more.
    """
    for name, value in asked.items():
        if value < (had := getattr(old, name)):
            raise InputError(f"--{name} is {value}, but the run has {had}; give the new total, or leave it out")
    return replace(old, **asked)


def _device(name: str) -> str:
    if name == "auto":
        return ranks.device("cuda" if torch.cuda.is_available() else "cpu")
    allowed = ["auto", *machine.devices()]
    if name not in allowed:
        raise InputError(f"there is no device {shown(name)} here; allowed: {', '.join(allowed)}")
    return ranks.device(name)


def create(out: Path, name: str | None, parts: tuple[str, ...], settings: Any, state: Any, now: Any) -> Run:
    """A new run folder under --out, called by --name, else by these parts and the first number that is free.

    Raises:
        InputError: when --name is taken or no name of a file.
    """
    if name is not None:
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise InputError(f"--name is {shown(name)}; it may have letters, digits and . _ + -")
        folder = out / f"{parts[0]}-{name}"
        try:
            return Run.create(folder, settings, state, now)
        except FolderExists:
            raise InputError(f"{folder} exists; continue it with --resume {folder}, or choose another --name") from None
    base = file_name(*parts)
    for number in itertools.count(1):
        try:
            return Run.create(out / (base if number == 1 else f"{base}-{number}"), settings, state, now)
        except FolderExists:
            pass
    raise AssertionError


def file_name(*parts: str) -> str:
    """Names joined to one that a file may have; "module:Class" is a name too."""
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))
