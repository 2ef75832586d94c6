"""`explore rl --watch RUN`: an episode of a trained policy as an animated GIF in the run folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from PIL import Image
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from explore.cli import display, start
from explore.cli.rl.environment import check_finite, environment, normalised, refusals
from explore.cli.rl.model import algorithm, derived, load_policy
from explore.cli.rl.settings import OFF_POLICY, Settings
from explore.cli.rl.training import models_folder, reading, series
from explore.core import files
from explore.core.errors import InputError, one_of
from explore.runs.record import plain
from explore.runs.recorded import run_id

STEPS = 1000  # maximum length of the episode
EPISODES = 100  # most episodes of the policy with the first success


def run(options: Mapping[str, Any], chosen: bool) -> None:
    """Write an episode of a trained policy as a GIF. Use the first seed, unless --seed was passed (`chosen`).

    With --first, the policy is the one after the iteration with the first success. It acts at random, as in training,
    until an episode succeeds, for at most `EPISODES` episodes.
    """
    folder = Path(options["watch"])
    with start.reading(folder):
        each = start.settings(Settings, folder, "rl", options["trust"]).each
        name = options["bonus"] or next(reversed(each))
        if name not in each:
            raise one_of("condition of this run", name, each)
        settings = each[name]
        seed = options["seed"] if chosen else settings.seed
        first = options["first"]
        policy = _policy(folder, settings, seed, ("first-",) if first else ("best-", ""))
        env = environment(settings, render_mode="rgb_array")
        model = _model(settings, env, derived(seed, 0))
    with reading(policy / "model.pt", "model", run_id(folder)) as saved:
        load_policy(model, saved)
    for i in range(EPISODES if first else 1):
        frames, total, success = _episode(model, env, derived(seed, 0, 2 + i), not first)
        if success:
            break
    path = folder / f"{series(settings, seed)}{'-first' if first else ''}.gif"
    milliseconds = round(1000 / env.metadata.get("render_fps", 30))
    with files.replacing(path) as draft:
        frames[0].save(draft, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
    env.close()
    steps = len(frames) - 1
    if options["as_json"]:
        episode = {"policy": str(policy), "seed": seed, "steps": steps, "return": total, "success": success}
        display.echo(json.dumps(plain(episode | {"gif": str(path)})))
        return
    if not options["quiet"]:
        display.echo(f"{policy}: return {total:g} in {steps} steps", err=True)
    display.echo(str(path))


def _policy(folder: Path, settings: Settings, seed: int, prefixes: Sequence[str]) -> Path:
    """Return the folder of the latest policy with the first of these prefixes that there is."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}; allowed: {', '.join(map(str, seeds))}")
    models = models_folder(folder, settings, seed)
    for prefix in prefixes:
        names = [path.name.removeprefix(prefix) for path in models.glob(f"{prefix}*")]
        if steps := [int(name) for name in names if name.isdecimal()]:
            return models / f"{prefix}{max(steps)}"
    kind = "policy with a success" if "first-" in prefixes else "policy"
    raise InputError(f"{folder} has no {kind} of seed {seed} yet; let it train longer")


def _episode(model: BaseAlgorithm, env: Any, seed: int, deterministic: bool) -> tuple[list[Image.Image], float, bool]:
    """Run an episode. Return its frames, its return, and whether it succeeded."""
    scale = model.get_vec_normalize_env()
    observation, _ = env.reset(seed=seed)
    frames, total, earned, ended, memory = [_picture(env)], 0.0, False, False, None
    model.set_random_seed(seed)
    while not ended and len(frames) <= STEPS:
        check_finite(observation, "an observation", env.spec.id)
        normalised = scale.normalize_obs(observation) if scale else observation
        action, memory = model.predict(normalised, memory, deterministic=deterministic)
        # Some environments use the action as an index, which must not be an array.
        taken = int(action) if isinstance(env.action_space, Discrete) else action
        observation, reward, terminated, truncated, info = env.step(taken)
        total, earned, ended = total + float(reward), earned or float(reward) > 0, terminated or truncated
        frames.append(_picture(env))
    return frames, total, bool(info.get("is_success", earned))


def _model(settings: Settings, env: Any, seed: int) -> BaseAlgorithm:
    """Construct the algorithm for one environment, with minimal buffers and the trained policy's network shapes."""
    s = settings
    smaller = {"buffer_size": 1} if s.algo in OFF_POLICY else {"n_steps": s.batch}
    one: VecEnv = DummyVecEnv([lambda: env])
    if s.vec_normalize:
        one = normalised(one)
    return algorithm(replace(s, vime=None, algo_settings=dict(s.algo_settings) | smaller), one, 0, seed, "cpu")


def _picture(env: Any) -> Image.Image:
    with refusals(f"cannot render {env.spec.id}"):  # there may be no display
        pixels = env.render()
    if not isinstance(pixels, np.ndarray):
        raise InputError(f"{env.spec.id} does not render images. It must support render_mode rgb_array")
    return Image.fromarray(pixels).quantize(method=Image.Quantize.FASTOCTREE)  # the default takes five times as long
