"""Benchmark image sets: the published sets of `published.toml`, and one file for each set with a loader of its own."""

from typing import Any

from explore.data.source import published
from explore.images.source import Cifar, Idx

FORMATS: dict[str, Any] = {"cifar": Cifar, "idx": Idx}
PLUG_INS = {name: FORMATS[entry.pop("format")](name, **entry) for name, entry in published(__name__).items()}
