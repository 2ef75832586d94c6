"""`explore compare` from start to end; its numbers are checked against the tables it writes."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import explore as library
from explore import registry
from explore.cli.compare import report
from explore.data import load_table, uci_splits
from explore.inference import predict, presets
from explore.learning import compare as comparison, fit
from explore.posteriors.vogn import VOGN
from explore.runs import record
from tests.oracles import mean_and_se
from tests.pictures import shares

RUN = Path("runs/compare-table")
TINY = ["--splits", "2", "--samples", "5", "--hidden", "4", "--epochs", "3"]
TAGS = {
    "train/bound", "train/elbo", "train/objective", "train/nll", "train/kl",
    "test/rmse", "test/log_likelihood", "test/joint_log_likelihood",
    "test/coverage_95", "test/crps", "test/calibration_error", "uncertainty/epistemic_mean",
    "structure/effective_rank", "structure/initial_curvature_share",
}  # fmt: skip


@pytest.fixture
def table(csv):
    return ["--data", csv, "--target", "y", "--drop-columns", "id,kind,sign"]


@pytest.fixture
def compare(explore, table):
    """Runs a tiny `explore compare` on the table, or on other data, that succeeds."""

    def succeed(*arguments):
        data = [] if {"--data", "--dataset", "--resume"} & set(arguments) else table
        result = explore("compare", *data, *TINY, *arguments)
        assert result.exit_code == 0, result.output
        return result

    return succeed


def config(run=RUN):
    return json.loads((run / "config.json").read_text())["settings"]


def events(run, series):
    return EventAccumulator(str(run / "tensorboard" / series)).Reload()


def scalars(run):
    found = {}
    for folder in sorted((run / "tensorboard").iterdir()):
        read = events(run, folder.name)
        for tag in read.Tags()["scalars"]:
            found[folder.name, tag] = [(e.step, e.value if math.isfinite(e.value) else None) for e in read.Scalars(tag)]
    return found


@pytest.mark.usefixtures("drawn_in_full")
def test_all_posteriors_share_all_tags(compare):
    """Those with a density and those without."""
    names = ["noisy-kfac", "slang", "map", "ensemble"]
    compare("--posterior", ",".join(names))
    rows = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    for name in names:
        read = events(RUN, name)
        assert set(read.Tags()["scalars"]) == TAGS
        assert set(read.Tags()["images"]) == {"figures/reliability"}
        mine = [row for row in rows if row["series"] == name]
        assert [row["step"] for row in mine] == [1, 2, 3]
        for tag in TAGS:
            values = [e.value for e in read.Scalars(tag)]
            assert [e.step for e in read.Scalars(tag)] == [1, 2, 3]
            assert values == pytest.approx(
                [math.nan if r[tag] is None else r[tag] for r in mine], rel=1e-6, nan_ok=True
            )
            missing = name in ("map", "ensemble") and tag.startswith(("structure", "train"))
            missing &= tag != "train/nll"
            assert all(map(math.isnan, values)) if missing else all(map(math.isfinite, values))
        start = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        assert name.encode() in start
        assert (b"initial_precision" in start) == (name == "slang")
        # The table has the columns of all, whichever series TensorBoard reads first.
        columns = read.summary_metadata["_hparams_/experiment"].plugin_data.content
        assert all(key in columns for key in (b"initial_precision", b"factor_interval", b"members", b"test/rmse"))
    assert min(shares(RUN / "reliability.png", "C0", panels=len(names))) > 0.3


def test_json_is_all_of_stdout_and_agrees_with_results_csv(compare):
    result = compare("--posterior", "noisy-adam,map,bbb", "--splits", 3, "--json")
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    own = ["dataset", "splits", "validation", "best", "posteriors", "chosen", "run"]
    assert list(found) == [*own, "notes", "warnings"]
    assert (found["validation"], found["chosen"]) == (0, {})
    assert (found["dataset"], found["splits"], found["run"]) == ("table", 3, str(RUN))
    assert list(found["posteriors"]) == ["noisy-adam", "map", "bbb"]
    results = pd.read_csv(RUN / "results.csv")
    assert results["split"].tolist() == [1, 2, 3] * 3
    last = results.pivot(index="split", columns="posterior")
    for metric, sign in (("rmse", 1), ("log_likelihood", -1)):
        best = min(found["posteriors"], key=lambda n: sign * last[metric][n].mean())
        assert found["best"][metric] == best
        for name, entry in found["posteriors"].items():
            assert entry[metric] == pytest.approx(mean_and_se(last[metric][name]), rel=1e-5)
            difference = mean_and_se(last[metric][name] - last[metric][best])
            assert entry["minus_best"][metric] == pytest.approx(difference, rel=1e-4, abs=1e-6)
            assert entry["failed"] == []
            assert entry["seconds"] == last["seconds"][name].iloc[0] > 0


def test_values_of_single_posteriors_are_left_out_of_the_common_table(compare):
    sampler = [
        f"-pmclmc.{setting}" for setting in ("epochs=12", "start=2", "warmup=4", "thinning=2", "energy_variance=1e-6")
    ]
    result = compare("--posterior", "mclmc,noisy-adam", *sampler)
    results = pd.read_csv(RUN / "results.csv")
    assert results.alive.tolist() == [True] * 4 and "r_hat" not in results
    assert ("mclmc", "train/r_hat") in scalars(RUN)
    assert "mclmc: chains disagree (split R-hat of predictions" in result.stderr


def test_report_and_run_folder(compare):
    result = compare("--posterior", "map,noisy-adam")
    lines = result.stdout.splitlines()
    assert "test RMSE (units of the target), mean ± s.e. over 2 splits" in lines
    results = pd.read_csv(RUN / "results.csv")
    rmse = {name: results.loc[results.posterior == name, "rmse"] for name in ("map", "noisy-adam")}
    for name, values in rmse.items():
        row = next(line for line in lines if line.startswith(f"│ {name} "))
        assert "{mean:.3f} ± {se:.3f}".format(**mean_and_se(values)) in row
        assert (" best " in row) == (values.mean() == min(v.mean() for v in rmse.values()))
    assert f"tensorboard  tensorboard --logdir {RUN}/tensorboard" in lines
    assert "map (preset by-rows), noisy-adam (preset small) on 2 splits, on cpu" in result.stderr
    assert sorted(p.name for p in RUN.iterdir() if p.name != ".lock") == [
        "checkpoint.pt", "config.json", "metrics.jsonl", "model.pt", "reliability.png", "results.csv",
        "schema.json", "tensorboard",
    ]  # fmt: skip
    assert set(config()["posteriors"]) == {"map", "noisy-adam"}
    assert config()["posteriors"]["map"]["settings"]["epochs"] == 3


def test_the_bound_and_calibration(compare):
    names = ["noisy-kfac", "bbb", "ensemble"]
    result = compare("--posterior", ",".join(names), "--epochs", 60, "--calibrate", 0.2, "--preset", "small")
    lines = result.stdout.splitlines()
    assert " bound, " in result.stdout  # the header may go on in the next line
    results = pd.read_csv(RUN / "results.csv")
    assert results["variance_factor"].between(0.01, 100).all() and results["variance_factor"].nunique() > 3
    for name in names:
        row = [line for line in lines if line.startswith(f"│ {name} ")][1]
        bound = results.loc[results.posterior == name, "bound"].mean()
        assert row.rstrip(" │").endswith("no density" if name == "ensemble" else f"{bound:.3f}")
    # What was saved predicts as it was measured.
    for fitted in library.load_run(RUN).saved.models.values():
        assert fitted.factor is not None and fitted.factor.shape == (2,)


def test_a_result_by_hand(compare, csv):
    compare("--posterior", "map,ensemble", "--likelihood", "gaussian")
    data = load_table(csv, "y", ["id", "kind", "sign"]).dataset
    found = pd.read_csv(RUN / "results.csv").query("posterior == 'ensemble'")
    x, y, test_x, test_y, scale = [], [], [], [], []
    for train, test in uci_splits(60, 2):
        mean, deviation = data.x[train].mean(0), data.x[train].std(0)
        y_mean, y_scale = data.y[train].mean(0), data.y[train].std(0)
        x.append((data.x[train] - mean) / deviation)
        test_x.append((data.x[test] - mean) / deviation)
        y.append((data.y[train] - y_mean) / y_scale)
        test_y.append((data.y[test] - y_mean) / y_scale)
        scale.append(y_scale)
    tensors = [torch.tensor(np.stack(part), dtype=torch.float32) for part in (x, y, test_x, test_y, scale)]
    noise = library.Gaussian(**presets.between(presets.NOISE, 54))
    net = library.Net(library.mlp(data.x.shape[1], [4], 1))
    posterior = library.posterior("ensemble", net, noise, "small", epochs=3)
    rng = library.Rng(0)
    *_, last = fit.fit(posterior, tensors[0], tensors[1], rng.stream("fit"))
    stream = rng.stream("test", 3)
    layers = posterior.sample(last.state, 5, stream)
    drawn = posterior.likelihood.sample_noise(last.state.common.noise, 5, stream)
    metrics = predict.Predictor(posterior.net, posterior.likelihood, layers, drawn).evaluate(*tensors[2:])
    for column, name in {"rmse": "rmse", "log_likelihood": "log_likelihood", "epistemic_mean": "epistemic"}.items():
        assert found[column].to_numpy() == pytest.approx(metrics[name].numpy(), rel=1e-6)


def test_company_changes_no_number(compare):
    compare("--posterior", "bbb,noisy-adam", "--name", "two")
    compare("--posterior", "noisy-adam", "--name", "one")
    two, one = (pd.read_csv(f"runs/compare-{n}/results.csv").drop(columns="seconds") for n in ("two", "one"))
    pd.testing.assert_frame_equal(two[two.posterior == "noisy-adam"].reset_index(drop=True), one)


def test_a_feature_that_is_constant_in_training_is_told(compare, tmp_path):
    """One row of 40 has another value, and the first of two splits tests on it."""
    parts = [test for _, test in uci_splits(40, 2)]
    rows = [row for row in parts[0] if row not in parts[1]]
    rare = np.zeros(40)
    rare[rows[0]] = 1
    x = np.arange(40.0)
    pd.DataFrame({"x": x, "rare": rare, "same": 0 * x, "y": np.sin(x)}).to_csv(tmp_path / "t.csv", index=False)
    said = compare("--data", tmp_path / "t.csv", "--target", "y", "--posterior", "map").stderr
    assert "\n'rare' is constant in the training part of 1 of 2 splits and ignored there" in said
    assert "'same' is constant in the training" not in said and "'x' is constant" not in said


def test_noise_that_depends_on_the_input(compare, explore, table):
    """It is recorded, saved and loaded, has settings, and may be a candidate's."""
    said = compare(
        "--posterior", "noisy-kfac,map", "--likelihood", "heteroscedastic", "-p", "likelihood.spread=0.5",
        "-p", "likelihood.resolution=0.25", "--calibrate", 0.2,
    ).stderr  # fmt: skip
    assert said.count("rounded, in steps of likelihood.resolution=0.25 standard") == 1
    assert "pass -p likelihood.resolution=0.\n" in said
    assert config()["likelihood"] == "heteroscedastic" and config()["likelihood_settings"]["spread"] == 0.5
    model = library.load_run(RUN).fitted
    assert isinstance(model.posterior.likelihood, library.Heteroscedastic) and model.posterior.likelihood.spread == 0.5
    predicted = model.predict(library.load_table(table[1], "y", ["id", "kind", "sign"]).dataset.x)
    assert predicted.noise.std() > 0
    for arguments, message in (
        (["--likelihood", "categorical"], "the likelihood categorical is for classes"),
        (["--likelihood", "gaussianed"], "unknown likelihood 'gaussianed'"),
    ):
        assert message in explore("compare", *table, *TINY, *arguments).output


