"""The tutorials: the README and the site name them, and each runs to its end and draws a picture."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "tutorial").glob("*.py"))
DRAW = """
import runpy, sys
import matplotlib.pyplot as plt

runpy.run_path(sys.argv[1], run_name="__main__")
(figure,) = map(plt.figure, plt.get_fignums())
assert all(axis.has_data() for axis in figure.axes)
figure.savefig("picture.png")
"""


@pytest.mark.parametrize("page", ["README.md", "mkdocs.yml"])
def test_a_page_names_every_tutorial(page):
    named = re.findall(r"docs/tutorial/\w+\.py", (ROOT / page).read_text(encoding="utf-8"))
    assert len(TUTORIALS) == 4 and sorted(named) == TUTORIALS


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_draws_a_picture(tutorial, tmp_path):
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # also without activated venv
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = {"MPLBACKEND": "Agg", "PATH": commands, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", DRAW, str(ROOT / tutorial)],
        cwd=tmp_path,
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert "Traceback" not in result.stdout and " failed" not in result.stdout, result.stdout
