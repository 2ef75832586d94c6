"""Settings of all tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from explore.core.rng import Rng

collect_ignore = ["plugin_package"]  # the tests of another package, for `test_plugin_package.py`

# Most of what HMC takes here is its compilation, which is a third shorter so, and read when JAX starts.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# The nets here are small: more threads cost more than they bring, above all beside other processes.
torch.set_num_threads(1)


# Tests that take seconds, beside faster ones of the same: beginnings of their names, as pytest prints them.
SLOW = tuple((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow.txt, before `-m` looks at marks."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what Windows does not have."""
    if sys.platform == "win32" and item.get_closest_marker("posix"):
        pytest.skip("needs signals, pipes or limits of POSIX")


@pytest.fixture(scope="module", autouse=True)
def _imported(request: pytest.FixtureRequest) -> list[tuple[torch.Generator | np.random.Generator, object]]:
    """The generators that stand in a module of tests, with their states after its import."""
    found: list[tuple[torch.Generator | np.random.Generator, object]] = []
    for value in vars(request.module).values():
        generator = value.generator if isinstance(value, Rng) else value
        if isinstance(generator, torch.Generator):
            found.append((generator, generator.get_state()))
        if isinstance(generator, np.random.Generator):
            found.append((generator, generator.bit_generator.state))
    return found


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order(_imported: list) -> Iterator[None]:
    """Every test draws from them as if it were the only one."""
    for generator, state in _imported:
        if isinstance(generator, torch.Generator):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state
    yield
