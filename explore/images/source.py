"""Where the benchmark sets come from: a local folder, else a download, each file with its checksum."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from explore.core.errors import InputError
from explore.data import packed
from explore.data.source import cache, download, local
from explore.images.base import Images

__all__ = ["HOLDS", "binary_batches", "idx_set", "npz_part"]

LIMIT = 256 * packed.MIB  # of a download, and of what it unpacks to
HOLDS = "mnist/"  # what tells the folder of data from others
CIFAR = "https://www.cs.toronto.edu/~kriz"


def idx_set(
    name: str, folder: Path | None, where: str, url: str, sha256: Mapping[str, str], classes: tuple[str, ...]
) -> Images:
    """A set in the format of MNIST.

    Args:
        name: of the set.
        folder: where local files are.
        where: they are below that.
        url: of the folder with the downloads.
        sha256: of each unpacked file.
        classes: their names.

    Raises:
        InputError: when a file is not the known one, or is neither there nor to be had.
    """
    parts = []
    for file, expected in sha256.items():
        path = local(f"{where}/{file}.gz", folder, HOLDS)
        try:
            if path is None:
                download(f"{url}/{file}.gz", f"{name}-{file}.gz")
                path = cache() / f"{name}-{file}.gz"
            content = packed.read(path, LIMIT)
        except OSError as error:
            raise InputError(str(error)) from None
        parts.append(_array(_known(content, expected, path)))
    x, y, test_x, test_y = parts
    return Images(name, x[:, None], y.astype(np.int64), test_x[:, None], test_y.astype(np.int64), classes)


def _array(content: bytes) -> np.ndarray:
    """Of an idx file: two zero bytes, the type (8: bytes), the number of axes, their lengths, and the bytes."""
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def npz_part(path: Path, sha256: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and classes of a local file with `x` [N, height, width, channels] and `y`.

    Raises:
        InputError: when it is not the known one.
    """
    with np.load(io.BytesIO(_known(path.read_bytes(), sha256, path))) as found:
        return np.ascontiguousarray(found["x"].transpose(0, 3, 1, 2)), found["y"].astype(np.int64)


def binary_batches(
    archive: str, sha256: str, labels: int, train: list[str], test: list[str]
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test part of a set in the binary format of CIFAR: `labels` bytes and an image, again and again.

    Args:
        archive: its name on the publisher's page.
        sha256: of the archive.
        labels: bytes before an image; the last of them is its class.
        train: names of its files.
        test: the same.

    Raises:
        InputError: when the download is not the known one, or cannot be had.
    """
    try:
        content = download(f"{CIFAR}/{archive}", archive, LIMIT)
    except OSError as error:
        raise InputError(str(error)) from None
    _known(content, sha256, cache() / archive)
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        members = {Path(member.name).name: member for member in files if member.isfile()}

        def part(names: list[str]) -> tuple[np.ndarray, np.ndarray]:
            whole = b"".join(files.extractfile(members[name]).read() for name in names)  # type: ignore[union-attr]
            rows = np.frombuffer(whole, np.uint8).reshape(-1, labels + 3072)
            return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].astype(np.int64)

        return part(train), part(test)


def _known(content: bytes, expected: str, path: Path) -> bytes:
    if (actual := hashlib.sha256(content).hexdigest()) != expected:
        raise InputError(
            f"{path} has the wrong content (sha256 {actual}, expected {expected}); replace it, or delete it to "
            "download it anew"
        )
    return content
