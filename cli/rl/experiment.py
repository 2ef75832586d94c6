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
    """Seeds, each with a position of its own.

    Attributes:
        positions: how far each seed is, by seed; the others are those of `explore.cli.run.Experiment`.
    """

    note = ""

    def __init__(self, settings: Settings, device: str, old: Run | None = None):
        self.settings, self._device = settings, device
        seeds = range(settings.seed, settings.seed + settings.seeds)
        self.positions = dict.fromkeys(seeds, Position()) | (_positions(old.state) if old else {})
        self._left = [
            Seed(settings, seed, device, position)
            for seed, position in self.positions.items()
            if position.timesteps < settings.timesteps
        ]
        # Before there is a folder: wrong settings leave none.
        self._next = self._left[0].begin(old.folder if old else None) if self._left else None
        self.parts = (settings.env, settings.algo, settings.posterior)
        vime = settings.vime
        bonus = f"{vime['eta']:g} x {vime['bonus']} of {vime['posterior']}" if vime else "no bonus"
        self.plan = f"{settings.algo} on {settings.env} with {bonus} on {place(device, settings.jobs)}"
        self.total = settings.seeds * settings.timesteps
        self.done = self._steps()

    @property
    def doing(self) -> str:
        return f"seed {', '.join(map(str, _current(self.settings, self.positions)))}"

    def warnings(self) -> Iterator[str]:
        if self._left and (why := self.settings.unpaid):
            yield f"the bonus will be 0 throughout: {why}."

    def events(self, folder: Path, emit: Callable[[Piece | int], None]) -> None:
        def tell(event: Piece | int) -> None:
            if isinstance(event, Piece):
                self.positions[event.seed] = event.position
                self.done = self._steps()
            else:
                self.done += event
            emit(event)

        if self.settings.jobs > 1 and len(self._left) > 1:
            if self._next:
                self._next.close()
            in_processes(self._left, folder, self.settings.jobs, tell)
            return
        for seed in self._left:
            seed.train(self._next or seed.begin(folder), folder, tell)
            self._next = None

    def where(self, saved: Mapping[str, Any]) -> str:
        s, positions = self.settings, _positions(saved)
        if not (current := _current(s, positions)):
            return "all seeds"
        first, *others = (f"{positions[seed].timesteps} of {s.timesteps} steps of seed {seed}" for seed in current)
        return ", ".join([first, *others])

    def state_dict(self) -> dict[str, Any]:
        return {"positions": {seed: asdict(position) for seed, position in self.positions.items()}}

    def _steps(self) -> int:
        return sum(min(position.timesteps, self.settings.timesteps) for position in self.positions.values())


def _positions(saved: Mapping[str, Any]) -> dict[int, Position]:
    return {seed: Position(**position) for seed, position in saved["positions"].items()}


def _current(settings: Settings, positions: Mapping[int, Position]) -> list[int]:
    """Seeds that are trained, or would be next."""
    left = [seed for seed, position in positions.items() if position.timesteps < settings.timesteps]
    return left[: settings.jobs]
