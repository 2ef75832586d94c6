"""Time and memory of the Walsh-Hadamard transform, and of nets built on it, over the width D.

    pip install fht-cpu==1.0.1
    python -m experiments.benchmarks.hadamard

One process and one thread; medians of calls that go round all methods. On a CPU it is processor time that counts, as
the machine may be shared. Each call gets a batch of 128 vectors of single precision.

* transform: `explore.core.hadamard`, a dense product, and the package fht-cpu (out of place, and without the division
  by sqrt(D)). On a GPU: the transform, a copy, a dense product, in single precision and bfloat16.
* layer: D -> D with one weight sample, drawn anew: WHVI, and a factorised Gaussian.
* net: a forward pass of 16 -> D -> D -> 1, weights drawn anew, for WHVI, Bayes by Backprop and MC dropout (compare
  figure 5 of Rossi et al. 2020).

Peak memory is what a call needs beyond what it found allocated: on a CPU by the kernel's high-water mark, which small
calls do not move. Dense layers stop at D = 4096, before they need gigabytes. Writes results/hadamard.csv and .md.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
import pandas as pd
import torch

from experiments.driver import FOLDER
from experiments.tables import markdown, sections
from explore.core.hadamard import hadamard
from explore.core.rng import Rng
from explore.inference.base import Predictive
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.bbb import BBB
from explore.posteriors.mc_dropout import MCDropout
from explore.posteriors.whvi import WHVI

HERE = Path(__file__).parent
BATCH, DENSE_LAYERS = 128, 2**12
Calls = dict[str, Callable[[], object]]


def matrix(d: int, like: torch.Tensor) -> torch.Tensor:
    return hadamard(torch.eye(d, dtype=like.dtype, device=like.device))


def transforms(d: int, device: str) -> Calls:
    if device == "cuda":
        calls: Calls = {}
        for suffix, dtype in (("", torch.float32), (" bf16", torch.bfloat16)):
            x = torch.randn(2**26 // d, d, device=device, dtype=dtype)  # 128 MiB or more: beyond the caches
            own: Calls = {"explore": partial(hadamard, x), "copy": x.clone, "dense": partial(torch.mm, x, matrix(d, x))}
            calls |= {f"{name}{suffix}": call for name, call in own.items()}
        return calls
    x = torch.randn(BATCH, d)
    h = matrix(d, x)
    calls = {"dense": lambda: x @ h, "explore": lambda: hadamard(x)}
    if find_spec("fht_cpu"):
        from fht_cpu import fht

        calls["fht-cpu"] = lambda: fht(x.numpy(), inplace=False, num_threads=torch.get_num_threads())
    return calls


def forward_passes(
    posteriors: Mapping[str, type[Predictive]], net: Net, inputs: int, device: str, **settings: object
) -> Calls:
    """A draw of the weights and a forward pass, for each posterior."""

    def call(cls: type[Predictive]) -> Callable[[], object]:
        own = settings if cls is WHVI else {}
        posterior, rng = cls(net=net, likelihood=Gaussian(), **own), Rng(0, device)  # type: ignore[arg-type]
        state = posterior.init(1000, 1, rng)
        x = torch.randn(1, BATCH, inputs, device=device)
        return lambda: net.output(posterior.sample(state, 1, rng), x)

    return {name: call(cls) for name, cls in posteriors.items()}


def layers(d: int, device: str) -> Calls:
    posteriors = {"whvi": WHVI} | ({"bbb": BBB} if d <= DENSE_LAYERS else {})
    return forward_passes(posteriors, Net(mlp(d, [], d)), d, device, last_layer="whvi")


def nets(d: int, device: str) -> Calls:
    posteriors: dict[str, type[Predictive]] = {"whvi": WHVI}
    posteriors |= {"bbb": BBB, "mc-dropout": MCDropout} if d <= DENSE_LAYERS else {}
    return forward_passes(posteriors, Net(mlp(16, [d, d], 1)), 16, device)


def seconds(calls: Calls, device: str, budget: float) -> dict[str, float]:
    """The median time of each call: they take turns of 6 calls, the first not counted, for `budget` seconds each."""
    clock = time.perf_counter if device == "cuda" else time.thread_time
    found: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget * len(calls)
    while time.perf_counter() < end or not all(found.values()):
        for name, call in calls.items():
            for _ in range(6):
                if device == "cuda":
                    torch.cuda.synchronize()
                start = clock()
                call()
                if device == "cuda":
                    torch.cuda.synchronize()
                found[name].append(clock() - start)
            del found[name][-6]
    return {name: statistics.median(times) for name, times in found.items()}


def peak_mib(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def status(field: str) -> int:
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
        return int(line.split()[1])

    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = status("VmRSS")
    call()
    return (status("VmHWM") - before) / 1024


@click.command()
@click.option("--bits", nargs=2, type=click.IntRange(0, 16), help="The powers of two.  [6 14; on a GPU 6 15]")
@click.option("--budget", default=1.0, show_default=True, help="Seconds for each method and D.")
@click.option("--out", default=HERE / "results", type=FOLDER, show_default=True)
def main(bits: tuple[int, int] | None, budget: float, out: Path) -> None:
    """Measure and write both files."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    low, high = bits or (6, 14 if device == "cpu" else 15)
    rows = []
    with torch.no_grad():
        for what, make in (("transform", transforms), ("layer", layers), ("net", nets)):
            for d in (2**k for k in range(low, high + 1)):
                calls = make(d, device)
                for name, value in seconds(calls, device, budget).items():
                    memory = peak_mib(calls[name], device)
                    rows.append({"what": what, "D": d, "method": name, "ms": value * 1e3, "peak_mib": memory})
                    print(f"{what} {d} {name}: {value * 1e3:.3f} ms, {memory:.1f} MiB", flush=True)
    table = pd.DataFrame(rows)
    out.mkdir(exist_ok=True)
    name = "hadamard" if device == "cpu" else "hadamard_gpu"
    table.to_csv(out / f"{name}.csv", index=False, float_format="%.4g")
    tables = {}
    for measured, part in table.groupby("what", sort=False):
        for column, unit in (("ms", "milliseconds"), ("peak_mib", "peak MiB")):
            wide = part.pivot(index="D", columns="method", values=column)[part["method"].unique()]
            lines = ([d, *("" if pd.isna(v) else f"{v:.3g}" for v in row)] for d, *row in wide.itertuples())
            tables[f"{measured}, {unit}"] = markdown(["D", *wide], lines)
    command = f"<!-- python -m experiments.benchmarks.hadamard on {device}, torch {torch.__version__} -->"
    (out / f"{name}.md").write_text(f"{command}\n\n{sections(tables)}")


if __name__ == "__main__":
    main()
