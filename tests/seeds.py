"""Seeds of tests over generated input: the first few always, the others with the slow tests."""

import pytest


def seeds(count, quick):
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]
