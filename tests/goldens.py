"""What the code computes, as numbers that must not change: `python -m tests.goldens write FILE`, then `compare FILE`.

States of every posterior after three updates, choices of every acquisition, bonuses of fixed transitions, and the
results of short runs of every command. `compare` names what is no longer the same, bit by bit. `tests/goldens.json`
holds the first three, which `tests/test_goldens.py` compares to eight digits.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import pandas as pd
import torch
from click.testing import CliRunner
from gymnasium import spaces
from torch import Tensor, nn

import explore
from explore import registry
from explore.core.errors import InputError
from explore.nets.net import Net
from explore.testing import rules, subject

Golden = tuple[str, Any]
REPLICAS, EXAMPLES = 2, 12
IMAGE = (1, 4, 4)
NORM = Net(nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)))
NETS = {"dense": (subject.MLP, (2,)), "conv": (subject.CONV, IMAGE), "norm": (NORM, IMAGE)}


# Values ----------------------------------------------------------------------------------------------------


def projections(tensors: Iterator[Tensor], signs: bool = True) -> list[float]:
    """One number for each tensor, sorted: names and order do not matter, nor, without `signs`, the signs of values."""
    found = []
    for tensor in tensors:
        values = tensor.detach().double().flatten()
        values = values if signs else values.abs()
        found.append(float(values @ torch.cos(torch.arange(1.0, len(values) + 1, dtype=torch.float64))))
    return sorted(found)


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


def states(*kinds: str, without: str = "") -> Iterator[Golden]:
    """Of each posterior and preset after three updates: on a dense net, a convolutional one, one with batch norms."""
    for name in (n for n in registry.names("posteriors") if n != without):
        cls, signs = registry.find("posteriors", name), name != "slang"  # whose eigenvectors have any sign
        for preset in registry.presets(cls):
            for kind, (net, shape) in ((kind, NETS[kind]) for kind in kinds):
                if posterior := made(name, net, preset):
                    yield f"state {name} {preset} {kind}", projections(tensors_in(trained(posterior, shape)), signs)
        if posterior := made(name, subject.MLP, None, members=2):
            yield f"state {name} {dict(members=2)}", projections(tensors_in(trained(posterior, (2,))), signs)


def made(name: str, net: Any, preset: str | None, **settings: Any) -> Any:
    """None: it does not take such layers or settings."""
    try:
        return registry.posterior(name, net, "gaussian", preset, **settings)
    except InputError:
        return None


def trained(posterior: Any, shape: tuple[int, ...]) -> Any:
    rng = explore.Rng(1, dtype=torch.float64)
    state = posterior.init(EXAMPLES, REPLICAS, rng)
    for step in range(3):
        batch = subject.Batch(rng.normal(REPLICAS, 6, *shape), rng.normal(REPLICAS, 6, 3))
        state, _ = posterior.update(state, batch, rng.stream("fit", step), progress=step / 3)
    return state


def choices() -> Iterator[Golden]:
    """Of each acquisition on a fixed pool, for each kind of targets."""
    for name in registry.names("acquisitions"):
        for found in rules.subjects(registry.acquisition(name)):
            choice = found.choice(3)
            yield f"choice {found.name}", [choice.indices.tolist(), choice.scores.tolist()]


def bonuses() -> Iterator[Golden]:
    """Of fixed transitions, of each kind of bonus and of each posterior with a preset for it."""
    from explore.vime import IntrinsicReward, Transitions

    box = spaces.Box(-10, 10, (2,)), spaces.Box(-1, 1, (1,))
    few: dict[str, Any] = {"updates": 5, "minimum": 20, "hidden": (8,), "seed": 3}
    kinds = [("noisy-kfac", bonus) for bonus in ("kl", "expected-gain", "variance")]
    for name, bonus in [*kinds, ("bbb", "kl"), ("noisy-adam", "expected-gain"), ("slang", "expected-gain")]:
        reward, rng = IntrinsicReward(*box, posterior=name, bonus=bonus, **few), np.random.default_rng(0)
        for _ in range(3):
            x, actions = rng.normal(size=(40, 2)), rng.uniform(-1, 1, (40, 1))
            found = reward.batch(Transitions(x, actions, 0.9 * x + 0.1 * actions))
        yield f"bonus {name} {bonus}", [found.raw.tolist(), found.scaled.tolist()]


# Commands --------------------------------------------------------------------------------------------------

ACTIVE = ["--trials", 2, "--rounds", 3, "--epochs", 2, "--test-size", 20, "--samples", 5]
CHAIN = ["--env", "explore/Chain-v0", "--env-kwargs", "length:5", "--n-envs", 4, "--algo-param", "n_steps=16"]
CHAIN += ["--timesteps", 192, "-p", "vime.minimum=60"]
DIGITS = ["--dataset", "digits", "--net", "mlp", "-p", "net.hidden=12", "--epochs", 3, "--samples", 5, "--train", 150]
SUGGEST = ["--target", "yield", "--id", "name", "--epochs", 5, "--samples", 10]
COMMANDS: dict[str, list[Any]] = {
    "active": ["active", *ACTIVE, "--name", "a"],
    "active-classes": ["active", *ACTIVE, "--dataset", "breast-cancer", "--acquisition", "batch-bald", "--name", "b"],
    "active-table": ["active", *ACTIVE, "--data", "table.csv", "--target", "y", "--name", "t"],
    "compare": [
        "compare", "--posterior", "noisy-kfac,bbb,ensemble", "--splits", 2, "--epochs", 3, "--hidden", 4, "--samples",
        5, "--dataset", "yacht", "--name", "c",
    ],
    "classify": ["classify", *DIGITS, "--name", "d"],
    "rl": ["rl", *CHAIN, "--seeds", 2, "--name", "r"],
    "suggest-1": ["suggest", "pool.csv", *SUGGEST],
    "suggest-2": ["suggest", "pool.csv"],
    "suggest-3": ["suggest", "pool.csv", "--batch", 3],
    "status": ["suggest", "pool.csv", "--status"],
    "predict": ["predict", "runs/active-t", "table.csv"],
}  # fmt: skip
CHANGING = re.compile(r"second|time|_at$|^run$|^id$|version|path|folder|sha|commit|previous|sum|bonus_share|figure")


def commands() -> Iterator[Golden]:
    """The JSON of each, and its tables; and the files of the campaign."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        tables()
        for name, arguments in COMMANDS.items():
            from explore.cli.main import main

            result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
            if result.exit_code:
                raise click.ClickException(f"{name}: {result.output}")
            yield f"{name} --json", stable(json.loads(result.stdout))
            if name.startswith("suggest"):
                measure()
        for path in sorted(Path("runs").glob("*/*.csv")):
            yield str(path), stable(pd.read_csv(path).to_dict("list"))
        yield "pool.explore/campaign.json", stable(json.loads(Path("pool.explore/campaign.json").read_text()))
        yield "next.csv", Path("next.csv").read_text()


