"""`explore active` from start to end; its numbers are checked against the tables it writes."""

import json
import math
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import explore
from explore import acquisitions, images, load_run
from explore.cli.active import experiment
from explore.cli.active.experiment import Settings
from explore.data import load, pool_splits
from explore.inference import presets
from explore.nets.likelihoods import Gaussian
from explore.posteriors.noisy_kfac import NoisyKFAC
from explore.runs import record
from explore.runs.recorded import read
from tests.oracles import mean_and_se
from tests.pictures import shares

RUN = Path("runs/active-boston-noisy-kfac-variance-reduction")


def config(folder=RUN):
    return json.loads((folder / "config.json").read_text())


def test_json_is_all_of_stdout_and_agrees_with_results_csv(active):
    result = active("--json")
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    metrics = ["rmse", "log_likelihood", "paired_difference", "paired_auc_difference"]
    assert list(found) == ["posterior", "acquisition", "trials", *metrics, "seconds", "run", "notes", "warnings"]
    assert (found["posterior"], found["acquisition"], found["trials"]) == ("noisy-kfac", "variance-reduction", 2)
    assert found["run"] == str(RUN)
    assert found["seconds"] > 0
    table = pd.read_csv(RUN / "results.csv")
    last = table[table.labels == 22].pivot(index="trial", columns="arm")
    for metric in ("rmse", "log_likelihood"):
        for name, arm in (("active", "variance-reduction"), ("random", "random")):
            assert found[metric][name] == pytest.approx(mean_and_se(last[metric][arm]))
    difference = last["rmse"]["variance-reduction"] - last["rmse"]["random"]
    assert found["paired_difference"] == pytest.approx(mean_and_se(difference))
    curves = table.pivot(index="trial", columns=["arm", "labels"])["rmse"]
    difference = (curves["variance-reduction"] - curves["random"]).mean(axis=1)  # over rounds
    assert found["paired_auc_difference"] == pytest.approx(mean_and_se(difference))


def test_the_default_is_a_process_for_numbers_unless_settings_of_a_network_are_given(explore):
    for options, name, likelihood in (
        ((), "gp", "heteroscedastic"),
        (("--likelihood", "gaussian"), "gp", "gaussian"),
        (("--hidden", "4", "--epochs", 2), "noisy-kfac", "gaussian"),
    ):
        result = explore("active", "--dataset", "yacht", "--trials", 2, "--rounds", 2, "--json", *options)
        found = json.loads(result.stdout)
        assert found["posterior"] == name
        assert config(Path(found["run"]))["settings"]["likelihood"] == likelihood
    result = explore("active", "--posterior", "gp", "--hidden", "4")
    assert result.exit_code == 2 and "--hidden applies to networks, but gp has none" in result.stderr
    result = explore("active", "-p", "likelihood.prior_rate=1")
    assert result.exit_code == 2 and "gp ignores the setting prior_rate of the likelihood" in result.stderr


def test_underscores_in_names_are_hyphens(active):
    active("--posterior", "noisy_kfac", "--acquisition", "max_variance")
    run = RUN.with_name("active-boston-noisy-kfac-max-variance")
    settings = config(run)["settings"]
    assert (settings["posterior"], settings["acquisition"]) == ("noisy-kfac", "max-variance")


@pytest.mark.usefixtures("drawn_in_full")
def test_report_and_run_folder(active):
    result = active()
    lines = result.stdout.splitlines()
    assert "test RMSE (units of the target), mean ± s.e. over 2 trials" in lines
    assert "test log-likelihood (nats per point), mean ± s.e. over 2 trials" in lines
    assert [line.split()[1] for line in lines if line.startswith("│")] == ["20", "21", "22", "mean"] * 2
    final = pd.read_csv(RUN / "results.csv").query("labels == 22 and arm == 'random'").rmse
    row = [line for line in lines if line.startswith("│ 22 ")][0]
    assert "{mean:.3f} ± {se:.3f}".format(**mean_and_se(final)) in row
    assert f"run          {RUN}" in lines
    assert f"tensorboard  tensorboard --logdir {RUN}/tensorboard" in lines
    assert result.stderr.count("column B is racially coded") == 1
    assert sorted(p.name for p in RUN.iterdir() if p.name != ".lock") == [
        "checkpoint.pt", "config.json", "learning_curve.png", "metrics.jsonl", "model.pt", "results.csv",
        "selected.csv", "tensorboard",
    ]  # fmt: skip
    for colour in ("C0", "C1"):  # an arm; a panel has a metric
        assert min(shares(RUN / "learning_curve.png", colour, panels=2)) > 0.3
    recorded = config()
    assert recorded["settings"]["preset"] == "by-rows"
    assert recorded["settings"]["posterior_settings"] == {"epochs": 2}  # the others go by the number of labels
    assert recorded["settings"]["likelihood_settings"] == {}
    fitted: Any = load_run(RUN, arm="variance-reduction", trial=1).fitted.posterior
    chosen = presets.recommended_settings(NoisyKFAC, 22, units=10)
    assert fitted.prior_variance == chosen.settings["prior_variance"] and fitted.likelihood == Gaussian(**chosen.noise)
    (session,) = recorded["sessions"]
    assert session["threads"] == 1
    assert session["device"] in ("cpu", "cuda")
    libraries = {"torch", "numpy", "scikit-learn", "gymnasium", "stable-baselines3", "sb3-contrib"}
    assert set(session["versions"]) == {"explore", "python"} | libraries


