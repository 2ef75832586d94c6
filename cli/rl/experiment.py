"""Seeds of `explore rl`, trained one after the other; what a checkpoint needs of one is in a folder of models.

Stable-baselines3 runs the loop, so that events come out of its callbacks. A folder of a model appears complete, and
older ones go when the run's checkpoint refers to the new one, by the hashes of its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from explore import files
from explore.cli.rl.callbacks import Row
from explore.cli.rl.settings import Settings
from explore.cli.rl.training import Training
from explore.cli.start import file_name
from explore.errors import InputError
from explore.record import Run


class Saved(NamedTuple):
    """A model is in the run folder, and a checkpoint is due."""

    step: int


Log = tuple[int, dict[str, float]]  # a step and values by tag
# A number: steps were taken; a row: an iteration is done; None: a seed begins, or goes on.
Event = Row | Log | Saved | int | None
Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Position:
    """How far a run has come: what its checkpoint holds."""

    done: int = 0  # seeds that are finished
    iteration: int = 0  # of the seed that is not
    timesteps: int = 0
    best: int | None = None  # steps at which the policy was best in an evaluation
    best_return: float | None = None
    digests: dict[str, str] = field(default_factory=dict)  # of the files of the last checkpoint's model

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.done, self.iteration, self.timesteps)):
            raise TypeError("a position in a run is counted in whole numbers")


class Experiment:
    """Seeds, trained one after the other.

    Attributes:
        position: how far training is; the others are those of `explore.cli.run.Experiment`.
    """

    note = ""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        self.settings, self._device = settings, device
        self.position = self._saved = Position(**old.state) if old else Position()
        # Before there is a folder: wrong settings leave none.
        self._training = self._begin(old.folder if old else None)
        self.parts = (settings.env, settings.algo, settings.posterior)
        vime = settings.vime
        bonus = f"{vime['eta']:g} x {vime['bonus']} of {vime['posterior']}" if vime else "no bonus"
        self.plan = f"{settings.algo} on {settings.env} with {bonus} on {device}"
        self.total = settings.seeds * settings.timesteps
        self.done = self.position.done * settings.timesteps + self.position.timesteps

    @property
    def seed(self) -> int:
        """That is trained."""
        return self.settings.seed + self.position.done

    @property
    def doing(self) -> str:
        return f"seed {self.seed}"

    def warnings(self) -> Iterator[str]:
        if self._training and (why := self.settings.unpaid):
            yield f"the bonus will be 0 throughout: {why}."

    def events(self, folder: Path, emit: Emit) -> None:
        while training := self._training:
            emit(None)
            self.done = self.position.done * self.settings.timesteps + self.position.timesteps
            training.learn(
                self.position.iteration, on_step=partial(self._step, emit), on_log=lambda *log: emit(log),
                before_log=partial(self._evaluate, folder, training),
                after_log=partial(self.keep, folder, training, emit),
            )  # fmt: skip
            training.close()
            self._training = self._begin(None)

    def where(self, saved: Mapping[str, Any]) -> str:
        position, s = Position(**saved), self.settings
        if position.done >= s.seeds:
            return "all seeds"
        return f"{position.timesteps} of {s.timesteps} steps of seed {s.seed + position.done}"

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.position)

    def _begin(self, folder: Path | None) -> Training | None:
        """The seed that comes next, from its checkpoint in the run folder if it has one; None: all are done."""
        s, position = self.settings, self.position
        if position.done >= s.seeds:
            return None
        saved = None
        if folder and position.timesteps:
            saved = models(folder, s, self.seed) / str(position.timesteps)
            if not saved.is_dir():
                raise InputError(f"{folder} is damaged: it has no folder {saved.relative_to(folder)}")
            for name, digest in position.digests.items():
                files.check(saved / name, digest)
        training = Training(s, self.seed, self._device, saved)
        if training.model.num_timesteps != position.timesteps:
            raise InputError(f"{saved} is damaged: its policy has taken {training.model.num_timesteps} steps")
        return training

    def _step(self, emit: Emit, steps: int) -> None:
        self.done += steps
        emit(steps)

    def _evaluate(self, folder: Path, training: Training) -> None:
        """Evaluate the policy when it is time, log what it earns, and keep it if it is the best yet."""
        steps, every = training.model.num_timesteps, self.settings.eval_freq
        if not every or steps // every == self.position.timesteps // every:
            return
        mean, length = training.evaluate()
        training.model.logger.record("eval/mean_reward", mean)
        training.model.logger.record("eval/mean_ep_length", length)
        if self.position.best_return is None or mean > self.position.best_return:
            _write(models(folder, self.settings, self.seed) / f"best-{steps}", training.save_policy)
            self.position = replace(self.position, best=steps, best_return=mean)

    def keep(self, folder: Path, training: Training, emit: Emit, row: Row) -> None:
        """Have the results of an iteration written, and save it when it is time for a checkpoint."""
        row, steps = {"seed": self.seed} | row, int(row["timesteps"])
        self.position = replace(self.position, iteration=int(row["iteration"]), timesteps=steps)
        finished = steps >= self.settings.timesteps
        due = finished or self.position.iteration - self._saved.iteration >= self.settings.checkpoint_freq
        emit(row)
        if not due:
            return
        own, kept = models(folder, self.settings, self.seed), {str(steps), f"best-{self.position.best}"}
        _write(own / str(steps), training.save)
        digests = {path.name: files.digest(path) for path in (own / str(steps)).glob("*.pt")}
        done = Position(done=self.position.done + 1)
        self.position = self._saved = done if finished else replace(self.position, digests=digests)
        # The step of a seed that is not begun is 0, so that a restart purges all that it has in TensorBoard.
        emit(Saved(self.position.timesteps))
        for path in own.iterdir():
            if path.name not in kept:
                shutil.rmtree(path)


def series(settings: Settings, seed: int) -> str:
    """The series of a seed."""
    return file_name(settings.posterior, "seed", str(seed))


def models(folder: Path, settings: Settings, seed: int) -> Path:
    """Where the models of a seed are."""
    return folder / "models" / series(settings, seed)


def _write(folder: Path, save: Callable[[Path], None]) -> None:
    """A folder that is there as a whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(folder) as draft:
        draft.mkdir()
        save(draft)
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
