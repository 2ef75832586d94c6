"""Do runs on a cluster equal runs with --jobs, also when a worker is killed, and how much faster are two workers?

    pip install -c constraints.txt -e '.[cluster]'
    python -m experiments.benchmarks.cluster

Workers are processes of this machine: three of Dask, two of Ray. The runs are `explore compare` on 20 splits and
`explore active` with 20 trials; `speed` is a longer one with one and with two workers of Dask. Writes
results/cluster.csv: seconds of each run, and whether its results equal those of `--jobs` in every digit but for times.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import pandas as pd
import psutil

from experiments import driver

RESULTS = Path(__file__).parent / "results" / "cluster.csv"
PORTS = {"dask": 8796, "ray": 6396}
COMMANDS = {
    "compare": ("compare", "--dataset", "yacht", "--posterior", "bbb,noisy-kfac", "--splits", "20", "--epochs", "60"),
    "speed": ("compare", "--dataset", "boston", "--posterior", "noisy-kfac", "--splits", "8", "--epochs", "400"),
    "active": ("active", "--dataset", "boston", "--posterior", "noisy-kfac", "--trials", "20", "--rounds", "10"),
}
STARTED = 25.0  # seconds after the start of a command, when its workers are surely at work


@contextmanager
def dask(workers: int) -> Iterator[str]:
    """Start a scheduler and workers; yield the address of the cluster."""
    address = f"tcp://127.0.0.1:{PORTS['dask']}"
    scheduler = ("dask_scheduler", "--host", "127.0.0.1", "--port", str(PORTS["dask"]))
    worker = ("dask_worker", address, "--nthreads", "1", "--no-nanny")
    with ExitStack() as stack:
        for name, *options in (scheduler, *[worker] * workers):
            command = [sys.executable, "-m", f"distributed.cli.{name}", *options, "--no-dashboard"]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            time.sleep(5)
        yield f"dask:{address}"


@contextmanager
def ray(workers: int) -> Iterator[str]:
    """Start a node that runs as many calls at once; yield the address of the cluster."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray, port = [sys.executable, "-m", "ray.scripts.scripts"], str(PORTS["ray"])
    options = ["--num-cpus", str(workers), "--include-dashboard", "false", "--object-store-memory", "200000000"]
    subprocess.run([*ray, "start", "--head", "--port", port, *options], check=True, stdout=subprocess.DEVNULL)
    try:
        yield f"ray:127.0.0.1:{port}"
    finally:
        subprocess.run([*ray, "stop", "--force"], check=True, stdout=subprocess.DEVNULL)


def kill() -> None:
    """Kill a worker that is at work."""
    processes = [(p, " ".join(p.cmdline())) for p in psutil.process_iter() if p.status() != psutil.STATUS_ZOMBIE]
    workers = [p for p, text in processes if text.startswith(("dask worker [", "ray::<lambda>"))]
    max(workers, key=lambda process: process.cpu_percent(0.2)).kill()


def run(command: str, jobs: int, name: str, folder: Path, *cluster: str) -> float:
    """Run a command; return its seconds."""
    begin = time.perf_counter()
    driver.explore(
        *COMMANDS[command], "--device", "cpu", "--jobs", str(jobs), "--out", str(folder), "--name", name, *cluster
    )
    return time.perf_counter() - begin


def equal(command: str, name: str, other: str, folder: Path) -> bool:
    """Return whether two runs have the same results."""
    runs = [folder / f"{command}-{each}" for each in (name, other)]
    files = [path.name for path in runs[0].glob("*.csv")]
    assert files
    tables = [
        [pd.read_csv(run / file, dtype=str).drop(columns="seconds", errors="ignore") for file in files] for run in runs
    ]
    return all(a.equals(b) for a, b in zip(*tables, strict=True))


def record(command: str, where: str, workers: int, killed: bool, seconds: float, same: bool | None = None) -> None:
    """Add a line to the results."""
    row = {"command": command, "where": where, "workers": workers, "killed": killed, "seconds": seconds, "equal": same}
    table = pd.DataFrame([row | {"commit": driver.commit()}])
    driver.merge(RESULTS, table, ["command", "where", "workers", "killed"], "%.4g")


def speed() -> None:
    """Record the seconds of one command with one and with two workers."""
    with tempfile.TemporaryDirectory() as folder:
        for workers in (1, 2):
            with dask(workers) as address:
                for name in ("warm", "timed"):  # first, workers import torch
                    seconds = run("speed", 2, f"{name}-{workers}", Path(folder), "--cluster", address)
            record("speed", "dask", workers, False, seconds)


@click.command()
@click.argument("commands", nargs=-1, type=click.Choice(list(COMMANDS)))
def main(commands: tuple[str, ...]) -> None:
    """Run some commands (all by default) in all cases."""
    for command in commands or COMMANDS:
        if command == "speed":
            speed()
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            record(command, "jobs", 3, False, run(command, 3, "jobs", folder))
            for (start, workers), killed in itertools.product(((dask, 3), (ray, 2)), (False, True)):
                case = f"{start.__name__}-{killed}"
                with start(workers) as address:
                    timer = threading.Timer(STARTED, kill)
                    if killed:
                        timer.start()
                    seconds = run(command, 3, case, folder, "--cluster", address)
                    assert not timer.is_alive(), "the command ended before a worker was killed"
                record(command, start.__name__, workers, killed, seconds, equal(command, "jobs", case, folder))


if __name__ == "__main__":
    main()
