"""`torchrun ... -m explore.cli classify`: several processes, the end of one of them, and what comes after."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from explore.cli import ranks, start
from explore.core.errors import InputError

pytestmark = pytest.mark.posix  # kills single processes of a job
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
CLASSIFY = "classify --dataset digits --net mlp -p net.hidden=12 --samples 3 --train 300 --name x".split()
RUN = Path("runs/classify-x")


def begin(*options, torchrun=()):
    """A job of two processes in the current folder."""
    command = [*TORCHRUN, *map(str, torchrun), "-m", "explore.cli", *CLASSIFY, *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_one(job, rank=1):
    """End one process of a job once there is a checkpoint to continue from."""
    until = time.monotonic() + 100
    while not (RUN / "metrics.jsonl").exists():
        assert time.monotonic() < until and job.poll() is None
        time.sleep(0.05)
    children = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout.split()[rank]), signal.SIGKILL)


def outcome():
    """The arrays and the model, without the id of the run."""
    with np.load(RUN / "probabilities.npz") as found:
        arrays = {name: array for name, array in found.items() if name != "run"}
    return arrays, torch.load(RUN / "model.pt", weights_only=True)["content"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_one_process_ends_the_job_with_a_sentence(here, explore, rank):
    """Also of the first one, which alone knows the run folder."""
    job = begin("--epochs", 4000)
    kill_one(job, rank)
    _, told = job.communicate(timeout=100)
    assert job.returncode == 1
    if rank:
        assert "another process of this job has ended. Stopped after " in told or "Interrupted after " in told
        assert f"Continue: torchrun --nproc-per-node 2 -m explore.cli classify --resume {RUN}" in told
    else:
        assert "Error: process 1: another process of this job has stopped" in told
    assert "explore/cli" not in told  # no traceback of ours
    alone = explore("classify", "--resume", RUN)
    assert alone.exit_code == 2
    assert "is a run of 2 processes and cannot continue with 1; start it by torchrun --nproc-per-node 2" in alone.stderr


@pytest.mark.slow
def test_resumed_equals_uninterrupted(here, explore):
    """Also if torchrun has restarted the job, which needs --resume."""
    found = []
    for how in ("whole", "resumed"):
        job = begin("--epochs", 300, torchrun=("--max-restarts", 1) if how == "resumed" else ())
        if how == "resumed":
            kill_one(job)
        _, told = job.communicate(timeout=200)
        assert (job.returncode == 0) == (how == "whole"), told
        if how == "resumed":
            assert "torchrun restarted this job, which may have a run folder. Continue it with --resume" in told
            again = [*TORCHRUN, "-m", "explore.cli", "classify", "--resume", str(RUN)]
            subprocess.run(again, check=True, timeout=200, capture_output=True)
        found.append(outcome())
        RUN.rename(how)
    assert all(np.array_equal(found[0][0][name], value) for name, value in found[1][0].items())
    assert str(found[1][1]) == str(found[0][1])


@pytest.mark.parametrize("command", ["compare --posterior map", "active"])
def test_other_commands_run_in_one_process(explore, monkeypatch, command):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = explore(*command.split(), "--dataset", "boston")
    assert result.exit_code == 2
    assert (
        f"explore {command.split()[0]} does not support torchrun; only explore classify does. Start it without torchrun"
        in result.stderr
    )


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    assert ranks.device("cuda") == "cuda"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (ranks.device("cuda"), ranks.device("cpu")) == ("cuda:1", "cpu")


def test_graphs_need_a_gpu():
    with pytest.raises(InputError, match="--graphs needs a GPU, and the device is cpu. Leave out --graphs"):
        start.compute({"device": "cpu", "graphs": True})


def test_graphs_are_of_one_process(monkeypatch):
    with pytest.raises(InputError, match="--graphs supports a single process. Leave out"):
        start.compute({"device": "cpu", "graphs": True, "jobs": 2})
    monkeypatch.setattr(start.parallel, "world", lambda: SimpleNamespace(processes=2))
    with pytest.raises(InputError, match="--graphs supports a single process. Leave out"):
        start.compute({"device": "cpu", "graphs": True})
