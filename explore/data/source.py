"""Where the benchmark sets come from: a local folder, else a download; both become the same canonical rows.

A canonical text has one example a line: the features, then the target, separated by single blanks, without a
header. Its sha256 identifies the values and their order, and the order is what the standard splits refer to.
"""

import gzip
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pooch

from explore.data.base import Dataset
from explore.errors import InputError

UCI = "https://archive.ics.uci.edu/static/public"
OPENML = "https://www.openml.org/data/get_csv"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"

Rows = list[list[str]]


def regression(
    name: str,
    folder: Path | None,
    sha256: str,
    shape: tuple[int, int],
    features: Sequence[str],
    fetch: Callable[[], Rows],
) -> Dataset:
    """One of the UCI regression sets; `shape` is (N, D) and `fetch` gives the downloaded rows.

    Raises:
        InputError: when the local or the downloaded file is damaged.
        OSError: when there is no local file and the download fails.
    """
    table, note = _table(name, f"uci/{name}.txt", folder, sha256, shape, fetch)
    return Dataset(name, table[:, :-1], table[:, -1:], tuple(features), "regression", note=note)


def binary(
    name: str,
    folder: Path | None,
    file: str,
    sha256: str,
    shape: tuple[int, int],
    features: Sequence[str],
    classes: tuple[str, str],
    fetch: Callable[[], Rows],
) -> Dataset:
    """One of the LIBSVM sets of two classes, whose labels -1 and +1 become 0 and 1; see `regression`."""
    table, note = _table(name, f"libsvm/{file}.txt", folder, sha256, shape, fetch)
    y = (table[:, -1] > 0).astype(np.int64)
    return Dataset(name, table[:, :-1], y, tuple(features), "classification", classes, note)


def _table(
    name: str, file: str, folder: Path | None, sha256: str, shape: tuple[int, int], fetch: Callable[[], Rows]
) -> tuple[np.ndarray, str]:
    """The canonical table, [N, D + 1], and the note for whoever uses it."""
    text, note = _local(file, folder, sha256), ""
    if text is None:
        try:
            text = "".join(" ".join(row) + "\n" for row in fetch()).encode()
            table = _parse(text, shape)
        except (ValueError, LookupError, zipfile.BadZipFile) as error:
            raise InputError(
                f"the download of {name} cannot be read ({error}); delete it in {cache()} to download it anew"
            ) from error
        if hashlib.sha256(text).hexdigest() != sha256:
            note = f"{name}: the download is not in the canonical row order; splits differ from published ones"
        return table, note
    return _parse(text, shape), note


def _local(file: str, folder: Path | None, sha256: str) -> bytes | None:
    """The text of FOLDER/FILE.gz after checking it, or None where there is no such file."""
    name = folder or os.environ.get("EXPLORE_DATA_DIR")
    if not name:
        return None
    if not Path(name).is_dir():
        raise InputError(f"the data folder {name} (EXPLORE_DATA_DIR) does not exist; name the folder that holds uci/")
    path = Path(name, f"{file}.gz")
    if not path.is_file():
        return None
    try:
        text = gzip.decompress(path.read_bytes())
    except (EOFError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); replace it, or delete it to download the set") from error
    if (found := hashlib.sha256(text).hexdigest()) != sha256:
        raise InputError(
            f"{path} has the wrong content (sha256 {found}, expected {sha256}); "
            "replace it, or delete it to download the set"
        )
    return text


def _parse(text: bytes, shape: tuple[int, int]) -> np.ndarray:
    table = np.loadtxt(io.BytesIO(text), ndmin=2)
    n, d = shape
    if table.shape != (n, d + 1):
        raise ValueError(f"it has {table.shape[0]} rows of {table.shape[1]} columns, expected {n} of {d + 1}")
    return table


def cache() -> Path:
    """The user's folder for downloaded files."""
    return Path(pooch.os_cache("explore"))


def download(url: str, name: str) -> bytes:
    """The content at an address, kept as `name` in the cache.

    Raises:
        OSError: when the address cannot be read.
    """
    try:
        # No checksum of the raw file: publishers repack archives. The canonical rows are checked instead.
        return Path(pooch.retrieve(url, known_hash=None, fname=name, path=cache())).read_bytes()
    except OSError as error:
        raise OSError(
            f"cannot download {url} ({error}); offline, let EXPLORE_DATA_DIR name a folder with the sets"
        ) from error


def uci(number: int, archive: str, member: str) -> bytes:
    """A file out of an archive of the UCI repository, whatever folder of the archive it lies in."""
    content = download(f"{UCI}/{number}/{archive}.zip", f"{archive}.zip")
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        names = [n for n in opened.namelist() if Path(n).name == member and not n.startswith("__MACOSX")]
        if not names:
            raise LookupError(f"no {member} among {', '.join(opened.namelist())}")
        return opened.read(names[0])


def openml(file: str, name: str) -> bytes:
    """A file of the OpenML repository as CSV, kept as `name` in the cache."""
    return download(f"{OPENML}/{file}", name)


def rows(raw: bytes, separator: str | None = None, header: bool = False) -> Rows:
    """The cells of a text file; without a separator, blanks separate."""
    lines = [line.strip() for line in raw.decode().splitlines()]
    return [[cell.strip() for cell in line.split(separator)] for line in lines if line][header:]


def sheet(raw: bytes, formats: Sequence[str]) -> Rows:
    """The first columns of the first sheet of an Excel file, each number written in its column's format.

    Raises:
        ImportError: when the library that reads such files is not installed.
    """
    try:
        frame = pd.read_excel(io.BytesIO(raw), usecols=range(len(formats)))
    except ImportError as error:
        raise ImportError("this set comes as an Excel file; pip install 'explore-bnn[download]' reads it") from error
    # Sheets may end in blank rows that carry nothing but formatting.
    table = frame.dropna(how="all").to_numpy(float)
    return [[f % v for f, v in zip(formats, row, strict=True)] for row in table]


def libsvm(file: str, features: int, positive: float) -> Rows:
    """The cells of a LIBSVM file, which leaves out zeros, with the label moved to the end as -1 or 1."""
    table = []
    for label, *pairs in rows(download(f"{LIBSVM}/{file}", f"{file}.txt")):
        values = dict(pair.split(":") for pair in pairs)
        sign = "1" if float(label) == positive else "-1"
        table.append([values.get(str(i + 1), "0") for i in range(features)] + [sign])
    return table