@pytest.mark.parametrize(("target", "likelihood"), [("kind", "categorical"), ("sign", "bernoulli")])
def test_classes(compare, csv, target, likelihood):
    other = {"kind": "sign", "sign": "kind"}[target]
    result = compare(
        "--data", csv, "--target", target, "--task", "classification", "--drop-columns", other, "--posterior",
        "noisy-kfac,map",
    )  # fmt: skip
    assert config()["likelihood"] == likelihood
    assert "test error rate, mean ± s.e. over 2 splits" in result.stdout.splitlines()
    tags = TAGS - {"test/rmse", "test/coverage_95", "test/crps"} | {"test/error"}
    assert {tag for _, tag in scalars(RUN)} == tags
    assert len(scalars(RUN)) == 2 * len(tags)
    found = pd.read_csv(RUN / "results.csv").query("posterior == 'map'")
    # By hand, as for a regression.
    data, rng = load_table(csv, target, [other], task="classification").dataset, library.Rng(0)
    splits = comparison.split(data, 2, rng)
    model: Any = {"categorical": library.Categorical(), "bernoulli": library.Bernoulli()}[likelihood]
    net = library.Net(library.mlp(data.x.shape[1], [4], 3 if likelihood == "categorical" else 1))
    last: Any = list(
        comparison.follow(library.posterior("map", net, model, "small", epochs=3), splits, rng, samples=5)
    )[-1]
    p = model.mean(net.output(last.state.weights, splits.test_x))[:, 0]
    error, own = (p.argmax(-1) != splits.test_y).float().mean(1), p.gather(2, splits.test_y.unsqueeze(2)).log()
    assert found.error.to_numpy() == pytest.approx(error.numpy(), rel=1e-6)
    assert found.log_likelihood.to_numpy() == pytest.approx(own.mean((1, 2)).numpy(), rel=1e-5)
    assert found.calibration_error.to_numpy() == pytest.approx(last.scalars["test/calibration_error"].numpy(), rel=1e-6)


