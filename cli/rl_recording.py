"""What a run folder of `explore rl` keeps, iteration by iteration.

metrics.jsonl and TensorBoard: a series a seed, `<posterior>-seed-<n>`; a step is a step of the environment, all copies
together. results.csv: one line a seed and iteration. models/<series>/<steps>/: the last checkpoint, which is model.pt
(policy, optimisers, counts), bonus.pt (state of the dynamics model and its replay) and replay_buffer.pt (off-policy),
and for users of stable-baselines3 model.zip and vecnormalize.pkl; models/<series>/best-<steps>/: the policy that was
best in an evaluation.

A folder of a model appears complete, and older ones go when the run's checkpoint refers to the new one, by the hashes
of its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from explore import files
from explore.cli.problem import Settings
from explore.cli.rl_callbacks import Row
from explore.cli.rl_training import Training
from explore.cli.start import file_name
from explore.record import Run


@dataclass(frozen=True)
class Position:
    """How far a run has come: what its checkpoint holds."""

    done: int = 0  # seeds that are finished
    iteration: int = 0  # of the seed that is not
    timesteps: int = 0
    best: int | None = None  # steps at which the policy was best in an evaluation
    best_return: float | None = None
    digests: dict[str, str] = field(default_factory=dict)  # of the files of the last checkpoint's model

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> Position:
        """From a `state`.

        Raises:
            TypeError: when it is none.
        """
        found = cls(**saved)
        if not all(type(n) is int and n >= 0 for n in (found.done, found.iteration, found.timesteps)):
            raise TypeError("a position in a run is counted in whole numbers")
        return found

    def state(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def series(settings: Settings, index: int) -> str:
    """The series of the seed that is trained as number `index`."""
    return file_name(settings["posterior"], "seed", str(settings["seed"] + index))


def models(folder: Path, settings: Settings, index: int) -> Path:
    """Where the models of a seed are."""
    return folder / "models" / series(settings, index)


def begin(run: Run, settings: Settings, index: int) -> None:
    """Write the settings of a seed for TensorBoard."""
    nested = {"algo_settings": "algo", "env_kwargs": "env", "vime": "vime"}
    flat = {k: v for k, v in settings.items() if k not in nested}
    for key, prefix in nested.items():
        flat |= {f"{prefix}.{k}": v for k, v in (settings[key] or {}).items() if k != "posterior_settings"}
    own = (settings["vime"] or {}).get("posterior_settings", {})
    flat |= {f"posterior.{k}": v for k, v in own.items()} | {"seed": settings["seed"] + index}
    run.hparams(series(settings, index), flat, ["rollout/ep_extrinsic_mean", "rollout/success"])


class Recorder:
    """Evaluates and keeps what a seed does.

    Args:
        run: where to.
        settings: of the run.
        training: of the seed.
        position: where it begins.

    Attributes:
        position: how far training is.
        saved: how far the last checkpoint is.
    """

    def __init__(self, run: Run, settings: Settings, training: Training, position: Position):
        self._run, self._settings, self._training = run, settings, training
        self._models = models(run.folder, settings, position.done)
        self.position = self.saved = position

    def evaluate(self) -> None:
        """Evaluate the policy when it is time, log what it earns, and keep it if it is the best yet."""
        steps, every = self._training.model.num_timesteps, self._settings["eval_freq"]
        if not every or steps // every == self.position.timesteps // every:
            return
        mean, length = self._training.evaluate()
        self._training.model.logger.record("eval/mean_reward", mean)
        self._training.model.logger.record("eval/mean_ep_length", length)
        if self.position.best_return is None or mean > self.position.best_return:
            _write(self._models / f"best-{steps}", self._training.save_policy)
            self.position = replace(self.position, best=steps, best_return=mean)

    def keep(self, row: Row) -> None:
        """Write the results of an iteration, and a checkpoint when it is time."""
        s, index = self._settings, self.position.done
        self._run.rows("results.csv", [{"seed": s["seed"] + index} | row])
        self.position = replace(self.position, iteration=int(row["iteration"]), timesteps=int(row["timesteps"]))
        finished = self.position.timesteps >= s["timesteps"]
        if not finished and self.position.iteration - self.saved.iteration < s["checkpoint_freq"]:
            return
        folder = self._models / str(self.position.timesteps)
        _write(folder, self._training.save)
        digests = {path.name: files.digest(path) for path in folder.glob("*.pt")}
        self.position = replace(self.position, digests=digests)
        kept = {str(self.position.timesteps), f"best-{self.position.best}"}
        if finished:
            self.position = Position(done=index + 1)
        # The step of a seed that is not begun is 0, so that a restart purges all that it has in TensorBoard.
        self._run.checkpoint(self.position.state(), self.position.timesteps)
        self.saved = self.position
        for path in self._models.iterdir():
            if path.name not in kept:
                shutil.rmtree(path)


def _write(folder: Path, save: Callable[[Path], None]) -> None:
    """A folder that is there as a whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(folder) as draft:
        draft.mkdir()
        save(draft)
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
