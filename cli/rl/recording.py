"""What a run folder of `explore rl` keeps, iteration by iteration.

metrics.jsonl and TensorBoard: a series a seed, `<posterior>-seed-<n>`; a step is a step of the environment, all copies
together. results.csv: one line a seed and iteration. models/<series>/<steps>/: the last checkpoint, which is model.pt
(policy, optimisers, counts), bonus.pt (state of the dynamics model and its replay) and replay_buffer.pt (off-policy),
and for users of stable-baselines3 model.zip and vecnormalize.pkl; models/<series>/best-<steps>/: the policy that was
best in an evaluation.
"""

from __future__ import annotations

from explore.cli.parameters import written
from explore.cli.rl.experiment import Experiment
from explore.cli.rl.seeds import Piece, series
from explore.cli.rl.settings import Settings
from explore.runs.record import Run


def write(run: Run, experiment: Experiment, event: Piece | int) -> dict[str, int] | None:
    """Write an event; the steps of the checkpoint that is due, if one is, by series."""
    if isinstance(event, int):
        return None
    own = series(experiment.settings, event.seed)
    if event.begins:
        _begin(run, experiment.settings, event.seed)
    for row in event.events:
        if isinstance(row, dict):
            run.rows("results.csv", [row])
        else:
            run.scalars(own, *row)
    return {series(experiment.settings, seed): position.timesteps for seed, position in experiment.positions.items()}


def _begin(run: Run, settings: Settings, seed: int) -> None:
    """Write the settings of a seed for TensorBoard."""
    nested = {"algo_settings": "algo", "env_kwargs": "env", "vime": "vime"}
    every = written(settings)
    flat = {k: v for k, v in every.items() if k not in nested}
    for key, prefix in nested.items():
        flat |= {f"{prefix}.{k}": v for k, v in (every[key] or {}).items() if k != "posterior_settings"}
    own = (every["vime"] or {}).get("posterior_settings", {})
    flat |= {f"posterior.{k}": v for k, v in own.items()} | {"seed": seed}
    run.hparams(series(settings, seed), flat, ["rollout/ep_extrinsic_mean", "rollout/success"])