def test_the_whole_pool_is_labelled_and_no_test_point(active, csv):
    arguments = ("--data", csv, "--target", "y", "--drop-columns", "kind,sign", "--initial", 10)
    active(*arguments, "--rounds", 4, "--acquire", 10, "--name", "x")
    selected = pd.read_csv("runs/active-x/selected.csv")
    split = pool_splits(60, 2, 10, 20, seed=0)
    assert set(selected.arm) == {"variance-reduction", "random"}
    for _, rows in selected.groupby(["arm", "trial"]):
        assert sorted(rows["index"]) == sorted(split.pool[rows.trial.iloc[0] - 1])
        assert rows.groupby("round").order.apply(list).tolist() == [list(range(1, 11))] * 3
    assert pd.read_csv("runs/active-x/results.csv").labels.unique().tolist() == [10, 20, 30, 40]


def test_columns_as_they_come(active, explore, csv):
    """Categories, codes and gaps, with semicolons and decimal commas, in a run that is continued."""
    table = pd.read_csv(csv).assign(code=[i % 3 for i in range(60)], lot=[f"L{i}" for i in range(60)])
    table.loc[::9, "a"] = np.nan
    table.to_csv("lab.csv", index=False, sep=";", decimal=",")
    data = ("--data", "lab.csv", "--target", "y", "--categorical", "code", "--decimal", ",", "--drop-columns", "id,z")
    result = active(*data, "--initial", 10, "--rounds", 2, "--name", "lab")
    for said in (
        "The columns of", "separated by ';'.", "Column 'lot' has a different text in every row and is left out.\n",
        "Column 'a': imputed 7 empty cells with the median, ",
    ):  # fmt: skip
        assert said in result.stderr
    assert explore("active", "--resume", "runs/active-lab").exit_code == 0


def test_columns_whose_names_have_commas_and_accents(active, explore, csv):
    names = {"a": "temp, C", "b": 'the "b"', "y": "größe", "id": "nämlich"}
    table = pd.read_csv(csv)[list(names)].assign(code=[i % 3 for i in range(60)], id=range(60)).rename(columns=names)
    table.to_csv("lab.csv", index=False)
    target, rows = (unicodedata.normalize("NFD", name) for name in ("größe", "nämlich"))
    data = ("--data", "lab.csv", "--target", target, "--id", rows, "--categorical", "code", "--name", "lab")
    active(*data, "--drop-columns", '"temp, C", "the ""b"""')
    settings = json.loads(Path("runs/active-lab/config.json").read_text())["settings"]
    assert settings["drop_columns"] == ["temp, C", 'the "b"'] and settings["target"] == ["größe"]
    assert explore("predict", "runs/active-lab", "lab.csv").exit_code == 0
    refused = explore("active", *data, "--drop-columns", '"temp" C')
    assert refused.exit_code == 2 and "temp C" in refused.stderr


def test_rows_without_a_target_are_for_suggest(explore):
    Path("half.csv").write_text("a,y\n1,2\n3,\n")
    for task in ("regression", "classification"):
        result = explore("active", "--data", "half.csv", "--target", "y", "--task", task)
        assert result.exit_code == 2 and "line 3, column 'y': " in result.stderr
        assert "; for tables with unmeasured rows use explore suggest" in result.stderr


