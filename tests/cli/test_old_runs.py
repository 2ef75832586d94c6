"""Runs and a campaign that commit c5625cc wrote, before targets had noises of their own and files named their run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from explore import images
from explore.runs.recorded import CONFIG, digest, renewed

OLD = Path(__file__).parent / "old"
pytestmark = pytest.mark.filterwarnings("ignore:.*written by an older version:UserWarning")


@pytest.fixture(autouse=True)
def _copied(tmp_path, monkeypatch):
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def succeed(explore, *arguments):
    result = explore(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def _move_data(path):
    """Change the absolute path of the data in a config to that of the copy."""
    content = json.loads(path.read_text())
    former = [digest(content["settings"])]
    config = {"settings": content["settings"] | {"data": str(Path("table.csv").resolve())}, "former": former}
    config |= {key: content[key] for key in ("sessions", "id") if key in content}
    path.write_text(json.dumps(content | config | {"sha256": digest(config)}))


def test_a_model_without_noise_per_target_is_refused_but_its_run_goes_on(explore):
    refused = explore("predict", "active", "table.csv")
    assert refused.exit_code == 2
    assert "Error: the saved state does not fit: common.noise.shape has shape [4]; expected [4, 1]" in refused.stderr
    succeed(explore, "report", "active", "--out", "page.html")
    first = pd.read_csv("active/selected.csv")
    _move_data(Path("active/config.json"))
    succeed(explore, "active", "--resume", "active", "--rounds", 3, "--quiet")
    assert pd.read_csv("active/selected.csv").iloc[: len(first)].equals(first)
    succeed(explore, "predict", "active", "table.csv", "--out", "new.csv")


def test_a_run_on_images_predicts_what_it_did(explore):
    with np.load("classify/probabilities.npz") as kept:
        expected, places = kept["probabilities"], kept["index"]
    np.savez("some.npz", x=images.load("digits").test_x[places, 0])
    succeed(explore, "predict", "classify", "some.npz", "--out", "new.csv")
    found = pd.read_csv("new.csv").filter(regex="^_p_").to_numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_campaign_goes_on(explore):
    said = json.loads(succeed(explore, "suggest", "pool.csv", "--status", "--json"))
    assert [row["id"] for row in said["pending"]] == ["S-04", "S-08"] and said["measured"] == 6
    pool = pd.read_csv("pool.csv")
    pool.loc[pool.name.isin(["S-04", "S-08"]), "yield"] = [4.5, 5.5]
    pool.to_csv("pool.csv", index=False)
    said = json.loads(succeed(explore, "suggest", "pool.csv", "--batch", 2, "--json"))
    assert said["measured"] == 8 and len(said["rows"]) == 2
    succeed(explore, "report", "pool.explore", "--out", "page.html")


def test_posteriors_of_older_files_keep_their_densities_wherever_they_are_named():
    own = {"posterior": "vogn", "posterior_settings": {"lr": 0.1}}
    others = {"a": {"name": "noisy-kfac", "settings": {"beta": 0.5}}, "b": {"name": "bbb", "settings": {}}}
    before = own | {"vime": own, "posteriors": others}
    damped = own | {"posterior_settings": {"predictive": "sampled", "damped_density": True, "lr": 0.1}}
    found = renewed(before, 3)
    assert found["posterior_settings"] == found["vime"]["posterior_settings"] == damped["posterior_settings"]
    assert found["posteriors"]["a"]["settings"] == {"predictive": "sampled", "damped_density": True, "beta": 0.5}
    assert found["posteriors"]["b"] == others["b"] and renewed(before, CONFIG) == before
    assert renewed({"posterior": "vogn", "vime": 3, "posteriors": {"a": None}}, 3)["posteriors"] == {"a": None}
