"""How the cost of an update grows with width, depth, batch, samples, replicas and processes, with exponents.

    python -m experiments.benchmarks.scaling

A network of 100 inputs, two layers of 100 ReLU and 10 classes, on batches of 64 with 4 samples; one of these is changed
at a time. Seconds are the processor's, of one thread, medians of `--repeats`; FLOPs are counted on torch's `meta`
device. An exponent is the slope of the logarithm over the three largest values.

Processes: seconds of a clock for an update on a batch of 1024, by 1 and 2 processes of one thread on this machine, and
what a process sends to be averaged in one update. For more of them an estimate: its FLOPs at `--flops` and its share of
a ring's traffic at `--bandwidth` bytes a second.

Writes results/scaling.csv, results/processes.csv and results/scaling.md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click
import numpy as np
import pandas as pd
import torch

from experiments.benchmarks.counting import measure
from experiments.tables import markdown, sections
from explore import registry
from explore.cli.script import Script
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.execution import parallel
from explore.execution.parallel import World
from explore.nets.likelihoods import Categorical
from explore.nets.net import Net, mlp

RESULTS = Path(__file__).parent / "results"
INPUTS, CLASSES, N = 100, 10, 10_000
POSTERIORS = ("noisy-kfac", "noisy-ekfac", "slang", "vogn", "noisy-adam", "bbb", "whvi", "map")
WIDE, RANKS = 1024, (4, 16, 64)  # batch of several processes; how many are estimated


class Case(NamedTuple):
    """What is changed."""

    width: int = 100
    depth: int = 2
    batch: int = 64
    samples: int = 4
    replicas: int = 1


AXES: dict[str, tuple[int, ...]] = {
    "width": (50, 100, 200, 400, 800), "depth": (1, 2, 4, 8, 16), "batch": (16, 64, 256, 1024),
    "samples": (1, 4, 16, 64), "replicas": (1, 4, 16, 64),
}  # fmt: skip


def step(name: str, case: Case, rng: Rng, own: slice = slice(None)) -> partial[Any]:
    """An update, ready to be called, on some of a batch's examples."""
    net = Net(mlp(INPUTS, [case.width] * case.depth, CLASSES))
    host = Rng(0)
    net.output(net.glorot(1, host, 1), host.normal(1, 2, INPUTS))  # what is looked at once for all
    settings: dict[str, Any] = {} if name == "map" else {"samples": case.samples}
    posterior = registry.posterior(name, net, Categorical(), "plain", **settings)
    state = posterior.init(N, case.replicas, rng)
    shape = case.replicas, case.batch
    y = torch.zeros(shape, dtype=torch.long, device=rng.device)
    batch = Batch(rng.normal(*shape, INPUTS)[:, own], y[:, own])
    state, _ = posterior.update(state, batch, rng)  # the first one may be another one: VOGN's is at the mean
    return partial(posterior.update, state, batch, rng)


def seconds(update: partial[Any], repeats: int, clock: Any = time.process_time) -> float:
    """The median."""
    update()
    times = []
    for _ in range(repeats):
        start = clock()
        update()
        times.append(clock() - start)
    return statistics.median(times)


def rows(repeats: int) -> Iterator[dict[str, Any]]:
    for name in POSTERIORS:
        for axis, values in AXES.items():
            for value in values:
                case = Case()._replace(**{axis: value})
                if name == "map" and axis == "samples":
                    continue
                cost = measure(step(name, case, Rng(0, "meta")))
                found = seconds(step(name, case, Rng(0)), repeats)
                yield {"posterior": name, "axis": axis, "value": value, "seconds": found, "flops": cost.flops,
                       "operations": cost.operations}  # fmt: skip
        click.echo(name)


def exponent(values: pd.Series, costs: pd.Series) -> float:
    """Of the three largest values."""
    return float(np.polyfit(np.log(values[-3:]), np.log(costs[-3:]), 1)[0])


