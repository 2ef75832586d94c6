"""Compressed files and single-file zip archives, unpacked in memory within a size limit.

Nothing is written to disk. Sizes are limited before or while unpacking, so that a small file cannot fill the memory.
"""

import bz2
import gzip
import io
import lzma
import math
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath

import numpy as np

from explore.core import files
from explore.core.errors import InputError, listed, shown

MIB = 2**20
LIMIT = 1024 * MIB  # of an unpacked table; plain files have no limit
RATIO, FREE = 100, 128 * MIB  # most unpacked bytes: RATIO times the packed size, or FREE if that is more
STREAMS: dict[str, Callable[[io.BytesIO], io.BufferedIOBase]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PACKED = (*STREAMS, ".zip")


def most_of(size: int, limit: float = math.inf) -> int:
    """Return the number of bytes that a packed file of `size` bytes may unpack to, at most `limit`."""
    return int(min(limit, max(FREE, RATIO * size)))


def check_size(needed: int, most: int, name: object) -> None:
    """Raise InputError if `needed`, the unpacked size of the file `name` in bytes, exceeds `most`."""
    if needed > most:
        raise InputError(f"{name} unpacks to more than {most // MIB} MiB, the limit for its size")


def read(path: Path, limit: int = LIMIT) -> bytes:
    """Read a regular file, and unpack it (to at most `limit` bytes) if its suffix is .gz, .bz2, .xz or .zip.

    Raise InputError if it is damaged, too large or an archive of several files, OSError if it cannot be read.
    """
    files.check_regular(path)
    content, kind = path.read_bytes(), path.suffix.lower()
    most = most_of(len(content), limit)
    try:
        if kind == ".zip":
            return member(content, most, path)
        if kind in STREAMS:
            with STREAMS[kind](io.BytesIO(content)) as stream:
                content = stream.read(most + 1)  # unpacks no more than this
            check_size(len(content), most, path)
        return content
    except InputError:
        raise
    except Exception as error:  # any reader error means the file is corrupt
        raise InputError(f"{path} is damaged or truncated ({reason(error)}). Replace it") from None


def member(content: bytes, most: int, path: object, wanted: str | None = None) -> bytes:
    """Unpack the file `wanted` from any folder of the zip archive `content`. If None, unpack its only file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist() if not entry.is_dir()}
        # macOS adds an attribute file for every file.
        real = [name for name in sizes if not name.startswith("__MACOSX/") and PurePosixPath(name).name[:2] != "._"]
        chosen = [name for name in real if wanted in (None, PurePosixPath(name).name)]
        if not chosen or (wanted is None and len(chosen) > 1):
            raise InputError(f"{path} contains {listed(sizes) or 'nothing'}; it must contain {wanted or 'one file'}")
        check_size(sizes[chosen[0]], most, path)
        return archive.read(chosen[0])  # reads no more than its header declares


def check_workbook(content: bytes, name: object = "it", limit: int = LIMIT) -> None:
    """Raise InputError if an Excel file (.xlsx, a zip archive) unpacks to more bytes than `most_of` allows."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:  # readers stop at an entry's declared size
            check_size(sum(entry.file_size for entry in archive.infolist()), most_of(len(content), limit), name)


def arrays(path: Path, keys: Collection[str] | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Read the arrays in `keys` (None: all) of an .npz file, without pickle; also return the other arrays' names."""
    files.check_regular(path)
    try:
        content = path.read_bytes()
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            chosen = [key for key in archive.files if keys is None or key in keys]
            entries = [entry for entry in archive.zip.infolist() if entry.filename.removesuffix(".npy") in chosen]
            check_size(sum(entry.file_size for entry in entries), most_of(len(content)), path)
            return {key: archive[key] for key in chosen}, [key for key in archive.files if key not in chosen]
    except InputError:
        raise
    except Exception as error:  # any reader error means the file is corrupt
        advice = ". Save text with y.astype(str)" if "Object arrays" in str(error) else ""
        raise InputError(f"cannot read {path}: not an .npz archive of arrays ({shown(str(error))}){advice}") from None


def reason(error: Exception) -> str:
    """Return the message of an exception, shortened to one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 and text.isprintable() else shown(text, 200)
