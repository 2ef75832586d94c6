"""How a command that writes a run folder starts: device, threads, a new folder or an old one, progress."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from explore.cli import trust
from explore.errors import InputError
from explore.record import Run, session


class Start(NamedTuple):
    """Where and how to compute."""

    old: Run | None  # the run to continue
    device: str
    session: dict[str, Any]  # what to record about this start
    changes: list[str]  # sentences on what differs from the start before


def start(options: Mapping[str, Any], command: str) -> Start:
    """The run to continue, if any, and the device and number of threads, which are set.

    Raises:
        InputError: when the run cannot be continued by this command, or the device is not there.
    """
    old = _open(Path(options["resume"]), command, options["trust"]) if options["resume"] else None
    last: dict[str, Any] = old.config["sessions"][-1] if old else {}
    device = _device(options["device"] or last.get("device", "auto"))
    threads = options["threads"] or last.get("threads", 1)
    torch.set_num_threads(threads)
    now = session(device=device, threads=threads)
    changes = [
        f"Warning: {what} was {last.get(what)} and is {now[what]} now; the last digits may change."
        for what in ("device", "threads", "versions")
        if old and last.get(what) != now[what]
    ]
    return Start(old, device, now, changes)


def _open(folder: Path, command: str, trusted: Sequence[str]) -> Run:
    trust.check_links(folder)
    found = Run.open(folder)
    settings = found.config["settings"]
    try:
        if settings.get("command") != command:
            raise InputError(f"{folder} is a run of explore {settings.get('command')}, not of {command}")
        trust.check(folder, settings, trusted)
    except InputError:
        found.close()
        raise
    return found


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count()
    allowed = ["auto", "cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if name not in allowed:
        raise InputError(f"there is no device {name!r} here; allowed: {', '.join(allowed)}")
    return name


def create(
    options: Mapping[str, Any],
    parts: tuple[str, ...],
    settings: Mapping[str, Any],
    state: Mapping[str, Any],
    now: Mapping[str, Any],
) -> Run:
    """A new run folder under --out, called by --name, else by these parts and the first number that is free.

    Raises:
        InputError: when --name is taken or no name of a file.
    """
    out, name = Path(options["out"]), options["name"]
    if name is not None:
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise InputError(f"--name is {name!r}; it may have letters, digits and . _ + -")
        folder = out / f"{parts[0]}-{name}"
        if folder.exists():
            raise InputError(f"{folder} exists; continue it with --resume {folder}, or choose another --name")
        return Run.create(folder, settings, state, now)
    base = file_name(*parts)
    for number in itertools.count(1):
        folder = out / (base if number == 1 else f"{base}-{number}")
        if not folder.exists():
            try:
                return Run.create(folder, settings, state, now)
            except InputError:
                if not folder.exists():  # else another process was faster
                    raise
    raise AssertionError


def file_name(*parts: str) -> str:
    """Names joined to one that a file may have; "module:Class" is a name too."""
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts))


def progress(text: str, silent: bool) -> Progress:
    """A bar on standard error, if that is a terminal; `text` with the fields of the task stands before it."""
    console = Console(stderr=True)
    return Progress(
        TextColumn(text),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=silent or not console.is_terminal,
        transient=True,
    )


def interrupted(command: str, run: Run, where: str) -> int:
    """Say how to continue; the exit code."""
    click.echo(f"Interrupted after {where}.", err=True)
    again = ["explore", command, "--resume", str(run.folder)]
    for module in trust.modules(run.config["settings"]):
        again += ["--trust", module]
    click.echo(f"Continue: {shlex.join(again)}", err=True)
    return 130
