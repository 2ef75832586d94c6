"""Checks for data sets."""

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
    """A data set under test: its name for messages, and the function that loads it."""

    def __init__(self, name: str, function: Callable[..., Dataset]):
        self.name, self.function = name, function

    @functools.cached_property
    def declared(self) -> tuple[int, int, str]:
        """Numbers of examples and features, and the task, parsed from the description or the module docstring."""
        module = sys.modules[self.function.__module__]
        description = getattr(self.function, "description", module.__doc__ or "").split("\n")[0]
        match = re.search(r"\((\d+) x (\d+), (regression|classification)\)\.?$", description)
        assert match, f'{self.name}: add "(N x D, task)" to the end of the first line of {module.__file__}'
        return int(match[1]), int(match[2]), match[3]

    def load(self) -> Dataset:
        """Load the data set; skip the test if it is not available offline."""

        def refuse(*_: Any) -> bytes:
            pytest.skip(f"{self.name} is not in EXPLORE_DATA_DIR")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "download", refuse)
            return self.function(None)


@DATASETS.check()
def it_is_what_its_description_says(subject: DatasetSubject) -> None:
    loaded, (n, d, task), name = subject.load(), subject.declared, subject.name
    assert isinstance(loaded, Dataset), f"{name} returns a {type(loaded).__name__}, not a Dataset"
    x, y = loaded.x, loaded.y
    assert loaded.name == name, f"{name} has another name, {loaded.name}"
    shape = f"{name} has shape {x.shape} ({loaded.task})"
    assert (*x.shape, loaded.task) == (n, d, task), f"{shape}, expected {n} x {d} ({task})"
    assert x.dtype == np.float64 and np.isfinite(x).all(), f"{name}: x must be finite float64"
    assert len(set(loaded.features)) == d, f"{name}: {len(set(loaded.features))} names for {d} features"
    assert x.std(0).any() and y.std(0).all(), f"{name}: all inputs or targets are the same"
    if task == "regression":
        assert y.shape == (n, y.shape[-1]) and y.dtype == np.float64, f"{name}: y must be float64 of shape [N, O]"
        assert np.isfinite(y).all(), f"{name}: y is not finite"
    else:
        assert y.shape == (n,) and y.dtype == np.int64, f"{name}: y must be int64 of shape [N]"
        every = set(range(len(loaded.classes)))
        assert set(y) == every, f"{name}: y must use every index of its classes, {loaded.classes}"
    again = subject.load()
    assert np.array_equal(x, again.x) and np.array_equal(y, again.y), f"{name} differs when loaded a second time"
