import functools
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner, Result
from matplotlib import rcParams
from matplotlib.figure import Figure

from explore import posteriors
from explore.cli.main import main
from explore.runs import provenance

CHECKOUT = functools.cache(provenance._git)
TINY = ["--trials", "2", "--rounds", "3", "--epochs", "2", "--test-size", "20", "--samples", "5"]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def explore():
    """Runs `explore`; an exception that is not meant for the user is raised."""
    return run


@pytest.fixture
def active():
    """Runs a tiny `explore active` that succeeds."""

    def succeed(*arguments: object) -> Result:
        result = run("active", *TINY, *arguments)
        assert result.exit_code == 0, result.output
        return result

    return succeed


@pytest.fixture
def as_json(active):
    """Runs a tiny `explore active --json`, and gives the object."""
    return lambda *arguments: json.loads(active("--json", *arguments).stdout)


@pytest.fixture
def csv(tmp_path):
    """A table with two numeric targets and two columns of classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "id"])
    frame["y"], frame["z"] = x[:, 0] - x[:, 1], x[:, 0] * 100
    frame["kind"] = np.where(x[:, 0] > 0.3, "high", np.where(x[:, 0] < -0.3, "low", "mid"))
    frame["sign"] = np.where(x[:, 1] > 0, "+", "o")
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And what the command sets for its process is set back; the state of the checkout is asked for once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "_git", CHECKOUT)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def drawn_in_full() -> None:
    """For tests that look at pictures."""


@pytest.fixture(autouse=True)
def _not_drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pictures stay white: drawing them took half the time of many tests."""
    if "drawn_in_full" not in request.fixturenames:
        save = Figure.savefig
        monkeypatch.setattr(Figure, "savefig", lambda *to, dpi=None, **keywords: save(*to, dpi=10, **keywords))
        monkeypatch.setattr(Figure, "draw", lambda figure, renderer: None)
        monkeypatch.setitem(rcParams, "figure.dpi", 10)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new posterior: one file, and nothing else to edit."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "toy_prior.py").write_text(TOY)
    monkeypatch.setattr(posteriors, "__path__", [*posteriors.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "explore.posteriors.toy_prior", raising=False)


TOY = '''"""Toy: the first weights, whatever the data say."""

from dataclasses import dataclass
from typing import NamedTuple

from explore.inference.base import Common, Predictive, common
from explore.core.shapes import Weights


class ToyState(NamedTuple):
    common: Common
    weights: Weights


@dataclass(frozen=True, kw_only=True)
class ToyPrior(Predictive):
    epochs: int = 1
    members: int = 4
    fails: bool = False
    widths: tuple[int, ...] = (1, 2)

    def init(self, n_data, replicas, rng):
        return ToyState(common(self, n_data, replicas, rng), self.net.glorot(replicas, rng, self.members))

    def update(self, state, batch, rng, progress=0.0):
        if self.fails:
            alive = state.common.alive.clone()
            alive[1] = False
            state = state._replace(common=state.common._replace(alive=alive))
        return state, {}

    def sample(self, state, n, rng):
        return tuple(w[:, :n] for w in state.weights)


PRESETS = {"first": {"members": 3}, "second": {"members": 6}}
'''


@pytest.fixture
def heeded_interrupts():
    """Children heed interrupts, which what a shell starts in the background ignores, and so do its children.

    No `preexec_fn` in the child: with it subprocess forks, of which other libraries of this process warn.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
