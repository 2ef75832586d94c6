"""Active learning on eight sets: what is asked of the command, and the tables by hand."""

import pandas as pd
from click.testing import CliRunner

from experiments import driver
from experiments.active_learning import run


def curves(**arms):
    """[trials][rounds] of each arm, the rounds upside down."""
    return pd.DataFrame(
        [
            {"arm": arm.replace("_", "-"), "trial": t + 1, "round": i + 1, "rmse": value, "commits": "abc"}
            for arm, trials in arms.items()
            for t, curve in enumerate(trials)
            for i, value in reversed(list(enumerate(curve)))
        ]
    )


def test_areas_are_means_over_rounds_and_differences_are_paired(monkeypatch, tmp_path):
    rules = {
        "max-variance": curves(random=[[3, 3, 3], [4, 4, 1]], max_variance=[[3, 2, 1], [4, 3, 2]]),
        "epig": curves(epig=[[3, 2, 1], [4, 3, 5]]),
    }
    monkeypatch.setattr(run, "posterior", lambda dataset, method, rule, runs: rules[rule])
    path = tmp_path / "curves.csv"
    parts = [run.train("d", "m", rule, runs=tmp_path, curves=path).assign(dataset="d", method="m") for rule in rules]
    trials = pd.concat(parts)
    assert trials.groupby("arm").area.apply(list).to_dict() == {
        "random": [3, 3],
        "max-variance": [2, 3],
        "epig": [2, 4],
    }
    line = "| m | 3.000 ± 0.000 | -0.500 ± 0.500 (-1.0) | 0.000 ± 1.000 (+0.0) | 2.000 ± 1.000 | 1.500 ± 0.500 | "
    assert line in run.tables(trials)
    means = pd.read_csv(path).set_index(["arm", "round"])["mean"]
    assert means["random"].tolist() == [3.5, 3.5, 2.0]


def test_the_rules_share_a_control_and_what_is_there_is_not_run_again(monkeypatch, tmp_path):
    asked = []

    def called(*options):
        asked.append(options)
        rule = options[options.index("--acquisition") + 1]
        found = curves(**({rule: [[1.0], [2.0]]} | ({"random": [[2.0], [2.5]]} if "--control" in options else {})))
        folder = tmp_path / f"active-{options[options.index('--name') + 1]}"
        folder.mkdir()
        found.drop(columns="commits").to_csv(folder / "results.csv", index=False)
        return {}

    monkeypatch.setattr(driver, "explore", called)
    monkeypatch.setattr(driver, "commits", lambda folder: "abc")
    options = ["--datasets", "yacht", "--methods", "noisy-kfac x 5", "--runs", str(tmp_path), "--out", str(tmp_path)]
    result = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert "| noisy-kfac x 5 | 2.250 ± 0.250 | -0.750 ± 0.250 (-3.0) | -0.750 ± 0.250 (-3.0) |" in result.output
    assert ["--control" in options for options in asked] == [True, False]
    assert asked[0][:7] == ("active", "--dataset", "yacht", "--posterior", "noisy-kfac", "-p", "members=5")
    assert CliRunner().invoke(run.main, options).output == result.stdout and len(asked) == 2
    assert (tmp_path / "curves.png").stat().st_size > 1000
