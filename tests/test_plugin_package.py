"""Plug-ins of another package: installed offline, listed, trained and checked, without a change of `explore`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What runs Python where the package is installed, and the folder of its tests, in which that is."""
    folder = tmp_path_factory.mktemp("installed")
    source, site = folder / "source", folder / "site"
    shutil.copytree(ROOT / "tests" / "plugin_package", source)  # a build leaves files in it
    install = ["install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    python = [sys.executable, "-m"]
    subprocess.run([*python, "pip", *install, "--target", str(site), str(source)], check=True)
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}

    def run(*arguments: str) -> str:
        result = subprocess.run([*python, *arguments], cwd=source, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run, source


def test_they_are_listed(installed):
    run, _ = installed
    for kind, name, place in (
        ("posteriors", "toy-pair", "toy_plugins.pair:ToyPair"),
        ("likelihoods", "laplace", "toy_plugins.laplace:Laplace"),
        ("acquisitions", "farthest", "toy_plugins.farthest:farthest"),
    ):
        listed = json.loads(run("explore.cli", "list", kind, "--json"))
        assert {"name": name, "description": f"from toy-plugins: {place}"} in listed


def test_they_are_trained(installed):
    run, folder = installed
    options = "--trials 2 --rounds 3 --epochs 2 --test-size 20 --no-control --out runs --name toy --quiet"
    run("explore.cli", "active", "--posterior", "toy_pair", "--acquisition", "farthest", *options.split())
    (selected,) = (folder / "runs").glob("*/selected.csv")
    assert len(pd.read_csv(selected)) == 2 * 2


def test_they_are_checked(installed):
    run, _ = installed
    shown = run("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "test_toy_plugins.py")
    assert " passed" in shown and "failed" not in shown
