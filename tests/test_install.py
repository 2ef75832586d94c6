"""What is installed, and what a checkout finds: `cli/` and `envs/` are rooms of `explore`, and old names of modules."""

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import explore

ROOT = Path(explore.__file__).parents[1]


def test_a_wheel_has_every_file(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    rooms = {"explore": "explore", "cli": "explore/cli", "envs": "explore/envs"}
    expected = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in rooms.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".gz", ".toml", ".typed", ".html") and "__pycache__" not in path.parts
    }
    packed = zipfile.ZipFile(wheel).namelist()
    assert expected <= set(packed) and "explore/data/sets/boston.csv.gz" in packed and len(set(packed)) == len(packed)


def test_a_checkout_has_no_links():
    assert not [path for path in (ROOT / "explore").rglob("*") if path.is_symlink()]


def test_from_elsewhere_too_the_command_line_is_found(tmp_path):
    code = "import explore.cli.main as m, explore.envs as e; print(m.__name__, e.__name__)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["explore.cli.main", "explore.envs"]


def test_the_optimisers_have_a_short_name():
    code = """
import sys
import explore.optim
from explore.optim import VOGN
from explore.learning import optim
assert explore.optim is optim is sys.modules["explore.learning.optim"] and optim.VOGN is VOGN
assert optim.__name__ == optim.__spec__.name == VOGN.__module__ == "explore.learning.optim"
"""
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


@pytest.mark.parametrize("name", ["explore.fit", "explore.active", "explore.optim.nothing", "explore.nothing"])
def test_other_names_are_not_found(name):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
