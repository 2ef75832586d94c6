"""The experiment of `explore rl`: the training of all seeds, one by one, together in batches, or in parallel."""

import math
import multiprocessing
import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

import joblib
import torch
from joblib.externals.loky import get_reusable_executor
from joblib.parallel import LokyBackend

from explore.cli.problem import place
from explore.cli.rl.settings import Settings, resolve as resolve
from explore.cli.rl.training import Emit, Piece, Position, Training
from explore.cli.start import WARNING
from explore.core.context import execute, execution
from explore.runs.record import Run
from explore.vime.sb3 import BatchedPPO

Key = tuple[str, int]  # a condition's name and a seed
TOGETHER = 64  # most policies in a batch


class Experiment:
    """The training of all seeds, with their `positions` by condition and seed; see `explore.cli.start.Experiment`."""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        self.settings, self._device = settings, device
        seeds = range(settings.seed, settings.seed + settings.seeds)
        self._each = settings.each
        every = dict.fromkeys(((name, seed) for seed in seeds for name in self._each), Position())
        saved = old.state["positions"] if old else ()
        self.positions = every | {(name, int(seed)): Position(**position) for name, seed, position in saved}
        self._unfinished = [key for key, at in self.positions.items() if at.timesteps < settings.timesteps]
        # Before the run folder is created, so that wrong settings leave no folder.
        self._next = self._begin(self._unfinished[0], old.folder if old else None) if self._unfinished else None
        alone = self._next and settings.batched and BatchedPPO.refusal(self._next.model)  # why, or None
        self.notes = [f"Seeds are trained one after another: {alone}."] if alone else []
        reasons = dict.fromkeys(s.unpaid for s in self._each.values()) if self._unfinished else {}
        self.notes += [f"{WARNING}the bonus will always be 0: {reason}." for reason in reasons if reason]
        most = 1 if alone or not settings.batched else TOGETHER
        size = min(most, math.ceil(len(self._unfinished) / settings.jobs) or 1)  # of groups that are trained together
        self._groups = [self._unfinished[i : i + size] for i in range(0, len(self._unfinished), size)]
        self.parts = (settings.env, settings.algo, settings.posterior)
        bonus = f"each of {', '.join(self._each)}" if settings.conditions else "no bonus"
        if vime := settings.vime:
            model = f" of {settings.posterior}" if "posterior" in vime else ""
            weight = "" if vime["eta"] == "auto" else f"{vime['eta']} x "
            bonus = f"{weight}{vime['bonus']}{model}"
        together = f", {len(self._groups[0])} seeds together" if self._groups and len(self._groups[0]) > 1 else ""
        self.plan = f"{settings.algo} on {settings.env} with {bonus} on {place(device, settings.jobs)}{together}"
        self.unit, self.total = "steps", len(self.positions) * settings.timesteps
        self.done = self._steps()

    def events(self, folder: Path, emit: Emit) -> None:
        def count(event: Piece | int) -> None:
            if isinstance(event, Piece):
                self.positions[event.condition, event.seed] = event.position
                self.done = self._steps()
            else:
                self.done += event
            emit(event)

        if self.settings.jobs > 1 and len(self._groups) > 1:
            if self._next:
                self._next.close()
            self._in_processes(folder, count)
            return
        for first, *rest in self._groups:
            training = self._next or self._begin(first, folder)
            training.train(folder, count, *(self._begin(key, folder) for key in rest))
            self._next = None

    def _begin(self, key: Key, folder: Path | None) -> Training:
        name, seed = key
        return Training.at(self._each[name], seed, self._device, self.positions[key], folder)

    def _in_processes(self, folder: Path, emit: Emit) -> None:
        """Train the groups in parallel joblib processes. This process emits each `Piece` that they finish.

        A seed waits until its piece is written, so that the run's checkpoint never lags behind the saved models.
        """
        threads, record = torch.get_num_threads(), execution().record
        backend, _ = joblib.parallel.get_active_backend()  # of this thread
        host = "localhost" if isinstance(backend, LokyBackend) else socket.gethostname()
        manager = SyncManager((host, 0), ctx=multiprocessing.get_context("spawn"))
        secret = bytes(multiprocessing.current_process().authkey)
        with manager, ThreadPoolExecutor(1) as thread:
            pieces, positions, tasks = manager.Queue(), manager.dict(self.positions), []
            written: dict[Key, Any] = {}  # to each seed, the queue of its group
            for group in self._groups:
                answers = manager.Queue()
                # joblib reuses processes, which keep their initial working directory.
                starts = [(key, self._each[key[0]], key[1], self._device, folder.absolute()) for key in group]
                lines = pickle.dumps((pieces, answers, positions))
                tasks.append(joblib.delayed(_train)(starts, threads, record, secret, lines))
                written |= dict.fromkeys(group, answers)

            def work() -> None:
                try:
                    with joblib.parallel_config(backend):
                        joblib.Parallel(n_jobs=self.settings.jobs)(tasks)
                finally:
                    pieces.put(None)  # no more pieces

            working = thread.submit(work)
            try:
                for piece in iter(pieces.get, None):
                    emit(piece)
                    positions[piece.condition, piece.seed] = piece.position
                    written[piece.condition, piece.seed].put(None)
                working.result()
            except BaseException:
                get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)
                raise

    def state_dict(self) -> dict[str, Any]:
        positions = [(*key, asdict(position)) for key, position in self.positions.items()]
        return {"positions": positions, "done": self._steps()}

    def _steps(self) -> int:
        return sum(min(position.timesteps, self.settings.timesteps) for position in self.positions.values())


def _train(starts: list[Any], threads: int, record: bool | None, secret: bytes, lines: bytes) -> None:
    """Train seeds in a separate process, perhaps on another machine. After each piece, wait for a reply.

    A cluster may call this again after a worker has died; each seed continues where its last written piece ends.
    """
    torch.set_num_threads(threads)
    execute(record=record)
    multiprocessing.current_process().authkey = secret
    pieces, written, positions = pickle.loads(lines)  # proxies, which connect with the secret

    def emit(event: Piece | int) -> None:
        if isinstance(event, Piece):
            pieces.put(event)
            written.get()

    first, *others = (
        Training.at(settings, seed, device, positions[name], folder) for name, settings, seed, device, folder in starts
    )
    first.train(starts[0][-1], emit, *others)
