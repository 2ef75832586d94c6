"""The choice of eta, what is left to do, and the report, from run folders made by hand."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from gymnasium import spaces
from sb3_contrib import TRPO

import explore
from explore.cli import rl, rl_problem
from explore.vime.reward import Transitions
from explore.vime.sb3 import VIMECallback
from tests.pictures import shares

FOLDER = Path(explore.__file__).parent.parent / "experiments" / "sparse_control"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    found = {}
    for name in ("run", "report", "rnd"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec and spec.loader
        found[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, found[name])
        spec.loader.exec_module(found[name])
    return found["run"], found["report"]


@pytest.fixture
def rnd(modules):
    return sys.modules["rnd"]


def write(job, runs, totals, report):
    rows = pd.DataFrame({"iteration": range(1, len(totals) + 1), "extrinsic_total": totals})
    for column in report.KEPT[1:]:
        rows[column] = 0.5 if job.posterior != "none" or not column.startswith(("dyn", "bonus")) else float("nan")
    job.folder(runs).mkdir(parents=True)
    rows.to_csv(job.folder(runs) / "results.csv", index=False)
    sessions = [{"git": {"commit": commit}} for commit in ("aaaaaaaaa", "aaaaaaaaa", "bbbbbbbbb")]
    (job.folder(runs) / "config.json").write_text(json.dumps({"sessions": sessions}))


def test_eta_is_chosen_by_the_return_and_the_report_counts(modules, tmp_path, monkeypatch):
    run, report = modules
    monkeypatch.setitem(run.TASKS, "mountain-car", run.TASKS["mountain-car"]._replace(tuning=3))
    totals = {0.0001: [0, 0, 5], 0.001: [0, 9, 9], 0.01: [9, 0, 9]}
    with pytest.raises(Exception, match="not complete"):
        run.chosen(tmp_path, "mountain-car", "bbb")
    for job in run.tuning("mountain-car", ["bbb"]):
        write(job, tmp_path, totals[job.eta], report)
    assert run.chosen(tmp_path, "mountain-car", "bbb") == 0.001  # of equal ones the smaller
    jobs = list(run.training(tmp_path, "mountain-car", ["none", "bbb"], 2, 12))
    assert [(j.posterior, j.eta, j.seed) for j in jobs] == [
        ("none", None, 0), ("bbb", 0.001, 0), ("none", None, 1), ("bbb", 0.001, 1),
    ]  # fmt: skip
    write(jobs[0], tmp_path, [0] * 12, report)
    write(jobs[1], tmp_path, [0, 0] + [10] * 10, report)
    write(jobs[2], tmp_path, [0] * 12, report)
    write(jobs[3], tmp_path, [0] * 3 + [10] * 9, report)  # once none in the last ten
    shown = CliRunner().invoke(
        report.main, ["--seeds", "2", "--iterations", "12", "--runs", str(tmp_path), "--out", str(tmp_path / "out")]
    )
    assert shown.exit_code == 0, shown.output
    cells = [[c.strip() for c in line.split("|")] for line in shown.output.splitlines() if line.startswith("| ")]
    lines = {row[1]: row for row in cells}
    assert lines["none"][7:9] == ["0 of 2", "never"]
    assert lines["bbb"][2:4] == ["0.001", "2"] and lines["bbb"][7:9] == ["1 of 2", "4 (2 seeds)"]
    assert lines["bbb"][6] == "0.95 (0.93 to 0.97)"  # 10 a batch of 5000 is 1 in 500 steps
    assert lines["none"][5] == "" and lines["bbb"][5] == "0.79 (0.75 to 0.83)"
    summary = pd.read_csv(tmp_path / "out" / "runs.csv").set_index(["condition", "seed"])
    assert summary.loc[("bbb", 1), "mean_return"] == pytest.approx(0.75) and len(summary) == 4
    assert set(summary["commits"]) == {"aaaaaaa bbbbbbb"}
    colour = f"C{list(run.POSTERIORS).index('bbb')}"
    assert shares(tmp_path / "out" / "figure.png", colour, upper=0.9)[0] > 0.6


def test_what_is_left(modules, tmp_path):
    run, report = modules
    jobs = list(run.tuning("mountain-car", ["vogn"]))
    write(jobs[0], tmp_path, [0] * run.TASKS["mountain-car"].tuning, report)
    write(jobs[1], tmp_path, [0] * 4, report)
    shown = CliRunner().invoke(
        run.main, ["tune", "--tasks", "mountain-car", "--posteriors", "vogn", "--runs", str(tmp_path), "--dry-run"]
    )
    first, *commands = shown.output.splitlines()
    assert first == "1 of 3 runs are complete" and len(commands) == 2
    assert f"--resume {jobs[1].folder(tmp_path)}" in commands[0] and "--eta 0.01" in commands[1]


def test_a_task_decides_on_the_bonus(modules, tmp_path):
    run, _ = modules
    with_bonus, without = (
        run.Job("mountain-car", *condition, seed=0, iterations=2).command(tmp_path)
        for condition in (("bbb", 0.001), ("none", None))
    )
    assert "vime.clip=none" in with_bonus and not {"vime.clip=none", "--eta"} & set(without)


def test_no_default_decides_on_what_the_commands_mean(modules, tmp_path):
    run, _ = modules
    for task in run.TASKS:
        for name in run.POSTERIORS:
            _, *arguments = run.Job(task, name, 0.001, 0, 2).command(tmp_path)[3:]
            vime = rl_problem.resolve(rl.command.make_context("rl", arguments).params)["vime"]
            clip = None if task == "mountain-car" else 10.0
            assert (vime["eta"], vime["normalise"], vime["clip"]) == (0.001, "median", clip)
            assert vime["posterior_settings"]["prior_variance"] == 0.25
            given = dict(text.split("=") for text in run.POSTERIORS[name].split())
            for key, value in given.items():
                assert vime["posterior_settings"][key] == pytest.approx(json.loads(value))


def test_further_conditions_differ_from_those_of_the_figure(modules, tmp_path):
    run, _ = modules
    jobs = list(run.further(2, 3))
    assert len({job.name for job in jobs}) == len(jobs)
    commands = {job.name: " ".join(job.command(tmp_path)) for job in jobs}
    assert "value_init=zero" in commands["mountain-car-none-zero-critic-seed-1"]
    cut = commands["mountain-car-noisy-ekfac-eta-0.0001-cut-seed-0"]
    assert "vime.clip=10" in cut and "vime.clip=none" not in cut
    uncut = commands["cart-pole-noisy-kfac-eta-0.001-uncut-seed-0"]
    assert "vime.clip=none" in uncut and "vime.clip=10" not in uncut
    # More seeds of a condition that the figure has begin where its seeds end.
    assert [job.seed for job in jobs if job.posterior == "none" and not job.variant] == [2, 3]
    assert commands["cart-pole-rnd-eta-0.001-seed-0"].split()[1].endswith("rnd.py")


def test_distillation_pays_for_what_it_has_not_seen(rnd):
    box, rng = spaces.Box(-np.inf, np.inf, (3,)), np.random.default_rng(0)

    def transitions(centre):
        return Transitions(*(rng.normal(centre, 1, (400, 3)).astype(np.float32) for _ in range(3)))

    first, second = (rnd.RandomNetworkDistillation(box, box, eta=0.5, seed=seed) for seed in (1, 1))
    seen, following = transitions(0), []
    assert not first.batch(seen).scaled.any()
    for _ in range(10):
        following.append(first.batch(transitions(0)).raw)
    assert following[-1].mean() < 0.2 * following[0].mean()  # it learns
    new = first.batch(transitions(4))
    assert new.raw.mean() > 3 * following[-1].mean()
    paid = np.concatenate([*following, new.raw])
    np.testing.assert_allclose(new.scaled, 0.5 * new.raw / paid.std(), rtol=1e-3)
    assert first.metrics["vime/bonus_median"] == np.median(new.raw)
    # The same seed and the same batches, the same bonus.
    rng = np.random.default_rng(0)
    second.batch(transitions(0))
    np.testing.assert_array_equal(second.batch(transitions(0)).raw, following[0])


def test_distillation_stands_where_a_posterior_does(rnd, tmp_path):
    environment = ["--env", "explore/SparseMountainCar-v0", "--n-envs", "2", "--algo-param", "n_steps=32"]
    folder = tmp_path / "rl-run"
    shown = CliRunner().invoke(rnd.main, ["--folder", str(folder), *environment, "--timesteps", "192", "--seed", "3"])
    assert shown.exit_code == 0, shown.output
    rows = pd.read_csv(folder / "results.csv")
    assert rows["timesteps"].tolist() == [64, 128, 192]
    assert rows["bonus_mean"][0] == 0 and (rows["bonus_mean"][1:] > 0).all()
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["seed"] == 3 and config["sessions"][0]["versions"]
    assert not list(tmp_path.glob(".rl-run"))
    # What it pays joins the rewards that TRPO learns from.
    settings = rl_problem.resolve(rl.command.make_context("rl", ["--posterior", "none", *environment]).params)
    env = rl_problem.environments(settings, 2)
    model = rl_problem.algorithm(settings, env, 0, 0, "cpu")
    model.learn(128, VIMECallback(rnd.RandomNetworkDistillation(env.observation_space, env.action_space, eta=1.0)))
    assert isinstance(model, TRPO) and (model.rollout_buffer.rewards > 0).all()
