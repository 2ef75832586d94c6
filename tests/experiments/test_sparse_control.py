"""The choice of eta, what is left to do, and the report, from run folders made by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.sparse_control import collect, report, run
from explore.cli import rl
from explore.cli.main import main
from explore.cli.rl.settings import resolve
from tests.pictures import shares

FOLDER = Path(run.__file__).parent


def done(command, *arguments):
    shown = CliRunner().invoke(command, [str(a) for a in arguments])
    assert shown.exit_code == 0, shown.output
    return shown.output


def write(job, runs, totals):
    rows = pd.DataFrame({"iteration": range(1, len(totals) + 1), "extrinsic_total": totals})
    for column in collect.KEPT[1:]:
        rows[column] = 0.5 if job.posterior != "none" or not column.startswith(("dyn", "bonus")) else float("nan")
    job.folder(runs).mkdir(parents=True)
    rows.to_csv(job.folder(runs) / "results.csv", index=False)
    sessions = [{"git": {"commit": commit}} for commit in ("aaaaaaaaa", "aaaaaaaaa", "bbbbbbbbb")]
    (job.folder(runs) / "config.json").write_text(json.dumps({"sessions": sessions}))


def cells(text):
    """The cells of a Markdown table's lines."""
    return [[c.strip() for c in line.split("|")] for line in text.splitlines() if line.startswith("| ")]


