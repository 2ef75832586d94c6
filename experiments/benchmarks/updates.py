"""Seconds per update of every posterior: of many small nets side by side, and of one ResNet-18 beside plain SGD.

    python -m experiments.benchmarks.updates --case one,small  # on the processor
    python -m experiments.benchmarks.updates --device cuda     # plain and by CUDA graphs; a ResNet in bfloat16, too

one: a 13-50-1 net with 10 weight samples (or members), batches of 10. small: 20 replicas of it. resnet: one ResNet-18
for 32x32 images with batch normalisation, batch 128, one weight sample, the preset `image`. A mean over `--updates`
steps has its share of what is renewed as often as that; not of the ResNet's factors, which are every 200th step
(`cost.py` counts them). Medians of `--repeats`. `begun` are the seconds of the first updates, in which recordings are
made.

`off` says how far the outputs of sampled nets are, after three updates of which the second renews everything, from
those in double precision with the same random numbers, of the small nets on the processor, of the ResNet-18 on the same
device: the norm of the difference over that of the outputs. Convolutions of a GPU are in single precision for it; of
the ResNet-18 `TF32` is the same with those that torch takes, and that the seconds are of.

Writes results/updates.csv and .md, or results/updates_gpu.* of a GPU.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.driver import FOLDER, Names, card
from experiments.tables import markdown
from explore import registry
from explore.cli.script import Script
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.execution import graphs
from explore.inference.base import Predictive
from explore.nets import zoo
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp

HERE = Path(__file__).parent
COUNTS = ("samples", "members")  # fields that say how many nets a posterior runs at once
CASES = {  # replicas, examples, the net
    "one": (1, 455, "13-50-1"), "small": (20, 455, "20 replicas of 13-50-1"), "resnet": (1, 50000, "ResNet-18")
}  # fmt: skip
SGD, WHAT = "SGD", ("seconds", "off")
NOISY: dict[str, Any] = {"warm_start": 0.0}  # else some presets would be timed at the mean
RENEWED = NOISY | dict.fromkeys(("statistics_interval", "factor_interval", "basis_interval"), 2)


class Shared(Rng):
    """A stream with the same numbers on every device and in every precision: drawn in double on the processor."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.generator = torch.Generator().manual_seed(self.seed)

    def gamma(self, concentration: Tensor) -> Tensor:
        """As on a processor."""
        place = self.device, self.dtype
        self.device, self.dtype = torch.device("cpu"), torch.float64
        drawn = super().gamma(concentration.cpu().double())
        self.device, self.dtype = place
        return drawn.to(concentration)

    def draw(self, kind: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        return kind(*shape, generator=self.generator, dtype=torch.float64).to(self.device, self.dtype)


def build(name: str, case: str, amp: bool = False, **given: Any) -> Predictive:
    """The posterior of a case; of the settings given it takes those that it has."""
    cls = registry.find("posteriors", name)
    presets = registry.presets(cls)
    preset = "image" if case == "resnet" and "image" in presets else next(iter(presets))
    settings = registry.settings_in(cls, preset)
    for field in dataclasses.fields(cls):
        if field.name in COUNTS:
            settings[field.name] = 1 if case == "resnet" else 10
        elif field.name in given:
            settings[field.name] = given[field.name]
    if case == "resnet":
        return cls(net=Net(zoo.resnet18(), amp=amp), likelihood=Categorical(), **settings)
    return cls(net=Net(mlp(13, [50], 1), amp=amp), likelihood=Gaussian(), **settings)


def batch(case: str, rng: Rng) -> Batch:
    """Random examples."""
    if case == "resnet":
        return Batch(rng.normal(1, 128, 3, 32, 32), (10 * rng.uniform(1, 128)).long())
    replicas = CASES[case][0]
    return Batch(rng.normal(replicas, 10, 13), rng.normal(replicas, 10, 1))


def median(step: Callable[[], Any], device: str, updates: int, repeats: int, warm: int = 3) -> float:
    """Seconds of a step: the median over the repeats of means over some steps, after others to warm up."""
    times = []
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        for _ in range(updates if repeat else warm):
            step()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / updates)
    return statistics.median(times[1:])


def ours(
    name: str, case: str, device: str, updates: int, repeats: int, recorded: bool, amp: bool
) -> tuple[float, float]:
    """Seconds per update of a posterior, and of the first ones."""
    rng, posterior, (replicas, n_data, _) = Rng(0, device), build(name, case, amp, **NOISY), CASES[case]
    with graphs.use(recorded):
        data, update = batch(case, rng), graphs.updates(posterior, rng)
    state = posterior.init(n_data, replicas, rng)

    def step() -> None:
        nonlocal state
        state, _ = update(state, data, 0.5)

    # Each kind of update is recorded when it has come often enough; of the ResNet those that are timed.
    kinds = getattr(posterior, "statistics_interval" if case == "resnet" else "factor_interval", 1) if recorded else 1
    first = kinds * (graphs.AHEAD + graphs.CHECKED + 1)
    begun = first * median(step, device, first, 1, 0)
    return median(step, device, updates, repeats), begun


def sgd(device: str, updates: int, repeats: int, recorded: bool, amp: bool) -> float:
    """Those of a ResNet-18 as torch has it, with momentum."""
    rng, net = Rng(0, device), zoo.resnet18().to(device).train()
    (x,), (y,) = batch("resnet", rng)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()

    if recorded:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(graphs.AHEAD):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            step()
        return median(graph.replay, device, updates, repeats)
    return median(step, device, updates, repeats)


