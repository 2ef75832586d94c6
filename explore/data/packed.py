"""Compressed files and archives of one file, unpacked in memory and never beyond a limit.

Names within an archive choose what is read; nothing is written anywhere.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from explore.errors import InputError, listed, shown

__all__ = ["LIMIT", "MIB", "PACKED", "capped", "check_workbook", "read", "reason", "zip_member"]

MIB = 2**20
# What a table of the user's may unpack to. A plain file has no limit: its size is seen before it is read.
LIMIT = 1024 * MIB
STREAMS: dict[str, Callable[[io.BytesIO], io.BufferedIOBase]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PACKED = (".gz", ".bz2", ".xz", ".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz")


def read(path: Path, limit: int = LIMIT) -> bytes:
    """The content of a file, unpacked if its name ends like one of PACKED.

    Raises:
        InputError: when it is damaged, holds more than one file, or unpacks to more than `limit` bytes.
        OSError: when it cannot be read.
    """
    content = path.read_bytes()
    inner, outer = ["", "", *(suffix.lower() for suffix in path.suffixes)][-2:]
    try:
        if outer in STREAMS:
            with STREAMS[outer](io.BytesIO(content)) as stream:
                content = capped(stream.read, limit, path)
            outer = inner
        if outer == ".tar":
            return _tar_member(content, limit, path)
        return zip_member(content, None, limit, path) if outer == ".zip" else content
    except InputError:
        raise
    except Exception as error:  # whatever the bytes make of the reader, the file is what is wrong
        raise InputError(f"{path} is damaged or cut short ({reason(error)}); replace it") from None


def capped(read: Callable[[int], bytes], limit: int, name: object) -> bytes:
    """All that a stream's `read` gives.

    Raises:
        InputError: when that is more than `limit` bytes; no more of it is unpacked.
    """
    content = read(limit + 1)
    if len(content) > limit:
        raise _too_large(name, limit)
    return content


def _too_large(name: object, limit: int) -> InputError:
    return InputError(f"{name} unpacks to more than {limit // MIB} MiB, the most that is unpacked here")


def check_workbook(content: bytes, limit: int) -> None:
    """Refuse an Excel file that unpacks to more than `limit` bytes; its newer format is a zip archive."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # What an entry declares is the most that is read of it.
            if sum(entry.file_size for entry in archive.infolist()) > limit:
                raise _too_large("it", limit)


def zip_member(content: bytes, member: str | None, limit: int, name: object) -> bytes:
    """The file of this name in a zip archive, whatever folder of the archive it lies in; None: the only file.

    Raises:
        InputError: when there is no such file, or it is larger than `limit` bytes.
        Exception: of many kinds, when the archive is damaged or encrypted.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        with archive.open(_chosen(files, member, name)) as stream:
            return capped(stream.read, limit, name)


def _tar_member(content: bytes, limit: int, name: object) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        chosen = _chosen([entry.name for entry in archive if entry.isfile()], None, name)
        stream = archive.extractfile(chosen)
        assert stream is not None  # a file has content
        content = capped(stream.read, limit, name)
        if len(content) < archive.getmember(chosen).size:
            raise EOFError("the archive ends before its file does")
        return content


def _chosen(files: list[str], member: str | None, name: object) -> str:
    """The file to read; macOS puts a twin with attributes beside every file of an archive."""
    real = [f for f in files if not f.startswith("__MACOSX/") and not PurePosixPath(f).name.startswith("._")]
    chosen = [f for f in real if member is None or PurePosixPath(f).name == member]
    if not chosen or (member is None and len(chosen) > 1):
        what = f"no {member}" if member else "not exactly one file"
        raise InputError(f"{name} holds {what}, but {listed(files) or 'nothing'}")
    return chosen[0]


def reason(error: Exception) -> str:
    """What an exception of a library says, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 and text.isprintable() else shown(text, 200)
