"""Hours of faults: commands are killed, files damaged, disks filled, clocks changed, and nothing may be lost.

    python -m experiments.chaos.run --hours 1 --seed 1        # as root, for the full disk
    python -m experiments.chaos.run --seed 1 --only 17        # round 17 again

A round draws a command and up to four faults from its number and the seed. The command is started or resumed under each
fault, and at last without one until it succeeds. Its results must then equal those of a run without faults in every
digit; of `explore rl`, whose seeds begin new episodes when they resume, all rows before a fault must still be there. A
damaged file must be refused in one sentence, or not matter. Writes results/rounds.csv, a line per round, and keeps the
folder of a round in which something is wrong.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import pandas as pd

from experiments import driver

HERE = Path(__file__).parent
TIMES = ["seconds", "epoch_seconds", "bonus_share"]  # columns of results.csv that differ from run to run
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TINY = ("--device", "cpu", "--quiet", "--out", "{folder}", "--name", "x")
RUNS = {
    "active": ("--trials", "2", "--rounds", "4", "--epochs", "3", "--test-size", "20", "--samples", "5"),
    "compare": ("--posterior", "map,bbb", "--splits", "2", "--epochs", "12", "--samples", "5"),
    "rl": (
        "--env", "explore/Chain-v0", "--algo", "ppo", "--timesteps", "512", "--n-envs", "2", "--seeds", "2",
        "--algo-param", "n_steps=16", "--algo-param", "batch_size=16", "--checkpoint-freq", "2",
        "-p", "vime.minimum=10",
    ),
    "classify": ("--images", "{images}", "--net", "lenet5", "--posterior", "vogn", "--epochs", "2"),
}  # fmt: skip
COMMANDS = (*RUNS, "suggest", "predict")
SHIFT = "import os, time; _now = time.time; time.time = lambda: _now() + float(os.environ['CLOCK'])\n"


@dataclass
class Round:
    """A command with faults in a folder, and what was seen."""

    command: str
    folder: Path
    rng: random.Random
    whole: Path  # the folder of a run without faults
    seconds: float  # its duration
    faults: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    starts: int = 0
    clock: float = 0.0
    step: int = 0  # of a campaign of three batches
    answered: set[int] = field(default_factory=set)

    @property
    def steps(self) -> int:
        """The last step."""
        return 2 if self.command == "suggest" else 0

    def measure(self) -> None:
        """Measure the rows that a campaign suggested last, once."""
        if self.command == "suggest" and self.step not in self.answered:
            answer(self.folder, self.step)
            self.answered.add(self.step)

    def arguments(self) -> list[str]:
        """Return the command line that starts or continues the command."""
        folder, run = str(self.folder), self.folder / f"{self.command}-x"
        if self.command == "suggest":
            self.measure()
            labels = ["--labels", f"{folder}/labels.csv"] if self.step else []
            options = ["--target", "y", "--batch", "3", "--quiet", "--out", f"{folder}/next.csv"]
            return ["suggest", f"{folder}/pool.csv", *options, *labels]
        if self.command == "predict":
            files = [f"{folder}/new.csv", "--out", f"{folder}/out.csv"]
            return ["predict", str(self.whole / "active-x"), *files, "--quiet"]
        if (run / "config.json").exists():
            return [self.command, "--resume", str(run), "--quiet"]
        places = {"folder": folder, "images": str(self.whole / "images")}
        return [self.command, *(word.format(**places) for word in (*RUNS[self.command], *TINY))]

    def start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start a command; its output goes to a file."""
        self.starts += 1
        modules = self.whole / "clock"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CLOCK": str(self.clock)}
        environment["PYTHONPATH"] = os.pathsep.join([str(modules), str(HERE.parent.parent)])
        with (self.whole / "output.txt").open("wb") as output:
            command = [sys.executable, "-m", "explore.cli", *arguments]
            return subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def check(self, code: int, allowed: tuple[int, ...], fault: str) -> None:
        """Note a traceback, or an exit code that is not allowed."""
        text = (self.whole / "output.txt").read_text(errors="replace")
        last = text.strip().rpartition("\n")[2][:200]
        if "Traceback" in text or code not in allowed:
            self.problems.append(f"{fault}: exit {code}: {last}")
        elif code in (1, 2) and "Error" not in text:
            self.problems.append(f"{fault}: exit {code} without an error: {last}")

    def complete(self, fault: str = "finish", allowed: tuple[int, ...] = (0,)) -> int:
        """Run the command to its end, or until it fails; return its exit code."""
        code = self.start(self.arguments()).wait()
        self.check(code, allowed, fault)
        return code

    def finish(self) -> None:
        """Run what is left of the command, without a fault."""
        while not self.complete() and self.step < self.steps:
            self.step += 1


