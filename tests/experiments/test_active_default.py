"""The commands of the default rule's runs, and their table."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
from click.testing import CliRunner

from experiments import driver
from experiments.active_default import run


def rows(active, random):
    """Curves [trials][rounds] of both arms, the rounds upside down."""
    return pd.DataFrame(
        [
            {"arm": arm, "trial": t + 1, "round": i + 1, "rmse": value, "commits": "abc"}
            for arm, curves in (("active", active), ("random", random))
            for t, curve in enumerate(curves)
            for i, value in reversed(list(enumerate(curve)))
        ]
    )


def test_the_area_is_the_mean_over_rounds_and_differences_are_paired():
    found = run.trials(rows([[3, 2, 1], [4, 3, 2]], [[3, 3, 3], [4, 4, 1]]))
    assert found.set_index(["arm", "trial"])[["area", "last"]].to_numpy().tolist() == [[2, 1], [3, 2], [3, 3], [3, 1]]
    line = run.table(found.assign(method="m", dataset="d", seed=1)).splitlines()[2]
    assert line == "| d | m | 1 | 2 | 3.000 ± 0.000 | -0.500 ± 0.500 | -0.500 | -1.0 | 50% | -0.500 ± 1.500 |"


def test_only_the_data_set_the_seed_and_the_trials_are_not_the_defaults(monkeypatch, tmp_path):
    asked, (csv, out) = [], (tmp_path / "x.csv", tmp_path / "out")
    rows([[1.0]], [[2.0]]).replace("active", "epig").drop(columns="commits").to_csv(csv, index=False)

    def called(*options):
        asked.append(options)
        folder = tmp_path / options[options.index("--name") + 1] if "--name" in options else None
        if folder:
            folder = folder.with_name(f"active-{folder.name}")
            folder.mkdir()
            csv.rename(folder / "results.csv")
        return {}

    monkeypatch.setattr(driver, "explore", called)
    monkeypatch.setattr(driver, "commits", lambda folder: "abc")
    monkeypatch.setattr(run, "tasks", lambda: iter([("noisy-kfac", "yacht", 101)]))
    arguments = ["--runs", str(tmp_path), "--out", str(out)]
    result = CliRunner().invoke(run.main, arguments, catch_exceptions=False)
    assert asked == [
        ("active", "--dataset", "yacht", "--preset", "small", "--acquisition", "epig", "--trials", "40",
             "--seed", "101", "--device", "cpu",
         "--out", str(tmp_path), "--name", "yacht-noisy-kfac-101", "--quiet")
    ]  # fmt: skip
    assert "| yacht | noisy-kfac | 101 | 1 | 2.000 | -1.000 |" in result.output.replace(" ± nan", "")
    again = CliRunner().invoke(run.main, arguments)
    assert again.output == result.stdout and len(asked) == 1
    run.command("noisy-kfac", "yacht", 101, tmp_path)
    assert asked[1] == ("active", "--resume", str(tmp_path / "active-yacht-noisy-kfac-101"), "--quiet")


def test_the_process_has_the_same_splits(monkeypatch):
    data = SimpleNamespace(x=np.arange(200.0)[:, None], y=np.zeros((200, 1)))
    monkeypatch.setattr(run, "load", lambda name: data)
    monkeypatch.setattr(run, "TRIALS", 2)
    seen = []

    def process(*arguments):
        seen.append(arguments)
        return [1.0] * 10

    monkeypatch.setattr(run.gp, "trial", process)
    found = run.process("boston", 101)
    split = run.pool_splits(200, 2, 20, 100, 101)
    assert len(found) == 2 * 2 * 10 and len(seen) == 4
    assert np.array_equal(seen[1][3], split.test[0]) and isinstance(seen[1][7], np.random.Generator)


def test_the_named_seeds_are_all_there():
    asked = list(run.tasks())
    assert len(asked) == len(set(asked)) == 5 + 7 + 10 and run.TRIALS * len(run.SEEDS) == 200
    assert {seed for _, _, seed in asked} == set(run.SEEDS)
