"""Bayesian logistic regression: SLANG, mean field and full covariance against the exact variational optimum.

    python -m experiments.logistic_regression.run --dataset australian
    python -m experiments.logistic_regression.run --data wine.csv --target colour --prior-precision 1

Mishkin et al.: SLANG (2018), Table 1 and Figure 1, with the posteriors of the library. Every split halves the data at
random; all splits of a method are replicas of one run. Writes, after each method, OUT/NAME.csv (one line a method and
split), OUT/NAME.md (the table, beside the paper's) and OUT/NAME.png (the first split's posteriors).
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import torch
from rich.progress import Progress
from torch import Tensor, nn

from experiments.driver import FOLDER, Names, check
from experiments.logistic_regression import exact, figure
from experiments.tables import markdown, mean_se
from explore import registry
from explore.cli.script import Script
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import flatten, unflatten
from explore.data import Dataset, load, load_table
from explore.learning.fit import fit
from explore.nets.likelihoods import Bernoulli
from explore.nets.net import Net

HERE = Path(__file__).parent
PRIOR_PRECISION = {"australian": 1e-5, "breast-cancer": 1.0}
BIAS_PRECISION = 1e-5
COMMON = {"batch_size": 32, "samples": 12, "lr": 0.05, "decay": 0.51}
FULL = {"preset": "plain", "beta": 0.05, "momentum": 0.0, "lr_decay": 1.0, "adaptive_damping": False}
MEAN_FIELD = {"preset": "plain", "beta2": 0.05, "momentum": 0.0, "damping": 0.0, "kl_start": 1.0}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mf-ef": ("vogn", MEAN_FIELD | {"fisher": "empirical"}),
    "mf-hessian": ("vogn", MEAN_FIELD | {"fisher": "exact"}),
    **{f"slang-{rank}": ("slang", {"preset": "uci", "rank": rank, "beta": 0.05}) for rank in (1, 2, 5, 10)},
    "full-ef": ("full", FULL | {"fisher": "empirical"}),
    "full-hessian": ("full", FULL | {"fisher": "exact"}),
}


class Splits(NamedTuple):
    """Both halves of every split."""

    train: exact.Problem
    test_x: Tensor  # [R, n, W], the constant 1 last
    test_y: Tensor  # [R, n], -1 or 1


def halve(data: Dataset, splits: int, prior_precision: float, seed: int) -> Splits:
    """Random halves; each feature is first scaled to [-1, 1], as the LIBSVM sets are."""
    if len(data.classes) != 2:
        raise InputError(f"{data.name} has {len(data.classes)} classes; logistic regression takes two")
    low, high = data.x.min(0), data.x.max(0)
    if (constant := np.flatnonzero(low == high)).size:
        raise InputError(f"the feature {data.features[constant[0]]} of {data.name} is constant; leave it out")
    x = torch.as_tensor(np.c_[2 * (data.x - low) / (high - low) - 1, np.ones(len(data.x))])
    y = torch.as_tensor(2.0 * data.y - 1)
    order = Rng(seed).stream("split").permutation(splits, len(x))
    half = len(x) // 2
    prior = torch.full((x.shape[1],), prior_precision, dtype=x.dtype)
    prior[-1] = BIAS_PRECISION
    first, rest = order[:, :half], order[:, half:]
    return Splits(exact.Problem(x[first], y[first], prior), x[rest], y[rest])


def train(name: str, problem: exact.Problem, epochs: int, rng: Rng, progress: Progress) -> exact.Normal:
    """What a posterior of the library ends with.

    SLANG has a prior for biases of its own. For the others, features of another height h stand for it: with x' = h x
    and w = h w', the prior N(0, v) of w' is N(0, h^2 v) for w, and their steps are the same in w' as in w.
    """
    posterior, settings = METHODS[name]
    replicas, n, _ = problem.x.shape
    heights = torch.ones_like(problem.prior)
    if posterior == "slang":
        settings = settings | {"bias_prior_variance": 1 / float(problem.prior[-1])}
    else:
        heights = (problem.prior[-1] / problem.prior).sqrt()
    settings = COMMON | settings | {"epochs": epochs, "prior_variance": 1 / float(problem.prior[0] * heights[0] ** 2)}
    x = (heights * problem.x)[..., :-1]
    model = registry.posterior(posterior, Net(nn.Linear(x.shape[2], 1)), Bernoulli(), **settings)
    state = model.init(n, replicas, rng)._replace(mean=(torch.zeros(replicas, len(heights), 1, dtype=rng.dtype),))
    if posterior == "full":  # from N(0, I), as SLANG does; VOGN's first variances are those of the first batch
        fisher = (heights.square() / n).diag().repeat(replicas, 1, 1)
        factor, _ = model.structure.factor(fisher, 1 / (n * model.prior_variance))
        state = state._replace(statistics=fisher, sampling=factor, step_factor=factor)
    task = progress.add_task(name, total=epochs)
    for event in fit(model, x, (problem.y > 0).long(), rng, state=state):
        progress.update(task, completed=event.epoch)
    progress.remove_task(task)
    check(name, event.state)
    mean, precision, scale = model.gaussian(event.state)
    units = unflatten(torch.eye(len(heights), dtype=rng.dtype).expand(replicas, -1, -1), model.coordinates)
    covariance = scale * flatten(precision.solve(units))
    return exact.Normal(heights * flatten(mean), heights[:, None] * heights * covariance)


def scores(q: exact.Normal, best: exact.Normal, splits: Splits) -> dict[str, np.ndarray]:
    """The columns of the table, for each split."""
    found = {
        "elbo": -exact.elbo(q, splits.train) / splits.train.x.shape[1],
        "nll": exact.negative_log_likelihood(q, splits.test_x, splits.test_y),
        "kl": exact.symmetric_kl(q, best),
        "trend": rank_correlation(q, best),
    }
    return {k: v.numpy() for k, v in found.items()}


def rank_correlation(q: exact.Normal, best: exact.Normal) -> Tensor:
    """Spearman's, of the variances: below 0 where they rise as the exact ones fall."""
    ranks = [p.covariance.diagonal(dim1=1, dim2=2).argsort().argsort().double() for p in (q, best)]
    a, b = (r - r.mean(1, keepdim=True) for r in ranks)
    return (a * b).mean(1) / (a.square().mean(1) * b.square().mean(1)).sqrt()


