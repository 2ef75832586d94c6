"""The training of one seed of `explore rl`: environments, policy and bonus, from checkpoint to checkpoint.

Stable-baselines3 runs the training loop, and its callbacks produce the events. An iteration is a batch of experience
and the updates that follow. Stable-baselines3 logs before the policy update. Here the log is written afterwards, so
that rows and checkpoints always cover complete iterations. Model folders are written atomically. An older model folder
is removed once the run's checkpoint contains the hashes of the new folder.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from explore.cli.rl import model as models
from explore.cli.rl.environment import environments, normalised
from explore.cli.rl.iterations import Iterations, Log, Row, TimedVIME
from explore.cli.rl.model import algorithm, derived
from explore.cli.rl.settings import Settings
from explore.cli.start import file_name
from explore.core import files
from explore.core.errors import InputError
from explore.runs.recorded import run_id
from explore.vime.reward import IntrinsicReward
from explore.vime.sb3 import BatchedPPO, VIMEReplayBuffer

EPISODES = 10  # episodes per evaluation
FORMAT = 1  # format version of checkpoint files


@dataclass(frozen=True)
class Position:
    """The progress of a seed, as saved in the run's checkpoint."""

    iteration: int = 0
    timesteps: int = 0
    best: int | None = None  # timesteps of the policy with the best evaluation
    best_return: float | None = None
    first: int | None = None  # timesteps at the end of the iteration with the first success
    digests: dict[str, str] = field(default_factory=dict)  # hashes of the model files of the last checkpoint
    initial_curvature_share: float = 0.0  # of the dynamics model

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.iteration, self.timesteps)):
            raise TypeError("a seed's position must be integers")


class Piece(NamedTuple):
    """The events of a seed since its last checkpoint. The seed's model is saved, so the run's checkpoint is now due."""

    condition: str  # its name in `Settings.each`
    seed: int
    begins: bool  # whether this is the first piece since the seed was started or resumed
    events: list[Row | tuple[int, dict[str, float]]]  # rows of results.csv, and (step, values by tag) for the log
    position: Position


Emit = Callable[[Piece | int], None]  # an int: number of new environment steps


