"""Kronecker factors of layers at several positions against the exact Fisher matrix: expand, reduce and auto.

    python -m experiments.benchmarks.positions

Small nets with three outputs, at random weights and after 400 steps of Adam; the posterior of each layer by itself, of
200 examples and a prior of variance 1. Writes results/positions.csv (a line a layer) and results/positions.md: medians
and largest values of the divergence KL(q || p) a weight, of the Gaussian q with A (x) S from p with the Fisher matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import click
import pandas as pd
import torch
from torch import Tensor, nn

from experiments.driver import FOLDER
from experiments.tables import markdown
from explore import images
from explore.cli.script import Script
from explore.core.rng import Rng
from explore.core.shapes import Taps
from explore.inference.structures.base import sample_gradients
from explore.inference.structures.kronecker import KroneckerRule, WeightSharing, correlation
from explore.nets.net import Net

HERE = Path(__file__).parent
SHARING: tuple[WeightSharing, ...] = get_args(WeightSharing)
N, TOKENS, FEATURES, OUTPUTS = 200, 9, 4, 3
Data = tuple[Tensor, Tensor]


class Shared(nn.Module):
    """Two layers at every token, and what their tokens meet in."""

    def __init__(self, meet: Callable[[Tensor], Tensor], last: nn.Module):
        super().__init__()
        self.first, self.second, self.meet, self.last = nn.Linear(FEATURES, 5), nn.Linear(5, 5), meet, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.meet(torch.relu(self.second(torch.relu(self.first(x))))))


class Attention(nn.Module):
    """One block of attention with residual sums, and the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(FEATURES, 5), nn.Linear(FEATURES, 5), nn.Linear(FEATURES, FEATURES)
        self.into, self.out, self.last = nn.Linear(FEATURES, 5), nn.Linear(5, FEATURES), nn.Linear(FEATURES, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        h = x + torch.softmax(self.query(x) @ self.key(x).mT / 5**0.5, -1) @ self.value(x)
        return self.last((h + self.out(torch.relu(self.into(h)))).mean(1))


def convolutions(channels: int, end: nn.Module) -> nn.Module:
    """Two with pooling between them."""
    first = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), end, nn.Flatten(), nn.LazyLinear(OUTPUTS))


MODELS: dict[str, tuple[Callable[[], nn.Module], bool]] = {  # and whether of images
    "tokens, their mean": (lambda: Shared(lambda h: h.mean(1), nn.Linear(5, OUTPUTS)), False),
    "tokens, their maximum": (lambda: Shared(lambda h: h.amax(1), nn.Linear(5, OUTPUTS)), False),
    "tokens, a dense layer": (lambda: Shared(lambda h: h.flatten(1), nn.Linear(5 * TOKENS, OUTPUTS)), False),
    "attention, the mean of tokens": (Attention, False),
    "convolutions, the mean of pixels": (lambda: convolutions(1, nn.AdaptiveAvgPool2d(1)), True),
    "convolutions, a dense layer": (lambda: convolutions(1, nn.MaxPool2d(2)), True),
}


def data() -> Iterator[tuple[str, bool, Data]]:
    """Tokens that are equal, independent, or in between, and small digits; each with targets."""
    kinds = {"equal": (1.0, 0.0), "mixed": (1.0, 1.0), "independent": (0.0, 1.0)}
    for kind, (shared, apart) in kinds.items():
        x = shared * torch.randn(300, 1, FEATURES) + apart * torch.randn(300, TOKENS, FEATURES)
        target = [x.mean((1, 2)).sin(), (x[..., 0] * x[..., 1]).mean(1), x[..., 2].relu().mean(1)]
        yield f"{kind} tokens", False, (x, torch.stack(target, 1))
    found = images.load("mnist")
    digits = torch.from_numpy(found.x[:300].copy()).to(torch.get_default_dtype()).view(-1, 1, 28, 28)
    x = nn.functional.avg_pool2d(digits, 2)
    y = nn.functional.one_hot(torch.from_numpy(found.y[:300].copy()).long() % OUTPUTS, OUTPUTS)
    yield "digits", True, ((x - x.mean()) / x.std(), y.to(x))


def train(module: nn.Module, x: Tensor, y: Tensor) -> None:
    """By Adam."""
    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(400):
        part = torch.randint(len(x), (64,))
        optimiser.zero_grad()
        (module(x[part]) - y[part]).square().sum(1).mean().backward()
        optimiser.step()


def divergence(fisher: Tensor, other: Tensor) -> float:
    """KL(N(0, (N other + I)^-1) || N(0, (N fisher + I)^-1)) a weight."""
    exact, own = (N * m + torch.eye(len(m)) for m in (fisher, other))
    trace = (exact @ torch.linalg.inv(own)).trace() - len(own)
    return float(trace + torch.logdet(own) - torch.logdet(exact)) / (2 * len(own))


def rows(module: nn.Module, x: Tensor) -> Iterator[dict[str, float]]:
    """Of each layer with several positions: their number, the correlation c, and the divergence of each kind."""
    net, rng = Net(module, trained=True), Rng(0, dtype=torch.get_default_dtype())
    out, pullback = net.forward(net.initial(1, rng, 1), x[None])
    units = [pullback(unit.expand(out.shape)) for unit in torch.eye(OUTPUTS)]
    for layer in range(len(net.shapes)):
        taps = Taps(units[0][layer].inputs, math.sqrt(OUTPUTS) * torch.cat([u[layer].grads for u in units], 1))
        if taps.grads.shape[3] == 1:
            continue
        each = sample_gradients(taps).flatten(3).flatten(0, 2)
        row = {"layer": layer, "positions": taps.grads.shape[3], "c": float(correlation(taps.grads))}
        for sharing in SHARING:
            rule = KroneckerRule(1.0, weight_sharing=sharing)
            moments = rule.observe(rule.init(*taps.shape, 1, rng), taps, 1.0, 1)
            row[sharing] = divergence(each.T @ each / len(each), torch.kron(*(m[0] for m in moments)))
        yield row


@click.command(cls=Script)
@click.option("--out", type=FOLDER, default=HERE / "results")
def main(out: Path) -> None:
    """Measure all, and print the table."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    for kind, of_images, (x, y) in data():
        for name, (build, takes_images) in MODELS.items():
            for trained in (False, True) if takes_images == of_images else ():
                module = build()
                module(x[:2])  # which makes the lazy layer
                if trained:
                    train(module, x, y)
                found += [{"net": name, "data": kind, "trained": trained, **row} for row in rows(module, x)]
    table = pd.DataFrame(found)
    table.to_csv(out / "positions.csv", index=False, float_format="%.4g")
    lines = []
    for _, own in table.groupby(["net", "data"], sort=False):
        values = [f"{own[sharing].median():.3f} ({own[sharing].max():.3g})" for sharing in SHARING]
        lines.append([own.net.iloc[0], own.data.iloc[0], f"{own.c.min():.2f} to {own.c.max():.2f}", *values])
    made = markdown(["net", "data", "c of its layers", *SHARING], lines)
    (out / "positions.md").write_text(made, encoding="utf-8")
    click.echo(made)


if __name__ == "__main__":
    main()
