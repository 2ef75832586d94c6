"""A new posterior is one new file: by existing it is in the contract suite."""

import os
import re
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


# It changes its argument.
FAULTY = (
    TOY.replace("ToyPair", "FaultyPair")
    + """
    def sample(self, state, n, rng):
        return tuple(w.mul_(2) for w in state.weights)
"""
)


def test_new_files_are_tested_and_one_with_a_fault_fails(tmp_path):
    (tmp_path / "posteriors").mkdir()
    (tmp_path / "posteriors" / "toy_pair.py").write_text(TOY)
    (tmp_path / "posteriors" / "faulty_pair.py").write_text(FAULTY)
    (tmp_path / "add_toys.py").write_text(
        f"import explore.posteriors\nexplore.posteriors.__path__.append({str(tmp_path / 'posteriors')!r})\n"
    )
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "add_toys", "-p", "no:cacheprovider", "-rpfE",
        "-k", "(toy-pair or faulty-pair) and (pure or same)", "-o", "addopts=--import-mode=importlib",
        "tests/contracts/test_posteriors.py",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    assert "PASSED tests/contracts/test_posteriors.py::test_posterior[toy-pair-" in told
    assert "FAILED tests/contracts/test_posteriors.py::test_posterior[faulty-pair-" in told
    assert not re.search(r"(FAILED|ERROR) .*\[toy-pair-", told)