def test_selected_points_can_be_found_in_the_file(active, csv):
    """Blank lines, cells over two lines and identifiers: the index counts examples, the line is the file's."""
    table = pd.read_csv(csv).assign(id=[f"house {i}" for i in range(60)], note=["two\nlines"] + ["one"] * 59)
    lines = table.to_csv(index=False).splitlines(keepends=True)
    path = Path("blank.csv")
    path.write_text("".join([lines[0], "\n", *lines[1:31], ",,,\n", *lines[31:]]))
    drop = ("--drop-columns", "kind,sign,note")
    active("--data", path, "--target", "y", *drop, "--id", "id", "--name", "x")
    found = pd.read_csv("runs/active-x/selected.csv")
    assert list(found) == ["arm", "trial", "round", "order", "index", "line", "id", "score"]
    assert len(found) == 8
    physical = path.read_text().splitlines()
    for _, row in found.iterrows():
        assert row.id == f"house {row['index']}" and f",{row.id}," in physical[row.line - 1]
    assert set(found.line - found["index"]) <= {3, 4, 5} and found["index"].max() > 29
    active("--dataset", "boston", "--name", "y")
    assert list(pd.read_csv("runs/active-y/selected.csv")) == ["arm", "trial", "round", "order", "index", "score"]
    # The column is no feature: the same points as where it is dropped.
    active("--data", path, "--target", "y", "--drop-columns", "kind,sign,note,id", "--name", "z")
    assert pd.read_csv("runs/active-z/selected.csv").equals(found.drop(columns="id"))


def test_repeated_identifiers_are_said(active, csv):
    """And stand in selected.csv as texts, though a spreadsheet program would compute them."""
    table = pd.read_csv(csv).assign(id="=same")
    table.to_csv("same.csv", index=False)
    result = active("--data", "same.csv", "--target", "y", "--drop-columns", "kind,sign", "--id", "id")
    assert "1 identifiers of 'id' occur in several rows, such as '=same'." in result.stderr
    assert "Wrote an apostrophe before '=same' in selected.csv" in result.stderr
    assert set(pd.read_csv(next(Path("runs").glob("*/selected.csv"))).id) == {"'=same"}


def test_the_first_round_by_hand(active):
    active("--rounds", 1)
    boston, split = load("boston"), pool_splits(506, 2, 20, 20, seed=0)
    net = explore.Net(explore.mlp(13, [10], 1))
    chosen = presets.recommended_settings(NoisyKFAC, 20, units=10)
    noise, own = Gaussian(**chosen.noise), chosen.settings | {"epochs": 2}
    posterior = explore.posterior("noisy-kfac", net, noise, "plain", **own)
    learner = explore.ActiveLearner(posterior, boston.x, ["variance-reduction", "random"], trials=2, samples=5)
    labelled, test = (np.tile(part, (2, 1)) for part in (split.labelled, split.test))
    learner.tell(labelled, boston.y[labelled])
    found = pd.read_csv(RUN / "results.csv")
    assert found.rmse.to_numpy() == pytest.approx(learner.evaluate(test, boston.y)["rmse"].numpy())


def test_tensorboard_arms_share_their_tags(active):
    active("-p", "kl_weight=0.9", "-p", "likelihood.prior_rate=0.5")
    rows = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    read = {}
    for series in ("noisy-kfac-variance-reduction", "noisy-kfac-random"):
        events = EventAccumulator(str(RUN / "tensorboard" / series)).Reload()
        read[series] = set(events.Tags()["scalars"])
        for row in (row for row in rows if row["series"] == series):
            for tag in row.keys() - {"series", "step"}:
                values = {e.step: e.value for e in events.Scalars(tag)}
                assert values[row["step"]] == pytest.approx(row[tag], rel=1e-6)
        assert [e.step for e in events.Scalars("test/rmse")] == [20, 21, 22]
        content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        assert b"posterior.kl_weight" in content
        assert b"likelihood.prior_rate" in content
        assert b"test/rmse" in events.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert read["noisy-kfac-variance-reduction"] == read["noisy-kfac-random"]
    assert read["noisy-kfac-random"] >= {
        "test/rmse", "test/rmse_se", "test/log_likelihood", "test/coverage_95", "acq/score_max", "acq/score_mean",
        "train/nll", "uncertainty/epistemic_mean", "labels",
    }  # fmt: skip


def test_without_a_control(as_json):
    found = as_json("--no-control")
    assert set(found["rmse"]) == {"active"}
    assert found["paired_difference"] is None and found["paired_auc_difference"] is None


