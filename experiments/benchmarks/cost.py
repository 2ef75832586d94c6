"""What an update of each posterior asks of a GPU, counted without one.

    python -m experiments.benchmarks.cost
    python -m experiments.benchmarks.cost --launch 4e-6 --flops 60e12 --bandwidth 2e12    # another GPU

Operations that are not views, floating-point operations, copies to the device and bytes read and written, on torch's
`meta` device, where any read of a value by the host would raise. An update is counted in a step that neither averages
statistics nor factorises, then in one that averages, and in one that does both, where a posterior has such intervals. A
step takes at least as long as its launches, its arithmetic, or its traffic with the memory; an epoch, over the 455
examples of Boston or 50,000 images, is made of such steps at those intervals. Writes results/cost.csv, which a test
compares with what it counts itself, and results/cost.md.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from torch import nn

from experiments.benchmarks.counting import Cost, measure
from experiments.tables import markdown, sections
from explore import registry
from explore.cli.script import Script
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference.predict import Predictor
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.nets.protocols import Likelihood
from explore.nets.zoo import lenet5, resnet18

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("net", "posterior", "what", *Cost._fields)


class Problem(NamedTuple):
    """A net and what is fed to it."""

    module: Callable[[], nn.Module]
    input: tuple[int, ...]
    likelihood: Likelihood
    replicas: int
    batch: int
    samples: int  # for predictions
    examples: int  # an epoch


class ViT(nn.Module):
    """ViT-tiny of Touvron et al. (2021) for images of 224 pixels: 12 blocks of width 192, with 3 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 192, 16, 16), nn.Linear(192, 1000)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, 192)), nn.Parameter(torch.zeros(1, 197, 192))
        block = partial(nn.TransformerEncoderLayer, 192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks, self.norm = nn.Sequential(*(block() for _ in range(12))), nn.LayerNorm(192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


PROBLEMS = {
    "13-50-1": Problem(lambda: mlp(13, [50], 1), (13,), Gaussian(), 20, 10, 10, 455),
    "LeNet-5": Problem(lenet5, (3, 32, 32), Categorical(), 1, 128, 10, 50_000),
    "ResNet-18": Problem(resnet18, (3, 32, 32), Categorical(), 1, 128, 2, 50_000),
    "ViT-tiny": Problem(ViT, (3, 224, 224), Categorical(), 1, 32, 2, 50_000),
}
"""20 replicas of a net for a table, and images in batches of 128 or 32."""

ONE, PLAIN, POWER, PAPER = {"samples": 1}, {"preset": "plain"}, {"preset": "power"}, {"preset": "paper-image"}
IMAGES: dict[str, dict[str, Any]] = {
    "noisy-kfac": PAPER, "noisy-ekfac": PAPER, "vogn": PAPER | ONE,
    "bbb": PLAIN | ONE, "slang": {"preset": "uci"}, "noisy-adam": PLAIN | ONE, "map": {}, "ensemble": {"members": 1},
    "mc-dropout": {}, "whvi": POWER | ONE,
}  # fmt: skip
TABLE: dict[str, dict[str, Any]] = (
    dict.fromkeys(("noisy-kfac", "noisy-ekfac", "block-tridiagonal"), {"preset": "paper"})
    | {"slang": {"preset": "uci"}, "vogn": PLAIN, "whvi": POWER}
    | dict.fromkeys(
        ("noisy-adam", "full", "bbb", "tensor-factorised", "mc-dropout", "ensemble", "map", "laplace", "mclmc"), PLAIN
    )
    | {"last-layer": PLAIN}
)
TOKENS: dict[str, dict[str, Any]] = {"noisy-kfac": PAPER, "noisy-ekfac": PAPER, "vogn": PAPER | ONE, "map": {}}
POSTERIORS = {"13-50-1": TABLE, "LeNet-5": IMAGES, "ResNet-18": IMAGES, "ViT-tiny": TOKENS}


def counts(name: str, posterior: str) -> Iterator[tuple[str, Cost]]:
    """What an update, samples, the gain and predictions cost."""
    problem = PROBLEMS[name]
    net = Net(problem.module())
    host = Rng(0)
    layers = (*net.glorot(1, host, 1), *net.unit_norms(1, host), *net.initial_points(1, host))
    net.output(layers, host.normal(1, 2, *problem.input))  # what is looked at once for all
    made = registry.posterior(posterior, net, problem.likelihood, **POSTERIORS[name][posterior])
    rng = Rng(0, "meta")
    state = made.init(500, problem.replicas, rng)
    shape = (problem.replicas, problem.batch)
    x = rng.normal(*shape, *problem.input)
    y = torch.empty(shape, dtype=torch.long, device="meta") if problem.likelihood.discrete else rng.normal(*shape, 1)
    batch = Batch(x, y)
    made.update(state, batch, rng)  # what is kept from then on
    for what, step in steps(made).items():
        yield what, measure(partial(made.update, at(state, step), batch, rng))
    yield "sample", measure(lambda: made.joint_sample(state, problem.samples, rng))
    yield "predict", measure(lambda: Predictor.sample(made, state, problem.samples, rng).moments(x))
    if hasattr(made, "gain") and not net.norms:
        yield "gain", measure(lambda: made.gain(state, batch, rng))


def intervals(posterior: Any) -> tuple[int, int]:
    """Steps between averages of statistics, and between factorisations or eigenvectors."""
    averaged, factored = getattr(posterior, "statistics_interval", 1), getattr(posterior, "factor_interval", 1)
    return averaged, getattr(posterior, "basis_interval", factored)


def steps(posterior: Any) -> dict[str, int]:
    """At which step what is done."""
    averaged, factored = intervals(posterior)
    if averaged == factored == 1:
        return {"update": 2}  # the first one of VOGN is at the mean
    return {"update": 1, "update, statistics": averaged, "update, statistics and factors": averaged * factored}


def at(state: State, step: int) -> State:
    """The state before this step."""
    return state._replace(common=state.common._replace(step=torch.tensor(step - 1)))


def rows(nets: list[str]) -> Iterator[tuple[Any, ...]]:
    for name in nets:
        for posterior in POSTERIORS[name]:
            yield from ((name, posterior, what, *cost) for what, cost in counts(name, posterior))


def epoch(name: str, posterior: str, times: dict[str, float]) -> float:
    """The time of an epoch, from those of each kind of step."""
    problem = PROBLEMS[name]
    made = registry.posterior(posterior, Net(problem.module()), problem.likelihood, **POSTERIORS[name][posterior])
    steps, plain = problem.examples / problem.batch, times["update"]
    averaged = times.get("update, statistics", plain)
    every, seldom = intervals(made)
    return steps * (
        plain + (averaged - plain) / every + (times.get("update, statistics and factors", averaged) - averaged) / seldom
    )


@click.command(cls=Script)
@click.option("--launch", default=4e-6, show_default=True, help="Seconds for which an operation keeps the device.")
@click.option("--flops", default=60e12, show_default=True, help="Floating-point operations a second.")
@click.option("--bandwidth", default=2e12, show_default=True, help="Bytes a second between device and its memory.")
def main(launch: float, flops: float, bandwidth: float) -> None:
    """Count everything, and write the tables."""
    found = list(rows(list(PROBLEMS)))
    with (RESULTS / "cost.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *found])
    least = {
        (net, posterior, what): max(operations * launch, count / flops, moved / bandwidth)
        for net, posterior, what, operations, count, _, moved in found
    }
    made = {}
    for net in PROBLEMS:
        lines = []
        for own, posterior, what, operations, count, uploads, moved in found:
            if own == net:
                times = {w: t for (n, p, w), t in least.items() if (n, p) == (net, posterior)}
                whole = f"{epoch(net, posterior, times):.3g}" if what == "update" else ""
                cells = [operations, f"{count / 1e9:.3f}", f"{moved / 1e9:.3f}", uploads, f"{1e3 * times[what]:.2f}"]
                lines.append([posterior, what, *cells, whole])
        heads = ["posterior", "", "operations", "GFLOP", "GB", "uploads", "ms at least", "seconds an epoch at least"]
        made[f"{net}, {PROBLEMS[net].replicas} replicas, batches of {PROBLEMS[net].batch}"] = markdown(heads, lines)
    (RESULTS / "cost.md").write_text(sections(made), encoding="utf-8")
    click.echo(sections(made))


if __name__ == "__main__":
    main()
