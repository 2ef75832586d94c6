"""experiments/images: what is run, chosen, and said."""

import json
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments import driver
from experiments.images import run
from experiments.images.run import Arm, Study
from explore.cli.classify import command
from explore.cli.classify.experiment import resolve
from explore.cli.main import main

TINY = Study(
    ("--dataset", "digits", "--net", "mlp", "-p", "net.hidden=8", "--train", "100", "--test", "30", "--samples", "3"),
    ("--epochs", "2"), ("--epochs", "3"),
    {
        "first": Arm(("--posterior", "map"), (0.01, 0.03)),
        "second": Arm(("--posterior", "bbb"), (), "first"),
    },
    (("second", "first"),),
)  # fmt: skip


def test_chosen_on_other_images_and_reported(tmp_path, monkeypatch):
    def here(*arguments):  # a process for each would take ten times as long
        return json.loads(CliRunner().invoke(main, [*arguments, "--json"], catch_exceptions=False).stdout)

    monkeypatch.setattr(driver, "explore", here)
    monkeypatch.setattr(run, "STUDIES", {"tiny": TINY})
    monkeypatch.setattr(run, "SEEDS", (0, 1))

    def start(what):
        options = [what, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
        return CliRunner().invoke(run.main, [*options, "--studies", "tiny"], catch_exceptions=False)

    monkeypatch.setattr(run.main.params[1].type, "_allowed", ["tiny"])
    assert start("choose").exit_code == 0
    tried = pd.read_csv(tmp_path / "choose.csv")
    assert tried.lr.tolist() == [0.01, 0.03] and set(tried.seed) == {run.VALIDATED}
    best = tried.sort_values("log_likelihood").lr.iloc[-1]
    assert run.chosen(tmp_path / "choose.csv", "tiny", "second") == best
    done = start("report")
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "runs.csv")
    assert found.groupby("arm").seed.apply(list).to_dict() == {"first": [0, 1], "second": [0, 1]}
    assert set(found.lr) == {best} and set(found.epochs) == {2}
    curves = pd.read_csv(tmp_path / "curves.csv")
    assert curves.groupby(["arm", "seed"]).epoch.apply(list).tolist() == [[1, 2]] * 4
    assert (tmp_path / "curves.png").exists() and "| second |" in done.output
    assert "seed 0" not in start("report").output  # what is there is not run again


def test_a_row_names_every_device_of_its_run(tmp_path, monkeypatch):
    sessions = [{"device": "cuda", "git": {"commit": "a" * 40}}, {"device": "cpu", "git": {"commit": "b" * 40}}]
    asked: list[str] = []

    def elsewhere(*arguments):
        asked.extend(arguments)
        return {"epochs": 2, "alive": True, "epoch_seconds": 1.0, "test": dict.fromkeys(run.METRICS, 0.5)}

    monkeypatch.setattr(driver, "explore", elsewhere)
    folder = tmp_path / "classify-mnist-BBB-short-0.1-0"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"sessions": sessions}))
    (folder / "metrics.jsonl").write_text("")
    curves = tmp_path / "curves.csv"
    row = run.train("mnist", "BBB", "short", 0.1, 0, runs=tmp_path, device="cpu", curves=curves)
    assert row.device[0] == "cuda cpu" and asked[1:5] == ["--resume", str(folder), "--device", "cpu"]


def test_differences_are_paired(monkeypatch):
    rows = pd.DataFrame(
        {"study": "mnist", "length": "short", "arm": [*["BBB", "SLANG, L=1"] * 2, "BBB"], "seed": [0, 0, 1, 1, 2],
         "lr": 0.1, "error": [0.2, 0.1, 0.4, 0.2, 0.9], "log_likelihood": -1.0, "calibration_error": 0.0, "epochs": 10,
         "epoch_seconds": 3.0, "device": [*["cpu", "a card"] * 2, "cpu"]}
    )  # fmt: skip
    monkeypatch.setitem(run.STUDIES, "mnist", run.STUDIES["mnist"]._replace(pairs=(("SLANG, L=1", "BBB"),)))
    text = run.tables(rows)
    assert "**mnist, short: 10 epochs**" in text and "| BBB | 0.1 | 3 |" in text
    assert (
        "| SLANG, L=1 | 0.1 | 2 | 0.1500 ± 0.0500 |" in text and " | a card |  |" in text and " | cpu | 3.0 |" in text
    )
    assert "| SLANG, L=1 | BBB | 2 | -0.1500 ± 0.0500 | 0.0000 ± 0.0000 |" in text
    assert "differences" not in run.tables(rows[rows.seed == 2])  # of one alone there is none


def test_pairs_are_of_arms():
    for study in run.STUDIES.values():
        assert {arm for pair in study.pairs for arm in pair} <= study.arms.keys()


@pytest.mark.parametrize(("study", "arm"), [(study, arm) for study, own in run.STUDIES.items() for arm in own.arms])
def test_arms_are_commands_that_explore_classify_takes(study, arm):
    """And each has a step size to try, or another arm's."""
    own = run.STUDIES[study].arms[arm]
    assert own.grid or own.like in run.STUDIES[study].arms
    for length, epochs in {"choose": 9, "short": 9, "full": 100}.items():
        given = command.make_context("classify", list(run.options(study, arm, length, 0.02)), resilient_parsing=False)
        asked = resolve(given.params)
        posterior: Any = asked.build((1, 28, 28) if study == "mnist" else (3, 32, 32), 10)
        assert posterior.lr == 0.02 and posterior.epochs > epochs
        assert asked.validation == (0.1 if length == "choose" else 0)
