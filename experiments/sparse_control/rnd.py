"""Random network distillation, which has no posterior, in the place of VIME's bonus.

    model.learn(500_000, VIMECallback(RandomNetworkDistillation(env.observation_space, env.action_space)))

Burda, Edwards, Storkey, Klimov: Exploration by Random Network Distillation (2018). A net learns to say of an
observation what a fixed random net says of it, and is wrong where it has seen little:

    r'_t = r_t + eta * i_t / d,   i_t = |f(x) - g(x)|^2
    x: the next observation in standard scores over all that were seen, cut at 5;   g: the fixed net
    d: the standard deviation of i over all that were paid, or over those of the last `window` batches

A batch is scored before it is learnt from, and the first is not paid: it begins the standard scores, as random steps
do in the paper. The paper divides by the deviation of i's discounted sums and has a critic of its own for them, without
ends of episodes; here i joins the reward, as VIME's bonus does. The settings are not tuned.

As a command, `python -m experiments.sparse_control.rnd --env ... --folder ...` trains TRPO with it as `explore rl` does
with a posterior, and leaves results.csv and config.json. An interrupted run leaves nothing.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import deque
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch import Tensor, nn

from explore.cli import rl
from explore.cli.rl.environment import environments
from explore.cli.rl.model import algorithm, derived
from explore.cli.rl.settings import Settings, resolve
from explore.cli.rl.training import Iterations, TimedVIME
from explore.cli.script import Script
from explore.runs import provenance
from explore.runs.recorded import written
from explore.vime import Reward, Transitions
from explore.vime.spaces import Vectors


class RandomNetworkDistillation:
    """A bonus for VIMECallback.

    Args:
        observation_space: of one environment.
        action_space: of one environment.
        eta: weight of the bonus beside the environment's reward.
        seed: root of its random numbers.
        units: of the hidden layers, one of the fixed net and two of the one that learns.
        features: what the fixed net says of an observation.
        lr: of Adam.
        minibatch: observations a step; a batch is gone through once.
        window: batches that the bonus is divided by the deviation of; None: all.

    Attributes:
        metrics: what there is to log about the last batch, by TensorBoard tag.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], *, eta: float = 0.001,
        seed: int = 0, units: int = 64, features: int = 32, lr: float = 0.001, minibatch: int = 50,
        window: int | None = None,
    ):  # fmt: skip
        self.observations, self.actions = Vectors(observation_space, "observations"), Vectors(action_space, "actions")
        self.eta, self._minibatch = eta, minibatch
        self._rng = torch.Generator().manual_seed(seed)
        size = self.observations.size
        self._fixed, self._net = self._made(size, units, features), self._made(size, units, units, features)
        self._optimiser = torch.optim.Adam(self._net.parameters(), lr)
        self._seen, self._level = RunningMeanStd(shape=(size,)), RunningMeanStd()
        self._recent: deque[np.ndarray] | None = None if window is None else deque(maxlen=window)
        self.metrics: dict[str, float] = {}

    def batch(self, transitions: Transitions) -> Reward:
        """The bonus of a whole batch, then learns from it."""
        self._seen.update(transitions.following)
        scores = (transitions.following - self._seen.mean) / np.sqrt(self._seen.var + 1e-8)
        x = torch.from_numpy(scores.clip(-5, 5)).float()
        with torch.no_grad():
            said = self._fixed(x)
            raw = self._error(x, said).double().numpy()
        if not self.metrics:  # the first batch
            raw = np.zeros(len(x))
        else:
            self._level.update(raw)
            if self._recent is not None:
                self._recent.append(raw)
        for rows in torch.randperm(len(x), generator=self._rng).split(self._minibatch):
            self._optimiser.zero_grad()
            self._error(x[rows], said[rows]).mean().backward()
            self._optimiser.step()
        self.metrics = {"vime/bonus_mean": float(raw.mean()), "vime/bonus_median": float(np.median(raw))}
        level = np.concatenate(self._recent).std() if self._recent else self._level.var**0.5
        return Reward(raw, self.eta * raw / level)

    def _error(self, x: Tensor, said: Tensor) -> Tensor:
        error: Tensor = (self._net(x) - said).square().sum(1)
        return error

    def _made(self, *sizes: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layer = nn.Linear(inputs, outputs)
            nn.init.orthogonal_(layer.weight, 2**0.5, generator=self._rng)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.ReLU()]
        return nn.Sequential(*layers[:-1])


def train(settings: Settings, **bonus: Any) -> pd.DataFrame:
    """What results.csv says of each iteration, with the settings and the policy of `explore rl` without a bonus."""
    seed, env = settings.seed, environments(settings, settings.n_envs)
    model = algorithm(settings, env, seed, derived(seed, 0), "cpu")
    timed = TimedVIME(RandomNetworkDistillation(env.observation_space, env.action_space, seed=seed, **bonus))
    rows: list[dict[str, float]] = []
    each = Iterations(settings.batch, 0, None, timed, lambda _: None, lambda: None, rows.append)
    model.set_logger(Logger(None, []))
    model.learn(settings.timesteps, [each, timed], log_interval=None)  # type: ignore[arg-type]
    env.close()
    return pd.DataFrame(rows)


@click.command(cls=Script, context_settings={"ignore_unknown_options": True})
@click.option("--eta", type=float, default=0.001, show_default=True, help="Weight of the bonus.")
@click.option(
    "--window", type=click.IntRange(min=1), help="Batches that it is divided by the deviation of.  [default: all]"
)
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="Must not exist yet.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(eta: float, window: int | None, folder: Path, arguments: tuple[str, ...]) -> None:
    """Train with random network distillation; ARGUMENTS are those of `explore rl` without a bonus."""
    made = rl.command.make_context("rl", ["--posterior", "none", *arguments])
    settings = resolve(made.params)
    command = shlex.join(["python", *sys.argv])
    session = provenance.session(command_line=command, device="cpu", threads=torch.get_num_threads())
    draft = folder.with_name(f".{folder.name}")
    draft.mkdir(parents=True, exist_ok=True)
    config = {"settings": written(settings) | {"eta": eta, "window": window}, "sessions": [session]}
    (draft / "config.json").write_text(json.dumps(config, indent=2))
    train(settings, eta=eta, window=window).to_csv(draft / "results.csv", index=False)
    draft.rename(folder)


if __name__ == "__main__":
    main()
