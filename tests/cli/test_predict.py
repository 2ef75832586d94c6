"""Saved models predict what their runs measured; `explore predict` writes it beside the columns of a table."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from explore import load_run
from explore.cli.report.session import Opened
from explore.core import files
from explore.core.errors import InputError
from explore.data import load, pool_splits, uci_splits
from explore.learning import loaded, saved
from explore.learning.loaded import TableWarning
from explore.learning.scaling import UNSCALED, Transform
from explore.runs.record import Run
from explore.runs.recorded import run_id

OWN = ["_mean", "_low", "_high", "_epistemic", "_noise"]
LAB = ["--drop-columns", "grade", "--initial", 10, "--epochs", 3, "--trials", 2, "--rounds", 2, "--samples", 7]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Runs on a table with categories, gaps, two targets and two or three classes, in the folder `runs`."""
    from tests.cli.conftest import run

    here = tmp_path_factory.mktemp("lab")
    rng, n = np.random.default_rng(0), 60
    frame = pd.DataFrame({"heat": rng.normal(40, 9, n), "solvent": rng.choice(["water", "ethanol"], n)})
    frame["yield"] = frame.heat / 2 + 10 * (frame.solvent == "water")
    frame["cost"] = frame.heat * 100
    frame["grade"] = np.where(frame["yield"] > 28, "high", np.where(frame["yield"] < 20, "low", "mid"))
    frame.loc[3, "heat"] = np.nan
    frame.to_csv(here / "lab.csv", index=False)
    common = ["--data", here / "lab.csv", "--test-size", 20, "--out", here / "runs", "--quiet"]
    for command in (
        ["active", *common, *LAB, "--target", "yield", "--target", "cost", "--name", "two", "--acquisition", "random"],
        ["active", *common, *LAB[2:], "--target", "grade", "--task", "classification", "--name", "grade",
         "--drop-columns", "yield,cost", "--posterior", "bbb"],
        ["compare", "--data", here / "lab.csv", "--target", "yield", "--drop-columns", "grade,cost", "--quiet",
         "--posterior", "map,bbb", "--splits", 3, "--epochs", 3, "--out", here / "runs", "--name", "c",
         "--samples", 7],
    ):  # fmt: skip
        result = run(*command)
        assert result.exit_code == 0, result.output
    return here


@pytest.fixture
def runs(lab):
    """A copy of the folder with the runs, and the table beside it."""
    shutil.copytree(lab / "runs", "runs")
    shutil.copy(lab / "lab.csv", ".")
    return Path("runs")


@pytest.mark.parametrize("more", [(), ("-p", "members=2")])
def test_what_active_saved_is_what_it_measured(active, more):
    active("--name", "b", "--trials", 2, *more)
    folder, data = Path("runs/active-b"), load("boston")
    kept = saved.read(folder, ())
    (model,), split = kept.models.values(), pool_splits(506, 2, 20, 20, 0)
    mean = model.predict(data.x).mean[..., 0].numpy()
    last = pd.read_csv(folder / "results.csv").query("round == 3").set_index(["arm", "trial"])
    for r, replica in enumerate(kept.replicas):
        test = split.test[replica["trial"] - 1]
        rmse = np.sqrt(((mean[r, test] - data.y[test, 0]) ** 2).mean())
        assert rmse == pytest.approx(last.loc[(replica["arm"], replica["trial"]), "rmse"], rel=1e-5)
    own = load_run(folder, arm="random", trial=2)
    assert own.about == "noisy-kfac, arm random, trial 2 of 2; fitted to 22 examples"
    far = ": {} of 506 rows are more than 10 standard deviations from the training data"
    with pytest.warns(TableWarning, match=f"'CRIM'{far.format(6)}"), pytest.warns(match=f"'B'{far.format(9)}"):
        found = own.predict(pd.DataFrame(data.x, columns=data.features)[::-1])
    # Another sample of the nets than all replicas have together.
    assert (np.abs(found["mean"][::-1] - mean[3]) < found.epistemic[::-1] * 3).mean() > 0.95
    assert found.index[0] == 505 and (found.low < found["mean"]).all() and (found["mean"] < found.high).all()
    frame = pd.DataFrame(data.x[:4], columns=data.features)
    with pytest.raises(InputError, match="has no column 'AGE'; the model's features: CRIM"):
        own.predict(frame.drop(columns="AGE"))
    with pytest.raises(InputError, match="row 3, column 'RM': an empty cell instead of a finite number"):
        own.predict(frame.assign(RM=[1, 2, np.nan, 4]))


