"""The files of a run of `explore rl`, written iteration by iteration.

metrics.jsonl and TensorBoard: a series a seed, `<posterior>-seed-<n>`; a step is a step of the environment, all copies
together. results.csv: a row a seed and iteration. models/<series>/<steps>/: the last checkpoint, which is model.pt
(policy, optimisers, counts), bonus.pt (state of the dynamics model and its replay) and replay_buffer.pt (off-policy),
and for users of stable-baselines3 model.zip and vecnormalize.pkl; models/<series>/best-<steps>/: the policy that was
best in an evaluation.
"""

from __future__ import annotations

from explore.cli.rl.experiment import Experiment
from explore.cli.rl.training import Piece, series
from explore.runs.record import Run
from explore.runs.recorded import flat


def write(run: Run, experiment: Experiment, event: Piece | int) -> dict[str, int] | None:
    """Write an event; return the steps of the checkpoint that is due, if one is, by series."""
    if isinstance(event, int):
        return None
    s = experiment.settings
    name = series(s, event.seed)
    if event.begins:
        settings = flat(s, {"algo_settings": "algo", "env_kwargs": "env", "vime": "vime"}) | {"seed": event.seed}
        posterior = settings.pop("vime.posterior_settings", {})
        settings |= {f"posterior.{key}": value for key, value in posterior.items()}
        run.hparams(name, settings, ["rollout/ep_extrinsic_mean", "rollout/success"])
    for row in event.events:
        if isinstance(row, dict):
            run.rows("results.csv", [row])
        else:
            run.scalars(name, *row)
    return {series(s, seed): position.timesteps for seed, position in experiment.positions.items()}