def answer(folder: Path, step: int) -> None:
    """Measure the rows that were suggested before this step of a campaign."""
    if step and (folder / "next.csv").exists():
        table = pd.read_csv(folder / "next.csv")
        measured = table.assign(y=table["a"] + table["b"] / 3)[["_id", "y"]]
        old = [pd.read_csv(folder / "labels.csv")] if (folder / "labels.csv").exists() else []
        pd.concat([*old, measured]).drop_duplicates("_id").to_csv(folder / "labels.csv", index=False)


# Faults -------------------------------------------------------------------------------------------------------------


def kill(r: Round) -> None:
    """Send a signal at any time of a run."""
    number = r.rng.choice(SIGNALS)
    process = r.start(r.arguments())
    try:
        process.wait(r.rng.uniform(0.2, 1.1) * r.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, number)
    code = process.wait()
    r.check(code, (0, 2, 130, 143, -number, 128 + number), f"kill {number.name}")


def damage(r: Round) -> None:
    """Change, cut or remove a file, run the command, and put everything back."""
    r.measure()  # so that the backup has the measurements that the command reads
    every = sorted(path for path in r.folder.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    if not every:
        return
    backup = r.whole / "backup"
    shutil.copytree(r.folder, backup)
    path = r.rng.choice(every)
    content, way = bytearray(path.read_bytes()), r.rng.choice(["byte", "cut", "remove", "more"])
    at = r.rng.randrange(len(content) or 1)
    if way == "remove":
        path.unlink()
    elif way == "byte" and content:
        content[at] ^= 1 << r.rng.randrange(8)
        path.write_bytes(content)
    else:
        path.write_bytes(content[:at] if way == "cut" else content + b"\0" * 7)
    r.faults[-1] += f" {way} {path.name}"
    code = r.complete(r.faults[-1], (0, 1, 2))
    of_user = path.suffix == ".csv" and path.parent == r.folder  # a table that may be edited
    if not code and not (of_user or r.steps or path.suffix == ".png") and (wrong := different(r)):
        r.problems.append(f"silently different after {r.faults[-1]}: {wrong}")
    shutil.rmtree(r.folder)
    shutil.move(backup, r.folder)


def full(r: Round) -> None:
    """Run on a disk that is full after a few kilobytes or megabytes."""
    if os.geteuid():
        return
    size = r.rng.choice([30, 100, 300, 1000, 3000])
    used = sum(path.stat().st_size for path in r.folder.rglob("*") if path.is_file()) // 1024
    disk, moved = r.folder.with_name("disk"), r.folder.with_name("moved")
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={used + used // 4 + size + 64}k", "tmpfs", str(disk)], check=True
    )
    try:
        shutil.copytree(r.folder, disk / "files", symlinks=True)
        r.folder.rename(moved)
        r.folder.symlink_to(disk / "files")
        r.faults[-1] += f" {size} kB"
        r.complete(r.faults[-1], (0, 1, 2))
    finally:
        r.folder.unlink()
        shutil.copytree(disk / "files", r.folder, symlinks=True)
        shutil.rmtree(moved)
        subprocess.run(["umount", "-l", str(disk)], check=True)
        disk.rmdir()


def clock(r: Round) -> None:
    """Change the clock, for this and the following starts."""
    r.clock = r.rng.uniform(-1, 1) * 3e8
    kill(r)


def two(r: Round) -> None:
    """Run the command twice at the same time."""
    arguments = r.arguments()
    first, second = r.start(arguments), r.start(arguments)
    for process in (first, second):
        code = process.wait()
        if code not in (0, 2):
            r.problems.append(f"two: exit {code}")


FAULTS: dict[str, Callable[[Round], None]] = {
    "kill": kill, "damage": damage, "full": full, "clock": clock, "two": two
}  # fmt: skip
WEIGHTS = [4, 3, 1, 1, 1]


# Rounds -------------------------------------------------------------------------------------------------------------


def tables(command: str, folder: Path) -> dict[str, str]:
    """Return the results of a command as texts, without times."""
    files = {"suggest": ["next.csv"], "predict": ["out.csv"]}.get(command)
    home = folder if files else folder / f"{command}-x"
    every = [home / name for name in files] if files else sorted(home.glob("*.csv"))
    found = {p.name: pd.read_csv(p, dtype=str).drop(columns=TIMES, errors="ignore") for p in every if p.exists()}
    if command == "rl" and "results.csv" in found:  # the rows that must be there
        found["results.csv"] = found["results.csv"][["seed", "iteration", "timesteps"]].sort_values(
            ["seed", "iteration"]
        )
    return {name: table.to_csv(index=False) for name, table in found.items()}


def different(r: Round) -> str:
    """Return the names of files whose results differ from those of the run without faults."""
    found, wanted = tables(r.command, r.folder), tables(r.command, r.whole)
    return ", ".join(name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name))