def test_a_set_by_name(compare):
    compare("--dataset", "boston", "--posterior", "map", "--splits", 1)
    results = pd.read_csv("runs/compare-boston/results.csv")
    assert len(results) == 1 and math.isfinite(results.rmse[0])


def test_settings_of_all_and_of_one(compare):
    compare(
        "--posterior", "noisy-kfac,map,bbb", "-p", "lr=0.03", "-p", "map.lr=0.04", "-p", "samples=3",
        "-p", "bbb.epochs=2", "-p", "likelihood.noise_std=0.5", "-p", "batch_size=20", "--seed", 4,
    )  # fmt: skip
    own = {name: entry["settings"] for name, entry in config()["posteriors"].items()}
    assert {name: s["lr"] for name, s in own.items()} == {"noisy-kfac": 0.03, "map": 0.04, "bbb": 0.03}
    assert {name: s.get("samples") for name, s in own.items()} == {"noisy-kfac": 3, "map": None, "bbb": 3}
    assert {name: s["epochs"] for name, s in own.items()} == {"noisy-kfac": 3, "map": 3, "bbb": 2}
    assert {s["batch_size"] for s in own.values()} == {20}
    assert config()["likelihood_settings"]["noise_std"] == 0.5
    assert config()["seed"] == 4


def test_mixtures_of_one_posterior_and_of_all(compare):
    compare("--posterior", "noisy-kfac,map,ensemble", "-p", "members=2", "-p", "map.members=3", "--name", "several")
    run = Path("runs/compare-several")
    own = {name: entry["settings"] for name, entry in config(run)["posteriors"].items()}
    assert {name: s["members"] for name, s in own.items()} == {"noisy-kfac": 2, "map": 3, "ensemble": 2}
    compare("--posterior", "noisy-kfac,map", "--name", "one")
    several, one = (pd.read_csv(f"runs/compare-{name}/results.csv") for name in ("several", "one"))
    assert (several.rmse[: len(one)] != one.rmse).all() and several.alive.all()
    assert getattr(library.load_run(run, posterior="map").fitted.posterior, "members", 1) == 3


