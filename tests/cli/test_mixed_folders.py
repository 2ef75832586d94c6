"""Run folders put together from several runs: a file of another run is refused by its name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import explore as package
from explore.cli.main import main
from explore.core import files
from explore.core.errors import InputError
from explore.learning import saved
from explore.runs.recorded import CONFIG, FORMAT, digest, run_id

TABLE = "x,z,y\n" + "".join(f"{i / 4},{i * i % 7},{{}}\n" for i in range(40))
FIT = ["--target", "y", "--trials", "1", "--rounds", "1", "--epochs", "1", "--test-size", "9", "--samples", "3"]
DIGITS = ["classify", "--dataset", "digits", "--net", "mlp", "-p", "net.hidden=4", "--train", "60", "--test", "20"]
DIGITS += ["--epochs", "1", "--samples", "2", "--ood", "none"]
RL = ["rl", "--env", "explore/Chain-v0", "--algo", "ppo", "--timesteps", "16", "--posterior", "none"]
RL += ["--algo-param", "n_steps=16", "--algo-param", "batch_size=16", "--eval-freq", "16"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two runs on tables of the same columns, and one of each other command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home := tmp_path_factory.mktemp("pairs"))
        begun = [(DIGITS, "a"), (RL, "a")]
        for name, value in (("a", 0.7), ("b", 975)):
            Path(f"{name}.csv").write_text(TABLE.format(*(value * (1 + i / 99) for i in range(40))))
            begun.append((["active", "--data", f"{name}.csv", *FIT], name))
        for arguments, name in begun:
            result = CliRunner().invoke(main, [*arguments, "--name", name, "--quiet"])
            assert result.exit_code == 0, result.output
        return home


@pytest.fixture
def mixed(pairs, monkeypatch):
    """A copy of run a of a command, one of its files, and what is said of the same file of another run."""

    def copy(command, name, other):
        shutil.copytree(pairs, "mixed")
        monkeypatch.chdir("mixed")
        folder = Path(f"runs/{command}-a")
        (path,) = folder.glob(name)
        message = f"{path} was written by run {other}, its folder by run {run_id(folder)}; restore the folder's file"
        return folder, path, message

    return copy


def refused(explore, *arguments):
    result = explore(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return " ".join(result.stderr.split())


def test_a_model_of_another_run(explore, mixed, pairs):
    """It predicted 975 where the run says 0.7."""
    folder, path, message = mixed("active", "model.pt", run_id(pairs / "runs/active-b"))
    shutil.copy("runs/active-b/model.pt", path)
    assert message in refused(explore, "predict", folder, "a.csv")
    assert message in refused(explore, "active", "--resume", folder)
    result = explore("report", folder, "--out", "r.html")
    assert result.exit_code == 0 and f"Skipped the figures that need the model of active-a: {message}" in result.stderr
    with pytest.raises(InputError, match="was written by run"):
        package.load_run(folder)


def test_probabilities_of_another_run(explore, mixed):
    folder, path, message = mixed("classify", "probabilities.npz", "other")
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, "run": "other"})
    assert message in refused(explore, "classify", "--resume", folder)
    result = explore("report", folder, "--out", "r.html")
    assert (
        result.exit_code == 0 and f"Skipped the figures that need the results of classify-a: {message}" in result.stderr
    )


def test_a_checkpoint_of_another_run_of_the_same_settings(explore, mixed):
    folder, path, message = mixed("active", "checkpoint.pt", "other")
    files.save(path, "checkpoint", FORMAT, files.load(path, "checkpoint", FORMAT), "other")
    assert message in refused(explore, "active", "--resume", folder)
    assert message in refused(explore, "report", folder, "--out", "r.html")


def test_a_policy_of_another_run(explore, mixed):
    folder, path, message = mixed("rl", "models/*/best-16/model.pt", "other")
    files.save(path, "model", 1, files.load(path, "model", 1), "other")
    assert message in refused(explore, "rl", "--watch", folder)


def stripped(folder):
    """As a version without ids wrote it."""
    config = json.loads((folder / "config.json").read_text())
    parts = {key: config[key] for key in ("settings", "sessions")}
    (folder / "config.json").write_text(json.dumps({"format": CONFIG, **parts, "sha256": digest(parts)}))
    for name, kind, version in (("model.pt", "saved model", saved.FORMAT), ("checkpoint.pt", "checkpoint", FORMAT)):
        content = files.load(folder / name, kind, version)
        files.save(folder / name, kind, version, content)


def test_a_model_without_an_id_is_of_no_other_run(pairs, monkeypatch):
    shutil.copytree(pairs, "old")
    monkeypatch.chdir("old")
    old, new = Path("runs/active-a"), Path("runs/active-b")
    stripped(old)
    assert package.load_run(old).features == ("x", "z")
    shutil.copy(old / "model.pt", new)  # which says of no run
    with pytest.raises(InputError, match="active-b/model.pt was written by a run without an id, its folder by run "):
        package.load_run(new)


def test_a_model_of_another_campaign(pairs, monkeypatch):
    """As `explore suggest` names a campaign, in campaign.json."""
    monkeypatch.chdir(pairs)
    run = Path("runs/active-a")
    kept = saved.read(run, ())
    for name in ("one", "other"):
        Path(name).mkdir()
        Path(name, "campaign.json").write_text(json.dumps({"id": name}))
        saved.write(Path(name), kept)
        saved.check(Path(name))
    shutil.copy("other/model.pt", "one")
    with pytest.raises(
        InputError, match="one/model.pt was written by run other, its folder by run one; restore the folder's file"
    ):
        saved.check(Path("one"))
