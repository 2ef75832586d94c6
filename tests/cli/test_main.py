"""The group, and `explore list`."""

import importlib.metadata
import json
import signal
import subprocess
import sys

import click
import gymnasium
import pytest
from click.testing import CliRunner

from explore import registry
from explore.cli.main import COMMANDS
from explore.cli.script import Script
from explore.core.errors import Failure, InputError
from tests.cli.conftest import TINY


def test_version(explore):
    first, *more = explore("--version").stdout.splitlines()
    assert first == f"explore, version {importlib.metadata.version('explore-bnn')}"
    assert f"torch {importlib.metadata.version('torch')}, " in more[1]
    assert more[2].startswith("devices: cpu") and more[3].startswith("threads: 1 ")


def test_help_names_every_command(explore):
    shown = explore("--help").stdout
    assert all(f"\n  {name} " in shown for name in (*COMMANDS, "list"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["active", "--help"],
        ["compare", "--help"],
        ["rl", "--help"],
        ["list", "posteriors"],
        ["list", "envs"],
    ],
)
def test_what_computes_nothing_imports_no_torch(arguments):
    code = (
        "import sys\nfrom explore.cli.main import main\n"
        f"main({arguments!r}, standalone_mode=False)\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_modules_of_commands_import_no_torch():
    code = f"import importlib, sys\nfor name in {COMMANDS}: importlib.import_module('explore.cli.' + name)\n"
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("wrong"), 2, "Error: wrong\n"), (Failure("failed"), 1, "Error: failed\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"), (OSError(28, "No space", "x.csv"), 1, "Error: x.csv: No space\n"),
    ],
)  # fmt: skip
def test_scripts_end_as_commands_do(error, code, said):
    @click.command(cls=Script)
    def script():
        raise error

    done = CliRunner().invoke(script)
    assert (done.exit_code, done.stderr, done.stdout) == (code, said, "")


def test_a_command_that_is_terminated_ends_by_a_sentence():
    """By a scheduler, which sends SIGTERM: it left no word behind."""

    @click.command(cls=Script)
    def script():
        signal.raise_signal(signal.SIGTERM)

    done = CliRunner().invoke(script)
    assert (done.exit_code, done.stderr) == (143, "Terminated.\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_that_is_terminated_says_how_to_continue(explore, monkeypatch):
    monkeypatch.setattr("explore.cli.active.report.write", lambda *_: signal.raise_signal(signal.SIGTERM))
    result = explore("active", *TINY)
    assert result.exit_code == 143
    assert "Terminated after" in result.stderr and "Continue: explore active" in result.stderr


def test_python_m_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "explore.cli", "list", "planets"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Usage: explore list" in done.stderr
    assert "'acquisitions', 'bonuses', 'datasets', 'envs', 'images', 'likelihoods', 'posteriors'" in done.stderr


def test_an_unknown_command(explore):
    result = explore("train")
    assert result.exit_code == 2
    assert "No such command 'train'" in result.stderr


@pytest.mark.parametrize(
    ("kind", "package"), [("posteriors", "posteriors"), ("acquisitions", "acquisitions"), ("datasets", "data")]
)
def test_list(explore, kind, package):
    found = json.loads(explore("list", kind, "--json").stdout)
    assert {entry["name"]: entry["description"] for entry in found} == registry.names(package)
    shown = explore("list", kind).stdout.splitlines()
    for entry in found:
        (line,) = [line for line in shown if line.startswith(entry["name"] + " ")]
        assert entry["description"].split()[0] in line


def test_environments_are_listed_by_what_gymnasium_makes(explore):
    found = {entry["name"] for entry in json.loads(explore("list", "envs", "--json").stdout)}
    assert {"explore/SparseCartPoleSwingup-v0", "explore/SparseMountainCar-v0", "explore/Chain-v0"} <= found
    assert found <= gymnasium.registry.keys()


def test_a_new_posterior_is_listed(explore, toy):
    found = json.loads(explore("list", "posteriors", "--json").stdout)
    assert {"name": "toy-prior", "description": "Toy: the first weights, whatever the data say."} in found
