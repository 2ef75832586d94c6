"""How far the eigenvalues of noisy EK-FAC are from the exact ones, with and without restarts.

    python -m experiments.hmc_correlation.eigenvalues

The exact ones, in the posterior's own basis, are E[(Q_A^T dW Q_S)^2] over its weights (100 samples), the labelled
points and the model's targets (in closed form). Measured just before a restart halfway, where omega decays, and at the
end; for the fits of run.py, and for the default settings on as many points of Boston as a standard split has. Writes
results/eigenvalues.md: |r - exact| / |exact| over all layers, and in brackets |r - exact| / (exact + gamma), the
relative error of the posterior's precision, in the mean over all directions; both in the mean over trials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch

import explore
from experiments.driver import FOLDER
from experiments.hmc_correlation.run import HIDDEN, LABELLED, SETTINGS, task
from experiments.tables import markdown
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference.structures.base import mean_squares, rotate
from explore.inference.updates import steps
from explore.inference.updates.steps import train_pass
from explore.learning.fit import fit
from explore.posteriors.noisy_ekfac import NoisyEKFAC

HERE = Path(__file__).parent
VARIANTS: dict[str, dict[str, Any]] = {
    "no restarts, the first basis kept": {"basis_interval": 10**9},
    "no restarts": {},
    "restarts every 50 steps": {"reset_interval": 50},
}


def errors(posterior: NoisyEKFAC, state: State, batch: Batch, rng: Rng) -> list[float]:
    """Both measures of r as it is in the posterior, then of K-FAC's eigenvalues in the same basis."""
    _, precision, scale = posterior.gaussian(state)
    weights, gamma = posterior.sample(state, 100, rng), scale / posterior.prior_variance
    noise = posterior.likelihood.sample_noise(state.common.noise, 100, rng)
    seen = train_pass(posterior, state, weights, noise, batch)
    taps = steps.fisher_taps("exact", posterior.likelihood, seen, rng)
    exact, ours, kfac = [], [], []
    for block, q, t in zip(precision.blocks, state.statistics, taps, strict=True):  # type: ignore[attr-defined]
        exact.append(mean_squares(rotate(t, block.inputs, block.outputs)).flatten(1))
        ours.append(block.precision.flatten(1) - gamma)
        kfac.append(posterior.structure.rule.restart(q).scale.flatten(1))
    right = torch.cat(exact, 1)
    found = []
    for r in (torch.cat(ours, 1), torch.cat(kfac, 1)):
        found.append(float(((r - right).norm(dim=1) / right.norm(dim=1)).mean()))
        found.append(float(((r - right).abs() / (right + gamma)).mean()))
    return found


@click.command()
@click.option("--seed", default=1, show_default=True)
@click.option("--out", default=HERE / "results", type=FOLDER, help="Default: results/ here.")
def main(seed: int, out: Path) -> None:
    """Fit every variant of both problems, and write the table."""
    rows = []
    for labelled, hidden, trials, settings in (
        (LABELLED, HIDDEN, 10, SETTINGS["noisy-ekfac"]),
        (455, 50, 3, {"epochs": 200}),
    ):
        problem = task("boston", trials, 1, seed, labelled)
        net = explore.Net(explore.mlp(problem.x.shape[2], [hidden], 1))
        for name, own in VARIANTS.items():
            posterior = explore.posterior("noisy-ekfac", net, explore.Gaussian(), **settings | own)
            found = [
                errors(posterior, e.state, Batch(problem.x, problem.y), Rng(seed).stream("test", e.epoch))
                for e in fit(posterior, problem.x, problem.y, Rng(seed).stream("fit"))
                if e.epoch in (posterior.epochs // 2, posterior.epochs)
            ]
            cells = [f"{e[i]:.3f} ({e[i + 1]:.3f})" for i in (0, 2) for e in found]
            rows.append([f"{labelled} points, {name}", *cells])
            print(*rows[-1], flush=True)
    text = markdown(["", "halfway", "at the end", "K-FAC's, halfway", "at the end"], rows)
    (out / "eigenvalues.md").write_text(text)


if __name__ == "__main__":
    main()