def test_eta_is_chosen_by_the_return_and_the_report_counts(tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setitem(run.TASKS, "mountain-car", run.TASKS["mountain-car"]._replace(tuning=3))
    totals: dict[float | None, list[int]] = {0.0001: [0, 0, 5], 0.001: [0, 9, 9], 0.01: [9, 0, 9]}
    with pytest.raises(Exception, match="not complete"):
        run.chosen(tmp_path, "mountain-car", "bbb")
    for job in run.tuning("mountain-car", ["bbb"]):
        write(job, tmp_path, totals[job.eta])
    assert run.chosen(tmp_path, "mountain-car", "bbb") == 0.001  # of equal ones the smaller
    jobs = list(run.training(tmp_path, "mountain-car", ["none", "bbb"], 2, 12))
    assert [(j.posterior, j.eta, j.seed) for j in jobs] == [
        ("none", None, 0), ("bbb", 0.001, 0), ("none", None, 1), ("bbb", 0.001, 1),
    ]  # fmt: skip
    write(jobs[0], tmp_path, [0] * 12)
    write(jobs[1], tmp_path, [0, 0] + [10] * 10)
    write(jobs[2], tmp_path, [0] * 12)
    write(jobs[3], tmp_path, [0] * 3 + [10] * 9)  # once none in the last ten
    done(collect.main, "--seeds", 2, "--iterations", 12, "--runs", tmp_path, "--out", out)
    lines = {row[1]: row for row in cells(done(report.main, "--results", out))}
    assert lines["none"][8:10] == ["0 of 2", "never"]
    assert lines["bbb"][2:4] == ["0.001", "2"] and lines["bbb"][8:10] == ["1 of 2", "4 (2 seeds)"]
    assert lines["bbb"][7] == "0.95 (0.93 to 0.97)"  # 10 a batch of 5000 is 1 in 500 steps
    assert lines["none"][5:7] == ["", ""] and lines["bbb"][5] == "0.79 (0.75 to 0.83)"
    assert lines["bbb"][6] == "0.333"  # of the six ways to deal four returns two are as extreme
    summary = pd.read_csv(out / "runs.csv").set_index(["condition", "seed"])
    assert summary.loc[("bbb", 1), "mean_return"] == pytest.approx(0.75) and len(summary) == 4
    assert set(summary["commits"]) == {"aaaaaaa bbbbbbb"}
    colour = f"C{list(run.POSTERIORS).index('bbb')}"
    assert shares(out / "figure.png", colour, upper=0.9)[0] > 0.6
    assert not (out / "further.csv").exists()


def test_further_runs_stand_beside_the_figure_and_alone(tmp_path):
    out = tmp_path / "out"
    for job in run.tuning("mountain-car", ["bbb"]):
        write(job, tmp_path, [1] * job.iterations)
    for job in run.training(tmp_path, "mountain-car", ["none", "bbb"], 2, 12):
        write(job, tmp_path, [0] * 12 if job.eta is None else [10] * 12)
    further = [job for job in run.further(2, 12) if job.task == "mountain-car"]
    for job in further:
        write(job, tmp_path, [0] * (3 + job.seed) + [20] * (9 - job.seed))
    done(collect.main, "--seeds", 2, "--iterations", 12, "--runs", tmp_path, "--out", out)
    shown = done(report.main, "--results", out)
    figure, alone = shown.split("parameters moved")
    assert {row[1] for row in cells(figure)} >= {"none", "bbb", "rnd"} and "rnd" not in alone
    rows = {tuple(row[2:4]): row for row in cells(alone)}
    assert rows[("none", "zero-critic")][5:9] == ["0 1", "1.50 1.33", "1.80 1.60", "4 5"]
    assert rows[("none", "")][5] == "2 3" and rows[("noisy-kfac", "zero-critic")][4] == "0.0001"
    compared = pd.read_csv(out / "comparisons.csv").set_index(["condition", "beside"])
    assert compared.loc[("rnd", "bbb"), "difference"] == pytest.approx(17 / 12 - 1, abs=1e-3)
    assert compared.loc[("rnd", "none"), "p_first"] == pytest.approx(1 / 3, abs=1e-3)


def test_collecting_replaces_the_runs_that_are_here_and_keeps_the_others(tmp_path):
    out, runs = tmp_path / "out", tmp_path / "runs"
    shutil.copytree(FOLDER / "results", out)
    car = "mountain-car"
    for job in run.tuning(car, ["noisy-ekfac"]):
        write(job, runs, [job.eta] * job.iterations)  # 0.01, which was not chosen before
    for seed in range(4):
        write(run.Job(car, "noisy-ekfac", 0.01, seed, 100), runs, [10] * 100)
    done(collect.main, "--runs", runs, "--out", out)

    def lines(folder, name):
        return (folder / name).read_text().splitlines()

    for name, part in (("curves.csv", 100), ("runs.csv", 1)):
        old, new = lines(FOLDER / "results", name), lines(out, name)
        changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        here = [i for i, line in enumerate(old) if line.startswith(f"{car},noisy-ekfac,")]
        assert changed == here[: 4 * part] and all(",0.01," in new[i] for i in changed)  # seed 4 is not here
    assert len(lines(out, "tuning.csv")) == len(lines(FOLDER / "results", "tuning.csv"))
    assert f"{car},noisy-ekfac,0.01,100,0.001" in lines(out, "tuning.csv")
    for name in ("further.csv", "further_runs.csv"):
        assert lines(out, name) == lines(FOLDER / "results", name)
    # A condition of several etas is none.
    shown = CliRunner().invoke(report.main, ["--results", str(out)])
    assert shown.exit_code == 2 and f"{car}, noisy-ekfac: the seeds have 0.01 and 0.0001 as eta" in shown.output
    write(run.Job(car, "noisy-ekfac", 0.01, 4, 100), runs, [10] * 100)
    done(collect.main, "--runs", runs, "--out", out)
    row = next(row for row in cells(done(report.main, "--results", out)) if row[1:3] == ["noisy-ekfac", "0.01"])
    assert row[4] == "1.00 (1.00 to 1.00)"


def test_how_far_a_policy_moved_is_read_from_its_last_checkpoint(tmp_path, monkeypatch):
    # Two copies and short batches, so that a test can pay for it.
    monkeypatch.setattr(run, "BATCH", 64)
    found = {}
    for variant in ("", "zero-critic"):
        job = run.Job("mountain-car", "none", None, 3, 2, variant)
        own = ["--n-envs", "2", "--algo-param", "n_steps=32"]
        done(main, *job.command(tmp_path)[3:], *own)  # in this process: another one takes longer to begin than to train
        found[variant] = collect.moved(job, tmp_path)
    assert found["zero-critic"] == 0 and (found[""] or 0) > 1e-3


def test_the_report_is_what_the_committed_tables_say(tmp_path):
    results = FOLDER / "results"
    for path in results.glob("*.csv"):
        shutil.copy(path, tmp_path)
    done(report.main, "--results", tmp_path)
    for name in ("table.md", "further.md", "comparisons.csv"):
        assert (tmp_path / name).read_text() == (results / name).read_text()
    said = (FOLDER / "README.md").read_text()
    assert all(text.strip() in said for name in ("table.md", "further.md") for text in [(results / name).read_text()])
    # Mountain car and cart-pole have a curve of random network distillation, the double pendulum has none.
    first, second, third = shares(tmp_path / "figure.png", f"C{len(run.POSTERIORS)}", panels=3, upper=0.9)
    assert min(first, second) > 0.5 and third < 0.05


def test_p_values_by_the_tables_of_the_tests():
    one, two = pd.Series([1.0, 2, 3, 4, 5]), pd.Series([6.0, 7, 8, 9, 10])
    assert report.mann_whitney(one, two) == pytest.approx(2 / 252)
    assert report.mann_whitney(one, pd.Series([np.inf] * 5)) == pytest.approx(2 / 252)
    assert report.mann_whitney(one, one) == 1
    # Holm (1979): times 4, 3, 2, 1, never below the one before, at most 1.
    p = pd.Series([0.03, 0.005, 0.6, 0.04])
    np.testing.assert_allclose(report.holm(p), [0.09, 0.02, 0.6, 0.09])


def test_what_is_left(tmp_path):
    jobs = list(run.tuning("mountain-car", ["vogn"]))
    write(jobs[0], tmp_path, [0] * run.TASKS["mountain-car"].tuning)
    write(jobs[1], tmp_path, [0] * 4)
    shown = CliRunner().invoke(
        run.main, ["tune", "--tasks", "mountain-car", "--posteriors", "vogn", "--runs", str(tmp_path), "--dry-run"]
    )
    first, *commands = shown.output.splitlines()
    assert first == "1 of 3 runs are complete" and len(commands) == 2
    assert f"--resume {jobs[1].folder(tmp_path)}" in commands[0] and "--eta 0.01" in commands[1]


def test_a_task_decides_on_the_bonus(tmp_path):
    with_bonus, without = (
        run.Job("mountain-car", name, eta, seed=0, iterations=2).command(tmp_path)
        for name, eta in (("bbb", 0.001), ("none", None))
    )
    assert "vime.clip=none" in with_bonus and not {"vime.clip=none", "--eta"} & set(without)


def test_no_default_decides_on_what_the_commands_mean(tmp_path):
    for task in run.TASKS:
        for name in run.POSTERIORS:
            _, *arguments = run.Job(task, name, 0.001, 0, 2).command(tmp_path)[3:]
            vime = resolve(rl.command.make_context("rl", arguments).params).vime or {}
            clip = None if task == "mountain-car" else 10.0
            assert (vime["eta"], vime["normalise"], vime["clip"]) == (0.001, "median", clip)
            assert vime["posterior_settings"]["prior_variance"] == 0.25
            given = dict(text.split("=") for text in run.POSTERIORS[name].split())
            for key, value in given.items():
                expected = None if value == "none" else pytest.approx(json.loads(value))
                assert vime["posterior_settings"][key] == expected


def test_further_conditions_differ_from_those_of_the_figure(tmp_path):
    jobs = list(run.further(2, 3))
    assert len({job.name for job in jobs}) == len(jobs)
    commands = {job.name: " ".join(job.command(tmp_path)) for job in jobs}
    assert "value_init=zero" in commands["mountain-car-none-zero-critic-seed-1"]
    # More seeds of a condition that the figure has begin where its seeds end.
    assert [job.seed for job in jobs if job.posterior == "none" and not job.variant] == [2, 3]
    assert "--bonus rnd" in commands["cart-pole-rnd-eta-0.001-seed-0"]


def test_the_numbers_in_the_text_are_those_of_the_tables():
    every, more = report.read(FOLDER / "results")
    compared = report.comparisons(every).set_index(["task", "condition", "beside"])
    car = every[every["task"] == "mountain-car"]
    medians = car.groupby(["condition", "seed"])["return"].mean().groupby("condition").median()
    p = compared.xs(("mountain-car", "rnd", "noisy-kfac"))["p"]
    said = " ".join((FOLDER / "README.md").read_text().split())
    assert f"({medians['rnd']:.2f} and {medians['noisy-kfac']:.2f}, p = {p:.2f}" in said
    first = " ".join(f"{n}," for n in report.begun(car[car["condition"] == "rnd"])).rstrip(",")
    assert f"first reward in iteration {first} and" in said
    # Ten seeds without a bonus: five of the figure, five of the further conditions.
    alone = more[(more["condition"] == "none") & (more["variant"] == "") & (more["task"] == "mountain-car")]
    begun = sorted([*report.begun(car[car["condition"] == "none"]), *report.begun(alone)])
    assert len(begun) == 6 and f"iteration {begun[0]} to {begun[-1]}" in said
    front = " ".join((FOLDER.parent.parent / "docs" / "rl.md").read_text().split())
    assert f"in iteration {begun[0]} to {begun[-1]}" in front and f"(p = {p:.2f})" in front
