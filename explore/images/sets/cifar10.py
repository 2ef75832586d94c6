"""CIFAR-10: ten kinds of animals and vehicles (50,000 + 10,000 colour images of 32 x 32)."""

from pathlib import Path

import numpy as np

from explore.data.source import local
from explore.images.base import Images
from explore.images.source import HOLDS, binary_batches, npz_part

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
SHARDS = {
    "train_1.npz": "6dbeaf00ed12a618d167376b955d1ebf59e0aeb3e45f4f69a68c3dc3384a5f17",
    "train_2.npz": "b8f044197177a5111a6e066e2328cdf2bf967971b108d1f457a3f4c3aa401b95",
    "train_3.npz": "b7fb86f885ee4b25d602e3fd32ab1671ea108bbddfc5e86c8bb11a5e3ff3b6d7",
    "train_4.npz": "e4f17648b4d40f454d7a1d5caff0085652a931939000ae9f2234b63bf2f04f75",
    "train_5.npz": "a125048058d87c7035a241c7104a7744b46c1bbb37774cb8be7fa8325cb42735",
    "test.npz": "1066f989ac8c9e15b0157d59dfd337e6bc645273afad29ac9567891d4a9e2569",
}


def cifar10(folder: Path | None = None) -> Images:
    """The official images; in local files `cifar10/*.npz` they have another order, which decides what a part is."""
    paths = [local(f"cifar10/{file}", folder, HOLDS) for file in SHARDS]
    if all(paths):
        *shards, test = (npz_part(path, sha) for path, sha in zip(paths, SHARDS.values(), strict=True) if path)
        x, y = (np.concatenate(part) for part in zip(*shards, strict=True))
    else:
        (x, y), test = binary_batches(
            "cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 1,
            [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"],
        )  # fmt: skip
    return Images("cifar10", x, y, *test, tuple(CLASSES.split()), "crop-flip")
