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
from explore.core.moved import MOVED

ROOT = Path(explore.__file__).parents[1]


def test_a_wheel_has_every_file(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    rooms = {"explore": "explore", "cli": "explore/cli", "envs": "explore/envs"}
    expected = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in rooms.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".gz", ".typed", ".html") and "__pycache__" not in path.parts
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


def test_modules_that_moved_are_found_by_their_old_names():
    for old, place in MOVED.items():
        module, new = importlib.import_module(f"explore.{old}"), importlib.import_module(f"explore.{place}")
        name = next(name for name in vars(new) if not name.startswith("_"))
        with pytest.warns(
            FutureWarning, match=f"import {name} from explore.{place}; the next release removes explore.{old}"
        ):
            assert getattr(module, name) is getattr(new, name)


def test_rooms_under_the_name_of_a_module_have_its_names():
    with pytest.warns(FutureWarning, match="import Net from explore.nets.net"):
        assert importlib.import_module("explore.nets").Net is explore.Net


@pytest.mark.parametrize("name", ["explore.fit", "explore.predict", "explore.active.nothing", "explore.nothing"])
def test_other_old_names_are_not_found(name):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
