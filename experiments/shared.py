"""What the experiments share. Each is run from the root of the repository, as `python -m experiments.NAME.run`."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd
import torch
from scipy import stats
from torch import Tensor, nn

from explore import registry
from explore.cli.script import WrongInput
from explore.core import files, machine
from explore.core.errors import one_of
from explore.core.rng import Rng
from explore.core.shapes import State
from explore.inference.base import Predictive
from explore.learning.fit import batches, last_epoch
from explore.nets.net import Net
from explore.nets.protocols import Likelihood

FOLDER = click.Path(file_okay=False, path_type=Path)  # type of an option
NUMBER = "%.6g"  # as tables have them
TEST_TO_TRAIN = 1 / 9  # examples, in the splits of `explore.learning.compare.split`


class Names(click.ParamType):
    """Names with commas between, as a list; `what` they are is for messages."""

    name = "names"

    def __init__(self, what: str, allowed: Iterable[str]):
        self._what, self._allowed = what, list(allowed)
        if any("," in name for name in self._allowed):
            raise ValueError(f"a comma in a name of {self._allowed}, between which they stand")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The names of a text."""
        names: list[str] = value if isinstance(value, list) else value.split(",")
        for name in names:
            if name not in self._allowed:
                raise WrongInput(str(one_of(self._what, name, self._allowed)))
        return names


class Fit(NamedTuple):
    """A posterior that has been fitted, and how many seconds that took."""

    posterior: Predictive
    state: State
    wall: float
    cpu: float


def fit(
    name: str, module: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, rng: Rng, *, steps: int | None = None,
    **settings: Any,
) -> Fit:  # fmt: skip
    """Fit a posterior to inputs x and targets y of every replica, [R, n, ...].

    `steps` says how many, to the next whole epoch, instead of `epochs` among the settings. Of rng the stream "fit" is
    used.
    """
    if steps is not None:
        settings["epochs"] = max(1, round(steps / len(batches(x.shape[1], settings["batch_size"]))))
    posterior = registry.posterior(name, Net(module), likelihood, **settings)
    wall, cpu = time.perf_counter(), time.process_time()
    state = last_epoch(posterior, x, y, rng.stream("fit")).state
    found = Fit(posterior, state, time.perf_counter() - wall, time.process_time() - cpu)
    check(name, state)
    return found


def check(name: str, state: State) -> None:
    """Raise a RuntimeError if replicas have failed."""
    alive = state.common.alive
    if not alive.all():
        raise RuntimeError(f"{name} failed on {int((~alive).sum())} of {len(alive)} replicas")


def explore(*arguments: str) -> dict[str, Any]:
    """What a command `explore ... --json` prints."""
    command = [sys.executable, "-m", "explore.cli", *arguments, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def active(runs: Path, name: str, *options: str) -> pd.DataFrame:
    """The curves of `explore active`, begun with these options or gone on with, and the commits at which it ran.

    Args:
        runs: the folder with run folders.
        name: of the run.
        options: of the command, but for the device, the folder and the name.
    """
    folder = runs / f"active-{name}"
    first = (*options, "--device", "cpu", "--out", str(runs), "--name", name)
    explore("active", *(("--resume", str(folder)) if folder.exists() else first), "--quiet")
    return pd.read_csv(folder / "results.csv").assign(commits=commits(folder))


def card(device: str) -> str:
    """What a device is: "cpu", or the name of a GPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def commits(run: Path) -> str:
    """The commits at which a run folder was begun and continued."""
    return " ".join(dict.fromkeys(session["git"]["commit"][:7] for session in _sessions(run)))


def cards(run: Path) -> str:
    """The devices that a run folder was begun and continued on, as `card` names those that are here."""
    every = dict.fromkeys(session["device"] for session in _sessions(run))
    return " ".join(card(device) if device in machine.devices() else device for device in every)


def _sessions(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / "config.json").read_text())["sessions"]
    return found


def mean_se(values: pd.Series, form: str = ".3f") -> str:
    """Mean and its standard error; of one value it is that."""
    mean, error = map(float, values.agg(["mean", "sem"]))
    return f"{mean:{form}} ± {error:{form}}" if len(values) > 1 else f"{mean:{form}}"


def paired(values: pd.Series, form: str = ".3f") -> str:
    """Mean of differences paired by split, its corrected standard error, and the median in brackets.

    Random splits share examples, so the plain standard error of such a mean is too small. Nadeau and Bengio (Inference
    for the generalization error, 2003) add the ratio of test to training examples to 1 / splits. A star marks p < 0.05
    by the t distribution with splits - 1 degrees of freedom.
    """
    n, mean = len(values), float(values.mean())
    error = float(values.std()) * math.sqrt(1 / n + TEST_TO_TRAIN)
    star = "*" if abs(mean) > error * stats.t.ppf(0.975, n - 1) else ""
    return f"{mean:{form}} ± {error:{form}}{star} [{values.median():{form}}]"


def mean_sd(values: pd.Series, form: str = ".3f") -> str:
    """Mean and standard deviation."""
    return f"{values.mean():{form}} ({values.std():{form}})"


def markdown(heads: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """A table."""
    first, *others = ("| " + " | ".join(map(str, cells)) + " |\n" for cells in (heads, *rows))
    return f"{first}{'|---' * len(heads)}|\n{''.join(others)}"


def sections(tables: Mapping[str, str]) -> str:
    """Tables under their names."""
    return "\n".join(f"**{name}**\n\n{table}" for name, table in tables.items())


def merge(path: Path, rows: pd.DataFrame, key: list[str], float_format: str | None = NUMBER) -> pd.DataFrame:
    """Write rows into a CSV file in the place of those with the same key, and read all of it.

    The rows of one key are replaced together. All others stay as they are, to the letter and in their order; new keys
    follow them, and a column that only some rows have is empty in the others. At any moment there is the old file or
    the new one.

    Args:
        path: of the file; it need not exist.
        rows: the new ones.
        key: the columns that say which rows belong together.
        float_format: of the new numbers.
    """
    new = _text(io.StringIO(rows.to_csv(index=False, float_format=float_format)))
    old = _text(path) if path.exists() else new[:0]
    theirs, ours = (pd.MultiIndex.from_frame(table[key]) for table in (old, new))
    first = dict(zip(theirs[::-1], old.index[::-1], strict=True))  # row of each key
    new.index = pd.Index([first.get(k, len(old)) for k in ours])
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as draft:
        pd.concat([old[~theirs.isin(ours)], new]).sort_index(kind="stable").to_csv(draft, index=False)
    return pd.read_csv(path)


def recorded(path: Path, columns: list[str], key: Iterable[object]) -> bool:
    """Whether a CSV file has rows with this key, as `merge` writes it."""
    written = tuple(NUMBER % value if isinstance(value, float) else str(value) for value in key)
    return path.exists() and written in set(_text(path)[columns].itertuples(index=False, name=None))


def _text(file: Path | io.StringIO) -> pd.DataFrame:
    return pd.read_csv(file, dtype=str, keep_default_na=False)