class Training:
    """The training of one seed, from scratch or from checkpoint files. All random numbers derive from the seed."""

    def __init__(self, settings: Settings, seed: int, device: str, folder: Path | None = None, run: str = ""):
        self._settings, self.seed, self.position = settings, seed, Position()
        self._saved, self._begins, self._events = self.position, True, list[Any]()
        env = environments(settings, settings.n_envs)
        if settings.vec_normalize:
            env = normalised(env)
        self.model = algorithm(settings, env, seed, derived(seed, 0), device)
        self.bonus: IntrinsicReward | None = None  # with its dynamics model
        self._timed: TimedVIME | None = None
        buffer = getattr(self.model, "replay_buffer", None)
        if isinstance(buffer, VIMEReplayBuffer):
            self.bonus = buffer.bonus
        elif settings.vime:
            vec_env = cast(VecEnv, self.model.get_env())  # which moves the channels of images first
            keywords = {"seed": seed, "device": device, **settings.vime}
            self.bonus = IntrinsicReward(vec_env.observation_space, vec_env.action_space, **keywords)
            self._timed = TimedVIME(self.bonus)
        if folder:
            self._load(folder, run)

    @classmethod
    def at(cls, settings: Settings, seed: int, device: str, position: Position, folder: Path | None) -> Self:
        """Start a training or, if `position` has timesteps, resume from the run folder after checking file hashes."""
        saved = None
        if folder and position.timesteps:
            saved = models_folder(folder, settings, seed) / str(position.timesteps)
            for name, digest in position.digests.items():
                files.check(saved / name, digest)
        training = cls(settings, seed, device, saved, run_id(folder) if folder else "")
        if training.model.num_timesteps != position.timesteps:
            raise InputError(
                f"{saved} is damaged: its policy was trained for {training.model.num_timesteps} steps, "
                f"but the run recorded {position.timesteps}"
            )
        training.position = training._saved = position
        return training

    def train(self, folder: Path, emit: Emit, *others: Self) -> None:
        """Train to the end. Write models into the run folder. Call `emit` with pieces and numbers of new steps.

        With `others`, whose settings differ only in seed and bonus, the policies learn in the same batches.
        """
        every = (self, *others)
        callbacks = [training._recording(folder, emit, len(every)) for training in every]
        if others:
            models = [cast(PPO, training.model) for training in every]
            BatchedPPO(models, [training.seed for training in every]).learn(self._settings.timesteps, callbacks)
        else:
            self.learn(callbacks[0])
        for training in every:
            training.close()

    def close(self) -> None:
        cast(VecEnv, self.model.get_env()).close()

    def learn(self, callbacks: list[BaseCallback]) -> None:
        steps = self._settings.timesteps - self.model.num_timesteps
        self.model.learn(steps, callbacks, log_interval=None, reset_num_timesteps=False)  # type: ignore[arg-type]

    def callbacks(self, on_log: Callable[..., None], **events: Any) -> list[BaseCallback]:
        """Return the callbacks of the training; `events` are arguments of `Iterations`."""
        self.model.set_logger(Log(on_log))
        each = Iterations(self._settings.batch, self.position.iteration, self.bonus, self._timed, **events)
        return [each, *([self._timed] if self._timed else [])]

    def _recording(self, folder: Path, emit: Emit, together: int) -> list[BaseCallback]:
        return self.callbacks(
            lambda *log: self._events.append(log), on_step=emit, before_log=lambda: self._evaluate(folder),
            after_log=lambda row: self._record(folder, emit, row), together=together,
        )  # fmt: skip

    def _evaluate(self, folder: Path) -> None:
        """Evaluate the policy if an evaluation is due. Save a policy that is the best so far."""
        steps, every = self.model.num_timesteps, self._settings.eval_freq
        if not every or steps // every == self.position.timesteps // every:
            return
        mean, length = self.evaluate()
        self.model.logger.record("eval/mean_reward", mean)
        self.model.logger.record("eval/mean_ep_length", length)
        if self.position.best_return is None or mean > self.position.best_return:
            _write(folder, models_folder(folder, self._settings, self.seed) / f"best-{steps}", self.save_policy)
            self.position = replace(self.position, best=steps, best_return=mean)

    def _record(self, folder: Path, emit: Emit, row: Row) -> None:
        """Record an iteration's results, and save the model when a checkpoint is due."""
        s, steps, folders = self._settings, int(row["timesteps"]), models_folder(folder, self._settings, self.seed)
        self._events.append({"seed": self.seed} | row)
        self.position = replace(self.position, iteration=int(row["iteration"]), timesteps=steps)
        if self.bonus and (share := self.bonus.metrics.get("vime/initial_curvature_share")) is not None:
            self.position = replace(self.position, initial_curvature_share=share)
        if self.position.first is None and float(row["success"]) > 0:
            _write(folder, folders / f"first-{steps}", self.save_policy)
            self.position = replace(self.position, first=steps)
        if steps < s.timesteps and self.position.iteration - self._saved.iteration < s.checkpoint_freq:
            return
        _write(folder, folders / str(steps), self.save)
        digests = {path.name: files.digest(path) for path in (folders / str(steps)).glob("*.pt")}
        self.position = self._saved = replace(self.position, digests=digests)
        emit(Piece(s.posterior, self.seed, self._begins, self._events, self.position))
        self._begins, self._events = False, []
        for path in folders.iterdir():
            if path.name not in (str(steps), f"best-{self.position.best}", f"first-{self.position.first}"):
                shutil.rmtree(path)

    def evaluate(self) -> tuple[float, float]:
        """Return mean return (without bonus) and mean length of episodes with deterministic actions and fixed seeds."""
        env = environments(self._settings, min(EPISODES, self._settings.n_envs))
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            env = VecNormalize(env, training=False, norm_reward=False)
            env.obs_rms = normalise.obs_rms
        env.seed(derived(self.seed, 0, 1))
        returns, lengths = evaluate_policy(self.model, env, EPISODES, return_episode_rewards=True)
        env.close()
        return float(np.mean(returns)), float(np.mean(lengths))

    def save_policy(self, folder: Path, run: str = "") -> None:
        """Save the algorithm's state as model.pt with run id `run`, and again in the format of stable-baselines3."""
        files.save(folder / "model.pt", "model", FORMAT, models.state_dict(self.model), run)
        self.model.save(folder / "model.zip")
        normalise = self.model.get_vec_normalize_env()
        if normalise is not None:
            normalise.save(str(folder / "vecnormalize.pkl"))

    def save(self, folder: Path, run: str = "") -> None:
        """Save all files needed to resume into `folder`, with the run id `run`."""
        self.save_policy(folder, run)
        if self.bonus is not None:
            files.save(folder / "bonus.pt", "bonus", FORMAT, self.bonus.state_dict(), run)
        if isinstance(self.model, OffPolicyAlgorithm):
            buffer = cast(ReplayBuffer, self.model.replay_buffer)
            files.save(folder / "replay_buffer.pt", "replay buffer", FORMAT, models.replay(buffer), run)

    def _load(self, folder: Path, run: str) -> None:
        with reading(folder / "model.pt", "model", run) as saved:
            models.load_state_dict(self.model, saved)
        # The initial seed would repeat the same noise and episodes.
        self.model.set_random_seed(derived(self.seed, self.model.num_timesteps))
        if self.bonus is not None:
            with reading(folder / "bonus.pt", "bonus", run) as saved:
                self.bonus.load_state_dict(saved)
        if isinstance(self.model, OffPolicyAlgorithm):
            with reading(folder / "replay_buffer.pt", "replay buffer", run) as saved:
                models.load_replay(cast(ReplayBuffer, self.model.replay_buffer), saved)


@contextmanager
def reading(path: Path, kind: str, run: str) -> Iterator[Any]:
    """Yield the content of a file that `save` wrote with run id `run`. Re-raise errors in the block as InputError."""
    content = files.load(path, kind, FORMAT, run)
    try:
        yield content
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = reason.partition("\n")[0][:300]
        raise InputError(f"{path} does not belong to this run: {reason}") from error


def series(settings: Settings, seed: int) -> str:
    """Return the name of a seed's series in metrics.jsonl, TensorBoard and the models folder."""
    return file_name(settings.posterior, "seed", str(seed))


def models_folder(folder: Path, settings: Settings, seed: int) -> Path:
    """Return the folder with the models of a seed."""
    return folder / "models" / series(settings, seed)


def _write(folder: Path, model: Path, save: Callable[[Path, str], None]) -> None:
    """Write the folder `model` atomically, by calling `save` with a draft folder and the run id."""
    model.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(model) as draft:
        draft.mkdir()
        save(draft, run_id(folder))
        shutil.rmtree(model, ignore_errors=True)  # left by a process that was killed
