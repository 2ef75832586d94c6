"""The run folder: what a command leaves behind, and how an interrupted one continues.

    config.json      settings: all that decides the numbers; sessions: command line, versions, device of each start
    metrics.jsonl    one line a series and step: {"series": ..., "step": ..., tag: number, ...}, as in TensorBoard
    results.csv      results in full; the columns are the command's
    selected.csv     what was chosen, and in which order; the columns are the command's
    checkpoint.pt    tensors and plain values: where to continue
    tensorboard/     one sub-folder a series, all with the same tags, so that TensorBoard lays them over each other

A table is there from its first line on. A folder appears complete or not at all, and a checkpoint replaces the one
before it in one step. It has the size and the hash of every table: what was written after it, a torn last line
included, is cut off when the run is opened again, and a table whose earlier bytes have changed is refused, as are
settings, sessions and checkpoints that are not as they were written.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import BaseFileLock, FileLock, Timeout
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from explore import files
from explore.errors import InputError

TABLES = ("metrics.jsonl", "results.csv", "selected.csv")
FORMAT = 2  # of config.json and checkpoint.pt


class FolderExists(InputError):
    """There is something where a run folder was to be."""


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
        self._tables: dict[str, Prefix] = {}  # up to the last checkpoint

    @classmethod
    def create(
        cls, folder: Path, settings: Mapping[str, Any], state: Mapping[str, Any], session: Mapping[str, Any]
    ) -> Run:
        """A new folder with its first checkpoint.

        Args:
            folder: must not exist, or be empty.
            settings: all that decides the numbers; what JSON can hold.
            state: tensors and plain values to start from.
            session: what to record about this start, from `provenance.session`.

        Raises:
            FolderExists: when there is something else at its place.
            InputError: when it cannot be written.
        """
        if os.path.exists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            raise FolderExists(f"cannot create the run folder {folder}: it exists already")
        config = {"settings": dict(settings), "sessions": [dict(session)]}
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(folder) as draft:
                draft.mkdir()
                new = cls(draft, config, state, None)
                new._write_config()
                new.checkpoint(state, step=0)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:  # another process was faster
                raise FolderExists(f"cannot create the run folder {folder}: it exists already") from error
            raise InputError(f"cannot create the run folder {folder}: {error.strerror}") from error
        return cls(folder, config, state, None, _lock(folder))

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Continue after the last checkpoint; `state` is what it holds.

        Raises:
            InputError: when the folder is missing, damaged, put together from several runs, in use, or of an older
                version.
        """
        read_config(folder)
        lock = _lock(folder)
        try:
            config, saved, tables = read_run(folder)
            for name in TABLES:
                if name in tables:
                    os.truncate(folder / name, tables[name].size)
                else:  # it began after the checkpoint
                    (folder / name).unlink(missing_ok=True)
            # Those of a process that was killed: with the lock, there is no other.
            for draft in folder.glob(f".*{files.DRAFT}"):
                shutil.rmtree(draft)
        except OSError as error:
            lock.release()
            raise InputError(f"cannot continue in the run folder {folder}: {error.strerror}") from error
        except BaseException:
            lock.release()
            raise
        run = cls(folder, config, saved["state"], saved["step"] + 1, lock)
        run._tables = tables
        return run

    def resumed(self, session: Mapping[str, Any]) -> None:
        """Record another start, described by `session`."""
        self.config["sessions"].append(dict(session))
        self._write_config()

    def last(self) -> Any:
        """The state of the last checkpoint that is complete: where an interrupted run continues."""
        return _read_checkpoint(self.folder)["state"]

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
        if not (self.folder / table).exists():
            writer.writeheader()
        writer.writerows(rows)
        self._append(table, text.getvalue())

    def checkpoint(self, state: Mapping[str, Any], step: int) -> None:
        """Everything up to and with this step is done; `state` is where to continue."""
        for writer in self._writers.values():
            writer.flush()
        for name in TABLES:
            if (self.folder / name).exists():
                self._tables.setdefault(name, Prefix()).extend(self.folder / name)
        saved = {
            "settings": _digest(self.config["settings"]),
            "step": step,
            "tables": {name: prefix.state() for name, prefix in self._tables.items()},
            "state": dict(state),
        }
        files.save(self.folder / "checkpoint.pt", "checkpoint", FORMAT, saved)

    def close(self) -> None:
        """Close the TensorBoard files and let others use the folder."""
        try:
            for writer in self._writers.values():
                writer.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_config(self) -> None:
        content = {"format": FORMAT, **self.config, "sha256": _digest(self.config)}
        with files.replacing(self.folder / "config.json") as draft:
            draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

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


def plain(value: Any) -> Any:
    """The value with None for every number that is not finite, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _simple(settings: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    return {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in settings.items()}


class Prefix:
    """The first bytes of a table.

    Attributes:
        size: how many.
    """

    def __init__(self) -> None:
        self.size, self._hash = 0, hashlib.sha256()

    def extend(self, path: Path, size: int | None = None) -> None:
        """Read on, up to `size` bytes or all that there are."""
        with open(path, "rb") as file:
            file.seek(self.size)
            new = file.read() if size is None else file.read(size - self.size)
        self.size += len(new)
        self._hash.update(new)

    def state(self) -> dict[str, Any]:
        """Size and hash."""
        return {"size": self.size, "sha256": self._hash.hexdigest()}


def read_config(folder: Path) -> dict[str, Any]:
    """Settings and sessions of a run.

    Raises:
        InputError: when the folder is no run, or its config.json is not as it was written.
    """
    path = folder / "config.json"
    if not folder.is_dir():
        raise InputError(f"there is no run folder {folder}")
    if not path.is_file():
        raise InputError(f"{folder} is no run folder, or is damaged: it has no config.json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        config: dict[str, Any] = {"settings": found["settings"], "sessions": found["sessions"]}
        if not (isinstance(config["settings"], dict) and isinstance(config["sessions"][-1], dict)):
            raise ValueError("settings or sessions are no records")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if "format" not in found:
        raise files.older(path)
    if (found["format"], found.get("sha256")) != (FORMAT, _digest(config)):
        raise InputError(f"{path} is damaged, or was edited: settings and sessions are not those that were written")
    return config


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Prefix]]:
    """Configuration, checkpoint, and how far each table is known, of a run that may be in use.

    Raises:
        InputError: when the folder is no run, damaged, put together from several runs, or of an older version.
    """
    config, saved = read_config(folder), _read_checkpoint(folder)
    if saved["settings"] != _digest(config["settings"]):
        raise InputError(f"{folder / 'checkpoint.pt'} does not belong to {folder / 'config.json'}: the settings differ")
    tables: dict[str, Prefix] = {}
    for name, counted in saved["tables"].items():
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path} is damaged: it is missing")
        tables[name] = prefix = Prefix()
        prefix.extend(path, counted["size"])
        if prefix.size < counted["size"]:
            raise InputError(
                f"{path} is damaged: it has {prefix.size} bytes, but the checkpoint counts {counted['size']} bytes"
            )
        if prefix.state() != counted:
            raise InputError(f"{path} is damaged, or was edited: its lines are not those that were written")
    return config, saved, tables


def _read_checkpoint(folder: Path) -> dict[str, Any]:
    path = folder / "checkpoint.pt"
    if not path.is_file():
        raise InputError(f"{folder} is damaged: it has no checkpoint.pt")
    found: dict[str, Any] = files.load(path, "checkpoint", FORMAT)
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


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
