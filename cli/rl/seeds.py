"""The seeds of `explore rl`, each from checkpoint to checkpoint, in this process or in several.

Stable-baselines3 runs the loop, so that events come from its callbacks. The folder of a model appears complete, and
older ones are removed when the run's checkpoint has the hashes of the new one.
"""

from __future__ import annotations

import multiprocessing
import queue
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import torch
from joblib.externals.loky import get_reusable_executor

from explore.cli.rl.callbacks import Row
from explore.cli.rl.settings import Settings
from explore.cli.rl.training import Training
from explore.cli.start import file_name
from explore.core import files
from explore.core.context import execute, execution
from explore.core.errors import InputError
from explore.runs.recorded import run_id

Log = tuple[int, dict[str, float]]  # a step and values by tag


@dataclass(frozen=True)
class Position:
    """The progress of a seed in the run's checkpoint."""

    iteration: int = 0
    timesteps: int = 0
    best: int | None = None  # steps at which the policy was best in an evaluation
    best_return: float | None = None
    digests: dict[str, str] = field(default_factory=dict)  # of the model files of the last checkpoint
    initial_curvature_share: float = 0.0  # of the dynamics model

    def __post_init__(self) -> None:
        if not all(type(n) is int and n >= 0 for n in (self.iteration, self.timesteps)):
            raise TypeError("a seed's position must be integers")


class Piece(NamedTuple):
    """The events of a seed since its last checkpoint; its model is in the run folder, and a checkpoint is due."""

    seed: int
    begins: bool  # whether it is the first one of this start
    events: list[Row | Log]
    position: Position


Emit = Callable[[Piece | int], None]  # an int: new steps of the environment


class Seed:
    """A seed of a run, the root of all its random numbers, with its position."""

    def __init__(self, settings: Settings, seed: int, device: str, position: Position):
        self.seed, self.position = seed, position
        self._settings, self._device, self._begins = settings, device, True
        self._saved, self._events = position, list[Row | Log]()

    def begin(self, folder: Path | None) -> Training:
        """Start the training, or continue it from its checkpoint in the run folder, which is checked."""
        position, saved = self.position, None
        if folder and position.timesteps:
            saved = models(folder, self._settings, self.seed) / str(position.timesteps)
            if not saved.is_dir():
                raise InputError(f"{folder} is damaged: it has no folder {saved.relative_to(folder)}")
            for name, digest in position.digests.items():
                files.check(saved / name, digest)
        run = run_id(folder) if folder else ""
        training = Training(self._settings, self.seed, self._device, saved, run)
        if training.model.num_timesteps != position.timesteps:
            raise InputError(f"{saved} is damaged: its policy has taken {training.model.num_timesteps} steps")
        return training

    def train(self, training: Training, folder: Path, emit: Emit) -> None:
        """Train to the end."""
        training.learn(
            self.position.iteration, on_step=emit, on_log=lambda *log: self._events.append(log),
            before_log=lambda: self._evaluate(folder, training),
            after_log=lambda row: self._save(folder, training, emit, row),
        )  # fmt: skip
        training.close()

    def _evaluate(self, folder: Path, training: Training) -> None:
        """Evaluate the policy when it is time, and save it if it is the best yet."""
        steps, every = training.model.num_timesteps, self._settings.eval_freq
        if not every or steps // every == self.position.timesteps // every:
            return
        mean, length = training.evaluate()
        training.model.logger.record("eval/mean_reward", mean)
        training.model.logger.record("eval/mean_ep_length", length)
        if self.position.best_return is None or mean > self.position.best_return:
            _write(folder, models(folder, self._settings, self.seed) / f"best-{steps}", training.save_policy)
            self.position = replace(self.position, best=steps, best_return=mean)

    def _save(self, folder: Path, training: Training, emit: Emit, row: Row) -> None:
        """Record an iteration's results, and save the model when a checkpoint is due."""
        s, steps = self._settings, int(row["timesteps"])
        self._events.append({"seed": self.seed} | row)
        self.position = replace(self.position, iteration=int(row["iteration"]), timesteps=steps)
        if training.bonus and (share := training.bonus.metrics.get("vime/initial_curvature_share")) is not None:
            self.position = replace(self.position, initial_curvature_share=share)
        if steps < s.timesteps and self.position.iteration - self._saved.iteration < s.checkpoint_freq:
            return
        place = models(folder, s, self.seed)
        _write(folder, place / str(steps), training.save)
        digests = {path.name: files.digest(path) for path in (place / str(steps)).glob("*.pt")}
        self.position = self._saved = replace(self.position, digests=digests)
        emit(Piece(self.seed, self._begins, self._events, self.position))
        self._begins, self._events = False, []
        for path in place.iterdir():
            if path.name not in (str(steps), f"best-{self.position.best}"):
                shutil.rmtree(path)


def in_processes(seeds: Sequence[Seed], folder: Path, jobs: int, emit: Emit) -> None:
    """Train seeds at the same time, each in a process of joblib's; this process emits their pieces.

    A seed waits until its piece is written, so that a checkpoint is never behind the folder of models.
    """
    with multiprocessing.get_context("spawn").Manager() as manager, ThreadPoolExecutor(1) as thread:
        pieces, written = manager.Queue(), {seed.seed: manager.Queue() for seed in seeds}
        tasks = [
            # joblib reuses processes, which stay in the working folder of their start.
            joblib.delayed(_train)(
                seed, folder.absolute(), torch.get_num_threads(), execution().record, pieces, written[seed.seed]
            )
            for seed in seeds
        ]
        work = thread.submit(joblib.Parallel(n_jobs=jobs), tasks)
        try:
            for piece in _until(work.done, pieces):
                emit(piece)
                written[piece.seed].put(None)
            work.result()
        except BaseException:
            get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)
            raise


def _until(done: Callable[[], bool], pieces: Any) -> Iterator[Piece]:
    """Yield pieces until all seeds are done and the queue is empty."""
    while True:
        last = done()
        try:
            yield pieces.get(timeout=0.5)
        except queue.Empty:
            if last:
                return


def _train(seed: Seed, folder: Path, threads: int, recorded: bool | None, pieces: Any, written: Any) -> None:
    """Train a seed in a process of its own."""
    torch.set_num_threads(threads)
    execute(record=recorded)

    def emit(event: Piece | int) -> None:
        if isinstance(event, Piece):
            pieces.put(event)
            written.get()

    seed.train(seed.begin(folder), folder, emit)


def series(settings: Settings, seed: int) -> str:
    """Return the series of a seed."""
    return file_name(settings.posterior, "seed", str(seed))


def models(folder: Path, settings: Settings, seed: int) -> Path:
    """Return the folder with the models of a seed."""
    return folder / "models" / series(settings, seed)


def _write(folder: Path, place: Path, save: Callable[[Path, str], None]) -> None:
    """Write the folder of a model, at a place in a run folder; it appears complete or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(place) as draft:
        draft.mkdir()
        save(draft, run_id(folder))
        shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
