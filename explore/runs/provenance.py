"""Session metadata, recorded at each start of a run, and differences between sessions."""

import hashlib
import importlib.metadata
import importlib.util
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import explore

# Libraries whose versions may affect results.
LIBRARIES = ("torch", "numpy", "scikit-learn", "gymnasium", "stable-baselines3", "sb3-contrib")


def session(**facts: Any) -> dict[str, Any]:
    """Return session metadata: time, command line, versions, hash of the code, git state, and the arguments `facts`."""
    packages = map(importlib.util.find_spec, ("explore", "explore.cli", "explore.envs"))
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command_line": shlex.join(["explore", *sys.argv[1:]]),
        "versions": versions(),
        "code": code(Path(str(spec.origin)).parent for spec in packages if spec),
        "git": _git(),
        **facts,
    }


def versions() -> dict[str, str]:
    """Return the versions of explore, Python, and the libraries that may affect results."""
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"explore": explore.__version__, "python": platform.python_version(), **libraries}


def code(packages: Iterable[Path]) -> str:
    """Return a hash of all Python files in the folders `packages`, including uncommitted changes."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package.parent)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return sentences that describe those differences between two sessions of a run that may change the results."""
    sentences = [
        f"{name} changed from {before.get(name)} to {now.get(name)}; the last digits may change."
        for name in ("device", "threads", "graphs", "processes")
        if before.get(name, now.get(name)) != now.get(name)
    ]
    old, new = ({**s["versions"], "commit": (s["git"] or {}).get("commit")} for s in (before, now))
    changes = [f"{k} from {old.get(k)} to {new.get(k)}" for k in old | new if old.get(k) != new.get(k)]
    if before["code"] != now["code"]:
        changes.append("edited files of explore")
    if changes:
        sentences.append(f"the software changed ({', '.join(changes)}); the results may change.")
    return sentences


def history(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the `differences` between all consecutive sessions of a run."""
    return [sentence for before, now in pairwise(sessions) for sentence in differences(before, now)]


def _git() -> dict[str, Any] | None:
    """Return the git commit, and whether files differ from the commit; None if the package is not in a git checkout."""
    folder = Path(explore.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else: a virtual environment in another checkout
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