def test_what_compare_saved_is_what_it_measured(runs):
    folder = runs / "compare-c"
    kept = saved.read(folder, ())
    data = Opened("c", folder, "compare", {}, (), {}).settings.table()[0]
    results = pd.read_csv(folder / "results.csv").set_index(["posterior", "split"])
    for name in ("map", "bbb"):
        mean = kept.models[name].predict(data.x).mean.numpy()
        for r, (_, test) in enumerate(uci_splits(60, 3)):
            rmse = np.sqrt(((mean[r, test] - data.y[test]) ** 2).mean())
            assert rmse == pytest.approx(results.loc[(name, r + 1), "rmse"], rel=1e-5)
    assert load_run(folder).about == "map (others: bbb), split 1 of 3; fitted to 54 examples"
    assert load_run(folder, posterior="bbb", split=3).about.startswith("bbb (others: map), split 3 of 3")


def test_columns_become_features_as_they_did_for_the_run(runs, explore):
    """Wherever they stand; a category that was not known and an empty cell are said."""
    one = load_run(runs / "compare-c")
    table = pd.DataFrame({"solvent": ["water", "ethanol"], "odd": [1, 2], "heat": [30.0, 50.0]}, index=["a", "b"])
    with pytest.warns(TableWarning, match="model was not trained on: odd"):
        found = one.predict(table, quantiles=(0.05, 0.5, 0.1234567, 0.1234568))
    assert list(found) == ["mean", "low", "high", "epistemic", "noise", "q0.05", "q0.5", "q0.1234567", "q0.1234568"]
    assert list(found.index) == ["a", "b"] and np.allclose(found.low, found["q0.05"])
    x, _ = one.inputs(one_row := loaded.cells_of(table.drop(columns="odd")))
    assert one_row.columns["heat"] == ["30.0", "50.0"]
    assert np.allclose(one.fitted.predict(x).mean[0, :, 0], found["mean"])
    with pytest.warns(TableWarning, match="unknown value|empty cell"):
        one.predict(pd.DataFrame({"solvent": ["wine"], "heat": [None]}))
    with pytest.raises(InputError, match="has no column 'heat'"):
        one.predict(table[["solvent"]])


def test_numbers_far_from_what_was_learnt_from_are_said(runs):
    """Of columns of numbers; a category that few rows have is not far from anything."""
    one = load_run(runs / "compare-c")
    heat = pd.read_csv("lab.csv").heat
    cells = loaded.cells_of(pd.DataFrame({"solvent": ["water"] * 3, "heat": [heat.mean(), 1000 * heat.max(), 9e9]}))
    _, notes = one.inputs(cells)
    assert [note.partition(" standard")[0] for note in notes] == ["'heat': 2 of 3 rows are more than 10"]
    assert "up to 9e+09; their predictions are extrapolated" in notes[0]
    edges = loaded.cells_of(pd.DataFrame({"solvent": ["water"] * 2, "heat": [heat.min(), heat.max()]}))
    assert one.inputs(edges)[1] == ()
    raw = replace(one.fitted, scales=one.fitted.scales._replace(x=UNSCALED))
    assert replace(one, fitted=raw).inputs(cells)[1] == ()