@pytest.mark.parametrize(
    ("known", "given", "chosen"),
    [
        ({"paper": {}, "uci": {"lr": 0.5}}, [], "uci"),
        ({"uci": {}, "default": {"lr": 0.5}}, [], "default"),
        ({"small": {"lr": 0.5}, "paper": {}}, [], "small"),  # the table is small
        ({"tiny": {"lr": 0.5}, "paper": {}}, [], "paper"),
        ({"first": {}, "second": {"lr": 0.5}}, [], "first"),
        ({"paper": {}, "uci": {}, "other": {"lr": 0.5}}, ["--preset", "other"], "other"),
    ],
)
def test_presets(compare, monkeypatch, known, given, chosen):
    module = sys.modules[registry.find("posteriors", "map").__module__]
    monkeypatch.setattr(module, "PRESETS", known)
    monkeypatch.setattr(module, "BY_ROWS", None)
    compare("--posterior", "map", *given)
    entry = config()["posteriors"]["map"]
    assert entry["preset"] == chosen
    assert entry["settings"]["lr"] == known[chosen].get("lr", 0.01)


@pytest.mark.parametrize(
    ("rows", "columns", "preset"),
    [(70, 2, "by-rows"), (71, 2, "by-rows"), (277, 2, "by-rows"), (278, 2, "default"), (278, 32, "by-rows")],
)
def test_preset_of_tables_with_few_rows(explore, rows, columns, preset):
    """By those that are trained on, nine tenths, and by columns."""
    x = np.random.default_rng(0).normal(size=(rows, columns))
    pd.DataFrame(x).add_prefix("x").assign(y=x.sum(1)).to_csv("few.csv", index=False)
    options = [*TINY, "--data", "few.csv", "--target", "y", "--posterior", "noisy-kfac,map", "--epochs", "1"]
    result = explore("compare", *options, "--likelihood", "gaussian", "--name", "few", "--quiet")
    assert result.exit_code == 0, result.output
    found = config(Path("runs/compare-few"))["posteriors"]
    assert {name: own["preset"] for name, own in found.items()} == {"noisy-kfac": preset, "map": "by-rows"}
    cls = registry.find("posteriors", "noisy-kfac")
    chosen = presets.recommended_settings(cls, round(0.9 * rows), columns, units=4)
    assert found["noisy-kfac"]["settings"]["prior_variance"] == chosen.settings["prior_variance"]
    assert config(Path("runs/compare-few"))["likelihood_settings"].items() >= chosen.noise.items()


