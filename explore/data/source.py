"""Sources of the benchmark data sets: a local folder or a download; both give the same canonical text.

The canonical text has one line per example: the features, then the target, separated by blanks. Its SHA-256 checks the
values and their order, which determines the standard splits. Archives have no checksum, because publishers repack them.
"""

import hashlib
import io
import os
import tomllib
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pooch

from explore import registry
from explore.core.errors import InputError, raised
from explore.data import packed
from explore.data.base import Dataset, Task

UCI = "https://archive.ics.uci.edu/static/public"
OPENML = "https://www.openml.org/data/get_csv"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
LIMIT = 64 * packed.MIB  # most bytes of a download, packed and unpacked; the largest set has 4 MiB

Rows = list[list[str]]


def fetched(kind: str, name: str, folder: Path | None, expected: type) -> Any:
    """Load the set `name` of kind "data" or "images"; raise InputError if this fails or its type is not `expected`."""
    fetch = registry.find(kind, name)
    try:
        loaded = fetch(folder)
    except InputError:
        raise
    except (OSError, ImportError) as error:  # no network, or no library for the format
        raise InputError(str(error)) from None
    except Exception as error:
        raise InputError(f"cannot load the {registry.KINDS[kind]} {name}: {raised(error)}") from error
    if not isinstance(loaded, expected):
        type_name = f"{expected.__module__}.{expected.__name__}"
        raise InputError(f"{name} returned a {type(loaded).__name__}; it must return {type_name}")
    return loaded


def published(package: str) -> dict[str, dict[str, Any]]:
    """Read `published.toml` in a package of data sets: name -> settings of the set."""
    return tomllib.loads(resources.files(package).joinpath("published.toml").read_text(encoding="utf-8"))


class Published(NamedTuple):
    """A published data set. Call it to read the set from a folder (default: EXPLORE_DATA_DIR) or to download it."""

    name: str
    description: str  # for `explore list datasets`
    sha256: str  # of the canonical text
    features: str  # D names, separated by blanks
    source: Sequence[Any]  # "uci", "openml" or "libsvm", and the arguments of the function of this name
    classes: Sequence[str] = ()  # names of labels -1 and 1 (LIBSVM sets); empty for regression (UCI sets)
    sorted_sha256: str = ""  # of the sorted lines, if the published order differs
    separator: str | None = None  # of cells in a text file; None: blanks
    header: bool = False  # whether a text file begins with a header
    columns: Sequence[int] = ()  # cells of a text file to keep, the target last; empty: all
    formats: str = ""  # printf-style format of each column, separated by blanks; empty: as published

    def __call__(self, folder: Path | None = None) -> Dataset:
        """Read or download the set; raise InputError for unexpected content, OSError if the download fails."""
        file = f"libsvm/{self.name.replace('-', '_')}_scale.txt.gz" if self.classes else f"uci/{self.name}.txt.gz"
        path = local(file, folder)
        text, note = (checked(packed.read(path, LIMIT), self.sha256, path), "") if path else self._downloaded()
        task: Task = "classification" if self.classes else "regression"
        table = np.loadtxt(io.BytesIO(text), ndmin=2)
        y = (table[:, -1] > 0).astype(np.int64) if self.classes else table[:, -1:]
        return Dataset(self.name, table[:, :-1], y, tuple(self.features.split()), task, tuple(self.classes), note)

    def fetch(self) -> Rows:
        """Download the rows, with the target at the end."""
        publisher, *place = self.source
        if publisher == "libsvm":
            return libsvm(*place)
        raw = uci(*place) if publisher == "uci" else openml(*place)
        if place[-1].endswith((".xls", ".xlsx")):
            return sheet(raw, self.formats)
        table = rows(raw, self.separator, self.header)
        if self.columns:
            table = [[row[i] for i in self.columns] for row in table]
        return formatted(table, self.formats) if self.formats else table

    def _downloaded(self) -> tuple[bytes, str]:
        """Download the canonical text, with a note if the row order differs. Raise InputError if any value differs."""
        cache = pooch.os_cache("explore")
        again = f"delete it in {cache} to download it again, or set EXPLORE_DATA_DIR to a folder with the data sets"
        try:
            text = "".join(" ".join(row) + "\n" for row in self.fetch()).encode()
        except (OSError, ImportError):
            raise
        except Exception as error:  # any reader error means the file is corrupt
            raise InputError(f"the download of {self.name} cannot be read ({packed.reason(error)}); {again}") from None
        if (actual := _sha256(text)) == self.sha256:
            return text, ""
        if _sha256(b"".join(sorted(text.splitlines(keepends=True)))) == self.sorted_sha256:
            order = "the download is not in the canonical row order; splits differ from published ones"
            return text, f"{self.name}: {order}"
        sums = f"sha256 {actual}, expected {self.sha256}"
        raise InputError(f"the download of {self.name} differs from the expected content ({sums}); {again}")


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def checked(content: bytes, sha256: str, path: Path) -> bytes:
    """Return the content of a file; raise InputError if its SHA-256 differs from `sha256`."""
    if (actual := _sha256(content)) != sha256:
        again = "replace it, or delete it to download it again"
        raise InputError(f"{path} has the wrong content (sha256 {actual}, expected {sha256}); {again}")
    return content


