"""Tests made of checks: functions of a subject, each with its cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pytest
from _pytest.mark import ParameterSet

F = TypeVar("F", bound=Callable[..., None])


def expect_defaults(cls: Any, required: Collection[str] = ()) -> None:
    """Assert that every field of a dataclass has a default, but for those that are required."""
    missing = dataclasses.MISSING
    fields = (f for f in dataclasses.fields(cls) if f.init and f.name not in required)
    bare = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    assert not bare, f"add a default to {', '.join(bare)} of {cls.__name__}, as every setting has"


class Check(NamedTuple):
    """A function that raises AssertionError if a subject violates a requirement."""

    run: Callable[..., None]
    cases: Mapping[str, Any]  # cases to run for each subject: identifier -> value; empty: once
    of: Callable[[Any], bool]  # selects its subjects


class Suite:
    """All checks of one kind of plug-in."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def check(self, cases: Mapping[str, Any] | None = None, of: Callable[[Any], bool] = bool) -> Callable[[F], F]:
        """Adds the decorated function to the suite, see `Check`."""

        def add(run: F) -> F:
            self.checks.append(Check(run, cases or {}, of))
            return run

        return add

    def parameters(self, subjects: Iterable[tuple[str, Any]]) -> list[ParameterSet]:
        """Every check and case of the named subjects, a function without arguments each."""
        parameters = []
        for name, subject in subjects:
            for check in (c for c in self.checks if c.of(subject)):
                label = f"{name}-{check.run.__name__}"
                runs = {f"{label}-{case}": partial(check.run, subject, value) for case, value in check.cases.items()}
                runs = runs or {label: partial(check.run, subject)}
                parameters += [pytest.param(run, id=key) for key, run in runs.items()]
        return parameters

    def test(self, subjects: Iterable[tuple[str, Any]]) -> Callable[[Callable[[], None]], None]:
        """A test function that pytest runs once for each of them."""

        @pytest.mark.parametrize("check", self.parameters(subjects))
        def test(check: Callable[[], None]) -> None:
            check()

        return test
