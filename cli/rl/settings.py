"""Settings of `explore rl` that determine its results."""

import functools
import inspect
import json
import math
import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, TRPO, CrossQ, RecurrentPPO
from stable_baselines3 import A2C, DDPG, DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from explore import registry
from explore.cli import problem
from explore.cli.options import Algorithm
from explore.core.errors import InputError, check_range
from explore.runs.recorded import Values
from explore.vime import IntrinsicReward, RewardSettings
from explore.vime.bonuses import base as bonuses
from explore.vime.sb3 import MaxInfoSAC, SteadyPPO

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "trpo": TRPO, "ppo": SteadyPPO, "ppo_lstm": RecurrentPPO, "a2c": A2C, "sac": SAC, "maxinfo": MaxInfoSAC, "td3": TD3,
    "ddpg": DDPG, "tqc": TQC, "crossq": CrossQ, "dqn": DQN, "qrdqn": QRDQN,
}  # fmt: skip
OFF_POLICY = {name for name, cls in ALGORITHMS.items() if issubclass(cls, OffPolicyAlgorithm)}
# Options that become settings unchanged.
PLAIN = ("env", "algo", "timesteps", "seed", "seeds", "vec_normalize", "eval_freq", "checkpoint_freq")
# Options of the bonus; -p vime.KEY sets its other settings.
BONUS = ("eta", "bonus", "normalise")
# Arguments that are set elsewhere, and a memory layout of the replay buffer that cannot be saved in part.
HIDDEN = {"policy", "env", "seed", "device", "verbose", "tensorboard_log", "optimize_memory_usage"}
POLICY = {"net_arch": tuple[int, ...], "activation": Literal["tanh", "relu", "elu"], "log_std_init": float}
# Allowed ranges. Stable-baselines3 checks few of them, and fails late or never.
RANGES = {
    **dict.fromkeys(("n_steps", "n_epochs", "batch_size", "train_freq", "buffer_size", "cg_max_steps"), "[1, 1e10]"),
    **dict.fromkeys(("gamma", "gae_lambda", "tau"), "[0, 1]"),
    "learning_rate": "[0, 1e10]", "net_arch": "[1, 100000]",
}  # fmt: skip
# Initialisation of the critic's last layer. With zero, the critic predicts 0 until there is a reward, like a baseline
# fitted to returns. With stable-baselines3's orthogonal weights, its noise changes the policy before any reward.
VALUE_INIT = {"value_init": Literal["orthogonal", "zero"]}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings shared by all seeds, with defaults resolved."""

    command: Literal["rl"] = "rl"
    env: str
    env_kwargs: Mapping[str, Any]
    algo: Algorithm
    algo_settings: Values  # arguments of the algorithm, and of its policy
    posterior: str  # or the bonus, if that has no posterior; "none": no bonus
    vime: Mapping[str, Any] | None  # arguments of `IntrinsicReward`; None: no bonus
    timesteps: int  # per seed, all copies of the environment together
    n_envs: int
    seed: int
    seeds: int
    vec_normalize: bool
    eval_freq: int | None
    checkpoint_freq: int
    jobs: int = 1  # number of processes, which train different seeds on the CPU
    batched: bool = False  # whether the policies of the seeds are trained in the same batches, where possible
    conditions: Mapping[str, Any] | None = None  # of a comparison: name -> `vime`; the setting `vime` is then None

    @property
    def each(self) -> dict[str, "Settings"]:
        """The settings of each condition by name; without a comparison, these settings by the posterior's name."""
        if not self.conditions:
            return {self.posterior: self}
        named = self.conditions.items()
        return {name: replace(self, posterior=name, vime=vime, conditions=None) for name, vime in named}

    @property
    def batch(self) -> int:
        """Number of steps between two updates of the policy or, off-policy, of the dynamics model."""
        if self.algo not in OFF_POLICY:
            return int(self.algo_settings["n_steps"] * self.n_envs)  # type: ignore[arg-type, operator]
        return int((self.vime or {"interval": RewardSettings.interval})["interval"])

    @property
    def unpaid(self) -> str | None:
        """The reason why the bonus will always be 0, or None."""
        if not self.vime:
            return None
        trained = math.ceil(self.vime["minimum"] / self.batch) * self.batch
        # On-policy, only batches after this one get a bonus.
        on_policy = math.ceil(self.timesteps / self.batch) * self.batch - 1
        if (self.timesteps if self.algo in OFF_POLICY else on_policy) >= trained:
            return None
        shorter = "-p vime.interval" if self.algo in OFF_POLICY else "--algo-param n_steps"
        return (
            f"the dynamics model starts training after {trained} steps, but --timesteps is {self.timesteps}; raise it "
            f"or lower {shorter}" + (" and -p vime.minimum" if self.vime["minimum"] > self.batch else "")
        )


