"""What interrupted runs of all three commands make of flipped bits, and of signals at random times.

    python -m experiments.robustness.runs flips
    python -m experiments.robustness.runs kills

`flips` interrupts tiny runs, flips one random bit of one of their files, spread evenly over the kinds of files
(TensorBoard and pictures aside), and resumes them. An outcome is "refused" (a sentence, exit code 2), "identical" (the
tables and the printed object of the run that is resumed undamaged), "different" or "traceback".

`kills` sends SIGKILL, SIGTERM or SIGINT at a random time to runs that are computing, and resumes them. Runs of
`active` and `compare` must end as the uninterrupted one does. A resumed run of `rl` goes on in fresh episodes: up to
the checkpoint its results must be those of the uninterrupted run, and two continuations of the same folder must agree.
A run that was killed before there was a folder is begun again.

Columns that measure time are left out of every comparison. Lines are appended to results/flips.csv and
results/kills.csv; what is there already is not done again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import torch

import explore.cli.active.report  # noqa: F401  (with the other two, imported once before the forks)
import explore.cli.compare.report  # noqa: F401
import explore.cli.rl.watch  # noqa: F401
from experiments.driver import FOLDER, merge
from explore.cli.main import main
from explore.runs import record

HERE = Path(__file__).parent
RUN = "runs/{command}-x"
ACTIVE = "active --trials 2 --rounds 6 --epochs 20 --test-size 20 --samples 5"
COMPARE = "compare --posterior map,noisy-kfac --splits 2 --epochs 6 --samples 5"
TRPO = (
    "rl --env explore/Chain-v0 -p vime.minimum=10 -p vime.samples=2 --timesteps 320 --n-envs 4 --vec-normalize "
    "--algo-param n_steps=16"
)
SAC = (
    "rl --env Pendulum-v1 --algo sac --posterior bbb -p vime.interval=64 -p vime.minimum=40 -p vime.updates=5 "
    "--timesteps 320 --algo-param learning_starts=20"
)
COMMANDS = {"active": ACTIVE, "compare": COMPARE, "rl (trpo)": TRPO, "rl (sac)": SAC}
CHECKPOINTS = {"active": 4, "compare": 9, "rl (trpo)": 4, "rl (sac)": 4}  # until a run is interrupted
MEASURED = {"seconds", "bonus_share", "overall", "run", "warnings"}  # keys and columns that tell the time, or the place


class Outcome(NamedTuple):
    """How a command ended."""

    code: int  # negative: of the signal that ended it
    out: str
    err: str


class Child:
    """A command in a forked process: libraries are imported once, the rest is as on the command line.

    Args:
        arguments: of `explore`.
        folder: where it works.
        before: done in the process first.
    """

    def __init__(self, arguments: list[str], folder: Path, before: Callable[[], None] = lambda: None):
        self._paths = tuple(Path(folder, f".{name}") for name in ("out", "err"))
        self.pid = os.fork()
        if not self.pid:
            self._run(arguments, folder, before)

    def _run(self, arguments: list[str], folder: Path, before: Callable[[], None]) -> None:
        code = 1
        try:
            for stream, path in zip((sys.stdout, sys.stderr), self._paths, strict=True):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
            os.chdir(folder)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            before()
            main(arguments, prog_name="explore")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self) -> Outcome:
        """Its outcome, once it has ended."""
        _, status = os.waitpid(self.pid, 0)
        out, err = (path.read_text(errors="replace") for path in self._paths)
        return Outcome(os.waitstatus_to_exitcode(status), out, err)


def resume(command: str, folder: Path) -> Outcome:
    """Continue a run."""
    return Child([command, "--resume", RUN.format(command=command), "--json"], folder).wait()


def numbers(found: Any) -> Any:
    """An object from JSON without what tells the time or the place."""
    if isinstance(found, dict):
        return {key: numbers(value) for key, value in found.items() if key not in MEASURED}
    return [numbers(value) for value in found] if isinstance(found, list) else found


def tables(run: Path) -> dict[str, Any]:
    """What the tables of a run say, without the time."""
    found: dict[str, Any] = {}
    for path in sorted(run.glob("*.csv")):
        frame = pd.read_csv(path, dtype=str)
        found[path.name] = frame.drop(columns=list(MEASURED & set(frame.columns))).to_csv(index=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found["metrics.jsonl"] = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]
    return found


def result(ended: Outcome, run: Path) -> tuple[Any, Any]:
    """All numbers of a run that ended well: printed, and in its tables."""
    return numbers(json.loads(ended.out)), tables(run)


def interrupted(name: str, folder: Path, checkpoints: int) -> Path:
    """A run that was killed when it was about to write one checkpoint more."""
    arguments = COMMANDS[name].split()

    def before() -> None:
        write, left = record.Run.checkpoint, iter(range(checkpoints))

        def checkpoint(*given: Any, **named: Any) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            write(*given, **named)

        record.Run.checkpoint = checkpoint  # type: ignore[method-assign]

    folder.mkdir()
    ended = Child([*arguments, "--name", "x", "--threads", "1"], folder, before).wait()
    if ended.code != -signal.SIGKILL:
        raise RuntimeError(f"{name} was not killed: {ended}")
    return folder


def files(run: Path) -> list[Path]:
    """The files of a run that are read again, within its folder."""
    every = (p.relative_to(run) for p in sorted(run.rglob("*")) if p.is_file())
    return [p for p in every if p.parts[0] != "tensorboard" and p.suffix != ".png" and p.name != ".lock"]


def flip(path: Path, bit: int) -> None:
    """Turn one bit over."""
    whole = bytearray(path.read_bytes())
    whole[bit // 8] ^= 1 << bit % 8
    path.write_bytes(whole)


def judge(ended: Outcome, run: Path, expected: Any) -> str:
    """What became of a damaged run."""
    if "Traceback" in ended.err or ended.code not in (0, 1, 2):
        return "traceback"
    if ended.code:
        return "refused" if ended.err.count("Error: ") == 1 else "traceback"
    return "identical" if result(ended, run) == expected else "different"


def done(path: Path, command: str | None = None) -> set[int]:
    """The numbers of the lines that are there, of a command or of all."""
    if not path.exists():
        return set()
    found = pd.read_csv(path)
    return set(found[found.command == command].number if command else found.number)


@click.group()
def cli() -> None:
    """Flipped bits and signals."""
    torch.set_num_threads(1)


@cli.command()
@click.option("--number", default=200, show_default=True, help="Bits.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=FOLDER, default=HERE / "results", show_default=True)
def flips(number: int, seed: int, out: Path) -> None:
    """Flip bits and resume."""
    path = out / "flips.csv"
    with tempfile.TemporaryDirectory() as place:
        bases = {name: interrupted(name, Path(place, f"base {name}"), CHECKPOINTS[name]) for name in COMMANDS}
        kinds = [(name, p) for name, b in bases.items() for p in files(b / RUN.format(command=name.split()[0]))]
        expected: dict[str, Any] = {}
        for name, base in bases.items():
            whole = Path(shutil.copytree(base, Path(place, f"whole {name}")))
            command = name.split()[0]
            expected[name] = result(resume(command, whole), whole / RUN.format(command=command))
        for i in sorted(set(range(number)) - done(path)):
            name, file = kinds[i % len(kinds)]
            command = name.split()[0]
            here = Path(shutil.copytree(bases[name], Path(place, "damaged")))
            run = here / RUN.format(command=command)
            bit = int(np.random.default_rng([seed, i]).integers(8 * (run / file).stat().st_size))
            flip(run / file, bit)
            ended = resume(command, here)
            outcome = judge(ended, run, expected[name])
            said = " ".join((ended.err.strip().splitlines() or [""])[-1].split()) if outcome != "identical" else ""
            row = {"number": i, "command": name, "file": str(file), "bit": bit, "outcome": outcome, "said": said}
            merge(path, pd.DataFrame([row]), ["command", "number"], None)
            shutil.rmtree(here)
    found = pd.read_csv(path)
    click.echo(pd.crosstab([found.command, found.file], found.outcome, margins=True).to_string())


@cli.command()
@click.option("--number", default="active=30,compare=30,rl (trpo)=10,rl (sac)=10", show_default=True, help="Kills.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=FOLDER, default=HERE / "results", show_default=True)
def kills(number: str, seed: int, out: Path) -> None:
    """Kill and resume."""
    path = out / "kills.csv"
    for text in number.split(","):
        name, _, count = text.partition("=")
        if left := sorted(set(range(int(count))) - done(path, name)):
            with tempfile.TemporaryDirectory() as place:
                kill(name, left, seed, Path(place), path)
    found = pd.read_csv(path)
    click.echo(pd.crosstab([found.command, found.signal], found.outcome, margins=True).to_string())


def kill(name: str, which: Sequence[int], seed: int, place: Path, path: Path) -> None:
    """Kill runs of a command; those that end before the signal comes do not count."""
    command = name.split()[0]
    arguments, run = [*COMMANDS[name].split(), "--name", "x", "--threads", "1", "--json"], RUN.format(command=command)
    whole = place / "whole"
    whole.mkdir()
    begin = time.monotonic()
    ended = Child(arguments, whole).wait()
    seconds = time.monotonic() - begin
    expected = result(ended, whole / run)
    rng = np.random.default_rng([seed, len(name), which[0]])
    for i in which:
        while True:
            here = place / "killed"
            here.mkdir()
            child = Child(arguments, here)
            how = signal.Signals(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            after = rng.random() * seconds
            time.sleep(after)
            os.kill(child.pid, how)
            ended = child.wait()
            if ended.code in (-how, 128 + how):  # of the system, or by a sentence
                break
            shutil.rmtree(here)
        outcome, reached = judge_kill(command, here, arguments, ended, expected)
        row = {"number": i, "command": name, "signal": how.name, "after": round(after, 2), "of": round(seconds, 2)}
        row |= {"reached": reached, "outcome": outcome}
        merge(path, pd.DataFrame([row]), ["command", "number"], None)
        shutil.rmtree(here)


def judge_kill(command: str, here: Path, arguments: list[str], ended: Outcome, expected: Any) -> tuple[str, str]:
    """(what became of a killed run, how far it had come)."""
    run = here / RUN.format(command=command)
    if "Traceback" in ended.err:
        return "traceback", ended.err.strip().splitlines()[-1]
    if not run.exists():
        again = Child(arguments, here).wait()
        return judge(again, run, expected), "nothing"
    step = str(torch.load(run / "checkpoint.pt", weights_only=True)["content"]["step"])
    if command != "rl":
        return judge(resume(command, here), run, expected), f"step {step}"
    table = record.read_run(run)[1]["tables"].get("results.csv")
    text = (run / "results.csv").read_bytes()[: table["size"]].decode() if table else ""
    rows = max(0, text.count("\n") - 1)
    twin = Path(shutil.copytree(here, here.with_name("twin")))
    one = resume(command, here)
    if one.code:
        return judge(one, run, None), f"step {step}"
    found = result(one, run)
    outcome = judge(resume(command, twin), twin / RUN.format(command=command), found)
    before, after = (t["results.csv"].splitlines()[: rows + 1] for t in (expected[1], found[1]))
    shutil.rmtree(twin)
    return (outcome if before == after else "different"), f"step {step}"


if __name__ == "__main__":
    cli()