def prepare(folder: Path) -> None:
    """Write the inputs of the commands."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    frame.assign(y=[*frame.a[:8], *[np.nan] * 52]).to_csv(folder / "pool.csv", index=False)
    pd.DataFrame(rng.normal(size=(40, 13)), columns=driver_features()).to_csv(folder / "new.csv", index=False)


def driver_features() -> list[str]:
    """Return the features of the data set of `explore active`."""
    from explore import data

    return list(data.load("boston").features)


@contextmanager
def whole(work: Path) -> Iterator[dict[str, float]]:
    """Run all commands without faults, once; yield their seconds."""
    folder = work / "whole"
    if not (folder / "seconds.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "clock").mkdir(parents=True)
        (folder / "clock" / "sitecustomize.py").write_text(SHIFT)
        images(folder / "images")
        prepare(folder)
        seconds = {}
        for command in COMMANDS:
            begin = time.perf_counter()
            r = Round(command, folder, random.Random(0), folder, 0.0)
            r.finish()
            if r.problems:
                raise SystemExit(f"{command} fails without a fault: {r.problems}")
            seconds[command] = time.perf_counter() - begin
        (folder / "seconds.json").write_text(json.dumps(seconds))
    yield json.loads((folder / "seconds.json").read_text())


def images(folder: Path) -> None:
    """Write a small set of images of two classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in (("train", 24), ("test", 8)):
        for label in ("dark", "light"):
            (folder / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 128, (28, 28)) + 128 * (label == "light")
                Image.fromarray(pixels.astype(np.uint8)).save(folder / part / label / f"{i}.png")


def play(number: int, seed: int, work: Path, seconds: dict[str, float]) -> Round:
    """Play one round."""
    rng = random.Random(f"{seed}/{number}")
    command = rng.choice(COMMANDS)
    folder = work / f"round-{seed}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if command not in RUNS:
        prepare(folder)
    r = Round(command, folder, rng, work / "whole", seconds[command])
    for fault in rng.choices(list(FAULTS), WEIGHTS, k=rng.randint(1, 4)):
        r.faults.append(fault)
        FAULTS[fault](r)
        if r.steps and not r.complete():
            r.step = min(r.step + 1, r.steps)
    r.clock = 0.0
    r.finish()
    if wrong := different(r):
        r.problems.append(f"different: {wrong}")
    if not r.problems:
        shutil.rmtree(folder)
    return r


@driver.experiment(__file__)
@click.option("--hours", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", type=int, help="Play this round only.")
@click.option("--work", type=driver.FOLDER, default=HERE / "runs", show_default=True)
def main(hours: float, seed: int, only: int | None, work: Path, out: Path) -> None:
    """Play rounds, the first that is missing first."""
    file, end = out / "rounds.csv", time.monotonic() + hours * 3600
    with whole(work) as seconds:
        number = only or 1
        while time.monotonic() < end:
            if only is not None or not driver.recorded(file, ["seed", "round"], (seed, number)):
                begin = time.perf_counter()
                r = play(number, seed, work, seconds)
                row = {"command": r.command, "faults": "; ".join(r.faults), "starts": r.starts}
                row |= {"problems": " | ".join(r.problems), "seconds": round(time.perf_counter() - begin, 1)}
                rows = pd.DataFrame([{"seed": seed, "round": number} | row | {"commit": driver.commit()}])
                driver.merge(file, rows, ["seed", "round"])
                click.echo(f"{number}: {r.command}; {'; '.join(r.faults)}: {' | '.join(r.problems) or 'ok'}")
            if only is not None:
                return
            number += 1


if __name__ == "__main__":
    main()
