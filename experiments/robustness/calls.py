"""Random calls of the commands and of the estimators, most of them wrong: each runs, or is refused in one sentence.

    python -m experiments.robustness.calls options
    python -m experiments.robustness.calls estimators

`options` gives each command up to four random options with random values, right and wrong. `estimators` fits
`BayesianRegressor` and `BayesianClassifier` with random settings to random arrays, most of them spoilt. An outcome is
"ran", "refused" (an error in one sentence), "no sentence", "not finite" (predictions that are no numbers), "slow" (more
than two minutes) or "traceback". The counts go to results/calls.csv.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
from click.testing import CliRunner

from experiments.driver import FOLDER, merge
from experiments.tables import markdown
from explore import BayesianClassifier, BayesianRegressor
from explore.cli.main import main as explore

SECONDS = 120
COMMANDS = {
    "active": "--trials 1 --rounds 2 --epochs 1 --test-size 20 --samples 3",
    "compare": "--posterior map --splits 1 --epochs 1 --samples 3",
    "classify": "--dataset digits --posterior map --epochs 1 --train 60 --test 30 --samples 2",
    "rl": "--env explore/Chain-v0 --timesteps 64 --n-envs 2 --algo-param n_steps=16 -p vime.minimum=10",
    "suggest": "table.csv --target y --epochs 1",
    "predict": "runs/active-x table.csv",
    "report": "runs/active-x",
    "list": "posteriors",
}
TABLE = "id,x,kind,y\n" + "".join(
    f"r{i},{i * 0.37 % 1:.3f},{'ab'[i % 2]},{i % 5 if i < 12 else ''}\n" for i in range(20)
)
VALUES = [
    "0", "1", "2", "-1", "0.5", "1e-3", "nan", "inf", "", " ", "x", "y", "id", "kind", "table.csv", "runs/active-x",
    ".", "/dev/null", "a:b", "os:system", "torch.nn:Linear", "explore.cli.main:main", "é", "[b]x[/b]", "\x1b[31m",
    "a=1", "epochs=0", "lr=nan", "map", "noisy-kfac", "noisy-kfac.lr=1", "small", "default", "1,2", "a,b", "NA", "cpu",
    "cuda:9",
]  # fmt: skip


class Outcome(NamedTuple):
    """What became of a call, and what was said of it."""

    what: str
    said: str


def options(seed: int) -> list[str]:
    """A command with random options, decided by the seed."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(list(COMMANDS)))
    command = explore.get_command(click.Context(explore), name)
    assert command is not None
    params = [p for p in command.params if isinstance(p, click.Option)]
    words = [name, *COMMANDS[name].split()]
    for place in rng.choice(len(params), min(len(params), int(rng.integers(1, 5))), replace=False):
        option = params[place]
        words.append(str(rng.choice([*option.opts, *option.secondary_opts])))
        likely = list(map(str, getattr(option.type, "choices", ()))) or (VALUES[1:5] if _is_number(option) else VALUES)
        words += [] if option.is_flag else [str(rng.choice(likely if rng.random() < 0.6 else VALUES))]
    return words


def _is_number(option: click.Option) -> bool:
    return isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)


def run_options(seed: int) -> Outcome:
    """Call a command in the working folder, which has the table and a finished run."""
    done = CliRunner().invoke(explore, options(seed))
    if done.exception and not isinstance(done.exception, SystemExit):
        return Outcome("traceback", "".join(traceback.format_exception(done.exception)))
    last = done.stderr.strip().rpartition("\n")[2]
    if done.exit_code == 0:
        return Outcome("ran", last)
    one_sentence = done.exit_code == 2 and "Error: " in last and last.isprintable()
    return Outcome("refused" if one_sentence else "no sentence", done.stderr)


