"""Compressed files and archives of one file, unpacked in memory within a limit.

Names within an archive select what is read; nothing is written anywhere. Sizes are checked from headers before
unpacking, so that a small file cannot fill the memory.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePosixPath

import numpy as np

from explore.core import files
from explore.core.errors import InputError, listed, shown

MIB = 2**20
# What a table may unpack to. A plain file has no limit: its size is seen before it is read.
LIMIT = 1024 * MIB
RATIO, FREE = 100, 128 * MIB  # the largest unpacked size, relative to the packed one; or this if more
STREAMS: dict[str, Callable[[io.BytesIO], io.BufferedIOBase]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PACKED = (".gz", ".bz2", ".xz", ".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz")


def check_size(needed: int, size: int, name: object, limit: int | None = None) -> None:
    """Refuse a file of `size` bytes that would take more bytes of memory than `limit` or its size allows."""
    most = max(FREE, RATIO * size)
    _check_limit(needed, most if limit is None else min(limit, most), name)


def _check_limit(needed: int, limit: int, name: object) -> None:
    if needed > limit:
        raise InputError(f"{name} unpacks to more than {limit // MIB} MiB, the most that is unpacked here")


def read(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file, unpacked if its name ends like one of PACKED, to at most `limit` bytes.

    Raises:
        InputError: when it is damaged, no regular file, of several files, or too large.
        OSError: when it cannot be read.
    """
    files.check_regular(path)
    content = path.read_bytes()
    limit = min(LIMIT, max(FREE, RATIO * len(content))) if limit is None else limit
    inner, outer = ["", "", *(suffix.lower() for suffix in path.suffixes)][-2:]
    try:
        if outer in STREAMS:
            with STREAMS[outer](io.BytesIO(content)) as stream:
                content = stream.read(limit + 1)  # no more of it is unpacked
            _check_limit(len(content), limit, path)
            outer = inner
        if outer == ".tar":
            return _tar_member(content, limit, path)
        return zip_member(content, None, limit, path) if outer == ".zip" else content
    except InputError:
        raise
    except Exception as error:  # any reader error means the file is corrupt
        raise InputError(f"{path} is damaged or cut short ({reason(error)}); replace it") from None


def check_workbook(content: bytes, name: object = "it", limit: int = LIMIT) -> None:
    """Refuse an Excel file (in its newer format a zip archive) that unpacks to more than `limit` or its size allows."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # No more of an entry is read than it declares.
            check_size(sum(entry.file_size for entry in archive.infolist()), len(content), name, limit)


def arrays(
    path: Path,
    keys: Iterable[str] | None = None,
    check: Callable[[dict[str, np.ndarray], list[str]], None] | None = None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Read arrays of an .npz file, without Python objects; also return the names of all others.

    Args:
        path: of the file; one that would take far more memory than its size is refused.
        keys: the arrays to read if they exist; None: all.
        check: called before any array is read, with stand-ins of their shapes and types and the names of all arrays.
    """
    files.check_regular(path)
    try:
        content = path.read_bytes()
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            chosen = [key for key in archive.files if keys is None or key in keys]
            headers = {key: _header(archive.zip, key) for key in chosen}
            if check is not None:
                check(headers, archive.files)
            check_size(sum(header.nbytes for header in headers.values()), len(content), path)
            return {key: archive[key] for key in chosen}, [key for key in archive.files if key not in chosen]
    except InputError:
        raise
    except Exception as error:  # any reader error means the file is corrupt
        raise InputError(f"{path} is no .npz file of arrays ({shown(str(error))})") from None


def _header(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    """A placeholder array with the header's shape and type; it takes no memory."""
    with archive.open(f"{key}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return np.broadcast_to(np.empty((), dtype), shape)


def zip_member(content: bytes, member: str | None, limit: int, name: object) -> bytes:
    """Read the file of this name in a zip archive, in whatever folder; None: the only file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        chosen = _chosen([entry.filename for entry in archive.infolist() if not entry.is_dir()], member, name)
        size = archive.getinfo(chosen).file_size
        _check_limit(size, limit, name)
        with archive.open(chosen) as stream:
            return stream.read(size)  # not more, where the archive declares less than there is


def _tar_member(content: bytes, limit: int, name: object) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        chosen = _chosen([entry.name for entry in archive if entry.isfile()], None, name)
        size = archive.getmember(chosen).size
        _check_limit(size, limit, name)
        stream = archive.extractfile(chosen)
        assert stream is not None  # a file has content
        content = stream.read()
        if len(content) < size:
            raise EOFError("the archive ends before its file does")
        return content


def _chosen(members: Collection[str], member: str | None, name: object) -> str:
    """The file to read; macOS adds an attribute file beside every file of an archive."""
    real = [f for f in members if not f.startswith("__MACOSX/") and not PurePosixPath(f).name.startswith("._")]
    chosen = [f for f in real if member is None or PurePosixPath(f).name == member]
    if not chosen or (member is None and len(chosen) > 1):
        problem = f"no {member}" if member else "not exactly one file"
        raise InputError(f"{name} holds {problem}, but {listed(members) or 'nothing'}")
    return chosen[0]


def reason(error: Exception) -> str:
    """The message of a library's exception, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 and text.isprintable() else shown(text, 200)
