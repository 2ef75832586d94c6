"""A command that `torchrun` started as several processes: the first one writes and tells, the others work along."""

from __future__ import annotations

import getpass
import os
import shlex
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from explore.cli import display, trust
from explore.core.errors import InputError
from explore.execution import parallel
from explore.runs.record import Run
from explore.runs.recorded import read_run

COMMANDS = ("classify", "active")  # that divide their fits, or the points that they score


@contextmanager
def joined(command: str) -> Iterator[None]:
    """As one of the processes of a job; alone, where there is none.

    Raises:
        InputError: for a command that runs in one process.
    """
    if parallel.started() == 1:
        yield
        return
    if command not in COMMANDS:
        raise InputError(f"explore {command} is begun once, not by torchrun; --jobs gives it more processes")
    # torchrun ends the processes that are left when one is gone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with parallel.joined():
            yield
    except (parallel.ProcessLost, KeyboardInterrupt) as error:
        ending()
        display.echo(f"Error: process {os.environ['RANK']}: another process of this job has ended", err=True)
        if _note().exists():  # the first one may be the one that ended, and cannot say it
            folder = Path(_note().read_text(encoding="utf-8"))
            display.echo(f"Continue: {again(command, folder, read_run(folder)[0]['settings'])}", err=True)
        raise click.exceptions.Exit(1) from error


def ending() -> None:
    """Let this process say how to go on, though torchrun ends it: it does so when it sees that another one is gone."""
    if parallel.started() > 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def device(name: str) -> str:
    """Of this process: each of a job has a GPU of its own."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if parallel.started() > 1 and name.startswith("cuda") else name


def opened(folder: Path, settings: Any) -> Run:
    """The run to continue: locked by the first process, and read by the others after it.

    Raises:
        InputError: when it cannot be opened, or has another number of processes, where these are a setting.
    """
    here = parallel.world().processes
    wanted = getattr(settings, "processes", here)
    if wanted != here:
        how = "start it without torchrun" if wanted == 1 else f"start it by torchrun --nproc-per-node {wanted}"
        raise InputError(f"{folder} is a run of {wanted} processes, which {here} cannot continue; {how}")
    run = None if parallel.world().rank else Run.open(folder)
    parallel.agreed(None)  # it is open: cut to its last checkpoint
    if run is None:
        config, saved, _ = read_run(folder)
        run = Run(folder, config, saved["state"], saved["step"])
    parallel.agreed(None)  # all have read it, before the first one writes
    return run


def remember(folder: Path) -> None:
    """Tell a job that is restarted after a failure where its run is."""
    if parallel.started() > 1:
        _note().write_text(str(folder.resolve()), encoding="utf-8")


def forget() -> None:
    """The job is done: it will not be restarted."""
    if parallel.started() > 1:
        _note().unlink(missing_ok=True)


def continued() -> Path | None:
    """The run of the job before it was restarted, if it had one."""
    if parallel.started() == 1:
        return None
    found = None
    if not parallel.world().rank:
        if not parallel.attempt():
            _note().unlink(missing_ok=True)
        elif _note().exists():
            found = Path(_note().read_text(encoding="utf-8"))
    agreed: Path | None = parallel.agreed(found)
    return agreed


def _note() -> Path:
    """A file that the restarted processes of one `torchrun` have in common."""
    return Path(tempfile.gettempdir()) / f"explore-job-{getpass.getuser()}-{os.getppid()}"


def again(command: str, folder: Path, settings: Any) -> str:
    """What continues a run, begun as this command was."""
    begun = ["explore", command]
    if parallel.started() > 1:
        begun = ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "explore.cli", command]
    trusted = (part for module in trust.modules(settings) for part in ("--trust", module))
    return shlex.join([*begun, "--resume", str(folder), *trusted])