def test_random_is_its_own_control(active):
    result = active("--acquisition", "random")
    assert "no control arm" in result.stdout
    assert set(pd.read_csv("runs/active-boston-noisy-kfac-random/results.csv").arm) == {"random"}


def test_one_trial_has_no_standard_error(as_json):
    found = as_json("--trials", 1)
    assert found["rmse"]["active"]["se"] is None
    assert math.isfinite(found["rmse"]["active"]["mean"])
    assert '"test/rmse_se": null' in (RUN / "metrics.jsonl").read_text()


def test_settings_reach_the_posterior(active):
    active(
        "--posterior", "bbb", "--acquisition", "information-gain", "-p", "likelihood.noise_std=0.5", "-p", "lr=0.05",
        "--hidden", "4,3", "--drop-columns", "B, CHAS", "--seed", 3, "--threads", 1,
        "--device", "cpu", "--rounds", 1, "--out", "elsewhere",
    )  # fmt: skip
    settings = config(Path("elsewhere/active-boston-bbb-information-gain"))["settings"]
    assert settings["posterior_settings"]["lr"] == 0.05
    assert settings["posterior_settings"]["epochs"] == 2
    assert settings["likelihood_settings"]["noise_std"] == 0.5
    assert settings["hidden"] == [4, 3]
    assert settings["drop_columns"] == ["B", "CHAS"]
    assert settings["seed"] == 3


RULE = """
from dataclasses import dataclass

from explore.acquisitions.base import best


@dataclass(frozen=True)
class Powered:
    power: float = 1.0

    def __call__(self, view, k):
        return best(view.moments().variance.sum(-1) * self.power, view.mask, k)
"""


def test_settings_reach_the_acquisition(active, explore, monkeypatch):
    Path("powered.py").write_text(RULE)
    monkeypatch.syspath_prepend(".")
    rule = ("--acquisition", "powered:Powered")
    chosen = {}
    for power in (1, -1):
        active(*rule, "-p", f"acquisition.power={power}", "--name", f"x{power}", "--samples", 20)
        assert config(Path(f"runs/active-x{power}"))["settings"]["acquisition_settings"] == {"power": power}
        chosen[power] = pd.read_csv(f"runs/active-x{power}/selected.csv").query("arm != 'random'")
    assert (chosen[1].score > 0).all() and (chosen[-1].score < 0).all()
    assert explore("active", "--resume", "runs/active-x1", "--trust", "powered").exit_code == 0
    result = explore("active", *rule, "-p", "acquisition.strength=1")
    assert (result.exit_code, result.stderr) == (2, "Error: unknown setting 'strength'; allowed: power\n")
    result = explore("active", "--acquisition", "max-variance", "-p", "acquisition.power=1")
    assert (result.exit_code, result.stderr) == (2, "Error: max-variance has no settings\n")


def test_points_that_are_labelled_together(active, csv, monkeypatch):
    """The default rule sees what they tell together; of another the user is told."""
    note = "scores points independently"
    result = active("--acquire", 2)
    assert "test RMSE" in result.stdout and "variance-reduction" in result.stdout and note not in result.stderr
    assert config()["settings"]["acquisition"] == "variance-reduction"
    result = active("--acquire", 2, "--acquisition", "max-variance")
    assert result.stderr.count(f"max-variance {note}") == result.stderr.count("Use epig") == 1
    # With beta=0.9, two epochs leave nothing of the initial curvature, of which --quiet would warn.
    assert active("--acquire", 2, "--acquisition", "max-variance", "--quiet", "-p", "beta=0.9").stderr == ""
    assert note not in active("--acquire", 1, "--acquisition", "max-variance").stderr
    assert note not in active("--acquire", 2, "--acquisition", "random").stderr
    table = ["--data", csv, "--target", "sign", "--task", "classification", "--drop-columns", "kind", "--initial", 10]
    assert note not in active(*table, "--acquire", 2).stderr
    table += ["--acquire", 2, "--acquisition", "max-variance"]
    assert note in active(*table).stderr
    assert note not in active(*table, "--rounds", 1).stderr


NEAR = '''"""Near: the points nearest to a place of the standardised inputs."""

from dataclasses import dataclass

from explore.acquisitions.base import Needs, best


@Needs(most=2)
@dataclass(frozen=True)
class Near:
    place: float = 0.0

    def __call__(self, view, k):
        return best(-(view.x - self.place).square().sum(-1), view.mask, k)
'''