GRID = ["--posterior", "map,vogn", "--grid", "lr=0.001,0.1", "--grid", "vogn.beta2=0.1,0.5", "--json"]


def test_a_grid_is_ranked_on_validation_parts(compare):
    found = json.loads(compare(*GRID, "--validate", 0.25, "--splits", 3).stdout)
    rows = pd.read_csv(RUN / "results.csv")
    names = ["map lr=0.001", "map lr=0.1"]
    names += [f"vogn lr={lr} beta2={beta}" for lr in (0.001, 0.1) for beta in (0.1, 0.5)]
    assert list(rows.posterior.unique()) == list(found["posteriors"]) == names
    score = rows.groupby("posterior").log_likelihood.mean()
    for name, own in (("map", names[:2]), ("vogn", names[2:])):
        assert " ".join([name, *(f"{k}={v}" for k, v in found["chosen"][name].items())]) == score[own].idxmax()
    assert found["validation"] == 0.25


def test_what_a_grid_chooses_is_seen_in_no_test_point(compare, csv, tmp_path):
    """All targets of the first split's test part are others, and nothing is."""
    frame = pd.read_csv(csv)
    frame.loc[uci_splits(60, 1)[0][1], ["y", "a"]] = 9.0
    frame.to_csv(tmp_path / "other.csv", index=False)
    options = ["--target", "y", "--drop-columns", "id,kind,sign", "--splits", 1, "--validate", 0.25]
    for path in (csv, tmp_path / "other.csv"):
        compare("--data", path, *GRID, *options, "--name", path.stem)
    table, other = (pd.read_csv(f"runs/compare-{n}/results.csv").drop(columns="seconds") for n in ("table", "other"))
    pd.testing.assert_frame_equal(table, other)


def test_candidates_are_fitted_as_they_would_be_alone(compare):
    compare("--posterior", "vogn", "--grid", "lr=0.001,0.1", "--name", "grid")
    compare("--posterior", "vogn", "-p", "lr=0.1", "--name", "one")
    grid, one = (pd.read_csv(f"runs/compare-{n}/results.csv").drop(columns=["seconds"]) for n in ("grid", "one"))
    assert set(grid.posterior) == {"vogn lr=0.001", "vogn lr=0.1"}
    alone = grid[grid.posterior == "vogn lr=0.1"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone.drop(columns="posterior"), one.drop(columns="posterior"))
    posterior = library.load_run("runs/compare-grid", posterior="vogn lr=0.1").fitted.posterior
    assert isinstance(posterior, VOGN) and posterior.lr == 0.1


def test_a_grid_without_validation_is_ranked_by_the_bound(compare):
    result = compare("--posterior", "vogn", "--grid", "lr=0.001,0.1", "--epochs", 30)
    bound = pd.read_csv(RUN / "results.csv").groupby("posterior").bound.mean()
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("vogn: best of 2 by the bound, "))
    assert line.endswith(f"above the next: -p {str(bound.idxmax()).replace(' ', '.')}")
    assert f"{bound.max() - bound.min():.3f}" in line


def test_a_candidate_that_failed_is_not_chosen(compare, toy):
    found = compare("--posterior", "toy-prior", "--grid", "fails=true,false", "--validate", 0.25)
    assert "best of 1 by the validation log-likelihood: -p toy-prior.fails=False" in found.stdout
    found = compare("--posterior", "toy-prior", "--grid", "fails=true", "--validate", 0.25, "--name", "none")
    assert "toy-prior: no candidate chosen, because each one failed on at least one split." in found.stdout


