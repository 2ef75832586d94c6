"""The commands of the default bonus's runs, and their table, from run folders made by hand."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
from click.testing import CliRunner

from experiments import driver
from experiments.default_bonus import run
from explore.cli import rl
from explore.cli.rl.settings import resolve


def written(folder, values, task):
    """What `explore rl` leaves."""
    folder.mkdir(parents=True)
    total = [10 * v for v in values] if task == "mountain-car" else [0.0] * len(values)
    pd.DataFrame({
        "iteration": range(1, len(values) + 1), "extrinsic_total": total, "ep_extrinsic_mean": values,
        "bonus_median": 1.0, "dyn_rmse_before": 1.0, "restarts": [0.0] * (len(values) - 1) + [1.0], "seconds": 2.0,
    }).to_csv(folder / "results.csv", index=False)  # fmt: skip
    commits = [{"git": {"commit": letter * 40}} for letter in "aab"]
    (folder / "config.json").write_text(json.dumps({"sessions": commits}))


def test_only_what_stands_in_the_readme_differs_from_the_defaults(monkeypatch, tmp_path):
    asked = []

    def called(command, **_):
        asked.append(command[command.index("rl") + 1 :])
        return SimpleNamespace(stdout="{}")

    monkeypatch.setattr(driver.subprocess, "run", called)
    for task, iterations in (("chain-40", 20), ("mountain-car", 7)):
        run.train(task, 3, iterations, tmp_path)
    (tmp_path / "rl-chain-40-seed-3").mkdir()
    run.train("chain-40", 3, 20, tmp_path)
    assert asked.pop() == ["--resume", str(tmp_path / "rl-chain-40-seed-3"), "--quiet", "--json"]
    for task, steps, arguments in zip(("chain-40", "mountain-car"), (100_000, 35_000), asked, strict=True):
        settings = resolve(rl.command.make_context("rl", arguments).params)
        former = [word for text in ("clip=10", "updates=500", "batch_size=10") for word in ("-p", f"vime.{text}")]
        bonus = ["--eta", "0.001", "--posterior", "noisy-kfac", "--bonus", "kl", *former]
        plain = resolve(rl.command.make_context("rl", [*run.TASKS[task][0], *bonus]).params)
        algo = {**plain.algo_settings, "value_init": "zero"}
        assert settings == replace(plain, algo_settings=algo, timesteps=steps, seed=3)


def test_the_table_says_how_runs_end(monkeypatch, tmp_path):
    written(tmp_path / "runs/rl-chain-40-seed-1", [0.0] * 10 + [12.0] * 9 + [11.0], "chain-40")
    written(tmp_path / "runs/rl-mountain-car-seed-1", [0.0] * 5 + [6.0] * 10, "mountain-car")
    monkeypatch.setattr(run, "train", lambda task, seed, iterations, runs: runs / f"rl-{task}-seed-{seed}")
    options = ["--seeds", "1", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert result.output.splitlines()[2:4] == [
        "| chain-40 | 1 | 20 | 11.00 | 11.90 | 1 | 40 |", "| mountain-car | 1 | 15 | 6.00 | 6.00 | 1 | 30 |",
    ]  # fmt: skip
    kept = pd.read_csv(tmp_path / "out/curves.csv")
    assert len(kept) == 35 and set(kept.commits) == {"aaaaaaa bbbbbbb"}
    assert kept.groupby("task")["return"].max().to_dict() == {"chain-40": 12.0, "mountain-car": 6.0}
