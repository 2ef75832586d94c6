"""Gymnasium environments of explore; importing this package registers them, also as vector environments.

`gym.make("explore.envs:explore/SparseMountainCar-v0")` imports the package automatically. Every concrete `Simulation`
class in a file of this package is registered under the name of its class.
"""

import importlib as _importlib
import inspect as _inspect
import pkgutil as _pkgutil

import gymnasium as _gym

from explore.core.errors import InputError as _InputError
from explore.envs.others import OTHERS as _OTHERS
from explore.envs.simulation import Simulation as _Simulation

#: Environment id -> description in one line, of the simulations.
ENVS: dict[str, str] = {}


def _register(cls: type[_Simulation]) -> None:
    if not hasattr(cls, "about"):
        raise _InputError(f'add about = "one line for `explore list envs`" to the simulation {cls.__name__}')
    for prefix, (reward, settings) in cls.variants.items():
        ENVS[f"explore/{prefix}{cls.__name__}-v0"] = f"{cls.about}; {reward}" if reward else cls.about
        _gym.register(
            f"explore/{prefix}{cls.__name__}-v0",
            "explore.envs.environments:SimulationEnv",
            max_episode_steps=cls.time_limit,
            vector_entry_point="explore.envs.environments:SimulationVectorEnv",
            kwargs={"simulation": f"{cls.__module__}:{cls.__name__}", **settings},
        )


for _name in sorted(module.name for module in _pkgutil.iter_modules(__path__, f"{__name__}.")):
    for _cls in vars(_importlib.import_module(_name)).values():
        if _inspect.isclass(_cls) and issubclass(_cls, _Simulation) and not _inspect.isabstract(_cls):
            if _cls.__module__ == _name:
                _register(_cls)
for _id, (_maker, _) in _OTHERS.items():
    _gym.register(_id, f"explore.envs.others:{_maker}", disable_env_checker=True)
#: The same of all environments.
EVERY: dict[str, str] = ENVS | {name: about for name, (_, about) in _OTHERS.items()}
