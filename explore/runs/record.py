"""The run folder: the files of a run, and resuming an interrupted run.

    config.json      `id` of the run, also stored in the other files; `settings` that determine the results; `sessions`:
                     command line, versions and device of each start; `former`: hashes of the earlier settings of an
                     extended run
    metrics.jsonl    one line per series and step: {"series": ..., "step": ..., tag: number, ...}, as in TensorBoard
    results.csv      all results; the columns depend on the command
    selected.csv     chosen points, in the order of selection; the columns depend on the command
    checkpoint.pt    tensors and plain values to resume from
    tensorboard/     one sub-folder per series, all with the same tags, so that TensorBoard overlays the series

A folder is created atomically, and checkpoints are replaced atomically. A checkpoint records the size and hash of each
table. When a run is opened again, lines written after the checkpoint are removed, including an incomplete last line.
Changes in earlier lines of a table, in settings, in sessions or in checkpoints raise InputError.
"""

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
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from filelock import BaseFileLock
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from explore.core import files
from explore.core.errors import InputError, printable
from explore.runs.recorded import CONFIG, FORMAT, TABLES, cut, digest, measured, read_checkpoint, read_config, read_run

__all__ = ["FORMAT", "TABLES", "FolderExists", "Run", "plain", "read_config", "read_run"]


class FolderExists(InputError):
    """Error raised if the path of a new run folder exists already."""


