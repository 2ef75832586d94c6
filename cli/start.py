"""How a command that writes a run folder starts: device, threads, a new folder or an old one, progress."""

from __future__ import annotations

import itertools
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from explore.cli import trust
from explore.errors import InputError, shown
from explore.provenance import differences, history, session
from explore.record import FolderExists, Run, read_config


class Start(NamedTuple):
    """Where and how to compute."""

    old: Run | None  # the run to continue
    device: str
    session: dict[str, Any]  # what to record about this start


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
    return Start(old, device, now)


@contextmanager
def reading(folder: Path | None) -> Iterator[None]:
    """Blame a run folder, if there is one, for whatever its settings and its checkpoint make of their readers.

    Raises:
        InputError: with the reason.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if folder is None or isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise InputError(f"{folder} is damaged: its settings and its checkpoint make no run ({reason})") from error


def resumed(run: Run, now: Mapping[str, Any]) -> None:
    """Record that a run goes on, and warn where that may change its numbers."""
    for change in differences(run.config["sessions"][-1], now):
        click.echo(f"Warning: {change}", err=True)
    run.resumed(now)


def warnings(run: Run) -> dict[str, list[str]]:
    """What all starts of a run have warned of, for its JSON object."""
    return {"warnings": history(run.config["sessions"])}


def _open(folder: Path, command: str, trusted: Sequence[str]) -> Run:
    trust.check_links(folder)
    settings = read_config(folder)["settings"]
    if settings.get("command") != command:
        raise InputError(f"{folder} is a run of explore {settings.get('command')}, not of {command}")
    trust.check(folder, settings, trusted)
    return Run.open(folder)


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count()
    allowed = ["auto", "cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if name not in allowed:
        raise InputError(f"there is no device {shown(name)} here; allowed: {', '.join(allowed)}")
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


@contextmanager
def following(command: str, run: Run, where: Callable[[Any], str]) -> Iterator[None]:
    """Close the run at the end; when it is interrupted, or cannot be written, say how to continue, and exit.

    Args:
        command: that wrote it.
        run: the run.
        where: says in words how far the state of a checkpoint is.
    """
    hook = threading.excepthook
    # TensorBoard's threads print what they cannot write; the next write of the run raises it again, here.
    threading.excepthook = lambda failed: None if issubclass(failed.exc_type, OSError) else hook(failed)
    try:
        with run:
            yield
    except (KeyboardInterrupt, OSError) as error:
        code, what = 130, "Interrupted"
        if isinstance(error, OSError):
            code, what = 1, f"Error: cannot write to the run folder {run.folder}: {error.strerror or error}. Stopped"
        click.echo(f"{what} after {where(run.last())}.", err=True)
        again = ["explore", command, "--resume", str(run.folder)]
        for module in trust.modules(run.config["settings"]):
            again += ["--trust", module]
        click.echo(f"Continue: {shlex.join(again)}", err=True)
        raise click.exceptions.Exit(code) from error
    finally:
        threading.excepthook = hook