@pytest.fixture
def resumed(compare, explore, monkeypatch):
    """A comparison whose recording is stopped, and goes on, has the results of one that was not; its metrics.jsonl."""

    def check(options, function, stop):
        compare(*options, "--validate", 0.25, "--name", "whole")
        with monkeypatch.context() as patch:
            patch.setattr(report, function, stop)
            with pytest.raises(AssertionError, match="Interrupted after"):
                compare(*options, "--validate", 0.25, "--name", "cut")
        assert explore("compare", "--resume", "runs/compare-cut").exit_code == 0
        whole, cut = (pd.read_csv(f"runs/compare-{n}/results.csv").drop(columns="seconds") for n in ("whole", "cut"))
        pd.testing.assert_frame_equal(whole, cut)
        return [Path(f"runs/compare-{n}/metrics.jsonl").read_text() for n in ("whole", "cut")]

    return check


def test_an_interrupted_grid_goes_on_where_it_was(resumed):
    calls, write = iter(range(9)), report.write

    def stop(run, now, event):
        if isinstance(event[1], report.Finished) and next(calls) == 3:
            raise KeyboardInterrupt
        return write(run, now, event)

    resumed(GRID, "write", stop)


def test_a_candidate_goes_on_where_it_was(resumed):
    calls, write = iter(range(99)), report.write

    def stop(run, now, event):
        if isinstance(event[1], comparison.Measured) and next(calls) == 9:
            raise KeyboardInterrupt
        return write(run, now, event)

    grid = ["--posterior", "noisy-kfac", "--grid", "lr=0.01,0.1", "--grid", "members=1,2", "--epochs", 6]
    whole, cut = resumed(grid, "write", stop)
    assert whole == cut


def test_a_fit_that_diverged_is_told(compare):
    result = compare("--posterior", "map,ensemble", "--likelihood", "gaussian", "-p", "map.lr=30", "--epochs", "100")
    assert "map predicts worse than the mean of the training targets on 2 of 2 splits (1, 2)" in result.stderr
    assert "ensemble predicts worse" not in result.stderr


