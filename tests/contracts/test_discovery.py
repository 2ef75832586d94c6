"""A new posterior is one new file: by existing it is in the contract suite."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TOY = '''"""Two nets, for a test."""

from dataclasses import dataclass

from explore.posteriors.ensemble import Ensemble


@dataclass(frozen=True, kw_only=True)
class ToyPair(Ensemble):
    members: int = 2
'''


def suite(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """The contract suite's tests of the toy, with its file in the package's path."""
    (folder / "posteriors").mkdir()
    (folder / "posteriors" / "toy_pair.py").write_text(source)
    (folder / "add_toy.py").write_text(
        f"import explore.posteriors\nexplore.posteriors.__path__.append({str(folder / 'posteriors')!r})\n"
    )
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "add_toy", "-p", "no:cacheprovider",
        "-k", "toy-pair and (pure or same)", "-o", "addopts=--import-mode=importlib",
        "tests/contracts/test_posteriors.py",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_a_new_file_is_tested(tmp_path):
    result = suite(tmp_path, TOY)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


def test_a_new_file_with_a_fault_fails(tmp_path):
    faulty = TOY + "\n    def sample(self, state, n, rng):\n        return tuple(w.mul_(2) for w in state.weights)\n"
    result = suite(tmp_path, faulty)  # it changes its argument
    assert result.returncode == 1, result.stdout