def off(name: str, case: str, device: str) -> float:
    """How far from double precision three updates lead."""
    found = []
    exactly = device if case == "resnet" else "cpu"
    for place, dtype in ((exactly, torch.float64), (device, torch.float32)):
        rng, posterior, (replicas, n_data, _) = Shared(0, place, dtype), build(name, case, **RENEWED), CASES[case]
        data, state = batch(case, rng), posterior.init(n_data, replicas, rng)
        for i in range(3):
            state, _ = posterior.update(state, data, rng, 0.5 + i / 100)
        layers = posterior.sample(state, 4, rng)
        found.append(posterior.net.output(layers, data.x[:, :16]).double().cpu())
    exact, here = found
    return float((here - exact).norm() / exact.norm())


def timed(name: str, case: str, device: str, updates: int, repeats: int) -> dict[str, float]:
    """Seconds per update."""
    if name == SGD:
        kinds = {"seconds": (False, False)}
        if device.startswith("cuda"):
            kinds |= {"recorded": (True, False), "bfloat16": (True, True)}
        return {kind: sgd(device, updates, repeats, *how) for kind, how in kinds.items()}
    found = {"seconds": ours(name, case, device, updates, repeats, recorded=False, amp=False)[0]}
    if device.startswith("cuda"):
        found["recorded"], found["begun"] = ours(name, case, device, updates, repeats, recorded=True, amp=False)
        if case == "resnet":
            found["bfloat16"], _ = ours(name, case, device, updates, repeats, recorded=True, amp=True)
    return found


def compared(name: str, case: str, device: str) -> dict[str, float]:
    """How far from double precision it is."""
    if name == SGD:
        return {}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # else it is switched off
        found = {"off": off(name, case, device)}
    return found | ({"TF32": off(name, case, device)} if case == "resnet" and device.startswith("cuda") else {})


def line(name: str, case: str, device: str, updates: int, repeats: int, what: list[str]) -> dict[str, Any]:
    """What is measured of a posterior, or why it is not."""
    row: dict[str, Any] = {"case": case, "method": name, "refused": ""}
    try:
        row |= timed(name, case, device, updates, repeats) if "seconds" in what else {}
        row |= compared(name, case, device) if "off" in what else {}
    except InputError as error:
        row["refused"] = str(error)
    return row


def table(rows: pd.DataFrame) -> str:
    """A section a case; of the ResNet-18 also how many times the seconds of SGD they are."""
    made = ""
    for case, own in rows.groupby("case", sort=False):
        kinds = [
            column for column in ("seconds", "recorded", "bfloat16") if column in own and own[column].notna().any()
        ]
        offs = [column for column in ("off", "TF32") if column in own and own[column].notna().any()]
        base, lines = own[own.method == SGD], []
        for _, row in own.iterrows():
            cells = [_number(1e3 * row[t], ".3g") for t in kinds]
            cells += [_number(row[t] / base[t].iloc[0], ".2f") for t in kinds] if len(base) else []
            cells += (
                [_number(row.seconds / row.recorded, ".1f"), _number(row.get("begun", math.nan), ".0f")]
                if "recorded" in kinds
                else []
            )
            lines.append([row.method, *cells, *(_number(row[o], ".1e") for o in offs), row.refused])
        heads = ["", *(f"{t.replace('seconds', 'one by one')}, ms" for t in kinds)]
        heads += [f"{t.replace('seconds', 'one by one')} over SGD" for t in kinds] if len(base) else []
        heads += ["times as fast", "begun, s"] if "recorded" in kinds else []
        made += f"## {CASES[str(case)][2]}\n\n{markdown([*heads, *offs, 'refused'], lines)}\n"
    return made


def _number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


@click.command(cls=Script)
@click.option("--device", default="cpu", show_default=True)
@click.option("--case", "cases", type=Names("case", CASES), default=",".join(CASES), show_default=True)
@click.option("--posterior", "names", multiple=True, help="Names; all that are updated step by step by default.")
@click.option("--what", type=Names("measurement", WHAT), default=",".join(WHAT), show_default=True)
@click.option("--updates", default=100, show_default=True, help="Of the small nets; a tenth of it of the ResNet.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True, help="Processor threads.")
@click.option("--out", type=FOLDER, default=HERE / "results", show_default=True)
def main(
    device: str,
    cases: list[str],
    names: tuple[str, ...],
    what: list[str],
    updates: int,
    repeats: int,
    threads: int,
    out: Path,
) -> None:
    """Time every posterior, and write the table."""
    torch.set_num_threads(threads)
    gpu, every = device.startswith("cuda"), names or [n for n in registry.names("posteriors") if n != "hmc"]
    place = card(device) if gpu else f"{threads} processor thread(s)"
    stem = out / f"updates{'_gpu' if gpu else ''}"
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in cases:
        for name in (SGD, *every) if case == "resnet" else every:
            steps = max(1, updates // 10) if case == "resnet" else updates
            rows.append(line(name, case, device, steps, repeats, what))
            click.echo(rows[-1])
            found = pd.DataFrame(rows)  # written each time: a GPU may be lent for minutes only
            found.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.5g")
            made = f"On {place}, torch {torch.__version__}.\n\n{table(found)}"
            stem.with_suffix(".md").write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