def test_a_new_posterior_runs_and_its_failures_are_told(compare, toy):
    result = compare("--posterior", "map,toy-prior", "-p", "fails=true", "--json")
    assert "Warning: Split 2, toy-prior: the fit diverged and was stopped." in result.stderr
    assert json.loads(result.stdout)["posteriors"]["toy-prior"]["failed"] == [2]
    assert pd.read_csv(RUN / "results.csv").alive.tolist() == [True, True, True, False]
    assert {tag for series, tag in scalars(RUN) if series == "toy-prior"} == TAGS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--posterior", "kfac,map"], "unknown posterior 'kfac'; allowed: bbb,"),
        (["--splits", "0"], "Invalid value for '--splits'"),
        (["--preset", "tiny"], "unknown preset 'tiny'; allowed: "),
        (["-p", "members2=1"], "unknown setting 'members2'; allowed: "),
        (["-p", "map.lr=1"], "unknown name before a setting 'map'; allowed: bbb, ensemble, likelihood, noisy-kfac"),
        (["-p", "bbb.beta=3"], "unknown setting 'beta'; allowed: "),
        (
            ["--posterior", "hmc", "--epochs", "200", "-p", "members=3"],
            "hmc samples the exact posterior, so mixing fits adds nothing",
        ),
        (["-p", "bbb.members=0"], "members is 0; it must be in [1, 1e4]"),
        (["-p", "ensemble.members=many"], "members='many' is not valid; allowed: a whole number"),
        (["--dataset", "breast-cancer", "--posterior", "map,boosting"], "boosting is a baseline for numeric targets"),
        (["-p", "likelihood.scale=1"], "unknown setting 'scale'; allowed: beta,"),
        (["-p", "lr"], "-p must be KEY=VALUE; got 'lr'"),
        (["-p", "epochs=3"], "--epochs and -p epochs=... exclude each other. Pass only one of them"),
        (["-p", "lr=-1"], "lr is -1.0; it must be"),
        (["--dataset", "bostn"], "unknown dataset 'bostn'; allowed: australian, boston,"),
        (["--target", "y"], "--target applies to --data only. Leave it"),
        (["--data", "absent.csv"], "Path 'absent.csv' does not exist"),
        (["--data", "two.csv"], "--data needs --target"),
        (["--data", "two.csv", "--target", "y"], "cannot split 2 examples 5 times with 2 for"),
        (["--hidden", "0"], "--hidden is '0'"),
        (["--posterior", "gp", "--hidden", "4"], "--hidden applies to networks, but gp has none"),
        (["--hidden", "100000000"], "13, 100000000, 2 units need 1600000002 weights, more than the limit of"),
        (["--splits", "100000000"], "100000000 is not in the range 1<=x<=10000"),
        (["--posterior", "bbb,,map,"], "unknown posterior ''; allowed: bbb,"),
        (["--device", "abacus"], "device 'abacus' is not available; allowed: auto, cpu"),
        (["--name", "../x"], "--name is '../x'"),
        (["-p", "bbb.prior_variance=much"], "prior_variance='much' is not valid; allowed: a number"),
        (["--grid", "lr=1,2"], "--grid selects by the variational bound, which ensemble does not have. Add --validate"),
        (["--grid", "bbb.lr=1,"], "lr=''"),
        (["--grid", "bbb.lr=0.1,0.10", "--validate", "0.2"], "--grid names 'bbb lr=0.1' twice. Name it once"),
        (["--posterior", "map,bbb,map"], "--posterior names 'map' twice. Name it once"),
        (["--grid", "bbb.lr"], "--grid must be KEY=VALUE; got 'bbb.lr'"),
        (["--grid", "lrr=1,2"], "unknown setting 'lrr'"),
        (["--grid", "bbb.lr=1,2", "-p", "lr=1"], "lr of bbb is set by both -p and --grid. Pass it only once"),
        (["--grid", "bbb.epochs=1,2"], "epochs of bbb is set by both -p and --grid. Pass"),
        (["--validate", "0.6"], "0.6 is not in the range 0<x<=0.5"),
        (["--calibrate", "0"], "0.0 is not in the range 0<x<=0.5"),
        (
            ["--calibrate", "0.1", "--dataset", "australian"],
            "--calibrate applies to regression only: it scales the",
        ),
        (["somewhere"], "unexpected extra argument (somewhere)"),
    ],
)
def test_wrong_options(explore, arguments, message):
    Path("two.csv").write_text("a,y\n1,2\n2,3\n")
    result = explore("compare", "--epochs", 2, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.stdout == ""
    assert not Path("runs").exists()


# Resume ----------------------------------------------------------------------------------------------------


def same_numbers(run, other):
    """Equal bytes in the curves, equal results but for the seconds, the same events in TensorBoard."""
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    ours, theirs = (pd.read_csv(r / "results.csv", dtype=str).drop(columns="seconds") for r in (run, other))
    pd.testing.assert_frame_equal(ours, theirs)
    assert scalars(run) == scalars(other)


def test_killed_and_resumed_equals_uninterrupted(explore, compare, table):
    arguments = ["--posterior", "map,noisy-ekfac,ensemble", "--epochs", 25, "--threads", 1]
    compare(*arguments, "--name", "whole")
    command = [sys.executable, "-m", "explore.cli", "compare", *table, *TINY, *arguments, "--name", "x"]
    run = Path("runs/compare-x")
    with subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count("noisy-ekfac") > 3):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
    assert "ensemble" not in (run / "metrics.jsonl").read_text()
    result = explore("compare", "--resume", run, "--json")
    assert result.exit_code == 0, result.stderr
    assert 25 < int(result.stderr.split(f"{run}: ")[1].split(" of 75 epochs are done.")[0]) < 50
    same_numbers(run, Path("runs/compare-whole"))


class PowerCut(Exception):
    pass


@pytest.mark.parametrize(
    ("where", "what", "calls"),
    [
        (record.Run, "scalars", 4), (record.Run, "image", 1), (record.Run, "checkpoint", 3), (record.Run, "hparams", 1),
    ],
)  # fmt: skip
def test_a_crash_at_any_write_loses_no_measurement(compare, explore, monkeypatch, where, what, calls):
    function, left = getattr(where, what), iter(range(calls))

    def cut(*arguments, **keywords):
        if next(left, None) is None:
            raise PowerCut
        return function(*arguments, **keywords)

    compare("--posterior", "map,ensemble", "--name", "whole")
    with monkeypatch.context() as patch:
        patch.setattr(where, what, cut)
        with pytest.raises(PowerCut):
            compare("--posterior", "map,ensemble")
    result = explore("compare", "--resume", RUN)
    assert result.exit_code == 0, result.stderr
    same_numbers(RUN, Path("runs/compare-whole"))
    for series in ("map", "ensemble"):
        assert [e.step for e in events(RUN, series).Images("figures/reliability")] == [3]


