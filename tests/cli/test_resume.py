"""An interrupted `explore active` continues, and ends as if nothing had happened."""

import contextlib
import gc
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from explore.cli.active import report
from explore.core import files
from explore.runs import record
from tests.cli.conftest import TINY, run

RUN = Path("runs/active-x")
TABLES = ("metrics.jsonl", "results.csv", "selected.csv")
LONG = ["--trials", "2", "--rounds", "10", "--epochs", "10", "--test-size", "20", "--samples", "5", "--threads", "1"]
SHORT = ["--trials", "2", "--epochs", "3", "--test-size", "20", "--samples", "5", "--acquire", "2"]


def without_seconds(result):
    found = json.loads(result.stdout)
    del found["seconds"], found["run"]
    return found


def same_numbers(run, other):
    """Equal bytes in all tables, equal bits in the checkpoint, the same events in TensorBoard."""
    for name in TABLES:
        assert (run / name).read_bytes() == (other / name).read_bytes()
    ours, theirs = experiment(run), experiment(other)
    for part in ("learner", "history"):
        assert ours[part].keys() == theirs[part].keys()
        assert all(torch.equal(ours[part][name], theirs[part][name]) for name in ours[part])
    assert scalars(run) == scalars(other)


def experiment(run):
    return files.load(run / "checkpoint.pt", "checkpoint", record.FORMAT)["state"]


