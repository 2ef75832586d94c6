"""Sources of the benchmark sets: a local folder, else a download, each file with its checksum."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from explore.data import packed
from explore.data.source import checked, download, local
from explore.images.base import Images

LIMIT = 256 * packed.MIB  # of a download, packed and unpacked
CIFAR = "https://www.cs.toronto.edu/~kriz"


class Idx(NamedTuple):
    """A set in the format of MNIST: called with a folder, it is read from there or downloaded."""

    name: str  # and of the folder of local files
    description: str  # for `explore list images`
    classes: tuple[str, ...]
    url: str  # of the folder with the downloads
    sha256: Mapping[str, str]  # of each unpacked file: images and classes for training, then for testing

    def __call__(self, folder: Path | None = None) -> Images:
        """Read or download the set; an unexpected file raises InputError, a failed download OSError."""
        x, y, test_x, test_y = (self._array(file, folder) for file in self.sha256)
        return Images(self.name, x[:, None], y.astype(np.int64), test_x[:, None], test_y.astype(np.int64), self.classes)

    def _array(self, file: str, folder: Path | None) -> np.ndarray:
        """Read an idx file: two zero bytes, the type (8: bytes), the number of axes, their lengths, and the bytes."""
        path = local(f"{self.name}/{file}.gz", folder)
        path = path or download(f"{self.url}/{file}.gz", f"{self.name}-{file}.gz")
        content = checked(packed.read(path, LIMIT), self.sha256[file], path)
        axes = content[3]
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(np.frombuffer(content, ">i4", axes, 4))


class Cifar(NamedTuple):
    """A set in the binary format of CIFAR: for each image `labels` bytes and its pixels; else as `Idx`."""

    name: str
    description: str
    classes: str  # with blanks between them
    archive: str  # its name on the publisher's page
    sha256: str  # of the archive
    labels: int  # bytes before an image; the last of them is its class
    files: tuple[str, ...]  # in the archive: those for training, then the one for testing
    # Local files in place of the archive, `x` [N, height, width, channels] and `y`: name -> sha256.
    shards: Mapping[str, str] = {}

    def __call__(self, folder: Path | None = None) -> Images:
        """See `Idx`."""
        paths = {local(f"{self.name}/{file}", folder): sha256 for file, sha256 in self.shards.items()}
        parts = [_shard(path, sha256) for path, sha256 in paths.items() if path]
        if not parts or None in paths:
            parts = self._downloaded()
        x, y = (np.concatenate(part) for part in zip(*parts[:-1], strict=True))
        return Images(self.name, x, y, *parts[-1], tuple(self.classes.split()), "crop-flip")

    def _downloaded(self) -> list[tuple[np.ndarray, np.ndarray]]:
        path = download(f"{CIFAR}/{self.archive}", self.archive, LIMIT)
        content, parts = checked(path.read_bytes(), self.sha256, path), []
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for name in self.files:
                whole = archive.extractfile(members[name]).read()  # type: ignore[union-attr]
                rows = np.frombuffer(whole, np.uint8).reshape(-1, self.labels + 3072)
                x, y = rows[:, self.labels :].reshape(-1, 3, 32, 32), rows[:, self.labels - 1].astype(np.int64)
                parts.append((x, y))
        return parts


def _shard(path: Path, sha256: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(io.BytesIO(checked(path.read_bytes(), sha256, path))) as arrays:
        return np.ascontiguousarray(arrays["x"].transpose(0, 3, 1, 2)), arrays["y"].astype(np.int64)