def test_a_finished_run_shows_its_result_again(compare, explore):
    first = compare("--posterior", "map,ensemble")
    files = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    again = explore("compare", "--resume", RUN)
    assert again.exit_code == 0
    assert "6 of 6 epochs are done" in again.stderr
    assert again.stdout == first.stdout
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == files


def test_resume_refuses_other_settings_and_other_commands(compare, explore, active):
    compare("--posterior", "map")
    result = explore("compare", "--resume", RUN, "--splits", 3)
    assert result.exit_code == 2
    assert "Leave out --splits (allowed: --cluster, --device, --graphs, --json, --quiet, --resume," in result.stderr
    active("--rounds", 1, "--name", "x")
    assert (
        "was written by explore active. Use a run of explore compare"
        in explore("compare", "--resume", "runs/active-x").stderr
    )


def test_gradient_boosting_beside_a_posterior(compare, explore, table):
    result = compare("--posterior", "boosting,map")
    assert "that of a Gaussian around the predicted mean" in result.stderr
    rows = pd.read_csv(RUN / "results.csv").set_index("posterior")
    assert [*rows.index] == ["map"] * 2 + ["boosting"] * 2
    scores = rows.loc["boosting", ["rmse", "log_likelihood", "crps"]]
    assert not scores.isna().to_numpy().any() and rows.loc["boosting"].bound.isna().all()
    before = (RUN / "results.csv").read_text()
    assert "boosting" in explore("compare", "--resume", RUN).stdout and (RUN / "results.csv").read_text() == before
    assert "Name at least one posterior" in explore("compare", *table, "--posterior", "boosting").stderr


def test_a_grid_over_the_noise(compare, explore):
    """Each candidate is fitted, recorded and saved with its own."""
    axes = [
        "--posterior",
        "map",
        "--likelihood",
        "gaussian",
        "--grid",
        "likelihood.noise_std=0.1,0.9",
        "--validate",
        0.25,
    ]
    found = json.loads(compare(*axes, "--json", "--name", "grid").stdout)
    compare("--posterior", "map", "--likelihood", "gaussian", "-p", "likelihood.noise_std=0.9", "--name", "one")
    assert found["chosen"]["map"].keys() == {"likelihood.noise_std"}
    run = "runs/compare-grid"
    for std in (0.1, 0.9):
        fitted = library.load_run(run, posterior=f"map likelihood.noise_std={std}").fitted
        assert fitted.posterior.likelihood == library.Gaussian(**presets.between(presets.NOISE, 40), noise_std=std)
    grid, one = (pd.read_csv(f"runs/compare-{n}/results.csv") for n in ("grid", "one"))
    assert grid.groupby("posterior").log_likelihood.mean().nunique() == 2 and len(one) == len(grid) / 2
    said = compare(*axes, "--name", "again").stdout
    assert "-p likelihood.noise_std=0." in said
    both = explore("compare", *TINY, *axes, "-p", "likelihood.noise_std=0.5")
    assert both.exit_code == 2 and "likelihood.noise_std is set by both -p and --grid. Pass" in both.stderr
    unknown = explore("compare", *TINY, "--posterior", "map", "--grid", "likelihood.std=1,2", "--validate", 0.25)
    assert unknown.exit_code == 2 and "std" in unknown.stderr


def test_every_candidate_is_predicted_with(compare, explore):
    compare("--posterior", "noisy-kfac", "--grid", "prior_variance=0.5,2", "--epochs", 3, "--splits", 2)
    for eta in (0.5, 2.0):
        name = f"noisy-kfac prior_variance={eta}"
        found = explore("predict", RUN, "table.csv", "--posterior", name, "--json")
        assert found.exit_code == 0, found.output
        assert vars(library.load_run(RUN, posterior=name).fitted.posterior)["prior_variance"] == eta


def test_counts_are_not_standardised(explore, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 60)
    pd.DataFrame({"x": x, "count": rng.poisson(np.exp(1 + np.sin(2 * x)))}).to_csv(tmp_path / "counts.csv", index=False)
    data = ["--data", str(tmp_path / "counts.csv"), "--target", "count", "--likelihood", "poisson"]
    words = ["--splits", "2", "--epochs", "150", "--hidden", "8", "--samples", "9"]
    result = explore("compare", *data, *words, "--posterior", "map")
    assert result.exit_code == 0 and "log-likelihood" in result.output, result.output
    assert "worse than the mean" not in result.output
    result = explore("compare", *data, *words, "--posterior", "map,boosting")
    assert "boosting predicts Gaussians. Leave it out with --likelihood poisson" in result.output