def test_several_targets_and_classes_by_name(runs):
    table = pd.DataFrame({"solvent": ["water", "ethanol"], "heat": [30.0, 50.0]})
    two = load_run(runs / "active-two").predict(table)
    assert list(two)[:5] == ["mean_yield", "low_yield", "high_yield", "epistemic_yield", "noise_yield"]
    assert list(two)[5:] == [str(name).replace("yield", "cost") for name in list(two)[:5]]
    assert (two.mean_cost > 20 * two.mean_yield).all()
    grade = load_run(runs / "active-grade")
    found = grade.predict(table)
    p = found[["p_high", "p_low", "p_mid"]]
    assert grade.classes == ("high", "low", "mid") and list(found) == [*p, "class", "entropy", "information"]
    assert np.allclose(p.sum(axis=1), 1)
    assert list(found["class"]) == [str(name)[2:] for name in p.idxmax(axis=1)]


def test_targets_learnt_in_another_scale_come_back_in_their_own(runs):
    """What keeps the order takes quantiles to quantiles; the mean is a median, and both are said."""
    folder, x = runs / "compare-c", pd.DataFrame({"solvent": ["water", "ethanol"], "heat": [30.0, 50.0]})
    kept = saved.read(folder, ())
    plain = load_run(folder).predict(x, 0.8, (0.5,))
    saved.write(folder, replace(kept, transform=Transform("log")))
    with pytest.warns(TableWarning, match="The model was fitted to log targets: means"):
        found = load_run(folder).predict(x, 0.8, (0.5,))
    for name in ("low", "high", "q0.5"):
        np.testing.assert_allclose(found[name], np.exp(plain[name]))
    np.testing.assert_allclose(found["mean"], np.exp(plain["q0.5"]))
    np.testing.assert_allclose(found.noise, plain.noise)


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_predictions_stand_beside_the_columns_of_the_table(runs, explore, suffix):
    out = f"p{suffix}"
    frame = pd.DataFrame({"lot": ["007", "008"], "heat": [30.5, None], "solvent": ["water", "é"], "_low": [0, 0]})
    frame.to_csv("new.csv", index=False)
    result = explore("predict", runs / "compare-c", "new.csv", "--out", out, "--quantiles", "0.5", "--level", 0.5)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"Wrote predictions for 2 rows to {out}.\n"
    said = result.stderr.splitlines()
    assert said[0] == "Model: map (others: bbb), split 1 of 3; fitted to 54 examples."
    assert "Replaced the columns _low of new.csv." in said and any("'é'" in line for line in said)
    text = {"lot": str}
    readers = {
        ".csv": lambda: pd.read_csv(out, dtype=text),
        ".xlsx": lambda: pd.read_excel(out, dtype=text),
        ".parquet": lambda: pd.read_parquet(out),
    }
    found = readers[suffix]()
    assert list(found) == ["lot", "heat", "solvent", *OWN, "_q0.5"]
    assert list(found.lot) == ["007", "008"] and found.heat[0] == 30.5 and np.isnan(found.heat[1])
    with pytest.warns(TableWarning):
        own = load_run(runs / "compare-c").predict(frame.drop(columns="_low"), 0.5, (0.5,))
    np.testing.assert_allclose(found[[*OWN, "_q0.5"]], own, rtol=1e-7)
    assert list(found["_q0.5"].between(found._low, found._high)) == [True, True]


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_only_what_predict_wrote_is_overwritten(runs, explore, suffix):
    theirs = pd.DataFrame({"heat": [1], "_id": ["a"], "_mean": [2]})  # such as next.csv with what was measured
    out, before = Path(f"p{suffix}"), Path(f"theirs{suffix}")
    kind = {".csv": "csv", ".xlsx": "excel", ".parquet": "parquet"}[suffix]
    getattr(theirs, f"to_{kind}")(before, index=False)
    for name in ("compare-c", "active-two", "active-grade"):  # of one target, of two, and of classes
        shutil.copy(before, out)
        refused = explore("predict", runs / name, "lab.csv", "--out", out)
        assert refused.exit_code == 2
        assert f"{out} exists, and was not written by explore predict; choose another --out" in refused.stderr
        assert out.read_bytes() == before.read_bytes()
        out.unlink()
        for _ in range(2):
            assert explore("predict", runs / name, "lab.csv", "--out", out).exit_code == 0
    Path("empty.csv").touch()
    refused = explore("predict", runs / "compare-c", "lab.csv", "--out", "empty.csv")
    assert "empty.csv exists, and was not written" in refused.stderr


