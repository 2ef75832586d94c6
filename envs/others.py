"""Tasks whose physics is that of Gymnasium or MiniGrid, made sparse or seen as numbers or pixels."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import TransformObservation, TransformReward
from PIL import Image

from explore.core.errors import InputError
from explore.envs.simulation import Array

SIDE, POOL = 42, 3  # pixels of a picture's side, and of the squares that `pooled` averages
CODES = 10.0  # the largest code of a MiniGrid cell
TARGET = 5.0  # metres that the half-cheetah has to run

#: Environment id -> its maker and a description in one line.
OTHERS: dict[str, tuple[str, str]] = {
    "explore/SparseAcrobot-v0": ("acrobot", "swing the tip of a double pendulum up; the reward is 1 at the goal only"),
    "explore/SparseHalfCheetah-v0": (
        "half_cheetah", "run forward; the reward is 1 beyond 5 metres (package: gymnasium[mujoco])"
    ),
    "explore/MiniGrid-v0": ("grid", "a task of MiniGrid as a vector, such as task:DoorKey-6x6 (package: minigrid)"),
    "explore/Pixels-v0": ("pixels", "another environment as pictures of 42 x 42 pixels, task:ID"),
}  # fmt: skip


class SparseHalfCheetah(gym.Wrapper[Any, Any, Any, Any]):
    """A half-cheetah whose reward is 1 while its position is beyond `TARGET`, and else 0."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, float(info["x_position"] > TARGET), terminated, truncated, info


def acrobot(**settings: Any) -> gym.Env[Any, Any]:
    """Make Acrobot-v1 with a reward at its goal only, instead of -1 a step."""
    return TransformReward(gym.make("Acrobot-v1", **settings), lambda reward: float(reward) + 1)


def half_cheetah(**settings: Any) -> gym.Env[Any, Any]:
    """Make the SparseHalfCheetah of VIME (Houthooft et al. 2016), episodes of 500 steps."""
    return SparseHalfCheetah(_made("HalfCheetah-v5", "gymnasium[mujoco]", max_episode_steps=500, **settings))


def grid(task: str = "DoorKey-6x6", **settings: Any) -> gym.Env[Any, Any]:
    """Make the latest version of MiniGrid-`task`; observations are the 7 x 7 view's codes / 10, and the direction."""
    try:
        import minigrid  # noqa: F401 (registers its environments)
    except ImportError as error:
        raise InputError("explore/MiniGrid-v0 needs the package minigrid; pip install minigrid") from error
    versions = sorted(name for name in gym.registry if name.startswith(f"MiniGrid-{task}-v"))
    if not versions:
        raise InputError(f"unknown task: MiniGrid has no {task}; one of its tasks is DoorKey-6x6")
    env = gym.make(versions[-1], **settings)
    cells = int(np.prod(env.observation_space["image"].shape))  # type: ignore[index]

    def look(seen: Any) -> Array:
        return np.concatenate([seen["image"].ravel() / CODES, np.eye(4)[seen["direction"]]]).astype(np.float32)

    return TransformObservation(env, look, spaces.Box(0, 1, (cells + 4,), np.float32))


def pixels(task: str = "explore/Chain-v0", render_mode: str | None = None, **settings: Any) -> gym.Env[Any, Any]:
    """Make the environment `task`, whose observations are grey pictures of it, uint8 [42, 42, 1]."""
    if render_mode not in (None, "rgb_array"):
        raise InputError(f"render_mode is {render_mode!r}; explore/Pixels-v0 supports 'rgb_array' only")
    env = _made(task, "the package of that task", render_mode="rgb_array", **settings)

    def look(_: Any) -> Array:
        picture = Image.fromarray(np.asarray(env.render())).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
        return np.asarray(picture)[..., None]

    return TransformObservation(env, look, spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8))


def pooled(pictures: Any) -> Array:
    """Encode pictures [n, 1, 42, 42] for a bonus: means over squares of 3 x 3 pixels, [n, 196] in [0, 1]."""
    n, side = len(pictures), SIDE // POOL
    return np.asarray(pictures, np.float32).reshape(n, side, POOL, side, POOL).mean((2, 4)).reshape(n, -1) / 255


def _made(name: str, package: str, **settings: Any) -> gym.Env[Any, Any]:
    try:
        return gym.make(name, **settings)
    except DependencyNotInstalled as error:
        raise InputError(f"{name} needs {package}; install it") from error
    except gym.error.UnregisteredEnv as error:
        raise InputError(f"unknown task: {error}") from error