def table(results: pd.DataFrame, name: str) -> str:
    """Means and standard errors over splits, with the paper's numbers in brackets."""
    paper = pd.read_csv(HERE / "paper.csv").query("dataset == @name").set_index("method")
    # The paper leaves half the logarithm of the bias prior's precision out of its bound.
    paper["elbo"] -= 0.5 * math.log(BIAS_PRECISION) / results["n_train"].iloc[0]

    def cell(method: str, rows: pd.DataFrame, column: str, form: str) -> str:
        ours = mean_se(rows[column].round(9), form)
        if method not in paper.index:
            return ours
        theirs = paper.loc[method]
        return f"{ours} [{theirs[column]:{form}} ± {theirs[f'{column}_se']:{form}}]"

    exact_nll = results.query("method == 'exact'").set_index("split")["nll"]
    heads = ["method", "−ELBO/N", "test NLL", "NLL − exact", "symmetric KL", "rank correlation of variances", "wall s",
             "CPU s"]  # fmt: skip
    lines = []
    for method, rows in results.groupby("method", sort=False):
        own = [cell(str(method), rows, *part) for part in (("elbo", ".4f"), ("nll", ".4f"), ("kl", ".4g"))]
        trend, wall, cpu = rows[["trend", "wall", "cpu"]].mean()
        own.insert(2, mean_se(rows.set_index("split")["nll"] - exact_nll, ".4f"))
        lines.append([method, *own, f"{trend:.2f}", f"{wall:.0f}", f"{cpu:.0f}"])
    return markdown(heads, lines)


@click.command(cls=Script)
@click.option("--dataset", default="australian", show_default=True, help="A set of `explore list datasets`.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="A CSV file instead.")
@click.option("--target", metavar="COLUMN", help="Column of FILE with the two classes.")
@click.option("--prior-precision", type=click.FloatRange(min=0, min_open=True), help="[default: the paper's, else 1]")
@click.option("--splits", type=click.IntRange(min=2), default=20, show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), default=10000, show_default=True)
@click.option("--methods", type=Names("method", METHODS), default=",".join(METHODS), help="Beside the exact optima.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--out", type=FOLDER, default=HERE / "results")
def main(
    dataset: str, data: str | None, target: str | None, prior_precision: float | None, splits: int, epochs: int,
    methods: list[str], seed: int, out: Path,
) -> None:  # fmt: skip
    """Run everything and write the table."""
    if (data is None) != (target is None):
        raise InputError("--data FILE and --target COLUMN go together")
    examples = load_table(data, target, task="classification").dataset if data and target else load(dataset)
    prior_precision = prior_precision or PRIOR_PRECISION.get(examples.name, 1.0)
    halves = halve(examples, splits, prior_precision, seed)
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)

    found: dict[str, exact.Normal] = {}
    rows: list[pd.DataFrame] = []
    with Progress() as progress:
        for name in ("exact", "mf-exact", *methods):
            wall, cpu = time.perf_counter(), time.process_time()
            if name.endswith("exact"):
                progress.print(f"{name} ...")
                found[name] = exact.optimum(halves.train, factorised=name == "mf-exact")
                if (worst := float(exact.residual(found[name], halves.train, name == "mf-exact").max())) > 1e-3:
                    raise RuntimeError(f"{name} did not converge: its equations are off by {worst:.1g}")
            else:
                found[name] = train(name, halves.train, epochs, Rng(seed, dtype=torch.float64).stream("fit"), progress)
            seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            columns = {"method": name, "split": range(1, splits + 1)} | scores(found[name], found["exact"], halves)
            rows.append(pd.DataFrame(columns | seconds | {"n_train": halves.train.x.shape[1]}))
            results = pd.concat(rows)
            results.to_csv(out / f"{examples.name}.csv", index=False, float_format="%.6g")
            text = table(results, examples.name)
            (out / f"{examples.name}.md").write_text(text)
            progress.print(text.splitlines()[-1])
    figure.plot(found, [*examples.features, "bias"]).savefig(out / f"{examples.name}.png", dpi=120)


if __name__ == "__main__":
    main()