def tables() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    pd.DataFrame(x, columns=["a", "b"]).assign(y=x[:, 0] - x[:, 1]).to_csv("table.csv", index=False)
    pool = pd.DataFrame({"name": [f"S-{i:03d}" for i in range(40)], "temp": rng.uniform(20, 80, 40).round(2)})
    pool["solvent"] = rng.choice(["water", "ethanol"], 40)
    pool.assign(**{"yield": np.nan}).to_csv("pool.csv", index=False)


def measure() -> None:
    """Write what was asked for into the table."""
    asked, pool = pd.read_csv("next.csv"), pd.read_csv("pool.csv")
    rows = pool.name.isin(asked.name)
    pool.loc[rows, "yield"] = (pool.temp / 10 + 3 * (pool.solvent == "water"))[rows].round(3)
    pool.to_csv("pool.csv", index=False)


def stable(value: Any) -> Any:
    """Without what differs between two runs of the same code."""
    if isinstance(value, dict):
        return {k: stable(v) for k, v in value.items() if not CHANGING.search(k)}
    if isinstance(value, list):
        return [stable(v) for v in value]
    return value


# Command line ----------------------------------------------------------------------------------------------


def values(*kinds: str, without: str = "") -> dict[str, Any]:
    """Of states on these kinds of nets, choices and bonuses; a posterior may be left out."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = dict([*states(*kinds, without=without), *choices(), *bonuses()])
    return cast(dict[str, Any], json.loads(json.dumps(found)))


def tested() -> dict[str, Any]:
    """What the test compares: not what HMC samples, which the last digit of a compiler decides."""
    return values("dense", without="hmc")


@click.command()
@click.argument("action", type=click.Choice(["write", "compare", "test"]))
@click.argument("file", type=click.Path(path_type=Path), default=Path(__file__).with_suffix(".json"))
def main(action: str, file: Path) -> None:
    """Write all goldens, compare with them, or write those of the test."""
    os.environ.setdefault("COLUMNS", "120")
    if action == "test":
        file.write_text(json.dumps(tested()) + "\n")
        return
    now = values(*NETS) | json.loads(json.dumps(dict(commands())))
    if action == "write":
        file.write_text(json.dumps(now, indent=0) + "\n")
        click.echo(f"{len(now)} goldens in {file}")
        return
    old = json.loads(file.read_text())
    texts = {name: [json.dumps(every.get(name)) for every in (old, now)] for name in sorted(old.keys() | now.keys())}
    for name, (before, after) in texts.items():
        if before != after:
            click.echo(f"{name}\n  {before[:2000]}\n  {after[:2000]}")
    same = sum(before == after for name, (before, after) in texts.items() if name in old)
    click.echo(f"{same} of {len(old)} goldens are the same; {len(now.keys() - old.keys())} are new")
    raise SystemExit(same < len(old))


if __name__ == "__main__":
    main()