def test_a_table_in_the_terminal_and_one_json_object(runs, explore):
    shown = explore("predict", runs / "active-grade", "lab.csv", "--quiet")
    assert "40 more rows. Use --out FILE to write all of them." in shown.stdout and not shown.stderr
    result = explore("predict", runs / "active-grade", "lab.csv", "--json", "--arm", "random", "--trial", 2)
    found = json.loads(result.stdout)
    assert found["rows"] == len(found["predictions"]) == 60 and found["out"] is None
    refused = explore("predict", runs / "active-grade", "lab.csv", "--level", "0.5")
    assert (
        refused.exit_code == 2
        and "a classification predicts probabilities only. Leave out level (--level)" in refused.stderr
    )
    assert list(found["predictions"][0]) == ["_p_high", "_p_low", "_p_mid", "_class", "_entropy", "_information"]
    assert (
        found["model"].startswith("bbb, arm random, trial 2 of 2")
        and "'heat': imputed 1 empty cell with the median" in found["notes"][0]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare-c", "lab.csv", "--out", "lab.csv"], "--out is the input table, which must not be"),
        (["compare-c", "lab.csv", "--out", "p.txt"], "its name must end with .csv or .xlsx or .parquet"),
        (["compare-c", "lab.csv", "--out", "no/p.csv"], "cannot write no/p.csv"),
        (["compare-c", "lab.csv", "--level", "90"], "an interval's level is 90.0; it must be in (0, 1)"),
        (["compare-c", "lab.csv", "--quantiles", "0.5,a"], "--quantiles is '0.5,a'; it must be levels such as"),
        (["compare-c", "lab.csv", "--quantiles", "1"], "a quantile's level is 1.0; it must be in (0, 1)"),
        (["compare-c", "lab.csv", "--posterior", "noisy-kfac"], "unknown posterior of runs/compare-c 'noisy-kfac'"),
        (
            ["compare-c", "lab.csv", "--trial", "1"],
            "runs/compare-c has no trial to select; select models by posterior, split",
        ),
        (["compare-c", "lab.csv", "--split", "4"], "unknown split of runs/compare-c '4'; allowed: 1, 2, 3"),
        (["compare-c", "runs/compare-c/results.csv"], "has no column 'heat'"),
        (["", "lab.csv"], "runs is not a run folder: it has no config.json"),
        (["two", "lab.csv"], "does not exist"),
    ],
)
def test_what_is_refused(runs, explore, arguments, message):
    before = Path("lab.csv").read_bytes()
    result = explore("predict", runs / arguments[0], *arguments[1:])
    assert result.exit_code == 2 and message in " ".join(result.stderr.split()), result.stderr
    assert Path("lab.csv").read_bytes() == before


def broken(folder, what):
    path = folder / "model.pt"
    content = files.load(path, "saved model", saved.FORMAT)
    if what == "missing":
        path.unlink()
    elif what == "flipped":
        path.write_bytes(path.read_bytes()[:-99] + b"x" + path.read_bytes()[-98:])
    elif what == "foreign":
        shutil.copy(folder.parent / "active-two" / "model.pt", path)
    else:
        change = {
            "features": {"features": content["features"][1:]},
            "replicas": {"replicas": content["replicas"][1:]},
            "nothing": {"models": 3},
            "schema": {"schema": '{"columns": [{"kind": "number"}]}'},
            "transform": {"transform": {"kind": "square", "knots": [], "scores": []}},
            "shape": {"models": {k: v | {"shape": ["a"]} for k, v in content["models"].items()}},
            "rows": {"models": {k: v | {"state.common.alive": torch.ones(2)} for k, v in content["models"].items()}},
        }[what]
        files.save(path, "saved model", saved.FORMAT, content | change, run_id(folder))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "has no model.pt: the run is unfinished. Finish it with"),
        ("flipped", "is damaged"),
        ("schema", "is damaged: not a saved model"),
        ("transform", "is damaged: not a saved model"),
        ("foreign", "runs/compare-c/model.pt was written by run "),
        ("features", "the saved model was fitted with another"),
        ("replicas", "is damaged: it lists 2 replicas, but has 3"),
        ("nothing", "is damaged: not a saved model"),
        ("shape", "not a saved model"),
        ("rows", "does not fit"),
    ],
)
def test_a_damaged_model_is_refused_in_a_sentence(runs, explore, what, message):
    broken(runs / "compare-c", what)
    result = explore("predict", runs / "compare-c", "lab.csv")
    assert result.exit_code == 2 and message in " ".join(result.stderr.split()), result.stderr


