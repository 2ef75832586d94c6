"""Commands that cannot go on say why in a sentence, and lose nothing: a full disk, Ctrl-C, values that are empty."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from torch.utils.tensorboard import SummaryWriter

from explore.cli import start as starting
from explore.cli.report import drawing
from explore.runs import provenance
from explore.runs.record import Run
from tests.cli.conftest import run

COMMANDS = {
    "active": "--trials 2 --rounds 3 --epochs 2 --test-size 20 --samples 5",
    "compare": "--posterior map,ensemble --splits 2 --epochs 3 --samples 5",
    "rl": "--env explore/Chain-v0 --algo ppo --posterior bbb -p vime.minimum=10 -p vime.samples=2 -p vime.updates=5 "
    "--timesteps 96 --n-envs 2 --algo-param n_steps=16 --algo-param batch_size=16",
}


def start(explore, command, *more):
    return explore(command, *COMMANDS[command].split(), "--threads", 1, "--name", "x", *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tables of a run that nothing stops, for each command."""
    found: dict[str, Any] = {}

    def of(command):
        if command not in found:
            folder = tmp_path_factory.mktemp(command)
            assert start(run, command, "--out", folder, "--quiet").exit_code == 0
            found[command] = tables(folder / f"{command}-x")
        return found[command]

    return of


def failing(monkeypatch, where, what, calls, error):
    """From a number of calls on, a function fails."""
    function, left = getattr(where, what), iter(range(calls))

    def fail(*arguments, **keywords):
        if next(left, None) is None:
            raise error
        return function(*arguments, **keywords)

    monkeypatch.setattr(where, what, fail)


def tables(run):
    """All numbers but the times."""
    found = {}
    for path in sorted(run.glob("*.csv")):
        frame = pd.read_csv(path, dtype=str)
        found[path.name] = frame.drop(columns=["seconds", "bonus_share"], errors="ignore").to_csv()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return found | {"lines": [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]}


STOPS = [
    ("active", os, "replace", 3), ("active", os, "fsync", 7), ("active", SummaryWriter, "__init__", 0),
    ("active", SummaryWriter, "add_scalar", 30), ("active", Figure, "savefig", 0), ("compare", os, "replace", 4),
    ("compare", SummaryWriter, "add_image", 1), ("rl", os, "replace", 12), ("rl", PPO, "save", 1),
]  # fmt: skip
MORE = [
    ("active", os, "replace", 5), ("active", os, "fsync", 9), ("active", SummaryWriter, "flush", 1),
    ("active", SummaryWriter, "close", 0), ("compare", os, "fsync", 6), ("compare", Figure, "savefig", 0),
    ("rl", os, "fsync", 9), ("rl", os, "fsync", 12),
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "where", "what", "calls"), [*STOPS, *(pytest.param(*stop, marks=pytest.mark.slow) for stop in MORE)]
)
def test_a_full_disk(explore, whole, monkeypatch, command, where, what, calls):
    with monkeypatch.context() as patch:
        failing(patch, where, what, calls, OSError(errno.ENOSPC, "No space left on device"))
        result = start(explore, command)
    folder = Path(f"runs/{command}-x")
    assert (result.exit_code, result.stdout) == (1, "")
    sentence, continued = result.stderr.splitlines()[-2:]
    assert sentence.startswith(
        f"Error: cannot write to the run folder {folder}: No space left on device. Stopped after "
    )
    assert continued == f"Continue: explore {command} --resume {folder}"
    assert [p.name for p in folder.rglob(".*")] == [".lock"]
    if command == "rl":  # in fresh episodes, so that only what was done is the same
        before = pd.read_csv(folder / "results.csv") if (folder / "results.csv").exists() else None
    again = explore(command, "--resume", folder)
    assert again.exit_code == 0, again.stderr
    if command != "rl":
        assert tables(folder) == whole(command)
    else:
        done = int(sentence.split("Stopped after ")[1].split(" of ")[0]) // 32
        found = pd.read_csv(folder / "results.csv")
        assert found.timesteps.tolist() == [32, 64, 96]
        assert done or before is None
        if before is not None:
            pd.testing.assert_frame_equal(found[:done], before[:done])


