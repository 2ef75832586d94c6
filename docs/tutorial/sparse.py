# %% [markdown]
# # A sparse reward
#
# An agent learns from rewards. If it never sees one, it learns nothing. A bonus for what is new leads it to the first
# reward. This page trains PPO with and without such a bonus. It takes about two minutes.

# %%
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

folder = Path(tempfile.mkdtemp())  # for the run

# %% [markdown]
# ## A deep sea
#
# A diver sinks through a grid of 16 rows, one row at each step, and moves left or right. Only a dive that goes right in
# every row reaches the treasure, which pays 1. Each step to the right costs a little. So what the agent learns first is
# to stay left.
#
# Random actions find the treasure once in 65,536 dives:

# %%
env = gym.make("explore.envs:explore/DeepSea-v0", size=16)
env.action_space.seed(0)
returns = []
for episode in range(1000):
    env.reset(seed=episode)
    rewards, over = [], False
    while not over:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        rewards.append(reward)
        over = terminated or truncated
    returns.append(sum(rewards))
print(f"best return of {len(returns)} random dives: {max(returns):.3f}; possible: 0.99")

# %% [markdown]
# ## With and without a bonus
#
# `--compare none,expected-gain` trains each of five seeds twice. `none` is PPO alone, as in stable-baselines3 but with
# [smaller and steadier steps](../rl.md#algorithms). `expected-gain` adds the information that a Bayesian model of the
# environment expects from a transition.

# %%
command = """
explore rl --compare none,expected-gain --env explore/DeepSea-v0 --env-kwargs size:16 --seeds 5 --timesteps 50000
    --algo ppo --n-envs 16 --algo-param n_steps=128 --name sea
"""
settings = {"cwd": folder, "env": os.environ | {"COLUMNS": "100"}}
run = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings)
print(run.stdout)

# %% [markdown]
# The last lines answer the question. Returns never include the bonus.
#
# ## Learning curves
#
# `results.csv` has a line for each bonus, seed and iteration.

# %%
results = pd.read_csv(folder / "runs" / "rl-sea" / "results.csv")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for bonus, colour in (("none", "tab:grey"), ("expected-gain", "tab:blue")):
    curves = results[results.condition == bonus].pivot(index="timesteps", columns="seed", values="ep_extrinsic_mean")
    left.plot(curves, color=colour, alpha=0.4, linewidth=1)
    left.plot(curves.mean(axis=1), color=colour, linewidth=3, label=bonus)
    print(f"{bonus}: {(curves.tail(5).mean() > 0.5).sum()} of 5 seeds reach the treasure in the end")
left.axhline(0.99, color="black", linestyle=":", label="best possible")
left.set(xlabel="steps", ylabel="return, without the bonus")
left.legend(loc="center left")

paid = results[results.condition == "expected-gain"].pivot(index="timesteps", columns="seed", values="bonus_mean")
paid = paid.replace(0, np.nan)  # nothing is paid before the model has learnt
right.semilogy(paid, color="tab:blue", alpha=0.4, linewidth=1)
right.semilogy(paid.mean(axis=1), color="tab:blue", linewidth=3)
right.set(xlabel="steps", ylabel="mean bonus, before its weight eta")
plt.show()

# %% [markdown]
# Thin lines are seeds, thick lines their means. The bonus fades once the sea is known, and the agent is left with the
# reward of the task.
#
# Does it help on your task? Run the same command with `--env module:YourEnv-v0`. It
# [does not always](../rl.md#does-the-bonus-help). In a script with stable-baselines3, pass a callback:
# `PPO("MlpPolicy", env).learn(40_000, VIMECallback())`, from `explore.vime.sb3`.
#
# Next: [all options of the command](../rl.md), [other bonuses and algorithms](../vime.md), and
# [more sparse tasks](../environments.md).
