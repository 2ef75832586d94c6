"""Wrong input of every command ends in a sentence and leaves no traceback."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from explore.cli.active import command as active
from explore.cli.active.experiment import resolve
from explore.runs import record
from explore.runs.recorded import CONFIG, written

TABLE = "x,y\n" + "".join(f"{i / 4},{i * i % 7}\n" for i in range(30))
POOL = TABLE + "31,\n32,\n"
FIT = ["--target", "y", "--epochs", "1", "--samples", "2"]
BEGUN = {
    "active": ["--data", "t.csv", *FIT, "--trials", "1", "--rounds", "1", "--test-size", "5", "--initial", "5"],
    "compare": ["--data", "t.csv", "--target", "y", "--epochs", "1", "--splits", "2"],
    "suggest": ["pool.csv", *FIT, "--dry-run"],
    "classify": ["--dataset", "digits", "--net", "mlp", "--epochs", "1", "--train", "60", "--test", "9"],
    "rl": [
        "--env",
        "explore/Chain-v0",
        "--timesteps",
        "16",
        "--algo",
        "ppo",
        "--algo-param",
        "n_steps=16",
        "--algo-param",
        "batch_size=16",
    ],
}
NO_SETTINGS = "Linear must be a dataclass to have settings"
NO_RULE = "is not an acquisition; it must be a function of (view, k)"
NO_DATA = "cannot load the dataset"
FUNCTIONS = [
    *((command, "--posterior", "torch.nn:Linear", NO_SETTINGS) for command in BEGUN),
    ("rl", "--posterior", "explore.nets.likelihoods:Gaussian", "Gaussian is not a posterior: it lacks finish"),
    ("active", "--posterior", "explore.inference.base:Predictive", "it lacks init, update, sample"),
    ("active", "--acquisition", "torch.nn:Linear", NO_SETTINGS),
    ("active", "--acquisition", "torch:rand", NO_RULE),
    (
        "active",
        "--acquisition",
        "explore.posteriors.bbb:BBB",
        "cannot create the acquisition explore.posteriors.bbb:BBB:",
    ),
    ("suggest", "--acquisition", "os:getcwd", NO_RULE),
    ("active", "--dataset", "torch.nn:Linear", NO_DATA),
    ("compare", "--dataset", "os:getcwd", NO_DATA),
    ("compare", "--dataset", "builtins:str", "builtins:str returned a str; it must return explore.data.base.Dataset"),
    ("classify", "--dataset", "torch.nn:Linear", "cannot load the set of images"),
    ("classify", "--ood", "builtins:str", "builtins:str returned a str; it must return explore.images.base.Images"),
    ("rl", "-p", "vime.encoder=torch.nn:Linear", "the encoder cannot be called with observations: "),
    ("rl", "-p", "vime.encoder=os", "cannot load the encoder 'os': it must be module:name"),
    ("rl", "--env-kwargs", "simulation:os", "cannot load the simulation 'os': it must be module:name"),
    ("rl", "--env-kwargs", "simulation:os:getcwd", "os:getcwd is not a subclass of Simulation"),
]


@pytest.fixture(autouse=True)
def tables():
    Path("t.csv").write_text(TABLE)
    Path("pool.csv").write_text(POOL)


def sentence(result):
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert re.fullmatch(r"(?s)(?!.*Traceback).*Error: [^\n]*\n", result.stderr), result.stderr
    return result.stderr


@pytest.mark.parametrize(("command", "option", "value", "message"), FUNCTIONS)
def test_a_function_that_is_something_else(explore, command, option, value, message):
    given = [
        part for part in BEGUN[command] if option != "--dataset" or part not in ("--data", "t.csv", "--target", "y")
    ]
    assert message in sentence(explore(command, *given, option, value))


@pytest.mark.parametrize("depth", [100, 600, 950, 100_000])
def test_settings_that_are_deeply_nested(explore, depth):
    folder = Path("pool.explore")
    folder.mkdir()
    for body in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        learnt, settings = '{"features": [], "left_out": []}', f'{{"command": "suggest", "posterior": {body}}}'
        text = f'{{"format": {CONFIG}, "rows": 3, "learnt": {learnt}, "settings": {settings}}}'
        (folder / "config.json").write_text(text)
        for attempt in (["suggest", "pool.csv"], ["predict", folder, "pool.csv"], ["active", "--resume", folder]):
            sentence(explore(*attempt))


@pytest.mark.parametrize("text", ["[]", "1", '{"settings": {}, "rows": 1e999, "format": 4}', '{"settings": [[1]]}'])
def test_settings_that_are_none(explore, text):
    Path("pool.explore").mkdir()
    Path("pool.explore/config.json").write_text(text)
    assert "pool.explore/config.json is damaged" in sentence(explore("suggest", "pool.csv"))


def test_a_campaign_of_another_version(explore):
    Path("pool.explore").mkdir()
    Path("pool.explore/config.json").write_text('{"settings": {}, "rows": 3, "format": 1}')
    message = "pool.explore/config.json was written by another version of explore; continue with that version"
    assert message in sentence(explore("suggest", "pool.csv"))


@pytest.mark.parametrize("threads", ["2", 0, 10**9, True, None])
def test_threads_that_a_run_recorded(explore, threads):
    context = active.make_context("active", ["--trials", "2", "--rounds", "2"])
    settings = written(resolve(context.params))
    record.Run.create(Path("run"), settings, {}, {"device": "cpu", "threads": threads}).close()
    assert "invalid number of threads" in sentence(explore("active", "--resume", "run"))


def test_names_that_are_not_utf8(explore):
    """Tables may have them; TensorBoard cannot write into a folder with such a name."""
    name = os.fsdecode(b"caf\xe9")
    Path(name).mkdir()
    shutil.copy("pool.csv", f"{name}/pool.csv")
    result = explore("suggest", f"{name}/pool.csv", *FIT)
    assert result.exit_code == 0 and r"Suggestions are in caf\udce9/next.csv" in result.stdout
    out = json.loads(explore("suggest", f"{name}/pool.csv", "--json").stdout)["out"]
    assert Path(out).exists()
    refused = sentence(explore("active", *BEGUN["active"], "--out", name, "--name", "x"))
    assert r"the path caf\udce9/active-x is not valid UTF-8. Choose another name" in refused
    assert not list(Path(name).glob("active*"))