def test_a_rule_with_settings(active, explore, tmp_path, monkeypatch):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "near.py").write_text(NEAR)
    monkeypatch.setattr(acquisitions, "__path__", [*acquisitions.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "explore.acquisitions.near", raising=False)
    assert "near" in explore("list", "acquisitions").stdout
    selected = []
    for place in ([], ["-p", "acquisition.place=2"]):
        active("--acquisition", "near", *place, "--name", len(place))
        run = Path(f"runs/active-{len(place)}")
        assert config(run)["settings"]["acquisition_settings"] == {"place": float(len(place))}
        table = pd.read_csv(run / "selected.csv").query("arm == 'near'")
        selected.append(table.groupby("trial")["index"].apply(list).tolist())
    assert selected[0] != selected[1]
    for wrong, message in (
        (["near", "-p", "acquisition.plaice=2"], "unknown setting 'plaice'; allowed: place"),
        (["near", "-p", "acquisition.place=far"], "place='far' is not valid; allowed: a number"),
        (["random", "-p", "acquisition.place=2"], "random has no settings"),
        (["near", "--acquire", "3"], "near chooses at most 2 points at once, not 3"),
    ):
        result = explore("active", "--name", "wrong", "--acquisition", *wrong)
        assert result.exit_code == 2 and message in result.stderr and not Path("runs/active-wrong").exists()


def test_seed_and_settings_change_the_numbers(as_json):
    base = as_json("--rounds", 1)["rmse"]["active"]["mean"]
    assert as_json("--rounds", 1)["rmse"]["active"]["mean"] == base
    for change in (["--seed", 1], ["--hidden", "5"], ["-p", "lr=0.03"], ["--samples", 6]):
        assert as_json("--rounds", 1, *change)["rmse"]["active"]["mean"] != base


def test_csv_with_two_targets(as_json, csv):
    found = as_json("--data", csv, "--target", "y", "--target", "z", "--drop-columns", "id,kind,sign", "--initial", 10)
    assert found["run"] == "runs/active-table-noisy-kfac-variance-reduction"
    assert math.isfinite(found["rmse"]["active"]["mean"])


@pytest.mark.parametrize(("target", "likelihood"), [("kind", "categorical"), ("sign", "bernoulli")])
def test_csv_with_classes(as_json, csv, target, likelihood):
    other = {"kind": "sign", "sign": "kind"}[target]
    found = as_json(
        "--data", csv, "--target", target, "--task", "classification", "--drop-columns", other, "--initial", 10
    )
    assert "rmse" not in found
    run = Path(found["run"])
    assert config(run)["settings"]["likelihood"] == likelihood
    last = pd.read_csv(run / "results.csv").query("labels == 12").pivot(index="trial", columns="arm")
    for metric in ("error", "log_likelihood"):
        for name, arm in (("active", "epig"), ("random", "random")):
            assert found[metric][name] == pytest.approx(mean_and_se(last[metric][arm]))
    counts = 20 * last["error"].to_numpy()  # of 20 test points
    assert counts == pytest.approx(counts.round(), abs=1e-4)
    difference = last["error"]["epig"] - last["error"]["random"]
    assert found["paired_difference"] == pytest.approx(mean_and_se(difference), abs=1e-6)


def test_names_of_run_folders(active, explore):
    for folder in (RUN, RUN.with_name(RUN.name + "-2"), RUN.with_name(RUN.name + "-3")):
        assert f"run          {folder}" in active("--rounds", 1).stdout
    active("--rounds", 1, "--name", "mine")
    before = Path("runs/active-mine/checkpoint.pt").read_bytes()
    result = explore("active", "--name", "mine")
    assert result.exit_code == 2
    assert "--resume runs/active-mine" in result.stderr
    assert "another --name" in result.stderr
    assert Path("runs/active-mine/checkpoint.pt").read_bytes() == before


def test_a_new_posterior_runs(as_json, toy):
    found = as_json("--posterior", "toy-prior", "-p", "widths=3,4")
    assert found["posterior"] == "toy-prior"
    settings = config(Path(found["run"]))["settings"]
    assert settings["preset"] == "by-rows"  # settings that were not given are found in each round
    assert settings["posterior_settings"] == {"widths": [3, 4], "epochs": 2}
    as_json("--posterior", "toy-prior", "--preset", "second", "--name", "second")
    assert config(Path("runs/active-second"))["settings"]["posterior_settings"]["members"] == 6


def test_a_posterior_by_its_class(as_json):
    name = "explore.posteriors.ensemble:Ensemble"
    found = as_json("--posterior", name, "-p", "members=2", "--rounds", 2)
    assert found["posterior"] == name
    assert found["run"] == "runs/active-boston-explore.posteriors.ensemble-Ensemble-variance-reduction"
    assert found["rmse"] == as_json("--posterior", "ensemble", "-p", "members=2", "--rounds", 2)["rmse"]


def test_a_name_that_another_process_takes_first(active, monkeypatch):
    create = record.Run.create

    def late(folder, *arguments):
        if folder == RUN and not RUN.exists():
            create(folder, {}, {}, {})
        return create(folder, *arguments)

    monkeypatch.setattr(record.Run, "create", late)
    assert f"run          {RUN}-2" in active("--rounds", 1).stdout
    assert config()["settings"] == {}


def test_failed_fits_are_reported(active, toy):
    result = active("--posterior", "toy-prior", "-p", "fails=true", "--rounds", 2)
    warnings = [line for line in result.stderr.splitlines() if line.startswith("Warning: Trial")]
    assert [line.partition(":")[2].split(": ")[0] for line in warnings] == [" Trial 2, arm variance-reduction"] * 2
    table = pd.read_csv("runs/active-boston-toy-prior-variance-reduction/results.csv")
    assert table[~table.alive][["trial", "arm"]].drop_duplicates().to_numpy().tolist() == [[2, "variance-reduction"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "bostn"], "unknown dataset 'bostn'; allowed: australian, boston,"),
        (["--posterior", "kfac"], "unknown posterior 'kfac'; allowed: bbb,"),
        (["--acquisition", "variance"], "unknown acquisition 'variance'; allowed: "),
        (["--posterior", "map", "--acquisition", "information-gain"], "information-gain needs weight uncertainty"),
        (["--posterior", "map"], "variance-reduction needs weight uncertainty, but MAP"),
        (["--posterior", "ensemble", "-p", "members=1"], "but Ensemble with samples=100 has none; use a posterior"),
        (["--preset", "tiny"], "unknown preset 'tiny'; allowed: "),
        (["-p", "rate=3"], "unknown setting 'rate'; allowed: "),
        (["-p", "lr=fast"], "lr='fast' is not valid; allowed: a number"),
        (["-p", "damping=none"], "allowed: split | exact"),
        (["-p", "lr=-1"], "lr is -1.0; it must be"),
        (["-p", "lr"], "-p must be KEY=VALUE; got 'lr'"),
        (["-p", "likelihood.scale=1"], "unknown setting 'scale'; allowed: noise_std,"),
        (["-p", "likelihood.noise_std=-1"], "likelihood.noise_std is -1.0"),
        (["-p", "epochs=3"], "exclude each other"),
        (["--hidden", "10,x"], "--hidden is '10,x'"),
        (["--hidden", "0"], "--hidden is '0'"),
        (["--initial", "486"], "leave no pool"),
        (["--rounds", "468"], "rounds need 467 points, but the pool of"),
        (["--acquire", "300"], "rounds need 600 points, but the pool of"),
        (["--drop-columns", "C"], "unknown feature of boston 'C'; allowed: AGE, B,"),
        (["--target", "MEDV"], "--target applies to --data only. Leave it"),
        (["--task", "regression"], "--task applies to --data only. Leave it out"),
        (["--id", "CRIM"], "--id applies to --data only. Leave it out"),
        (["--categorical", "CRIM"], "--categorical applies to --data only. Leave"),
        (["--decimal", ","], "--decimal applies to --data only. Leave it"),
        (["--feature", "CRIM"], "--feature applies to --data only. Leave it"),
        (["--sheet", "Data"], "--sheet applies to --data only. Leave it"),
        (["--keep-na", "MEDV"], "--keep-na applies to --data only. Leave it"),
        (["--device", "abacus"], "device 'abacus' is not available; allowed: auto, cpu"),
        (["--name", "../x"], "--name is '../x'"),
        (["--trials", "0"], "Invalid value for '--trials'"),
        (["--trials", "1" + "0" * 9], "Invalid value for '--trials': 1000000000 is not in the range 1<=x<=10000"),
        (["--seed", str(2**63)], "'--seed': 9223372036854775808 is not in the range 0<=x<=4294967295"),
        (["--threads", "100000"], "'--threads': 100000 is not in the range 1<=x<="),
        (["--samples", "100000000"], "'--samples': 100000000 is not in the range 2<=x<=100000"),
        (
            ["--samples", "100000", "--hidden", "2000,2000"],
            "100000 weight samples of 4032001 values in 4 replicas need",
        ),
        (["--hidden", "100000000"], "13, 100000000, 1 units need 1500000001 weights, more than the limit of"),
        (["--hidden", "1" * 5000], "--hidden is '111111111111111111111111111111111111111...1111111111111111111' (5000"),
        (["--hidden", ",".join("1" * 101)], "it must be at most 100 positive whole numbers such as 50,50"),
        (["-p", "samples=100000000"], "samples is 100000000; it must be in [1, 1e4]"),
        (["-p", "batch_size=" + "1" * 4000], "(4000 characters); it must be in (0, 1e10]"),
        (["-p", "lr=" + "x" * 5000], "(5000 characters) is not valid; allowed: a number"),
        (["-p", "x" * 5000], "(5000 characters)"),
        (["--dataset", "x" * 5000], "(5000 characters); allowed: australian"),
        (["--data", "absent.csv"], "Path 'absent.csv' does not exist"),
    ],
)
def test_wrong_options(explore, arguments, message):
    result = explore("active", "--rounds", 3, "--epochs", 2, "--test-size", 20, "--trials", 2, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert len(result.stderr) < 1500
    assert result.stdout == ""
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")]
)
def test_too_little_memory_is_a_sentence(explore, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("explore.cli.start.run", fail)
    result = explore("active")
    assert result.exit_code == 1
    assert result.stderr == ("Error: out of memory. Reduce the samples, units, copies or trials\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data needs --target"),
        (["--target", "price"], "has no target 'price'; its columns: a, b, id, y, z, kind, sign"),
        (["--target", "y", "--dataset", "boston"], "exclude each other"),
        (["--target", "kind"], "are not finite numbers: column 'kind': 'mid' (line 2), "),
        (["--target", "y", "--keep-na", "y"], "keep_na (--keep-na) names 'y', which is not a class target of"),
        (["--target", "y", "--categorical", "c"], "unknown categorical column 'c'; allowed: a, b, id, kind, sign, z"),
        (["--target", "y", "--id", "name"], "has no column of identifiers 'name'; its columns: a, b, id, y, z,"),
        (["--target", "kind", "--target", "sign", "--task", "classification"], "one target column"),
    ],
)
def test_wrong_options_for_a_file(explore, csv, arguments, message):
    result = explore("active", "--data", csv, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_file_with_nan(explore):
    Path("bad.csv").write_text("a,y\n1,2\n3,nan\n")
    result = explore("active", "--data", "bad.csv", "--target", "y")
    assert result.exit_code == 2
    assert "bad.csv, line 3, column 'y'" in result.stderr


def test_data_that_cannot_be_had(explore, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise OSError("no network")

    monkeypatch.delenv("EXPLORE_DATA_DIR", raising=False)
    monkeypatch.setattr("pooch.retrieve", fail)
    result = explore("active", "--dataset", "yacht")
    assert result.exit_code == 2
    assert "no network" in result.stderr
    assert "EXPLORE_DATA_DIR" in result.stderr


def test_the_fingerprint_sees_every_value():
    from explore.cli.problem import fingerprint

    boston = load("boston")
    x = boston.x.copy()
    x[505, 12] += 1e-9
    others: list[dict[str, Any]]
    others = [{"x": x}, {"ids": ("a",)}, {"lines": (2,)}, {"classes": ("b",)}, {"features": boston.features[::-1]}]
    assert len({fingerprint(boston), *(fingerprint(boston._replace(**change)) for change in others)}) == 6


def test_inputs_that_matter(active, explore, csv):
    """A table of them goes through the columns of --data, and a run goes on only with the same one."""
    table = pd.read_csv(csv).assign(street=["ash", "oak", "elm"] * 20)
    table.to_csv(csv, index=False)
    other = table[["street", "b", "a", "z"]].head(7)
    other.loc[3, "b"] = np.nan
    other.to_csv("aims.csv", index=False)
    data = ("--data", csv, "--target", "y", "--drop-columns", "id,kind,sign", "--initial", 10, "--rounds", 3)
    active(*data, "--name", "pool")
    said = active(*data, "--targets", "aims.csv", "--name", "aims")
    chosen = [
        pd.read_csv(f"runs/active-{name}/selected.csv").query("arm == 'variance-reduction'")
        for name in ("pool", "aims")
    ]
    assert not np.allclose(chosen[0].score, chosen[1].score)
    assert "Column 'b': imputed 1 empty cell with the median, " in said.stderr
    assert explore("active", "--resume", "runs/active-aims").exit_code == 0
    other.assign(a=0).to_csv("aims.csv", index=False)
    result = explore("active", "--resume", "runs/active-aims")
    assert result.exit_code == 2 and "aims.csv have changed since the run began. Restore them" in result.stderr
    other.drop(columns="a").to_csv("less.csv", index=False)
    for wrong, message in (
        (("--targets", "aims.csv"), "--targets applies to --data only. Leave it"),
        ((*data, "--targets", "less.csv"), "less.csv has no column 'a'; its columns: street, b, z"),
        ((*data, "--targets", "aims.csv", "--acquisition", "max-variance"), "targets has no effect with max-variance"),
    ):
        result = explore("active", "--trials", 2, "--test-size", 20, "--name", "wrong", *wrong)
        assert result.exit_code == 2 and message in result.stderr and not Path("runs/active-wrong").exists()


def test_a_pool_of_some_points(active):
    """They are the first of the split's, and the start and the test points stay."""
    active("--pool", "5", "--rounds", "4")
    split = pool_splits(len(load("boston").x), 2, 20, 20, 0)
    chosen = pd.read_csv(RUN / "selected.csv")
    for trial in (1, 2):
        assert set(chosen[chosen.trial == trial]["index"]) <= set(split.pool[trial - 1][:5])
    assert config()["settings"]["pool"] == 5


IMAGES = (
    "--dataset digits --net mlp -p net.hidden=8 --acquisition batch-bald --acquire 3 --trials 2 --rounds 2 --epochs 5 "
    "--samples 8 --test-size 50"
).split()


def test_images_are_labelled(explore):
    """A pool of images: rounds, what the last fit predicts, the page."""
    result = explore("active", *IMAGES, "--json")
    assert result.exit_code == 0, result.output
    run = Path(json.loads(result.stdout)["run"])
    table = pd.read_csv(run / "results.csv")
    assert set(table.labels) == {20, 23} and table.error.between(0, 1).all()
    assert config(run)["settings"]["net"] == "mlp" and config(run)["settings"]["net_settings"] == {"hidden": [8]}
    chosen = pd.read_csv(run / "selected.csv")
    found = images.load("digits")
    x = np.concatenate([found.x, found.test_x])
    assert chosen["index"].between(0, len(x) - 1).all()
    np.savez("some.npz", x=x[:30, 0])
    again = load_run(run).predict("some.npz")
    settings = read(Settings, config(run)["settings"], "config.json")
    learner = experiment.Experiment(settings, "cpu", record.Run.open(run)).learner
    np.testing.assert_allclose(
        again.filter(like="p_").to_numpy(),
        learner.model.replica(0).probabilities(x[:30])[0].numpy(),
        rtol=1e-4,
        atol=1e-6,
    )
    page = explore("report", run, "--out", "page.html")
    assert page.exit_code == 0 and "Chosen points by round" in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "boston", "--net", "lenet5"], "--net applies to images only"),
        (["--dataset", "digits", "--drop-columns", "a"], "--drop-columns applies to tables only."),
        (["--dataset", "digits", "--hidden", "50"], "--hidden applies to tables only. For images"),
        (["--dataset", "digits", "--net", "lenet6"], "lenet6"),
        (["--dataset", "digits", "-p", "net.width=3"], "width"),
        (["--dataset", "boston", "-p", "net.width=3"], "net"),
    ],
)
def test_wrong_options_for_images(explore, options, message):
    result = explore("active", *options)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_marks_that_are_kept_are_classes_of_a_run(explore):
    rows = "".join(f"{i / 7},{('EU', 'NA', 'AS')[i % 3]}\n" for i in range(60))
    Path("lands.csv").write_text(f"a,continent\n{rows}")
    options = [
        "--data",
        "lands.csv",
        "--target",
        "continent",
        "--task",
        "classification",
        "--name",
        "x",
        "--test-size",
        10,
    ]
    quick = ["--trials", 1, "--rounds", 1, "--epochs", 1, "--samples", 2, "--acquisition", "random"]
    refused = explore("active", *options, *quick)
    assert "'NA' marks a missing value; for tables" in refused.stderr
    result = explore("active", *options, *quick, "--keep-na", "continent")
    assert result.exit_code == 0 and "'NA' (20 cells) as classes." in result.stderr, result.output
    config = json.loads(next(Path().rglob("config.json")).read_text())
    assert config["settings"]["keep_na"] == ["continent"]
