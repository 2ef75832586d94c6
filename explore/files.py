"""Files that say what they hold and notice damage: tensors and plain values, written whole or not at all.

A file is what `torch.save` writes, a zip archive, and `torch.load(path)["content"]` reads it anywhere. The archive's
comment, its last bytes, is the SHA-256 of all bytes before: torch itself checks no sums, so that a flipped bit would be
another number.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from explore.errors import InputError

MARK = b"explore sha256 "
COMMENT = len(MARK) + 64
END = b"PK\x05\x06"  # of a zip archive: 22 bytes, of which the last two are the length of the comment


def save(path: Path, kind: str, format: int, content: Any) -> None:
    """Write tensors and plain values; at any moment there is the old file or the new one.

    Args:
        path: of the file.
        kind: what it is, for readers who took another for it ("checkpoint").
        format: version of its layout.
        content: what `torch.load(weights_only=True)` accepts.

    Raises:
        OSError: when it cannot be written; the old file is as it was.
    """
    with replacing(path) as draft, open(draft, "w+b") as file:
        try:
            torch.save({"kind": kind, "format": format, "content": content}, file)
        except RuntimeError as error:  # torch's writer hides what the system said
            raise OSError(errno.EIO, f"torch cannot write: {error}", str(path)) from error
        file.seek(-2, os.SEEK_END)
        file.write(COMMENT.to_bytes(2, "little"))
        digest = _digest(file, file.tell())
        file.write(MARK + digest)


def load(path: Path, kind: str, format: int) -> Any:
    """The content of a file that `save` wrote, on the CPU; no code in it is executed.

    Raises:
        InputError: in one sentence, when the file is missing, damaged, of another kind or of another version.
    """
    try:
        with open(path, "rb") as file:
            _check(path, file)
            file.seek(0)
            try:
                found = torch.load(file, map_location="cpu", weights_only=True)
                theirs = found["kind"], found["format"]
            except Exception:  # intact, but written by other hands; torch's advice to trust them is not passed on
                raise InputError(f"{path} is no {kind} of explore, which holds tensors and plain values only") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if theirs[0] != kind:
        raise InputError(f"{path} is a {theirs[0]}, not a {kind}")
    if theirs[1] != format:
        raise older(path) if theirs[1] < format else InputError(f"{path} is of a newer version of explore; update it")
    return found["content"]


def older(path: Path) -> InputError:
    """The error for a file of a layout that is no longer read."""
    return InputError(f"{path} is of an older version of explore; continue it with that version, or begin anew")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder that takes the place of `path` when all went well, and is gone otherwise.

    The draft has a new folder to itself beside `path`: whatever other drafts lie there, other processes may be at work
    on them. A folder takes the place of none, or of an empty one.
    """
    prefix = f".{path.name[:100]}."
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix, ignore_cleanup_errors=True) as own:
        draft = Path(own, path.name)
        yield draft
        for written in [draft, *draft.rglob("*")]:
            if written.is_file():
                with open(written, "rb") as file:
                    os.fsync(file.fileno())  # before the name: else a power cut could leave an empty file under it
        os.replace(draft, path)


def _check(path: Path, file: IO[bytes]) -> None:
    """Refuse a file whose digest is not that of its bytes."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - COMMENT))
    comment = file.read()
    if comment[-22:-18] == END and comment.endswith(b"\0\0"):
        raise older(path)
    if size < COMMENT or comment != MARK + _digest(file, size - COMMENT):
        raise InputError(f"{path} is damaged: its bytes are not those that were written")


def _digest(file: IO[bytes], size: int) -> bytes:
    """The SHA-256 of the first bytes, in hexadecimal; the file then stands behind them."""
    file.seek(0)
    digest = hashlib.sha256()
    while size:
        chunk = file.read(min(size, 1 << 20))
        if not chunk:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest().encode()
