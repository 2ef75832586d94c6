"""Files of tensors and plain values, written atomically and with a checksum; locks on folders.

A file is a `torch.save` archive whose zip comment, the last bytes, is the SHA-256 of all bytes before it.
"""

import hashlib
import io
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from explore.core.errors import InputError

MARK = b"explore sha256 "
COMMENT = len(MARK) + 64
DRAFT = ".draft"  # suffix of temporary folders


def save(path: Path, kind: str, format: int, content: Any, run: str = "") -> None:
    """Write `content`, kind, format version and run id; `torch.load(weights_only=True)` must accept `content`."""
    import torch  # takes seconds, which code that only reads text should not pay

    buffer = io.BytesIO()  # torch's own writer hides the system's message about a full disk
    torch.save({"kind": kind, "format": format, "run": run, "content": content}, buffer)
    archive = buffer.getbuffer()
    archive[-2:] = COMMENT.to_bytes(2, "little")
    with replacing(path) as draft, open(draft, "wb") as file:
        file.write(archive)
        file.write(MARK + hashlib.sha256(archive).hexdigest().encode())


def load(path: Path, kind: str, format: int, run: str | None = None) -> Any:
    """Return the `content` of a file from `save`. Raise InputError for damage or a different kind, format or run."""
    import torch

    try:
        if path.exists() and not path.is_dir():
            check_regular(path)
        whole = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    archive, comment = whole[:-COMMENT], whole[-COMMENT:]
    if comment != MARK + hashlib.sha256(archive).hexdigest().encode():
        raise damaged(path)
    try:
        with zipfile.ZipFile(io.BytesIO(whole)) as members:
            if any(member.compress_type for member in members.infolist()):  # torch does not compress, but would unpack
                raise ValueError
        with warnings.catch_warnings(action="ignore"):  # about pickles that torch then rejects
            saved = torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True)
        actual = str(saved["kind"]), int(saved["format"])
    except Exception:  # intact, but not written by `save`; hide torch's advice to trust the file
        raise InputError(f"{path} is not a {kind} of explore, which has only tensors and plain values") from None
    if actual[0] != kind:
        raise InputError(f"{path} is a {actual[0]}, not a {kind}")
    if actual[1] != format:
        raise other_version(path)
    if run is not None:
        check_run(path, str(saved.get("run", "")), run)
    return saved["content"]


def check_run(path: Path, actual: str, run: str) -> None:
    """Raise InputError if the run id in a file (`actual`) is not the run id of its folder (`run`)."""
    if actual != run:
        ids = [f"run {name}" if name else "a run without an id" for name in (actual, run)]
        raise InputError(f"{path} was written by {ids[0]}, its folder by {ids[1]}; restore the folder's file")


def check_regular(path: Path) -> None:
    """Raise an error unless `path` is a regular file: reading a pipe may block for ever, and a device may never end."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise InputError(f"{path} is a folder, a pipe or a device; pass a regular file")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, expected: str) -> None:
    """Raise InputError if a file is missing or its `digest` differs from the expected one."""
    if not path.is_file():
        raise InputError(f"{path} is missing")
    if digest(path) != expected:
        raise damaged(path)


def damaged(path: Path) -> InputError:
    """Return the InputError for a file whose checksum is wrong."""
    return InputError(f"{path} is damaged: its checksum has changed since it was written")


def other_version(path: Path) -> InputError:
    """Return the InputError for a file in a different format."""
    return InputError(f"{path} was written by another version of explore; continue with that version, or start over")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path. On success, the file or folder written there replaces `path`; on failure it is deleted.

    The replacement is atomic. A folder can replace only an empty folder or a missing path.
    """
    prefix = f".{path.name[:100]}."
    with tempfile.TemporaryDirectory(DRAFT, prefix, path.parent, ignore_cleanup_errors=True) as folder:
        draft = Path(folder, path.name)
        yield draft
        for written in [draft, *draft.rglob("*")]:
            if written.is_file():
                with open(written, "rb") as file:
                    os.fsync(file.fileno())  # before renaming: else a power cut could leave an empty file at `path`
        os.replace(draft, path)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value, indented, so that it replaces `path` atomically."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def append(path: Path, content: bytes) -> None:
    """Append to a file, and wait until the bytes are on the disk, where a power failure cannot lose them."""
    with open(path, "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def lock(folder: Path) -> BaseFileLock:
    """Lock a folder for writing until the lock is released or the process ends; raise InputError if already locked."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{folder} is being written by another process; wait until it has finished") from None
    except OSError as error:
        raise InputError(f"cannot write to the run folder {folder}: {error.strerror}") from error
    return lock
