"""Requirements on data sets."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from explore.data import Dataset, source
from explore.testing.suite import Suite

DATASETS = Suite()


class DatasetSubject:
    """A data set under test: its name in messages, and the function that loads it."""

    def __init__(self, name: str, function: Callable[..., Dataset]):
        self.name, self.function = name, function

    @functools.cached_property
    def declared(self) -> tuple[int, int, str]:
        """N, D and the task, from the end of its description or of its file's first docstring line."""
        module = sys.modules[self.function.__module__]
        description = getattr(self.function, "description", module.__doc__ or "").split("\n")[0]
        match = re.search(r"\((\d+) x (\d+), (regression|classification)\)\.?$", description)
        assert match, f'{self.name}: add "(N x D, task)" to the end of the first line of {module.__file__}'
        return int(match[1]), int(match[2]), match[3]

    @functools.cached_property
    def loaded(self) -> Dataset:
        """The set, loaded once."""
        return self.load()

    def load(self) -> Dataset:
        """The set, if it is available offline."""

        def refuse(*_: Any) -> bytes:
            pytest.skip(f"{self.name} is in no folder of EXPLORE_DATA_DIR")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "download", refuse)
            return self.function(None)


@DATASETS.check()
def it_is_what_its_description_says(subject: DatasetSubject) -> None:
    loaded, (n, d, task) = subject.loaded, subject.declared
    name = subject.name
    assert isinstance(loaded, Dataset), f"{name} gives a {type(loaded).__name__}, no Dataset"
    assert loaded.name == name, f"{name} calls itself {loaded.name}"
    assert (*loaded.x.shape, loaded.task) == (n, d, task), f"{name} is {loaded.x.shape}, not {n} x {d}"
    assert loaded.x.dtype == np.float64 and np.isfinite(loaded.x).all(), f"{name}: x is not all finite float64"
    assert len(set(loaded.features)) == d, f"{name}: {len(set(loaded.features))} names for {d} features"
    assert loaded.x.std(0).any() and loaded.y.std(0).all(), f"{name}: its inputs or targets are all the same"
    if task == "regression":
        assert loaded.y.shape == (n, loaded.y.shape[1]) and loaded.y.dtype == np.float64, (
            f"{name}: y is no float64 [N, O]"
        )
        assert np.isfinite(loaded.y).all(), f"{name}: y is not finite"
    else:
        assert loaded.y.shape == (n,) and loaded.y.dtype == np.int64, f"{name}: y is no int64 [N]"
        assert set(loaded.y) == set(range(len(loaded.classes))), f"{name}: y does not index its {loaded.classes}"


@DATASETS.check()
def it_is_the_same_every_time(subject: DatasetSubject) -> None:
    one, two = subject.loaded, subject.load()
    assert np.array_equal(one.x, two.x) and np.array_equal(one.y, two.y), f"{subject.name} differs when loaded again"
