"""Pytest suites, built from checks (functions of the plug-in under test), and comparisons of trees of tensors."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from _pytest.mark import ParameterSet

from explore.core import tree

F = TypeVar("F", bound=Callable[..., None])


class Check(NamedTuple):
    """A function that raises AssertionError if a subject (a plug-in under test) violates a requirement."""

    run: Callable[..., None]
    cases: Sequence[str]  # second arguments, one per run; if empty, run once without
    of: Callable[[Any], bool]  # whether the check applies to a subject


class Suite:
    """All checks for one type of plug-in."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def check(self, *cases: str, of: Callable[[Any], bool] = bool) -> Callable[[F], F]:
        """Return a decorator that adds a function to the suite; for the arguments, see `Check`."""

        def add(run: F) -> F:
            self.checks.append(Check(run, cases, of))
            return run

        return add

    def parameters(self, subjects: Iterable[Any]) -> list[ParameterSet]:
        """Return one pytest parameter, a function without arguments, per subject, applicable check and case."""
        parameters = []
        for subject in subjects:
            for check in (c for c in self.checks if c.of(subject)):
                for case in check.cases or ("",):
                    run = partial(check.run, subject, case) if case else partial(check.run, subject)
                    name = "-".join(filter(None, (subject.name, check.run.__name__, case)))
                    parameters.append(pytest.param(run, id=name))
        return parameters

    def test(self, subjects: Iterable[Any]) -> Callable[[Callable[[], None]], None]:
        """Return a test function that pytest runs once for each check, case and subject."""

        @pytest.mark.parametrize("check", self.parameters(subjects))
        def test(check: Callable[[], None]) -> None:
            check()

        return test


def expect_defaults(cls: Any, required: Collection[str] = ()) -> None:
    """Assert that every field of a dataclass has a default, except the fields in `required`."""
    missing = dataclasses.MISSING
    fields = (f for f in dataclasses.fields(cls) if f.init and f.name not in required)
    bare = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    assert not bare, f"add a default to {', '.join(bare)} of {cls.__name__}: every setting needs one"


def assert_same_bits(actual: Any, expected: Any, why: str) -> None:
    """Assert that trees of tensors are bit-identical; `why` is the start of the message."""
    for (path, a), (_, b) in zip(tree.leaves(actual), tree.leaves(expected), strict=True):
        assert torch.equal(a, b), f"{why}: {path} differs"


def assert_close(actual: Any, expected: Any, why: str, rtol: float = 1e-8, atol: float = 1e-10) -> None:
    """Assert that trees of tensors are equal up to rounding; `why` is the start of the message."""
    for (path, a), (_, b) in zip(tree.leaves(actual), tree.leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=partial("{} {}: {}".format, why, path))