def scalars(run):
    found = {}
    for series in sorted((run / "tensorboard").iterdir()):
        events = EventAccumulator(str(series)).Reload()
        for tag in events.Tags()["scalars"]:
            found[series.name, tag] = [(e.step, e.value) for e in events.Scalars(tag)]
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Runs `explore active` with these arguments once for all tests, and gives its folder and result."""
    runs: dict[Any, Any] = {}

    def finished(*arguments):
        if arguments not in runs:
            folder = tmp_path_factory.mktemp("uninterrupted")
            result = run("active", *arguments, "--out", folder, "--name", "x")
            assert result.exit_code == 0, result.output
            runs[arguments] = folder / "active-x", result
        return runs[arguments]

    return finished


@pytest.mark.posix
@pytest.mark.usefixtures("heeded_interrupts")
@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_killed_and_resumed_equals_uninterrupted(explore, uninterrupted, name):
    how = signal.Signals[name]
    command = [sys.executable, "-m", "explore.cli", "active", *LONG, "--name", "x"]
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **piped) as process:
        results = RUN / "results.csv"
        deadline = time.monotonic() + 120
        while not (results.exists() and "\n3," in results.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, how)
        out, err = process.communicate()
    assert "\n10," not in results.read_text()
    resume = ["active", "--resume", str(RUN)]
    if how == signal.SIGINT:
        assert process.returncode == 130, err
        assert out == ""
        (line,) = [line for line in err.splitlines() if line.startswith("Continue: explore ")]
        done = len(experiment(RUN)["history"]["labels"])  # a round may be in the tables that is not in the checkpoint
        assert done >= 2 and f"Interrupted after {done} of 10 rounds." in err
        resume = shlex.split(line.removeprefix("Continue: explore "))
    else:
        assert process.returncode == -signal.SIGKILL, err
    result = explore(*resume, "--json")
    assert result.exit_code == 0, result.stderr
    folder, whole = uninterrupted(*LONG, "--json")
    assert without_seconds(result) == without_seconds(whole)
    same_numbers(RUN, folder)
    assert len(json.loads((RUN / "config.json").read_text())["sessions"]) == 2


class PowerCut(Exception):
    pass


# The first three replacements and the first checkpoint make the folder; before them there is no run.
@pytest.mark.parametrize(
    ("where", "what", "calls"),
    [
        (record.Run, "scalars", 0), (record.Run, "scalars", 3), (record.Run, "rows", 0), (record.Run, "rows", 3),
        (record.Run, "checkpoint", 1), (record.Run, "checkpoint", 3), (os, "replace", 3), (os, "replace", 4),
    ],
)  # fmt: skip
def test_a_crash_at_any_write_loses_no_round(active, explore, uninterrupted, monkeypatch, where, what, calls):
    """It happens after so many calls of one of the writing functions."""
    function, left = getattr(where, what), iter(range(calls))

    def cut(*arguments, **keywords):
        if next(left, None) is None:
            raise PowerCut
        return function(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(where, what, cut)
        with pytest.raises(PowerCut):
            active("--name", "x")
    for name in TABLES:
        with open(RUN / name, "a") as file:
            file.write('{"series": "noi')  # a torn line
    result = explore("active", "--resume", RUN)
    assert result.exit_code == 0, result.stderr
    same_numbers(RUN, uninterrupted(*TINY)[0])


def test_a_crash_while_the_folder_is_made_leaves_no_run(active, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(AssertionError, match=f"cannot create the run folder {RUN}: No space left on device"):
        active("--name", "x")
    assert list(Path("runs").iterdir()) == []


def test_a_finished_run_shows_its_result_again(explore, uninterrupted):
    folder, first = uninterrupted(*TINY)
    shutil.copytree(folder, RUN)
    files = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    again = explore("active", "--resume", RUN)
    assert again.exit_code == 0
    assert "3 of 3 rounds are done" in again.stderr
    assert again.stdout == first.stdout.replace(str(folder), str(RUN))
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == files
    assert json.loads(explore("active", "--resume", RUN, "--json").stdout)["run"] == str(RUN)


@pytest.mark.usefixtures("drawn_in_full")
def test_a_figure_that_is_missing_is_drawn(active, explore):
    active("--name", "x")
    whole = (RUN / "learning_curve.png").read_bytes()
    (RUN / "learning_curve.png").unlink()
    explore("active", "--resume", RUN)
    assert (RUN / "learning_curve.png").read_bytes() == whole


def test_resume_refuses_what_would_change_the_protocol(explore, uninterrupted):
    shutil.copytree(uninterrupted(*TINY)[0], RUN)
    result = explore("active", "--resume", RUN, "--trials", 3, "-p", "lr=1")
    assert result.exit_code == 2
    assert "Leave out --trials, -p (allowed: --cluster, --device, --graphs, --json, --quiet," in result.stderr


def test_resume_warns_of_another_number_of_threads(explore, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(report, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert explore("active", *TINY, "--name", "x", "--threads", 1).exit_code == 130
    result = explore("active", "--resume", RUN, "--threads", 2)
    assert result.exit_code == 0
    assert "Warning: threads changed from 1 to 2; the last digits may change." in result.stderr
    assert [s["threads"] for s in json.loads((RUN / "config.json").read_text())["sessions"]] == [1, 2]


def damage_config(run):
    (run / "config.json").write_text('{"settings": {')


def damage_checkpoint(run):
    (run / "checkpoint.pt").write_bytes((run / "checkpoint.pt").read_bytes()[:500])


def damage_table(run):
    (run / "results.csv").write_text("round,labels\n")


def foreign_checkpoint(run):
    shutil.copy("runs/active-other/checkpoint.pt", run)


def old_checkpoint(run):
    torch.save({"weights": torch.zeros(2)}, run / "checkpoint.pt")


def old_config(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({key: config[key] for key in ("settings", "sessions")}))


def earlier_config(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"format": record.FORMAT - 1}))


def edited_table(run):
    path = run / "results.csv"
    path.write_text(path.read_text().replace("0", "1"))


def edited_threads(run):
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"threads": 1', '"threads": 3'))


def edited_settings(run):
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"trials": 2', '"trials": 3'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, f"{RUN} is not a run folder: it has no"),
        (lambda run: (run / "config.json").unlink(), "it has no config.json"),
        (lambda run: (run / "checkpoint.pt").unlink(), "checkpoint.pt: No such file"),
        (lambda run: (run / "results.csv").unlink(), "results.csv is damaged or was edited"),
        (damage_config, "config.json is damaged"),
        (damage_checkpoint, "checkpoint.pt is damaged"),
        (damage_table, "results.csv is damaged or was edited: its"),
        (foreign_checkpoint, "checkpoint.pt was written by run "),
        (edited_table, "results.csv is damaged or was edited: its lines changed"),
        (old_checkpoint, "checkpoint.pt is damaged"),
        (old_config, "config.json was written by another version of explore; continue with that version"),
        (earlier_config, "config.json was written by another version of explore; continue with that version"),
        (edited_settings, "config.json is damaged or was edited: its settings or sessions changed"),
        (edited_threads, "config.json is damaged or was edited: its settings or sessions changed"),
    ],
)
def test_resume_of_a_damaged_run(explore, uninterrupted, damage, message):
    shutil.copytree(uninterrupted(*TINY)[0], RUN)
    shutil.copytree(uninterrupted(*TINY, "--seed", 1)[0], "runs/active-other")
    damage(RUN)
    result = explore("active", "--resume", RUN)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_resume_of_a_run_on_changed_data(active, explore):
    rows = [f"{i / 4},{i * i % 7}" for i in range(50)]
    Path("d.csv").write_text("\n".join(["a,y", *rows]))
    active("--name", "x", "--data", "d.csv", "--target", "y", "--initial", 5)
    Path("d.csv").write_text("\n".join(["a,y", *rows[:-1], "49,1"]))
    result = explore("active", "--resume", RUN)
    assert result.exit_code == 2
    assert "the data of d have changed since the run began." in result.stderr


def test_resume_of_another_command(explore):
    record.Run.create(RUN, {"command": "dream"}, {}, {"device": "cpu"})
    result = explore("active", "--resume", RUN)
    assert result.exit_code == 2
    assert "was written by explore dream. Use a run of explore active" in result.stderr


@pytest.mark.parametrize("times", [(7,), pytest.param((5, 7), marks=pytest.mark.slow)])
def test_an_extended_run_equals_one_that_had_as_many_rounds(explore, uninterrupted, times):
    shutil.copytree(uninterrupted(*SHORT, "--rounds", 4)[0], RUN)
    for rounds in times:
        result = explore("active", "--resume", RUN, "--rounds", rounds)
        assert result.exit_code == 0, result.output
    whole, _ = uninterrupted(*SHORT, "--rounds", 7)
    same_numbers(RUN, whole)
    ours, theirs = (files.load(run / "model.pt", "saved model", 1)["models"] for run in (RUN, whole))
    for name, state in ours["noisy-kfac"].items():
        other = theirs["noisy-kfac"][name]
        assert torch.equal(state, other) if isinstance(state, torch.Tensor) else state == other
    config = json.loads((RUN / "config.json").read_text())
    assert config["settings"]["rounds"] == 7 and len(config["former"]) == len(times)
    again = explore("active", "--resume", RUN, "--rounds", 7)  # as many as are done: says them once more
    assert again.exit_code == 0 and len(json.loads((RUN / "config.json").read_text())["former"]) == len(times)


@pytest.mark.parametrize(("where", "what", "calls"), [(os, "truncate", 0), (os, "replace", 0), (os, "replace", 1)])
def test_a_crash_while_a_run_is_extended_loses_no_round(explore, uninterrupted, monkeypatch, where, what, calls):
    """The first replacement is the checkpoint's, the second that of config.json."""
    shutil.copytree(uninterrupted(*SHORT, "--rounds", 4)[0], RUN)
    real, left = getattr(where, what), iter(range(calls))

    def fails(*arguments, **named):
        if next(left, None) is None:
            raise PowerCut
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(where, what, fails)
        with contextlib.suppress(PowerCut):  # not pytest.raises, which would keep the frames and with them the lock
            explore("active", "--resume", RUN, "--rounds", 7)
        assert next(left, None) is None
    gc.collect()
    assert explore("active", "--resume", RUN, "--rounds", 7).exit_code == 0
    same_numbers(RUN, uninterrupted(*SHORT, "--rounds", 7)[0])


def test_a_run_of_one_round_is_extended(active, explore, uninterrupted):
    active("--rounds", 1, "--name", "x")
    assert explore("active", "--resume", RUN, "--rounds", 3).exit_code == 0
    same_numbers(RUN, uninterrupted(*TINY)[0])


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        (3, "--rounds is 3, but the run already has 4. Pass at least"),
        (500, "500 rounds need 998 points, but the pool of"),
    ],
)
def test_what_cannot_be_extended_stays_as_it_is(explore, uninterrupted, rounds, message):
    shutil.copytree(uninterrupted(*SHORT, "--rounds", 4)[0], RUN)
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    result = explore("active", "--resume", RUN, "--rounds", rounds)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before
