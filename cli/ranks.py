"""Runs of `explore classify` by `torchrun` processes that share the work. Only the first one prints and writes."""

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from explore.cli import display
from explore.core.errors import InputError
from explore.execution import parallel
from explore.learning import trust
from explore.runs.record import Run
from explore.runs.recorded import read_run


@contextmanager
def joined(command: str) -> Iterator[None]:
    """Set up the process group of a `torchrun` job for the `with` block. Without torchrun, do nothing."""
    if parallel.started() == 1:
        yield
        return
    if command != "classify":
        only = "only explore classify does. Start it without torchrun"
        raise InputError(f"explore {command} does not support torchrun; {only}")
    # torchrun sends SIGTERM to the other processes when one has ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with parallel.joined():
            yield
    except (parallel.ProcessLost, KeyboardInterrupt) as error:
        ending()
        display.echo(f"Error: process {os.environ['RANK']}: another process of this job has stopped", err=True)
        raise click.exceptions.Exit(1) from error


def ending() -> None:
    """Ignore torchrun's SIGTERM, so that this process can print how to continue."""
    if parallel.started() > 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def device(name: str) -> str:
    """Return the device of this process. With CUDA, each process of a `torchrun` job has a separate GPU."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if parallel.started() > 1 and name.startswith("cuda") else name


def opened(folder: Path, settings: Any) -> Run:
    """Open the run in `folder` to continue it. The first process locks the run; then the others read it."""
    processes = parallel.world().processes
    wanted = getattr(settings, "processes", processes)
    if wanted != processes:
        how = "start it without torchrun" if wanted == 1 else f"start it by torchrun --nproc-per-node {wanted}"
        raise InputError(f"{folder} is a run of {wanted} processes and cannot continue with {processes}; {how}")
    run = None if parallel.world().rank else Run.open(folder)
    parallel.agreed(None)  # wait until it is open and cut to its last checkpoint
    run = run or Run(folder, *read_run(folder))
    parallel.agreed(None)  # wait until all have read it, before the first process writes
    return run


def again(command: str, folder: Path, settings: Any) -> str:
    """Return the command line that continues a run."""
    words = ["explore", command]
    if parallel.started() > 1:
        words = ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "explore.cli", command]
    trusted = (part for module in trust.modules(settings) for part in ("--trust", module))
    return shlex.join([*words, "--resume", str(folder), *trusted])
