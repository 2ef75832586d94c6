"""Gymnasium environments that come with explore; importing this package registers them.

`gym.make("explore.envs:explore/SparseMountainCar-v0")` imports it by itself. Each has a batched form:
`gym.make_vec("explore/SparseMountainCar-v0", 1024, vectorization_mode="vector_entry_point")`.
"""

import gymnasium as _gym

_SIMULATIONS = {
    "CartPoleSwingup": ("cart_pole:CartPoleSwingup", "swing a pole up on a cart and keep it there"),
    "MountainCar": ("mountain_car:MountainCar", "drive a weak car out of a valley"),
    "DoublePendulum": ("double_pendulum:DoublePendulum", "swing two links up by the joint between them"),
}

#: Identifier -> one line about the environment.
ENVS: dict[str, str] = {}


def _register(name: str, simulation: str, description: str, horizon: int | None = 500, **kwargs: object) -> None:
    ENVS[f"explore/{name}-v0"] = description
    _gym.register(
        f"explore/{name}-v0",
        "explore.envs.single:SimulationEnv",
        max_episode_steps=horizon,
        vector_entry_point="explore.envs.vector:SimulationVectorEnv",
        kwargs={"simulation": f"explore.envs.{simulation}", **kwargs},
    )


for _name, (_simulation, _what) in _SIMULATIONS.items():
    _register(_name, _simulation, f"{_what}; dense reward, as in rllab", sparse=False)
    _register(f"Sparse{_name}", _simulation, f"{_what}; reward only there, as in VIME", sparse=True)
_register("Chain", "chain:Chain", "walk to the far end of a row of states; the best return is known", horizon=None)
