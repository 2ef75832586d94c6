import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import joblib
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

from experiments.benchmarks import cluster as benchmark
from explore.cli import cluster
from explore.core.errors import InputError

ACTIVE = "active --dataset boston --trials 3 --rounds 1 --epochs 2 --test-size 20 --samples 5 --quiet --device cpu"
SEEDS = "rl --env explore/Chain-v0 --timesteps 64 --n-envs 2 --algo ppo --algo-param n_steps=8 --quiet --device cpu"
FEW = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}


@pytest.fixture(scope="module")
def dask():
    with LocalCluster(**FEW) as workers:
        yield f"dask:{workers.scheduler_address}"


def pid(_):
    return os.getpid()


def dies_once(folder, number):
    first = folder / str(number)
    if number == 1 and not first.exists():
        first.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def wrong(number):
    raise InputError(f"cannot use {number}")


def test_calls_run_on_the_workers(dask):
    with cluster.within(dask, 4), cluster.watched():
        remote = joblib.Parallel(n_jobs=4)(joblib.delayed(pid)(i) for i in range(8))
        with pytest.raises(InputError, match="cannot use 3"):
            joblib.Parallel(n_jobs=2)([joblib.delayed(wrong)(3)])
    assert os.getpid() not in remote


def test_a_call_is_repeated_if_its_worker_dies(dask, tmp_path):
    with cluster.within(dask, 3):
        assert joblib.Parallel(n_jobs=3)(joblib.delayed(dies_once)(tmp_path, i) for i in range(3)) == [0, 1, 2]


def test_trials_on_a_cluster_equal_those_of_one_process_after_another(explore, dask, tmp_path):
    tables = []
    for name, where in (("here", ()), ("there", ("--cluster", dask))):
        with joblib.parallel_config("sequential"):
            result = explore(*ACTIVE.split(), "--jobs", 2, "--out", tmp_path, "--name", name, *where)
        assert result.exit_code == 0, result.output
        tables.append(pd.read_csv(tmp_path / f"active-{name}" / "results.csv"))
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_candidates_are_scored_on_a_cluster(explore, dask, tmp_path):
    x = np.random.default_rng(0).normal(size=(300, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=x[:, 0]).astype(object)
    frame.loc[8:, "y"] = ""
    results = []
    for name, where in (("here", ()), ("there", ("--jobs", 2, "--cluster", dask))):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        options = ("--target", "y", "--json", "--batch", 2, "--out", tmp_path / f"next-{name}.csv", *where)
        result = explore("suggest", tmp_path / f"{name}.csv", *options)
        assert result.exit_code == 0, result.output
        results.append(json.loads(result.stdout)["rows"])
    assert results[0] == results[1]


@pytest.mark.slow
def test_seeds_on_a_cluster_equal_those_of_processes(explore, dask, tmp_path):
    tables = []
    for name, where in (("here", ()), ("there", ("--cluster", dask))):
        more = ("--seeds", 3, "--jobs", 2, "--out", tmp_path, "--name", name, "--checkpoint-freq", 1)
        result = explore(*SEEDS.split(), *more, *where)
        assert result.exit_code == 0, result.output
        table = pd.read_csv(tmp_path / f"rl-{name}" / "results.csv").sort_values(["seed", "iteration"])
        tables.append(table.drop(columns=["seconds", "bonus_share"]).reset_index(drop=True))
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_a_run_can_be_resumed_after_its_scheduler_was_lost(explore, tmp_path):
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0"]
    file = tmp_path / "scheduler.json"
    with subprocess.Popen([*command, "--scheduler-file", file], stderr=subprocess.DEVNULL) as scheduler:
        while not file.exists():
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        threading.Timer(5, scheduler.kill).start()  # while the first fit waits for workers
        where = ("--jobs", 2, "--cluster", f"dask:{address}")
        result = explore(*ACTIVE.split(), "--out", tmp_path, "--name", "lost", *where)
    assert result.exit_code == 1 and "the cluster failed" in result.stderr, result.output
    again = result.stderr.rpartition("Continue: explore ")[2].split()
    assert explore(*again, "--quiet").exit_code == 0


@pytest.mark.parametrize(
    ("where", "jobs", "words"),
    [
        ("dask:tcp://127.0.0.1:1", 2, r"cannot use --cluster dask:tcp://127.0.0.1:1 \(.*127.0.0.1:1"),
        ("dask:", 2, "it must be dask:ADDRESS, ray:ADDRESS or slurm:KEY=VALUE"),
        ("mpi:here", 2, "it must be dask:ADDRESS"),
        ("dask:here", 1, "Pass --jobs with at least 2"),
        ("slurm:queue", 2, r"cannot use --cluster slurm:queue \(.*Check its address and options"),
    ],
)
def test_a_wrong_cluster_is_refused_before_a_folder_is_made(explore, tmp_path, where, jobs, words):
    result = explore(*ACTIVE.split(), "--jobs", jobs, "--out", tmp_path, "--cluster", where)
    assert result.exit_code == 2 and re.search(words, result.stderr), result.output
    assert not list(tmp_path.iterdir())


SBATCH = """#!/bin/sh
setsid bash "$1" > /dev/null 2>&1 &
echo "Submitted batch job $!"
"""


@pytest.mark.slow
def test_slurm_starts_workers(tmp_path, monkeypatch):
    """With stand-ins that run a job at once, and end it."""
    for name, text in (("sbatch", SBATCH), ("scancel", '#!/bin/sh\nkill -- "-$1"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with cluster.within("slurm:queue=short,walltime=00:10:00,interface=lo", 2):
        remote = joblib.Parallel(n_jobs=2)(joblib.delayed(pid)(i) for i in range(2))
    assert os.getpid() not in remote


@pytest.mark.slow
def test_ray_repeats_calls_of_a_worker_that_dies(tmp_path):
    pytest.importorskip("ray")
    with benchmark.ray(2) as address, cluster.within(address, 3):
        assert joblib.Parallel(n_jobs=3)(joblib.delayed(dies_once)(tmp_path, i) for i in range(3)) == [0, 1, 2]
        with pytest.raises(InputError, match="cannot use 3"), cluster.watched():
            joblib.Parallel(n_jobs=2)([joblib.delayed(wrong)(3)])
