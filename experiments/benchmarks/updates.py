"""Seconds per update of every posterior, for many small nets side by side and for one ResNet-18.

    python -m experiments.benchmarks.updates --device cpu --device cuda

small: 20 replicas of a 13-50-1 net with 10 weight samples (or members) each, batches of 10.
resnet: one ResNet-18 for 32x32 images with batch normalisation, batch 128, one weight sample. Factors are refreshed as
often as each posterior's preset `image` says, and an average over `--updates` steps has its share of that.

Writes results/updates.csv beside this file, or what --out names: device, case, posterior, seconds per update (median of
`--repeats`), and the reason where a posterior refuses a net.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from pathlib import Path

import click
import pandas as pd
import torch

from explore import networks, registry
from explore.errors import InputError
from explore.likelihoods import Categorical, Gaussian
from explore.nets import Net, mlp
from explore.rng import Rng
from explore.shapes import Batch

COUNTS = ("samples", "members")  # fields that say how many nets a posterior runs at once
RESULTS = Path(__file__).parent / "results" / "updates.csv"


def build(name: str, case: str):
    """The posterior of a case with its data: (posterior, replicas, examples it stands for, batch)."""
    cls = registry.find("posteriors", name)
    presets = registry.presets(cls)
    preset = "image" if case == "resnet" and "image" in presets else next(iter(presets))
    settings = registry.settings_in(cls, preset)
    for field in dataclasses.fields(cls):
        if field.name in COUNTS:
            settings[field.name] = 1 if case == "resnet" else 10
    if case == "resnet":
        return cls(net=Net(networks.resnet18()), likelihood=Categorical(), **settings), 1, 50000
    return cls(net=Net(mlp(13, [50], 1)), likelihood=Gaussian(), **settings), 20, 455


def batch(case: str, rng: Rng) -> Batch:
    if case == "resnet":
        return Batch(rng.normal(1, 128, 3, 32, 32), (10 * rng.uniform(1, 128)).long())
    return Batch(rng.normal(20, 10, 13), rng.normal(20, 10, 1))


def measure(name: str, case: str, device: str, updates: int, repeats: int) -> float:
    """Median over the repeats of the seconds per update."""
    rng = Rng(0, device)
    posterior, replicas, n_data = build(name, case)
    data = batch(case, rng)
    state = posterior.init(n_data, replicas, rng)
    times = []
    for repeat in range(repeats + 1):  # the first one warms up
        start = time.perf_counter()
        for _ in range(updates if repeat else 1):
            state, _ = posterior.update(state, data, rng)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        if repeat:
            times.append((time.perf_counter() - start) / updates)
    return statistics.median(times)


@click.command()
@click.option("--device", "devices", multiple=True, default=["cpu"], show_default=True)
@click.option("--case", "cases", multiple=True, type=click.Choice(["small", "resnet"]), default=["small", "resnet"])
@click.option("--posterior", "names", multiple=True, help="Names; all that are updated step by step by default.")
@click.option("--updates", default=100, show_default=True, help="Of the small nets; a tenth of it of the ResNet.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True, help="Processor threads.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS)
def main(
    devices: list[str], cases: list[str], names: list[str], updates: int, repeats: int, threads: int, out: Path
) -> None:
    """Time every posterior on every device, and write the table."""
    torch.set_num_threads(threads)
    rows = []
    for device in devices:
        label = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"cpu, {threads} thread(s)"
        for case in cases:
            for name in names or [n for n in registry.names("posteriors") if n != "hmc"]:
                row = {"device": label, "case": case, "posterior": name, "seconds": float("nan"), "refused": ""}
                try:
                    steps = updates if case == "small" else max(1, updates // 10)
                    row["seconds"] = measure(name, case, device, steps, repeats)
                except InputError as error:
                    row["refused"] = str(error)
                rows.append(row)
                print(f"{label:24} {case:8} {name:18} {row['seconds']:10.5f} {row['refused']}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    main()
