"""The experiment of `explore rl`: the training of all seeds, one by one or in parallel."""

import multiprocessing
import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import joblib
import torch
from joblib.externals.loky import get_reusable_executor

from explore.cli.problem import place
from explore.cli.rl.settings import Settings
from explore.cli.rl.training import Emit, Piece, Position, Training
from explore.core.context import execute, execution
from explore.runs.record import Run


class Experiment:
    """The training of all seeds; `positions` is the progress of each.

    Implements the protocol `explore.cli.start.Experiment`, which describes the other attributes.
    """

    note = ""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        self.settings, self._device = settings, device
        seeds = range(settings.seed, settings.seed + settings.seeds)
        self.positions = dict.fromkeys(seeds, Position()) | (_positions(old.state) if old else {})
        self._unfinished = [n for n, position in self.positions.items() if position.timesteps < settings.timesteps]
        # Before the run folder is created, so that wrong settings leave no folder.
        self._next = self._begin(self._unfinished[0], old.folder if old else None) if self._unfinished else None
        self.parts = (settings.env, settings.algo, settings.posterior)
        vime = settings.vime
        of = f" of {settings.posterior}" if vime and "posterior" in vime else ""
        bonus = f"{vime['eta']:g} x {vime['bonus']}" + of if vime else "no bonus"
        self.plan = f"{settings.algo} on {settings.env} with {bonus} on {place(device, settings.jobs)}"
        self.total = settings.seeds * settings.timesteps
        self.done = self._steps()

    @property
    def activity(self) -> str:
        return f"seed {', '.join(map(str, self._current(self.positions)))}"

    def warnings(self) -> Iterator[str]:
        if self._unfinished and (reason := self.settings.unpaid):
            yield f"the bonus will always be 0: {reason}."

    def events(self, folder: Path, emit: Emit) -> None:
        def count(event: Piece | int) -> None:
            if isinstance(event, Piece):
                self.positions[event.seed] = event.position
                self.done = self._steps()
            else:
                self.done += event
            emit(event)

        if self.settings.jobs > 1 and len(self._unfinished) > 1:
            if self._next:
                self._next.close()
            self._in_processes(folder, count)
            return
        for seed in self._unfinished:
            (self._next or self._begin(seed, folder)).train(folder, count)
            self._next = None

    def _begin(self, seed: int, folder: Path | None) -> Training:
        return Training.at(self.settings, seed, self._device, self.positions[seed], folder)

    def _in_processes(self, folder: Path, emit: Emit) -> None:
        """Train the seeds in parallel joblib processes. This process emits each `Piece` that they finish.

        A seed waits until its piece is written, so that the run's checkpoint never lags behind the saved models.
        """
        s, threads, record = self.settings, torch.get_num_threads(), execution().record
        with multiprocessing.get_context("spawn").Manager() as manager, ThreadPoolExecutor(1) as thread:
            pieces, written = manager.Queue(), {seed: manager.Queue() for seed in self._unfinished}
            tasks = [
                # joblib reuses processes, which keep their initial working directory.
                joblib.delayed(_train)(
                    (s, seed, self._device, self.positions[seed], folder.absolute()), threads, record, pieces, answers
                )
                for seed, answers in written.items()
            ]
            work = thread.submit(joblib.Parallel(n_jobs=s.jobs), tasks)
            try:
                for piece in _until(work.done, pieces):
                    emit(piece)
                    written[piece.seed].put(None)
                work.result()
            except BaseException:
                get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)
                raise

    def progress(self, saved: Mapping[str, Any]) -> str:
        s, positions = self.settings, _positions(saved)
        current = [f"{positions[n].timesteps} of {s.timesteps} steps of seed {n}" for n in self._current(positions)]
        return ", ".join(current) or "all seeds"

    def state_dict(self) -> dict[str, Any]:
        return {"positions": {seed: asdict(position) for seed, position in self.positions.items()}}

    def _steps(self) -> int:
        return sum(min(position.timesteps, self.settings.timesteps) for position in self.positions.values())

    def _current(self, positions: Mapping[int, Position]) -> list[int]:
        """Return the unfinished seeds that are in training or come next, at most one per job."""
        s = self.settings
        return [seed for seed, position in positions.items() if position.timesteps < s.timesteps][: s.jobs]


def _until(done: Callable[[], bool], pieces: Any) -> Iterator[Piece]:
    """Yield from the queue `pieces` until `done()` is true and the queue is empty."""
    while True:
        last = done()
        try:
            yield pieces.get(timeout=0.5)
        except queue.Empty:
            if last:
                return


def _train(start: tuple[Any, ...], threads: int, record: bool | None, pieces: Any, written: Any) -> None:
    """Train a seed (`Training.at(*start)`) in a separate process. After each piece, wait for a reply in `written`."""
    torch.set_num_threads(threads)
    execute(record=record)

    def emit(event: Piece | int) -> None:
        if isinstance(event, Piece):
            pieces.put(event)
            written.get()

    Training.at(*start).train(start[-1], emit)


def _positions(saved: Mapping[str, Any]) -> dict[int, Position]:
    return {seed: Position(**position) for seed, position in saved["positions"].items()}