def resolve(options: Mapping[str, Any]) -> Settings:
    """Return the settings for command-line options."""
    if options["env"] is None:
        raise InputError("--env is missing. Pass a name from `explore list envs`, or another environment of Gymnasium")
    copies = options["n_envs"] or (10 if options["algo"] == "trpo" else 1)
    conditions = _conditions(options)
    vime = None if conditions else _vime(options)
    arguments = problem.split(options["env_kwargs"], [""], "--env-kwargs", ":")[""]
    ppo, batched = options["algo"] == "ppo", options["batched"]
    if batched and not ppo:
        raise InputError(f"--batched is for --algo ppo; {options['algo']} trains one seed after another. Leave it out")
    return Settings(
        **{name: options[name] for name in PLAIN}, n_envs=copies,
        jobs=min(options["jobs"], options["seeds"]),
        batched=ppo and options["seeds"] > 1 if batched is None else batched,
        env_kwargs={key: _json(text) for key, text in arguments.items()},
        algo_settings=_algorithm(options, copies), vime=vime,
        posterior=vime.get("posterior", vime["bonus"]) if vime else "-".join(conditions or ["none"]),
        conditions=conditions,
    )  # fmt: skip


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _algorithm(options: Mapping[str, Any], copies: int) -> Values:
    """Return the arguments of the algorithm and of its policy, with defaults resolved."""
    plain = arguments(ALGORITHMS[options["algo"]])
    allowed = {name: hint for name, (hint, _) in plain.items()} | POLICY
    if options["algo"] not in OFF_POLICY:
        allowed |= VALUE_INIT
    chosen = problem.parse(options["algo_parameters"], {"": allowed}, "--algo-param")[""]
    for name, value in chosen.items():
        for number in value if isinstance(value, tuple) else [value]:
            if type(number) in (int, float):  # not bool
                check_range(f"--algo-param {name}", number, RANGES.get(name, "[-1e10, 1e10]"))
    settings = {name: default for name, (_, default) in plain.items()}
    if options["algo"] == "trpo":  # as in VIME (Houthooft et al. 2016), but with a critic and more damping
        steps = chosen.get("n_steps", 5000 // copies)
        settings |= {
            "n_steps": steps, "batch_size": min(500, steps * copies), "gamma": 0.99, "gae_lambda": 1.0,
            "target_kl": 0.01, "cg_max_steps": 10, "cg_damping": 0.1, "line_search_shrinking_factor": 0.8,
            "line_search_max_iter": 15, "net_arch": (32,), "activation": "tanh", "log_std_init": 0.0,
        }  # fmt: skip
    if options["algo"] in ("ppo", "ppo_lstm"):  # long and noisy steps lose again what they solved
        whole = chosen.get("n_steps", settings["n_steps"]) * copies
        settings |= {"target_kl": 0.01, "batch_size": min(256, whole), "learning_rate": 0.0005, "ent_coef": 0.003}
    off_policy = options["algo"] in OFF_POLICY
    if off_policy and options["posterior"] != "none" and chosen.get("n_steps", 1) != 1:
        raise InputError("--algo-param n_steps is not supported with a bonus. Leave it out, or pass --posterior none")
    if off_policy:  # a buffer larger than the number of steps would waste memory
        settings["buffer_size"] = min(settings["buffer_size"], options["timesteps"])
    return settings | chosen


def arguments(cls: type[BaseAlgorithm]) -> dict[str, tuple[Any, Any]]:
    """Return name -> (type, default) for each argument of `cls` that the command line can set."""
    return {
        name: (hint, parameter.default)
        for name, parameter in inspect.signature(cls).parameters.items()
        if name not in HIDDEN and not name.startswith("_") and (hint := _writable(parameter.annotation)) is not None
    }


def _writable(hint: Any) -> Any:
    """Reduce a type hint to the plain types that the command line can set; return None if there are none."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    plain = [a for a in (typing.get_args(hint) if union else (hint,)) if a in (int, float, bool, str, types.NoneType)]
    return functools.reduce(operator.or_, plain) if {*plain} - {types.NoneType} else None


def _conditions(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of `IntrinsicReward` by the names in --compare, or None if it is not given."""
    if not options["compare"]:
        return None
    names = options["compare"].split(",")
    problem.check_once("--compare", names)
    if options["bonus"] or options["posterior"] == "none":
        raise InputError("--compare names the bonuses. Leave out --bonus, and name none in --compare")
    if options["parameters"] and len(set(names) - {"none"}) > 1:
        raise InputError("-p needs a single bonus. With several in --compare, leave -p out")
    conditions = {}
    for name in names:
        overrides = dict.fromkeys(BONUS) | {"posterior": "none", "parameters": ()}
        if name != "none":
            of_posterior = hasattr(bonuses.find(name).Settings, "posterior")
            overrides = {"bonus": name} | ({} if of_posterior else {"posterior": None})
        conditions[name] = _vime({**options, **overrides})
    if options["posterior"] and not any("posterior" in (vime or {}) for vime in conditions.values()):
        raise InputError("no bonus in --compare has a posterior. Leave --posterior out")
    return conditions


def _vime(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of `IntrinsicReward`, with defaults resolved, or None if there is no bonus."""
    chosen = {name: options[name] for name in BONUS if options[name] is not None}
    if options["posterior"] == "none":
        if chosen or options["parameters"]:
            first = "-p" if options["parameters"] else "--" + next(iter(chosen))
            raise InputError(f"{first} needs a bonus, which --posterior none turns off. Leave {first} out")
        return None
    kind = bonuses.find(chosen.get("bonus", RewardSettings.bonus))
    own, common = registry.settings_of(kind.Settings), registry.settings_of(RewardSettings)
    posterior = options["posterior"] or getattr(kind.Settings, "posterior", None)
    if posterior and not hasattr(kind.Settings, "posterior"):
        raise InputError(f"--bonus {chosen['bonus']} has no posterior. Leave --posterior out")
    vime = {name: hint for name, hint in (common | own).items() if name not in BONUS} | {"encoder": str}
    targets = {"": registry.find("posteriors", posterior) if posterior else own, "vime": vime}
    parsed = problem.parse(options["parameters"], targets)
    if "interval" in parsed["vime"] and options["algo"] not in OFF_POLICY:
        raise InputError(f"-p vime.interval has no effect with {options['algo']}: its batches are rollouts. Omit it")
    further: dict[str, Any] = parsed["vime"]
    encoder = {"encoder": further.pop("encoder")} if "encoder" in further else {}
    plug_in = {"posterior": posterior, "posterior_settings": parsed[""]} if posterior else parsed[""]
    space = spaces.Box(0, 1, (1,))
    reward = IntrinsicReward(space, space, **plug_in, **chosen, **further)
    model = _fields(reward.model_settings)
    if "hidden" in model:
        model["hidden"] = further.get("hidden")  # its default depends on the environment
    whole = _fields(reward.settings) | model | encoder
    return whole | plug_in | ({"posterior_settings": _fields(reward.model.posterior)} if posterior else {})


def _fields(record: Any) -> dict[str, Any]:
    """Return name -> value for the fields that the command line can set; for a mixture, also its members' fields."""
    allowed = registry.settings_of(type(record))
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name in allowed}
    inner = getattr(record, "posterior", None)
    return _fields(inner) | values if is_dataclass(inner) else values
