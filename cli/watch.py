"""`explore rl --watch RUN`: a trained policy as an animated GIF in its run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from gymnasium.spaces import Discrete
from PIL import Image
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from explore import files
from explore.cli import rl_model, rl_problem, start, trust
from explore.cli import rl_recording as recording
from explore.cli.problem import Settings
from explore.cli.rl_finite import check_finite
from explore.cli.rl_training import reading
from explore.errors import InputError
from explore.record import plain, read_config

STEPS = 1000  # of an episode, at most


def run(options: Mapping[str, Any], chosen: bool) -> None:
    """Show an episode of a policy; the first seed's unless one was chosen.

    Raises:
        InputError: when the folder is no run of `explore rl`, or has no policy of this seed yet.
    """
    folder = Path(options["watch"])
    settings = _settings(folder)
    trust.check(folder, settings, options["trust"])
    with start.reading(folder):
        seed = options["seed"] if chosen else settings["seed"]
        policy = _policy(folder, settings, seed)
        env = rl_problem.environment(settings, render_mode="rgb_array")
        model = _model(settings, env, rl_problem.derived(seed, 0))
    with reading(policy / "model.pt", "model") as saved:
        rl_model.load_policy(model, saved)
    frames, total = _episode(model, env, rl_problem.derived(seed, 0, 2))
    path = folder / f"{recording.series(settings, seed - settings['seed'])}.gif"
    milliseconds = round(1000 / env.metadata.get("render_fps", 30))
    with files.replacing(path) as draft:
        frames[0].save(draft, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
    env.close()
    steps = len(frames) - 1
    if options["as_json"]:
        found = {"policy": str(policy), "seed": seed, "steps": steps, "return": total, "gif": str(path)}
        click.echo(json.dumps(plain(found)))
        return
    if not options["quiet"]:
        click.echo(f"{policy}: return {total:g} in {steps} steps", err=True)
    click.echo(str(path))


def _settings(folder: Path) -> Settings:
    trust.check_links(folder)
    settings: Settings = read_config(folder)["settings"]
    if settings.get("command") != "rl":
        raise InputError(f"{folder} is a run of explore {settings.get('command')}, not of rl")
    return settings


def _policy(folder: Path, settings: Settings, seed: int) -> Path:
    """The folder of the best policy in an evaluation, else of the last one; a run may go on writing newer ones."""
    seeds = range(settings["seed"], settings["seed"] + settings["seeds"])
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}; allowed: {', '.join(map(str, seeds))}")
    models = recording.models(folder, settings, seed - settings["seed"])
    for prefix in ("best-", ""):
        steps = [path.name.removeprefix(prefix) for path in models.glob(f"{prefix}*")]
        if found := [int(name) for name in steps if name.isdecimal()]:
            return models / f"{prefix}{max(found)}"
    raise InputError(f"{folder} has no policy of seed {seed} yet; let it train longer")


def _episode(model: BaseAlgorithm, env: Any, seed: int) -> tuple[list[Image.Image], float]:
    """Pictures of an episode without noise, and its return."""
    scale = model.get_vec_normalize_env()
    observation, _ = env.reset(seed=seed)
    frames, total, ended = [_picture(env)], 0.0, False
    while not ended and len(frames) <= STEPS:
        check_finite(observation, "an observation", env.spec.id)
        seen = scale.normalize_obs(observation) if scale else observation
        action, _ = model.predict(seen, deterministic=True)
        # Some environments look an action up, which an array cannot be.
        taken = int(action) if isinstance(env.action_space, Discrete) else action
        observation, reward, terminated, truncated, _ = env.step(taken)
        total, ended = total + float(reward), terminated or truncated
        frames.append(_picture(env))
    return frames, total


def _model(settings: Settings, env: Any, seed: int) -> BaseAlgorithm:
    """The algorithm for one environment, with next to no memory; its policy is like that of a training."""
    own = settings["algo_settings"]
    less = {"buffer_size": 1} if settings["algo"] == "sac" else {"n_steps": own["n_steps"] * settings["n_envs"]}
    alone: VecEnv = DummyVecEnv([lambda: env])
    if settings["vec_normalize"]:
        alone = rl_problem.normalised(alone)
    return rl_problem.algorithm(settings | {"vime": None, "algo_settings": own | less}, alone, 0, seed, "cpu")


def _picture(env: Any) -> Image.Image:
    pixels = env.render()
    if not isinstance(pixels, np.ndarray):
        raise InputError(f"{env.spec.id} gives no pictures (render_mode rgb_array)")
    return Image.fromarray(pixels).quantize(method=Image.Quantize.FASTOCTREE)  # the default takes five times as long