class Run(ExitStack):
    """A run folder that is open for writing: opened by `create` or `open`, closed by `close` or a `with` block.

    `config` is the content of config.json, `state` the checkpoint's state when the run was opened.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], saved: Mapping[str, Any], lock: BaseFileLock | None = None
    ):
        super().__init__()
        if lock is not None:
            self.callback(lock.release)
        self.folder, self.config, self.state = folder, config, saved["state"]
        self._step = saved.get("step")  # last step of earlier TensorBoard events to show, or one per series; None: all
        self._last: dict[str, Any] = {"step": saved.get("step", 0), "tables": saved.get("tables", {})}
        self._before: dict[str, Any] = saved.get("before") or {}  # the same for the checkpoint before the last one
        self._writers: dict[str, SummaryWriter] = {}

    @classmethod
    def create(
        cls, folder: Path, settings: Mapping[str, Any], state: Mapping[str, Any], session: Mapping[str, Any]
    ) -> Self:
        """Create a run folder with a first checkpoint of `state`. An empty folder may exist already.

        Raise FolderExists if the path exists and is not an empty folder, InputError if it cannot be written.
        """
        _check_name(folder)
        taken = FolderExists(f"cannot create the run folder {folder}: it exists already")
        if os.path.exists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            raise taken
        config = {"id": secrets.token_hex(8), "settings": dict(settings), "sessions": [dict(session)]}
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(folder) as draft:
                draft.mkdir()
                new = cls(draft, config, {"state": state})
                new._write_config()
                new.checkpoint(state, step=0)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:  # another process was faster
                raise taken from error
            raise InputError(f"cannot create the run folder {folder}: {error.strerror}") from error
        return cls(folder, config, {"state": state}, files.lock(folder))

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a run to resume from its last checkpoint. Raise InputError if the run is in use or damaged."""
        read_config(folder)
        _check_name(folder)
        lock = files.lock(folder)
        try:
            config, saved = read_run(folder)
            cut(folder, saved["tables"])
            for draft in folder.glob(f".*{files.DRAFT}"):  # of a killed process: the lock excludes others
                shutil.rmtree(draft)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise InputError(f"cannot continue in the run folder {folder}: {error.strerror}") from error
            raise
        return cls(folder, config, saved, lock)

    def resumed(self, session: Mapping[str, Any]) -> None:
        """Record the metadata of a new session, which resumes the run."""
        self.config["sessions"].append(dict(session))
        self._write_config()

    def extend(self, settings: Mapping[str, Any]) -> None:
        """Record the new settings of an extended run, and the hash of its former settings."""
        former = [*self.config.get("former", []), digest(self.config["settings"])]
        self.config |= {"settings": dict(settings), "former": former}
        self._write_config()

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Go back to the checkpoint before the last one, and replace the state in that checkpoint by `state`."""
        self._last, self._before = self._before, {}
        self._step = self._last["step"]
        self._save(state)  # before truncating tables, which is repeated when the run is opened
        cut(self.folder, self._last["tables"])

    def last(self) -> Any:
        """Return the state of the last complete checkpoint, from which an interrupted run resumes."""
        return read_checkpoint(self.folder)["state"]

    def scalars(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of a series, by tag, at a step (counted in labels, epochs or environment steps)."""
        line = json.dumps(plain({"series": series, "step": step, **values})) + "\n"
        files.append(self.folder / "metrics.jsonl", line.encode())
        for tag, value in values.items():
            self._writer(series).add_scalar(tag, value, step)

    def hparams(
        self, series: str, settings: Mapping[str, Any], metrics: Sequence[str], columns: Mapping[str, Any] | None = None
    ) -> None:
        """Write the settings of a series for TensorBoard's HPARAMS tab, with the tags of the metrics to show there.

        If settings differ between series, `columns` must list them all: TensorBoard reads columns from one series.
        """
        file = self._writer(series).file_writer
        assert file is not None
        tags = dict.fromkeys(metrics, 0.0)
        # Not add_hparams, which writes to a separate sub-run without the series' scalars.
        table, _, _ = hparams(_simple(columns or settings), tags)
        _, start, end = hparams(_simple(settings), tags)
        for summary in (table, start, end):
            file.add_summary(summary)

    def image(self, series: str, step: int, tag: str, figure: Figure) -> None:
        """Write a figure of a series for TensorBoard's IMAGES tab."""
        self._writer(series).add_figure(tag, figure, step, close=False)

    def rows(self, table: str, rows: Sequence[Mapping[Any, Any]]) -> None:
        """Append rows with the same keys to a table, results.csv or selected.csv."""
        if not rows:
            return
        text, path = io.StringIO(), self.folder / table
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        if not path.exists():
            writer.writeheader()
        writer.writerows(rows)
        files.append(path, text.getvalue().encode())

    def checkpoint(self, state: Mapping[str, Any], step: int | Mapping[str, int]) -> None:
        """Save `state` as a checkpoint. `step` is the last finished step, or maps each series to its last step."""
        for writer in self._writers.values():
            writer.flush()
        tables = {name: measured(self.folder / name) for name in TABLES if (self.folder / name).exists()}
        self._last, self._before = {"step": step, "tables": tables}, self._last
        self._save(state)

    def _save(self, state: Mapping[str, Any]) -> None:
        saved = {"settings": digest(self.config["settings"]), **self._last, "before": self._before}
        run = self.config.get("id", "")
        files.save(self.folder / "checkpoint.pt", "checkpoint", FORMAT, saved | {"state": dict(state)}, run)

    def _write_config(self) -> None:
        files.write_json(self.folder / "config.json", {"format": CONFIG, **self.config, "sha256": digest(self.config)})

    def _writer(self, series: str) -> SummaryWriter:
        if series not in self._writers:
            path = self.folder / "tensorboard" / series
            # TensorBoard orders files by the creation second in their names, and purges events only from earlier
            # files. So a run that is resumed within the same second waits for the next one.
            seconds = [int(file.name.split(".")[3]) for file in path.glob("events.out.tfevents.*")]
            time.sleep(min(1.0, max(0.0, max(seconds, default=0) + 1 - time.time())))
            step = self._step.get(series, 0) if isinstance(self._step, Mapping) else self._step
            self._writers[series] = SummaryWriter(str(path), purge_step=None if step is None else step + 1)
            self.callback(self._writers[series].close)
        return self._writers[series]


def _check_name(folder: Path) -> None:
    """Raise InputError if the path is not valid UTF-8, since TensorBoard cannot write to such a path."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InputError(f"the path {printable(folder)} is not valid UTF-8. Choose another name") from None


def plain(value: Any) -> Any:
    """Return a copy of `value` in which None replaces non-finite numbers, which JSON does not support."""
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _simple(settings: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    return {k: v if isinstance(v, bool | int | float) else printable(v) for k, v in settings.items()}