@pytest.mark.posix
@pytest.mark.parametrize("limit", [1_000, 10_000, 20_000, 40_000])
def test_files_that_cannot_be_written_whole(explore, limit, monkeypatch):
    """The limit is a real one of the system, which a writer of torch would hide."""
    import resource  # a module of POSIX

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would cache the truncated bytecode of modules
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        result = start(explore, "rl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code in (1, 2)
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "File too large" in sentence


def test_no_folder_can_be_made(explore):
    Path("file").touch()
    for more, reason in ((("--name", "a" * 300), "File name too long"), (("--out", "file/below"), "Not a directory")):
        result = explore("active", *COMMANDS["active"].split(), *more)
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith("Error: cannot create the run folder ")
        assert result.stderr.endswith(f": {reason}\n")
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_what_the_system_refuses_elsewhere_is_a_sentence_too(explore, monkeypatch):
    error = PermissionError(errno.EACCES, "Permission denied", "runs/x")
    monkeypatch.setattr(starting, "compute", lambda *_: (_ for _ in ()).throw(error))
    result = start(explore, "active")
    assert (result.exit_code, result.stderr) == (1, "Error: runs/x: Permission denied\n")
    monkeypatch.setattr(starting, "compute", lambda *_: (_ for _ in ()).throw(OSError("of a library")))
    with pytest.raises(OSError, match="of a library"):
        start(explore, "active")


def test_an_early_interrupt_is_a_sentence(explore, monkeypatch):
    monkeypatch.setattr(starting, "compute", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = start(explore, "active")
    assert (result.exit_code, result.stderr) == (130, "Interrupted; no work is lost.\n")


def test_an_interrupt_while_the_folder_is_made_leaves_nothing(explore, monkeypatch):
    failing(monkeypatch, os, "replace", 1, KeyboardInterrupt())
    assert start(explore, "active").exit_code == 130
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize(("calls", "rounds"), [(1, 0), (2, 1), (3, 2)])
def test_interrupted_after_what_the_checkpoint_holds(explore, monkeypatch, calls, rounds):
    with monkeypatch.context() as patch:
        failing(patch, Run, "checkpoint", calls, KeyboardInterrupt())
        result = start(explore, "active")
    assert result.exit_code == 130
    assert f"Interrupted after {rounds} of 3 rounds.\n" in result.stderr
    assert f": {rounds} of 3 rounds are done." in explore("active", "--resume", "runs/active-x").stderr


@pytest.mark.parametrize(
    ("command", "calls", "done"),
    [pytest.param("active", 2, "1 of 3 rounds", marks=pytest.mark.slow), ("compare", 3, "2 of 6 epochs")],
)
def test_several_processes_continue_as_they_were(explore, monkeypatch, command, calls, done):
    with monkeypatch.context() as patch:
        failing(patch, Run, "checkpoint", calls, KeyboardInterrupt())
        result = start(explore, command, "--jobs", 2)
    assert "on cpu in 2 processes\n" in result.stderr
    again = explore(command, "--resume", f"runs/{command}-x")
    assert again.exit_code == 0 and f"{done} are done." in again.stderr
    explore(command, *COMMANDS[command].split(), "--threads", 1, "--name", "whole", "--jobs", 7)  # of 2 replicas
    assert tables(Path(f"runs/{command}-x")) == tables(Path(f"runs/{command}-whole"))


def test_other_code_is_told_once_and_stands_in_json(explore, monkeypatch):
    with monkeypatch.context() as patch:
        failing(patch, Run, "checkpoint", 2, KeyboardInterrupt())
        start(explore, "active")
    run = "runs/active-x"
    monkeypatch.setattr(provenance, "code", lambda _: "other")
    with monkeypatch.context() as patch:
        failing(patch, Run, "checkpoint", 1, KeyboardInterrupt())
        result = explore("active", "--resume", run, "--quiet")
    sentence = "the software changed (edited files of explore); the results may change."
    assert result.stderr.splitlines()[0] == f"Warning: {sentence}"
    for _ in range(2):  # a run that goes on, and one that is finished
        again = explore("active", "--resume", run, "--quiet", "--json")
        assert "Warning: the run" not in again.stderr
        warned = json.loads(again.stdout)["warnings"]
        assert [text for text in warned if "curvature is still its initial value" not in text] == [sentence]


@pytest.mark.parametrize(
    "arguments",
    [
        ["active", "--resume", ""], ["compare", "--resume", ""], ["rl", "--resume", ""], ["rl", "--watch", ""],
        ["active", "--dataset", ""], ["active", "--preset", ""], ["compare", "--device", ""], ["rl", "--out", ""],
    ],
)  # fmt: skip
def test_empty_values_are_refused(explore, arguments):
    more = {"rl": ["--env", "explore/Chain-v0"]}.get(arguments[0], [])
    result = explore(*arguments, *more)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f"Error: {arguments[1]} is empty. Pass a value, or leave it out\n")
    assert not Path("runs").exists()


def test_a_command_has_no_tables_that_it_does_not_write(explore):
    for command, *more in (["compare"], ["rl"], ["active", "--rounds", 1]):
        assert start(explore, command, *more).exit_code == 0
        assert not Path(f"runs/{command}-x/selected.csv").exists()


def test_a_point_that_stands_alone_is_drawn():
    nan = float("nan")
    for values, expected in (([1.0], "."), ([1.0, 2.0], "None"), ([1.0, 2.0, nan, 3.0], "."), ([nan, nan], "None")):
        axes = Figure().add_subplot()
        drawing.band(axes, pd.DataFrame({"a": values}), "a")
        assert axes.lines[0].get_marker() == expected
