"""The run folder: what a command leaves behind, and how an interrupted one continues.

    config.json      id: of the run, which its other files have too; settings: all that decides the numbers; sessions:
                     command line, versions, device of each start; former: of a run that was extended, the hashes of its
                     settings before
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
import io
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import BaseFileLock
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from explore.core import files
from explore.core.errors import InputError, printable
from explore.runs.recorded import FORMAT, TABLES, Prefix, cut, digest, read_checkpoint, read_config, read_run

__all__ = ["FORMAT", "TABLES", "FolderExists", "Run", "plain", "read_config", "read_run"]


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
        kept: int | Mapping[str, int] | None,
        lock: BaseFileLock | None = None,
    ):
        self.folder, self.config, self.state, self._lock = folder, config, state, lock
        self._kept = kept  # the steps that TensorBoard is to show of what was written before
        self._writers: dict[str, SummaryWriter] = {}
        self._tables: dict[str, Prefix] = {}  # up to the last checkpoint
        self._last: dict[str, Any] = {"step": 0, "tables": {}}  # of that checkpoint
        self._before: dict[str, Any] | None = None  # of the one before it

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
            InputError: when it cannot be written, or its name is not valid UTF-8.
        """
        _check_name(folder)
        if os.path.exists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            raise FolderExists(f"cannot create the run folder {folder}: it exists already")
        config = {"id": secrets.token_hex(8), "settings": dict(settings), "sessions": [dict(session)]}
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
        return cls(folder, config, state, None, files.lock(folder))

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Continue after the last checkpoint; `state` is what it holds.

        Raises:
            InputError: when the folder is missing, damaged, put together from several runs, in use, or of an older
                version.
        """
        read_config(folder)
        _check_name(folder)
        lock = files.lock(folder)
        try:
            config, saved, tables = read_run(folder)
            cut(folder, tables)
            # Those of a process that was killed: with the lock, there is no other.
            for draft in folder.glob(f".*{files.DRAFT}"):
                shutil.rmtree(draft)
        except OSError as error:
            lock.release()
            raise InputError(f"cannot continue in the run folder {folder}: {error.strerror}") from error
        except BaseException:
            lock.release()
            raise
        run = cls(folder, config, saved["state"], saved["step"], lock)
        run._tables = tables
        run._last, run._before = {"step": saved["step"], "tables": saved["tables"]}, saved.get("before")
        return run

    def resumed(self, session: Mapping[str, Any]) -> None:
        """Record another start, described by `session`."""
        self.config["sessions"].append(dict(session))
        self._write_config()

    def extend(self, settings: Mapping[str, Any]) -> None:
        """Other settings from here on: those of the same run that is to go on for longer."""
        former = [*self.config.get("former", []), digest(self.config["settings"])]
        self.config |= {"settings": dict(settings), "former": former}
        self._write_config()

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Take back what was written after the checkpoint before the last one; `state` is where to continue.

        Raises:
            InputError: where the run knows of no such checkpoint.
        """
        if self._before is None:
            raise InputError(f"{self.folder} is of a version of explore whose runs cannot be extended; begin anew")
        self._last, self._before = self._before, None
        self._tables = {name: Prefix() for name in self._last["tables"]}
        for name, prefix in self._tables.items():
            prefix.extend(self.folder / name, self._last["tables"][name]["size"])
        self._kept = self._last["step"]
        self._save(state)  # before the tables are cut: what is too long is cut again when the run is opened
        cut(self.folder, self._tables)

    def last(self) -> Any:
        """The state of the last checkpoint that is complete: where an interrupted run continues."""
        return read_checkpoint(self.folder)["state"]

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

    def checkpoint(self, state: Mapping[str, Any], step: int | Mapping[str, int]) -> None:
        """Everything up to and with this step, or that of each series, is done; `state` is where to continue."""
        for writer in self._writers.values():
            writer.flush()
        for name in TABLES:
            if (self.folder / name).exists():
                self._tables.setdefault(name, Prefix()).extend(self.folder / name)
        tables = {name: prefix.state() for name, prefix in self._tables.items()}
        self._last, self._before = {"step": step, "tables": tables}, self._last
        self._save(state)

    def _save(self, state: Mapping[str, Any]) -> None:
        """Write the checkpoint."""
        saved = {"settings": digest(self.config["settings"]), **self._last, "before": self._before}
        run = self.config.get("id", "")
        files.save(self.folder / "checkpoint.pt", "checkpoint", FORMAT, saved | {"state": dict(state)}, run)

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
        content = {"format": FORMAT, **self.config, "sha256": digest(self.config)}
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
            kept = self._kept.get(series, 0) if isinstance(self._kept, Mapping) else self._kept
            self._writers[series] = SummaryWriter(str(path), purge_step=None if kept is None else kept + 1)
        return self._writers[series]


def _check_name(folder: Path) -> None:
    """Refuse a path that TensorBoard cannot write to."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(f"the path {printable(folder)} is not valid UTF-8; choose a folder of another name") from None


def plain(value: Any) -> Any:
    """The value with None for every number that is not finite, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _simple(settings: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    return {k: v if isinstance(v, bool | int | float) else printable(v) for k, v in settings.items()}
