"""Pytest suites, built from checks (functions of the plug-in under test), and comparisons of trees of tensors."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from _pytest.mark import ParameterSet

from explore.core import tree

F = TypeVar("F", bound=Callable[..., None])


class Suite:
    """All checks for one type of plug-in."""

    def __init__(self) -> None:
        self.checks: list[tuple[Callable[..., None], Sequence[str], Callable[[Any], bool]]] = []

    def check(self, *cases: str, of: Callable[[Any], bool] = bool) -> Callable[[F], F]:
        """Return a decorator that adds a function, which raises AssertionError if a plug-in violates a requirement.

        It runs once for each of the `cases`, its second arguments. `of` tells whether it applies to a plug-in.
        """

        def add(run: F) -> F:
            self.checks.append((run, cases, of))
            return run

        return add

    def parameters(self, subjects: Iterable[Any]) -> list[ParameterSet]:
        """Return one pytest parameter, a function without arguments, per subject, applicable check and case."""
        parameters = []
        for subject in subjects:
            for check, cases in ((check, cases) for check, cases, of in self.checks if of(subject)):
                for case in cases or ("",):
                    run = partial(check, subject, case) if case else partial(check, subject)
                    name = "-".join(filter(None, (subject.name, check.__name__, case)))
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