def local(file: str, folder: Path | None) -> Path | None:
    """Return the path of `file` in `folder` (or EXPLORE_DATA_DIR), if any; raise InputError for a missing folder."""
    name = folder or os.environ.get("EXPLORE_DATA_DIR")
    if not name:
        return None
    if not Path(name).is_dir():
        raise InputError(f"the data folder {name} (EXPLORE_DATA_DIR) does not exist. Set it to that of the data sets")
    path = Path(name, file)
    return path if path.is_file() else None


def download(url: str, name: str, limit: int | None = None) -> Path:
    """Download a file to `name` in the cache, if absent. Raise OSError on failure, or above `limit` bytes."""
    get = partial(_get, limit=limit or LIMIT)
    try:
        return Path(pooch.retrieve(url, known_hash=None, fname=name, path=pooch.os_cache("explore"), downloader=get))
    except OSError as error:
        reason = str(error) if len(str(error)) < 150 else type(error).__name__  # such as "SSLError"
        advice = "offline, set EXPLORE_DATA_DIR to a folder with the data sets"
        raise OSError(f"cannot download {url} ({reason}); {advice}") from None


def _get(url: str, file: str, _: object, limit: int) -> None:
    """Download `url` to `file`; raise OSError above `limit` bytes, or if HTTPS redirects to another protocol."""
    import requests  # imported only when needed, as in pooch

    with requests.get(url, stream=True, timeout=30) as answer, open(file, "wb") as out:
        answer.raise_for_status()
        plain = [step.url for step in (*answer.history, answer) if not step.url.startswith("https:")]
        if plain and url.startswith("https:"):
            raise OSError(f"it redirects to {plain[0]}, which is not HTTPS")
        for part in answer.iter_content(2**16):
            if out.tell() + len(part) > limit:
                raise OSError(f"it is larger than {limit // packed.MIB} MiB")
            out.write(part)


def uci(number: int, archive: str, member: str) -> bytes:
    """Download an archive of UCI data set `number`; return the content of the file `member` in any of its folders."""
    content = download(f"{UCI}/{number}/{archive}.zip", f"{archive}.zip").read_bytes()
    return packed.member(content, LIMIT, "it", member)


def openml(file: str, name: str) -> bytes:
    """Download a file of the OpenML repository as CSV, cached as `name`; return its content."""
    return download(f"{OPENML}/{file}", name).read_bytes()


def rows(raw: bytes, separator: str | None = None, header: bool = False) -> Rows:
    """Split a text file into rows of cells at `separator` (None: at blanks); with `header`, skip the first row."""
    lines = [line.strip() for line in raw.decode().splitlines()]
    return [[cell.strip() for cell in line.split(separator)] for line in lines if line][header:]


def sheet(raw: bytes, formats: str) -> Rows:
    """Read an Excel file's first sheet; `formats` has a format for each column to read, see `formatted`."""
    packed.check_workbook(raw, limit=LIMIT)
    try:
        frame = pd.read_excel(io.BytesIO(raw), usecols=range(len(formats.split())))
    except ImportError:
        raise ImportError("to read this Excel file, run pip install 'explore-bnn[download]'") from None
    return formatted(frame.dropna(how="all").to_numpy(), formats)  # sheets may end with empty, formatted rows


def formatted(table: Any, formats: str) -> Rows:
    """Format numbers as strings, row by row; `formats` has one printf-style format per column, separated by blanks."""
    return [[form % float(cell) for form, cell in zip(formats.split(), row, strict=True)] for row in table]


def libsvm(file: str, features: int, positive: float) -> Rows:
    """Download a LIBSVM file; return dense rows with the label at the end: 1 for the label `positive`, else -1."""
    table = []
    for label, *pairs in rows(download(f"{LIBSVM}/{file}", f"{file}.txt").read_bytes()):
        values = dict(pair.split(":") for pair in pairs)
        sign = "1" if float(label) == positive else "-1"
        table.append([values.get(str(i + 1), "0") for i in range(features)] + [sign])
    return table