def sent(name: str) -> int:
    """Numbers that a process gives to be averaged in an update."""
    count = 0

    def reduce(tensor: torch.Tensor) -> None:
        nonlocal count
        count += tensor.numel()

    def gather(parts: list[torch.Tensor], tensor: torch.Tensor) -> None:
        reduce(tensor)
        for part in parts:
            part.copy_(tensor)

    fake = mock.patch.multiple(parallel.dist, all_reduce=reduce, all_gather=gather, broadcast=lambda *_: None)
    with parallel.within(World(2)), fake:
        update = step(name, Case(batch=WIDE), Rng(0), slice(WIDE // 2))
        count = 0
        update()
    return count


def worker(name: str, repeats: int) -> None:
    """One of the processes that are timed."""
    torch.set_num_threads(1)
    with parallel.joined() as world:
        part = parallel.local_part(slice(0, WIDE))
        found = seconds(step(name, Case(batch=WIDE), Rng(0), part), repeats, time.perf_counter)
        if not world.rank:
            print(json.dumps(found))


def processes(repeats: int, flops: float, bandwidth: float) -> Iterator[dict[str, Any]]:
    for name in POSTERIORS:
        numbers = sent(name)
        row: dict[str, Any] = {"posterior": name, "sent": numbers}
        for count in (1, 2):
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
            command = [*launch, "-m", "experiments.benchmarks.scaling", "--worker", name, "--repeats", str(repeats)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row[f"seconds_{count}"] = json.loads(done.stdout)
        whole = measure(step(name, Case(batch=WIDE), Rng(0, "meta"))).flops
        for count in RANKS:
            traffic = 2 * (count - 1) / count * 4 * numbers / bandwidth
            row[f"estimate_{count}"] = whole / count / flops + traffic
        yield row
        click.echo(name)


def tables(found: pd.DataFrame, several: pd.DataFrame) -> str:
    """Exponents and the cost of the base case; processes."""
    lines = []
    for name, own in found.groupby("posterior", sort=False):
        base = own[(own.axis == "width") & (own.value == Case().width)].iloc[0]
        cells = []
        for axis in AXES:
            line = own[own.axis == axis]
            slopes = (exponent(line.value, line[what]) for what in ("seconds", "flops")) if len(line) else ()
            cells.append(" / ".join(f"{slope:.2f}" for slope in slopes))
        lines.append([name, f"{float(base.seconds) * 1e3:.1f}", f"{float(base.flops) / 1e6:.0f}", *cells])
    heads = ["", "ms", "MFLOP", *AXES]
    made = {"An update, and exponents of seconds / FLOPs": markdown(heads, lines)}
    shown = [
        [r["posterior"], r["sent"], *(f"{1e3 * r[f'seconds_{count}']:.1f}" for count in (1, 2)),
         *(f"{1e6 * r[f'estimate_{count}']:.0f}" for count in RANKS)]
        for r in several.to_dict("records")
    ]  # fmt: skip
    heads = ["", "numbers sent", "ms, 1 process", "2", *(f"estimate, {count}: us" for count in RANKS)]
    made[f"Processes, batches of {WIDE}"] = markdown(heads, shown)
    return sections(made)


@click.command(cls=Script)
@click.option("--repeats", default=7, show_default=True)
@click.option("--flops", default=60e12, show_default=True, help="Floating-point operations a second.")
@click.option("--bandwidth", default=25e9, show_default=True, help="Bytes a second between two processes.")
@click.option("--worker", "name", hidden=True)
def main(repeats: int, flops: float, bandwidth: float, name: str | None) -> None:
    """Measure, and write the tables."""
    torch.set_num_threads(1)
    if name is not None:
        worker(name, repeats)
        return
    found, several = pd.DataFrame(rows(repeats)), pd.DataFrame(processes(repeats, flops, bandwidth))
    found.to_csv(RESULTS / "scaling.csv", index=False, float_format="%.4g")
    several.to_csv(RESULTS / "processes.csv", index=False, float_format="%.4g")
    (RESULTS / "scaling.md").write_text(tables(found, several), encoding="utf-8")
    click.echo(tables(found, several))


if __name__ == "__main__":
    main()