def test_modules_that_a_run_names_are_imported_only_when_trusted(runs, explore, toy, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "plugins")
    made = explore(
        "active", "--data", "lab.csv", "--target", "yield", "--drop-columns", "grade,cost", "--posterior",
        "toy_prior:ToyPrior", "--name", "t", "--trials", 1, "--rounds", 1, "--test-size", 20, "--samples", 2,
        "--acquisition", "random",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    refused = explore("predict", "runs/active-t", "lab.csv")
    assert refused.exit_code == 2 and "add --trust toy_prior" in " ".join(refused.stderr.split())
    assert explore("predict", "runs/active-t", "lab.csv", "--trust", "toy_prior").exit_code == 0
    with pytest.raises(InputError, match=r"in Python: trust=\['toy_prior'\]"):
        load_run("runs/active-t")
    assert load_run("runs/active-t", trust=["toy_prior"]).features


def test_a_run_of_another_kind_has_no_model_of_a_table(explore):
    folder = Path("runs/rl-x")
    Run.create(folder, {"command": "rl"}, {}, {"started": "now"}).close()
    Path("t.csv").write_text("a\n1\n")
    result = explore("predict", folder, "t.csv")
    assert (
        result.exit_code == 2
        and "was written by explore rl. Use a run of explore active or classify or compare or suggest" in result.stderr
    )


def test_what_a_run_left_out_is_left_out_of_its_predictions(active, explore):
    """A column that numbers the rows, in a sheet of an Excel file, whatever it holds in the table to predict."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"heat": rng.normal(40, 9, 60), "n": range(60), "code": ["007", "012", "7"] * 20})
    frame["yield"] = frame.heat / 2 + frame.n
    with pd.ExcelWriter("lab.xlsx") as book:
        pd.DataFrame({"Read": ["me"]}).to_excel(book, sheet_name="About", index=False)
        frame.to_excel(book, sheet_name="Data", index=False)
    data = ("--data", "lab.xlsx", "--target", "yield", "--sheet", "Data")
    said = active(*data, "--name", "without").stderr
    assert "Column 'n' numbers the rows and is left out; use --feature 'n' to include it." in said
    active(*data, "--feature", "n", "--name", "with")
    codes = ("code = 007", "code = 012", "code = 7")
    without, taken = (load_run(f"runs/active-{name}") for name in ("without", "with"))
    assert without.features == ("heat", *codes) and taken.features == ("heat", "n", *codes)
    new = frame.head(8).assign(n=[4] * 8)
    np.testing.assert_array_equal(without.predict(new), without.predict(frame.head(8)))
    assert (taken.predict(new)["mean"] != taken.predict(frame.head(8))["mean"]).any()
    assert "Column 'n' numbers the rows" in explore("active", "--resume", "runs/active-without", "--rounds", 4).stderr
    without = load_run("runs/active-without")
    np.testing.assert_array_equal(without.predict("lab.xlsx", sheet="Data"), without.predict(frame))
    with pytest.raises(InputError, match=r"has no column 'heat'; .*--sheet reads another: 'Data'"):
        without.predict("lab.xlsx")
    run = ("predict", "runs/active-without", "lab.xlsx")
    assert "has no column 'heat'" in explore(*run).stderr and explore(*run, "--sheet", "Data").exit_code == 0
