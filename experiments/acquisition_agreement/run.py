"""Whether scores for classes are those of batchbald-redux and baal, on the same sampled probabilities."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from sklearn import datasets

from experiments.driver import FOLDER
from experiments.tables import markdown
from explore import ActiveLearner, Bernoulli, Categorical, Net, mlp, posterior, registry
from explore.acquisitions.base import Choice, Needs, View
from explore.cli.script import Script

PEERS = Path(__file__).with_name("peers.py")
RESULTS = Path(__file__).with_name("results")
LABELS, POINTS = 30, 180  # the others are candidates
SETS = {  # and how many points a batch has: of ten classes batchbald-redux lists the labels of three exactly
    "breast_cancer": (datasets.load_breast_cancer, 8),
    "wine": (datasets.load_wine, 5),
    "digits": (datasets.load_digits, 4),
}


def sampled(name: str, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Probabilities [N, K, C] of the candidates after 30 labels, and what the rules make of them."""
    load, k = SETS[name]
    x, y = load(return_X_y=True)
    some = np.random.default_rng(seed).permutation(len(x))[:POINTS]
    x, y = x[some], y[some]
    classes = len(np.unique(y))
    likelihood = Bernoulli() if classes == 2 else Categorical()
    net = Net(mlp(x.shape[1], [20], 1 if classes == 2 else classes))
    found: dict[str, np.ndarray] = {}

    @Needs(spread=True, targets="classes")
    def look(view: View, _: int) -> Choice:
        outputs = (out for _, out in view.predictor.outputs(view.candidates))
        found["p"] = torch.cat([view.likelihood.mean(out) for out in outputs], 2)[0].movedim(0, 1).numpy()
        for rule in ("information-gain", "entropy", "margin"):
            found[rule] = registry.acquisition(rule).needs.scores(view)[0].numpy()
        choice: Choice = registry.acquisition("batch-bald", label_sets=10**5)(view, k)
        found["batch"], found["gains"] = choice.indices[0].numpy(), choice.scores[0].numpy()
        return choice

    learner = ActiveLearner(
        posterior("noisy-kfac", net, likelihood, "small", epochs=50), x, [look], seed=seed, samples=20,
        standardise="pool", dtype=torch.float64,
    )  # fmt: skip
    learner.tell(range(LABELS), y[:LABELS])
    learner.ask(k)
    return found.pop("p"), found


def answers(python: Path, given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """What the libraries make of arrays, by the names of these."""
    with tempfile.TemporaryDirectory() as folder:
        for name, arrays in given.items():
            np.savez(Path(folder, f"given-{name}.npz"), **arrays)
        subprocess.run([python, PEERS, folder], check=True, env=os.environ | {"TQDM_DISABLE": "1"})
        return {name: dict(np.load(Path(folder, f"answer-{name}.npz"))) for name in given}


def differences(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> list[dict[str, object]]:
    """A row for every score of every library, with the largest absolute difference over candidates."""
    joint = ours["gains"].cumsum()
    pairs = {
        ("batchbald-redux", "BALD"): (ours["information-gain"], theirs["redux/bald"]),
        ("batchbald-redux", "entropy"): (ours["entropy"], theirs["redux/entropy"]),
        ("batchbald-redux", "BatchBALD, exact"): (joint, theirs["redux/batch_information"]),
        ("baal", "BALD"): (ours["information-gain"], theirs["baal/bald"]),
        ("baal", "entropy"): (ours["entropy"], theirs["baal/entropy"]),
        ("baal", "margin"): (1 - ours["margin"], theirs["baal/margin"]),
        ("baal", "BatchBALD, Monte Carlo"): (joint[1:], theirs["baal/information"]),
    }
    same = bool((ours["batch"] == theirs["redux/batch"]).all())
    return [
        {"library": library, "score": score, "largest": np.abs(their).max(), "difference": np.abs(own - their).max(),
         "same batch": same if score == "BatchBALD, exact" else None}
        for (library, score), (own, their) in pairs.items()
    ]  # fmt: skip


@click.command(cls=Script)
@click.option("--python", type=click.Path(exists=True, path_type=Path), required=True, help="Of their environment.")
@click.option("--seeds", type=click.IntRange(1), default=3)
@click.option("--out", type=FOLDER, default=RESULTS)
def main(python: Path, seeds: int, out: Path) -> None:
    """Compare on three sets, after 30 labels each, with noisy K-FAC and 20 samples."""
    cases = {f"{name}-{seed}": sampled(name, seed) for name in SETS for seed in range(seeds)}
    given = {name: {"p": p, "k": len(ours["batch"]), "batch": ours["batch"]} for name, (p, ours) in cases.items()}
    found = answers(python, given)
    rows = pd.DataFrame(
        {"case": name, "candidates": len(p), "batch": len(ours["batch"])} | row
        for name, (p, ours) in cases.items()
        for row in differences(ours, found[name])
    )
    out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(out / "differences.csv", index=False, float_format="%.3g")
    worst = rows.groupby(["library", "score"], sort=False)[["largest", "difference"]].max()
    table = [
        (library, score, f"{largest:.3g}", f"{difference:.1g}")
        for library, score, largest, difference in worst.reset_index().itertuples(index=False)
    ]
    click.echo(markdown(["library", "score", "largest score", "largest difference"], table))
    click.echo(f"batches alike: {(rows['same batch'] == True).sum()} of {len(SETS) * seeds}")  # noqa: E712


if __name__ == "__main__":
    main()
