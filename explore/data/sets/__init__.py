"""Benchmark data sets: the published sets of `published.toml`, and one file for each set with a loader of its own."""

from explore.data.source import Published, published

PLUG_INS = {name: Published(name, **entry) for name, entry in published(__name__).items()}
