"""Sources of the benchmark image sets: a local folder or a download. All files are checked by SHA-256."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from explore.data import packed
from explore.data.source import checked, download, local
from explore.images.base import Images

LIMIT = 256 * packed.MIB  # most bytes of a download, packed and unpacked
CIFAR = "https://www.cs.toronto.edu/~kriz"


class Idx(NamedTuple):
    """An image set in the IDX format of MNIST. Call it to read the set from a folder, or else to download it."""

    name: str  # also the name of the folder of local files
    description: str  # for `explore list images`
    classes: Sequence[str]
    url: str  # the folder with the downloads
    sha256: Mapping[str, str]  # of each unpacked file: images and classes for training, then for testing

    def __call__(self, folder: Path | None = None) -> Images:
        """Read or download the set; raise InputError for unexpected content, OSError if the download fails."""
        x, y, test_x, test_y = (self._array(file, folder) for file in self.sha256)
        labels, test_labels = y.astype(np.int64), test_y.astype(np.int64)
        return Images(self.name, x[:, None], labels, test_x[:, None], test_labels, tuple(self.classes))

    def _array(self, file: str, folder: Path | None) -> np.ndarray:
        """Read or download an IDX file. Format: two zero bytes, type (8: bytes), axis count, axis lengths, values."""
        path = local(f"{self.name}/{file}.gz", folder) or download(f"{self.url}/{file}.gz", f"{self.name}-{file}.gz")
        content = checked(packed.read(path, LIMIT), self.sha256[file], path)
        axes = content[3]
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(np.frombuffer(content, ">i4", axes, 4))


class Cifar(NamedTuple):
    """An image set in the binary format of CIFAR: per image, `labels` label bytes, then pixels. Call it like `Idx`."""

    name: str
    description: str
    classes: str  # names, separated by blanks
    archive: str  # file name on the publisher's page
    sha256: str  # of the archive
    labels: int  # number of label bytes per image; the last one is the class
    files: Sequence[str]  # files in the archive: training files, then the test file
    # Local .npz files that replace the archive, with `x` [N, height, width, channels] and `y`: name -> SHA-256.
    shards: Mapping[str, str] = {}

    def __call__(self, folder: Path | None = None) -> Images:
        """Read or download the set; raise InputError for unexpected content, OSError if the download fails."""
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
