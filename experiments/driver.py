"""The driver of the experiments: options, splits, fits, and results in a CSV file that a run resumes.

Each experiment is run from the root of the repository as `python -m experiments.NAME.run`.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd
import torch
from torch import Tensor, nn

from explore import registry
from explore.cli.script import Script, WrongInput
from explore.core import files, machine, tree
from explore.core.errors import one_of, shown
from explore.core.rng import Rng
from explore.core.shapes import State
from explore.data.base import Dataset
from explore.inference.base import Predictive
from explore.learning import compare
from explore.learning.fit import batches, last_epoch
from explore.nets.net import Net
from explore.nets.protocols import Likelihood
from explore.runs import provenance

FOLDER = click.Path(file_okay=False, path_type=Path)  # type of an option
NUMBER = "%.6g"  # format of numbers in CSV files
Key = tuple[object, ...]


class Names(click.ParamType):
    """A list of names, separated by commas on the command line.

    Args:
        kind: what the names are of, for messages.
        allowed: the names to choose from.
    """

    name = "names"

    def __init__(self, kind: str, allowed: Iterable[str]):
        self._kind, self._allowed = kind, list(allowed)
        if any("," in name for name in self._allowed):
            raise ValueError(f"names must not contain commas: {self._allowed}")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Split and check a text."""
        names: list[str] = value if isinstance(value, list) else value.split(",")
        for name in names:
            if name not in self._allowed:
                raise WrongInput(str(one_of(self._kind, name, self._allowed)))
        return names


def names(option: str, kind: str, allowed: Iterable[str], default: Iterable[str] | None = None) -> Any:
    """Make an option that takes names; without a default it takes all. The help calls an empty default "all", too."""
    allowed = list(allowed)
    chosen = allowed if default is None else list(default)
    assert set(chosen) <= set(allowed), f"the default of {option} is not allowed: {chosen}"
    note = "[default: all]" if chosen in (allowed, []) else f"[default: {','.join(chosen)}]"
    return click.option(option, type=Names(kind, allowed), default=chosen, help=note)


def experiment(file: str, results: str = "results") -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function `main(..., out)`, with `--out` and on one thread.

    Args:
        file: `__file__` of the experiment.
        results: the folder beside it that `--out` is by default.
    """

    def decorate(main: Callable[..., None]) -> click.Command:
        def run(**options: Any) -> None:
            torch.set_num_threads(1)
            main(**options)

        run.__doc__, run.__name__ = main.__doc__, main.__name__
        out = click.Option(["--out"], type=FOLDER, default=Path(file).parent / results, help="For results.")
        run.__click_params__ = [out, *getattr(main, "__click_params__", [])]  # type: ignore[attr-defined]  # reversed
        return click.command(cls=Script)(run)

    return decorate


class Fit(NamedTuple):
    """A fitted posterior and the seconds that the fit took."""

    posterior: Predictive
    state: State
    wall: float
    cpu: float


def fit(
    name: str, module: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, rng: Rng, *, steps: int | None = None,
    **settings: Any,
) -> Fit:  # fmt: skip
    """Fit a posterior to inputs x and targets y of every replica, [R, n, ...].

    Args:
        name: of the posterior.
        module: the network.
        likelihood: of its outputs.
        x: inputs.
        y: targets.
        rng: its stream "fit" is used.
        steps: updates, rounded to whole epochs, in place of `epochs` among the settings.
        settings: of the posterior.
    """
    if steps is not None:
        settings["epochs"] = max(1, round(steps / len(batches(x.shape[1], settings["batch_size"]))))
    posterior = registry.posterior(name, Net(module), likelihood, **settings)
    wall, cpu = time.perf_counter(), time.process_time()
    state = last_epoch(posterior, x, y, rng.stream("fit")).state
    result = Fit(posterior, state, time.perf_counter() - wall, time.process_time() - cpu)
    check(name, state)
    return result


def check(name: str, state: State) -> None:
    """Raise a RuntimeError if replicas failed."""
    alive = state.common.alive
    if not alive.all():
        raise RuntimeError(f"{name} failed on {int((~alive).sum())} of {len(alive)} replicas")


def split(data: Dataset, splits: slice, rng: Rng, validate: float = 0.0) -> compare.Splits:
    """Make standard splits of a data set, those of a slice, as replicas."""
    parts: compare.Splits = tree.part(compare.split(data, splits.stop, rng, validate), splits)
    return parts


def score(
    name: str, module: nn.Module, likelihood: Likelihood, parts: compare.Splits, rng: Rng, tags: Iterable[str],
    draws: int = 100, /, **settings: Any,
) -> pd.DataFrame:  # fmt: skip
    """Fit a posterior to all splits at once: return a row for each, with test scores and the CPU seconds of all.

    `draws` networks predict; `samples` among the settings is that of the posterior.
    """
    begin = time.process_time()
    done = fit(name, module, likelihood, parts.x, parts.y, rng, **settings)
    scores = compare.measure(done.posterior, done.state, parts, rng.stream("test"), draws)
    columns = {tag: scores[f"test/{tag}"].numpy() for tag in tags}
    return pd.DataFrame({"split": range(1, len(parts.x) + 1)} | columns | {"cpu": time.process_time() - begin})


def run_missing(
    path: Path, key: Sequence[str], cells: Iterable[Key], run: Callable[..., pd.DataFrame], report: Sequence[str] = ()
) -> pd.DataFrame:
    """Run the cells of a grid that a CSV file lacks, add their rows to it, and return all of it.

    Args:
        path: of the file; it is written after each cell.
        key: columns that identify a cell.
        cells: values of these columns.
        run: computes the rows of a cell from its values; the columns of the key and `commit` are added to them.
        report: columns whose means are shown as cells finish.
    """
    for cell in cells:
        if not recorded(path, key, cell):
            rows = run(*cell)
            labels = {} if "commits" in rows else {"commit": commit()}
            merge(path, with_key(rows.assign(**labels), key, cell), key)
            means = "".join(f", {column} {rows[column].mean():.4g}" for column in report)
            click.echo(f"{' '.join(map(str, cell))}{means}", err=True)
    return pd.read_csv(path)


def with_key(rows: pd.DataFrame, key: Sequence[str], cell: Key) -> pd.DataFrame:
    """Put the columns of a key before rows."""
    first = pd.DataFrame([cell] * len(rows), columns=list(key), index=rows.index)
    return pd.concat([first, rows.drop(columns=list(key), errors="ignore")], axis=1)


def merge(path: Path, rows: pd.DataFrame, key: Sequence[str], float_format: str | None = NUMBER) -> pd.DataFrame:
    """Write rows into a CSV file in the place of those with the same key, and read all of it.

    The rows of one key are replaced together. The others stay as they are, to the letter and in their order; new keys
    follow them, and a column that only some rows have is empty in the others. At any moment the old or the new file is
    complete.

    Args:
        path: of the file; it need not exist.
        rows: the new ones.
        key: the columns that say which rows belong together.
        float_format: of the new numbers.
    """
    new = _text(io.StringIO(rows.to_csv(index=False, float_format=float_format)))
    old = _text(path) if path.exists() else new[:0]
    old_keys, new_keys = (pd.MultiIndex.from_frame(table[list(key)]) for table in (old, new))
    first = dict(zip(old_keys[::-1], old.index[::-1], strict=True))  # row of each key
    new.index = pd.Index([first.get(k, len(old)) for k in new_keys])
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as draft:
        pd.concat([old[~old_keys.isin(new_keys)], new]).sort_index(kind="stable").to_csv(draft, index=False)
    return pd.read_csv(path)


def recorded(path: Path, key: Sequence[str], cell: Key) -> bool:
    """Return whether a CSV file has rows with this key, as `merge` writes it."""
    written = tuple(NUMBER % value if isinstance(value, float) else str(value) for value in cell)
    return path.exists() and written in set(_text(path)[list(key)].itertuples(index=False, name=None))


def _text(file: Path | io.StringIO) -> pd.DataFrame:
    return pd.read_csv(file, dtype=str, keep_default_na=False)


def write(path: Path, text: str) -> None:
    """Write a text file, in a folder that need not exist, and print the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(text)