def arrays(rng: np.random.Generator, classes: bool) -> tuple[Any, Any]:
    """Features and labels, spoilt in none to two ways."""
    n, d = int(rng.choice([0, 1, 2, 5, 30, 70])), int(rng.choice([1, 2, 7]))
    x: Any = rng.standard_normal((n, d)) * rng.choice([1.0, 1e-8, 1e8])
    kinds: list[list[Any]] = [["a", "b"], [0, 1, 2], [True, False], ["x", None], [1, "1"]]
    labels = kinds[rng.choice(len(kinds), p=[0.3, 0.3, 0.2, 0.1, 0.1])]
    y: Any = x.sum(1)
    if classes:
        y = np.array([labels[i % len(labels)] for i in range(n)], object)
    spoil: list[Callable[[Any, Any], tuple[Any, Any]]] = [
        lambda x, y: (x.astype(object), y), lambda x, y: (pd.DataFrame(x), pd.Series(y)),
        lambda x, y: (x.tolist(), list(y)), lambda x, y: (np.where(rng.random(x.shape) < 0.1, np.nan, x), y),
        lambda x, y: (x * np.inf, y), lambda x, y: (x * 0, y), lambda x, y: (x, y[:-1]), lambda x, y: (x[:, 0], y),
        lambda x, y: (x[:, :0], y), lambda x, y: (x.astype(str), y), lambda x, y: (x + 1j, y),
        lambda x, y: (x.astype(np.float16), y), lambda x, y: (x, np.stack([y, y], 1)),
        lambda x, y: (x, y[::-1].copy()), lambda x, y: (np.repeat(x[:1], len(x), 0), y),
    ]  # fmt: skip
    for place in rng.choice(len(spoil), int(rng.choice([0, 0, 1, 1, 2])), replace=False):
        with contextlib.suppress(Exception):  # a way that does not go with the one before
            x, y = spoil[place](x, y)
    return x, y


def run_estimators(seed: int) -> Outcome:
    """Fit an estimator and predict."""
    rng = np.random.default_rng(seed)
    classes = bool(rng.random() < 0.5)
    settings: dict[str, Any] = {"epochs": 2, "samples": 3, "hidden": (5,)}
    changes: dict[str, list[Any]] = {
        "posterior": ["noisy-kfac", "bbb", "map", "ensemble", "nothing", 3], "hidden": [(4, 4), (), 0, "x", -1],
        "dtype": ["float32", "int8"], "samples": [1, 0, 2.5], "standardise": [False, "no"], "calibrate": [0.2, 2, -1],
        "noise": [{"noise_std": 0.1}, {"nothing": 1}, 3], "random_state": [None, np.random.RandomState(0), "x"],
        "settings": [{"lr": 0.1}, {"lr": np.nan}, {"members": 2}, 3], "preset": ["small", "nothing"],
    }  # fmt: skip
    for key, values in changes.items():
        if rng.random() < 0.12:
            settings[key] = values[rng.integers(len(values))]
    x, y = arrays(rng, classes)
    try:
        if classes:
            found = BayesianClassifier(**settings).fit(x, y).predict_proba(x)
        else:
            found = np.stack(BayesianRegressor(**settings).fit(x, y).predict(x, return_std=True))
    except (ValueError, TypeError) as error:  # scikit-learn itself refuses with both
        return Outcome("refused" if str(error).strip() else "no sentence", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001
        return Outcome("traceback", "".join(traceback.format_exception(error)))
    return Outcome("ran" if np.isfinite(np.asarray(found)).all() else "not finite", f"{settings} {np.shape(x)}")


def limited(run: Callable[[int], Outcome], seed: int) -> Outcome:
    """The outcome of a call that may take so many seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return run(seed)
    except TimeoutError:
        return Outcome("slow", "")
    finally:
        signal.alarm(0)


@click.command()
@click.argument("what", type=click.Choice(["options", "estimators"]))
@click.option("--calls", default=400, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the first call; the others follow.")
@click.option("--out", default=Path(__file__).parent / "results", type=FOLDER)
def main(what: str, calls: int, seed: int, out: Path) -> None:
    """Count what becomes of the calls, and print all but results and refusals."""
    warnings.simplefilter("ignore")
    out, counts = out.absolute(), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("table.csv").write_text(TABLE)
        CliRunner().invoke(explore, ["active", *COMMANDS["active"].split(), "--name", "x"])
        for number in range(seed, seed + calls):
            found = limited(run_options if what == "options" else run_estimators, number)
            counts[found.what] += 1
            if found.what not in ("ran", "refused"):
                words = " ".join(map(repr, options(number))) if what == "options" else ""
                click.echo(f"{what} {number}: {found.what} {words}\n{found.said}")
    rows = pd.DataFrame({"what": what, "seed": seed, "outcome": list(counts), "calls": list(counts.values())})
    click.echo(markdown(("outcome", "calls"), counts.items()))
    merge(out / "calls.csv", rows, ["what", "seed"])


if __name__ == "__main__":
    main()
