"""All seeds of `explore rl`, one after the other or several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from explore.cli.problem import place
from explore.cli.rl.seeds import Piece, Position, Seed, in_processes
from explore.cli.rl.settings import Settings
from explore.runs.record import Run


class Experiment:
    """Seeds with their positions.

    Attributes:
        positions: how far each seed is; see also `explore.cli.run.Experiment`.
    """

    note = ""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        self.settings = settings
        seeds = range(settings.seed, settings.seed + settings.seeds)
        self.positions = dict.fromkeys(seeds, Position()) | (_positions(old.state) if old else {})
        self._unfinished = [
            Seed(settings, seed, device, position)
            for seed, position in self.positions.items()
            if position.timesteps < settings.timesteps
        ]
        # Before the folder is made, so that wrong settings leave none.
        self._next = self._unfinished[0].begin(old.folder if old else None) if self._unfinished else None
        self.parts = (settings.env, settings.algo, settings.posterior)
        vime = settings.vime
        bonus = f"{vime['eta']:g} x {vime['bonus']} of {vime['posterior']}" if vime else "no bonus"
        self.plan = f"{settings.algo} on {settings.env} with {bonus} on {place(device, settings.jobs)}"
        self.total = settings.seeds * settings.timesteps
        self.done = self._steps()

    @property
    def doing(self) -> str:
        return f"seed {', '.join(map(str, self._current(self.positions)))}"

    def warnings(self) -> Iterator[str]:
        if self._unfinished and (reason := self.settings.unpaid):
            yield f"the bonus will be 0 throughout: {reason}."

    def events(self, folder: Path, emit: Callable[[Piece | int], None]) -> None:
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
            in_processes(self._unfinished, folder, self.settings.jobs, count)
            return
        for seed in self._unfinished:
            seed.train(self._next or seed.begin(folder), folder, count)
            self._next = None

    def where(self, saved: Mapping[str, Any]) -> str:
        s, positions = self.settings, _positions(saved)
        current = [f"{positions[n].timesteps} of {s.timesteps} steps of seed {n}" for n in self._current(positions)]
        return ", ".join(current) or "all seeds"

    def state_dict(self) -> dict[str, Any]:
        return {"positions": {seed: asdict(position) for seed, position in self.positions.items()}}

    def _steps(self) -> int:
        return sum(min(position.timesteps, self.settings.timesteps) for position in self.positions.values())

    def _current(self, positions: Mapping[int, Position]) -> list[int]:
        """Return the seeds that are trained, or would be next."""
        s = self.settings
        return [seed for seed, position in positions.items() if position.timesteps < s.timesteps][: s.jobs]


def _positions(saved: Mapping[str, Any]) -> dict[int, Position]:
    return {seed: Position(**position) for seed, position in saved["positions"].items()}