def explore(*arguments: str) -> dict[str, Any]:
    """Run a command `explore ... --json` in a process and return its result."""
    command = [sys.executable, "-m", "explore.cli", *arguments, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def resumed(
    command: str, runs: Path, name: str, *options: str, device: str | None = None
) -> tuple[Path, dict[str, Any]]:
    """Run `explore COMMAND` to its end, resuming it where its run folder exists: the folder and the result.

    Args:
        command: `active`, `classify` or `rl`.
        runs: the folder with run folders.
        name: of the run.
        options: of the command, apart from the folder, the name and the device.
        device: which it runs on now; None leaves the choice to the command.
    """
    folder = runs / f"{command}-{name}"
    start = ("--resume", str(folder)) if folder.exists() else (*options, "--out", str(runs), "--name", name)
    where = () if device is None else ("--device", device)
    return folder, explore(command, *start, *where, "--quiet")


def active(runs: Path, name: str, *options: str) -> pd.DataFrame:
    """Run or resume `explore active` and return its curves, with the commits at which it ran."""
    folder, _ = resumed("active", runs, name, *options, "--device", "cpu")
    return pd.read_csv(folder / "results.csv").assign(commits=commits(folder))


def card(device: str) -> str:
    """Return the name of a device: "cpu", or that of the GPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def commit() -> str:
    """Return the short commit of the working tree, with a plus where it has changes."""
    git = provenance.session()["git"]
    return f"{git['commit'][:7]}{'+' if git['changed'] else ''}"


def commits(run: Path) -> str:
    """Return the commits at which a run folder was started and resumed."""
    return " ".join(dict.fromkeys(session["git"]["commit"][:7] for session in _sessions(run)))


def cards(run: Path) -> str:
    """Return the devices on which a run folder was started and resumed, by name where this machine has them."""
    devices = dict.fromkeys(session["device"] for session in _sessions(run))
    return " ".join(card(device) if device in machine.devices() else device for device in devices)


def _sessions(run: Path) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = json.loads((run / "config.json").read_text())["sessions"]
    return sessions


class Integers(click.ParamType):
    """Integers separated by commas, as a tuple."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"{shown(value)} is not whole numbers with commas between, such as 32,64", param, ctx)
