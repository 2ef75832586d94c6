"""The run folder: what a command leaves behind, and how an interrupted one continues.

    config.json      settings: all that decides the numbers; sessions: command line, versions, device of each start
    metrics.jsonl    one line a series and step: {"series": ..., "step": ..., tag: number, ...}, as in TensorBoard
    results.csv      results in full; the columns are the command's
    selected.csv     what was chosen, and in which order; the columns are the command's
    checkpoint.pt    tensors and plain values: where to continue
    tensorboard/     one sub-folder a series, all with the same tags, so that TensorBoard lays them over each other

A folder appears complete or not at all, and a checkpoint replaces the one before it in one step. It counts the bytes
of every table: what was written after it, a torn last line included, is cut off when the run is opened again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import BaseFileLock, FileLock, Timeout
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

import explore
from explore.errors import InputError

TABLES = ("metrics.jsonl", "results.csv", "selected.csv")
FORMAT = 1


class Run:
    """A run folder that is open for writing; made by `create` or `open`, closed by `with` or `close`.

    Attributes:
        folder: where it is.
        config: what config.json holds.
        state: what the checkpoint held when the run was opened.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        state: Mapping[str, Any],
        purge_step: int | None,
        lock: BaseFileLock | None = None,
    ):
        self.folder, self.config, self.state, self._lock = folder, config, state, lock
        self._purge_step = purge_step
        self._writers: dict[str, SummaryWriter] = {}

    @classmethod
    def create(
        cls, folder: Path, settings: Mapping[str, Any], state: Mapping[str, Any], session: Mapping[str, Any]
    ) -> Run:
        """A new folder with its first checkpoint.

        Args:
            folder: must not exist, or be empty.
            settings: all that decides the numbers; what JSON can hold.
            state: tensors and plain values to start from.
            session: what to record about this start, from `session`.

        Raises:
            InputError: when the folder exists or cannot be written.
        """
        config = {"settings": dict(settings), "sessions": [dict(session)]}
        draft = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            draft.mkdir(parents=True)
            for name in TABLES:
                (draft / name).touch()
            _replace(draft / "config.json", _json(config))
            cls(draft, config, state, None).checkpoint(state, step=0)
            draft.rename(folder)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            reason = "it exists already" if folder.exists() else error.strerror
            raise InputError(f"cannot create the run folder {folder}: {reason}") from error
        return cls(folder, config, state, None, _lock(folder))

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Continue after the last checkpoint; `state` is what it holds.

        Raises:
            InputError: when the folder is missing, damaged, put together from several runs, or in use.
        """
        config = _read_config(folder)
        lock = _lock(folder)
        saved = _read_checkpoint(folder, config)
        for name, size in saved["sizes"].items():
            path = folder / name
            found = path.stat().st_size if path.is_file() else -1
            if found < size:
                what = f"has {found} bytes" if found >= 0 else "is missing"
                raise InputError(f"{path} is damaged: it {what}, but the checkpoint counts {size} bytes")
        for name, size in saved["sizes"].items():
            os.truncate(folder / name, size)
        return cls(folder, config, saved["state"], saved["step"] + 1, lock)

    def resumed(self, session: Mapping[str, Any]) -> None:
        """Record another start, described by `session`."""
        self.config["sessions"].append(dict(session))
        _replace(self.folder / "config.json", _json(self.config))

    def scalars(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a series at a step (number of labels, of environment steps), by tag."""
        self._append("metrics.jsonl", json.dumps(plain({"series": series, "step": step, **values})) + "\n")
        for tag, value in values.items():
            self._writer(series).add_scalar(tag, value, step)

    def hparams(
        self,
        series: str,
        settings: Mapping[str, Any],
        metrics: Sequence[str],
        columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Settings of a series for TensorBoard's HPARAMS tab, with the tags to show beside them.

        `columns` are the settings of all series together, if these differ: TensorBoard reads the columns of its table
        from a single series.
        """
        file = self._writer(series).file_writer
        assert file is not None
        tags = dict.fromkeys(metrics, 0.0)
        # Not add_hparams: it writes to a sub-run of its own, away from the series' scalars.
        table, _, _ = hparams(_simple(columns or settings), tags)
        _, start, end = hparams(_simple(settings), tags)
        for summary in (table, start, end):
            file.add_summary(summary)

    def image(self, series: str, step: int, tag: str, pixels: np.ndarray) -> None:
        """A picture of a series for TensorBoard's IMAGES tab: uint8 [height, width, 3 or 4]."""
        self._writer(series).add_image(tag, pixels, step, dataformats="HWC")

    def rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows with the same keys to results.csv or selected.csv."""
        if not rows:
            return
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        if (self.folder / table).stat().st_size == 0:
            writer.writeheader()
        writer.writerows(rows)
        self._append(table, text.getvalue())

    def checkpoint(self, state: Mapping[str, Any], step: int) -> None:
        """Everything up to and with this step is done; `state` is where to continue."""
        for writer in self._writers.values():
            writer.flush()
        saved = {
            "format": FORMAT,
            "settings": _digest(self.config["settings"]),
            "step": step,
            "sizes": {name: (self.folder / name).stat().st_size for name in TABLES},
            "state": dict(state),
        }
        content = io.BytesIO()
        torch.save(saved, content)
        _replace(self.folder / "checkpoint.pt", content.getvalue())

    def close(self) -> None:
        """Close the TensorBoard files and let others use the folder."""
        for writer in self._writers.values():
            writer.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, table: str, text: str) -> None:
        with open(self.folder / table, "a", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a checkpoint must not count bytes that a power cut could take away

    def _writer(self, series: str) -> SummaryWriter:
        if series not in self._writers:
            path = self.folder / "tensorboard" / series
            # Files are read in the order of their names, which tell the second of their making; and only events
            # of files read before are purged. So a run that is resumed at once waits for the next second.
            made = [int(file.name.split(".")[3]) for file in path.glob("events.out.tfevents.*")]
            time.sleep(min(1.0, max(0.0, max(made, default=0) + 1 - time.time())))
            self._writers[series] = SummaryWriter(str(path), purge_step=self._purge_step)
        return self._writers[series]


def session(**facts: Any) -> dict[str, Any]:
    """What to record about a start: time, command line, versions, git state, and the given facts."""
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command_line": shlex.join(["explore", *sys.argv[1:]]),
        "versions": {
            "explore": explore.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "git": _git(),
        **facts,
    }


def plain(value: Any) -> Any:
    """The value with None for every number that is not finite, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _simple(settings: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    return {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in settings.items()}


def _git() -> dict[str, Any] | None:
    """Commit, and whether files differ from it; None where the package is not in a checkout of its own."""
    here = Path(explore.__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # a virtual environment may lie in any checkout
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise InputError(f"there is no run folder {folder}")
    if not path.is_file():
        raise InputError(f"{folder} is no run folder, or is damaged: it has no config.json")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not (isinstance(config["settings"], dict) and isinstance(config["sessions"][-1], dict)):
            raise ValueError("settings or sessions are no records")
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return config


def _read_checkpoint(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / "checkpoint.pt"
    if not path.is_file():
        raise InputError(f"{folder} is damaged: it has no checkpoint.pt")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes make of the reader, the file is what is wrong
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{path} is damaged: {reason or type(error).__name__}") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise InputError(f"{path} is not a checkpoint that this version of explore reads")
    if saved["settings"] != _digest(config["settings"]):
        raise InputError(f"{path} does not belong to {folder / 'config.json'}: the settings differ")
    return saved


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _lock(folder: Path) -> BaseFileLock:
    """Held until released, or until the process ends in whatever way: two writers would ruin the tables."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{folder} is being written by another process") from None
    except OSError as error:
        raise InputError(f"cannot write to the run folder {folder}: {error.strerror}") from error
    return lock


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that at any moment there is the old one or the new one."""
    draft = path.with_name(f".{path.name}.tmp")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
