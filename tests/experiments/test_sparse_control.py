"""The choice of eta, what is left to do, and the report, from run folders made by hand."""

import importlib.util
import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import explore

FOLDER = Path(explore.__file__).parent.parent / "experiments" / "sparse_control"


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    found = {}
    for name in ("run", "report"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec and spec.loader
        found[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, found[name])
        spec.loader.exec_module(found[name])
    return found["run"], found["report"]


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
    assert (tmp_path / "out" / "figure.png").stat().st_size > 10_000


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
