"""Tests that every plug-in must pass, in this package and in others; pytest collects them.

    from explore.testing import check_posterior
    from mypackage import IVON

    test_ivon = check_posterior(IVON)

It needs the extra `testing`, and nothing else in `explore` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

# What is compared is shown beside the checks' own messages.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("datasets", "density", "likelihoods", "norms", "rules", "subject", "values"))
)

from explore import registry  # noqa: E402
from explore.acquisitions.base import name_of  # noqa: E402
from explore.testing import datasets, density, likelihoods, norms, rules, settings, updates, values  # noqa: E402, F401 (the imports add checks)
from explore.testing.subject import Subject  # noqa: E402

__all__ = ["check_acquisition", "check_dataset", "check_likelihood", "check_posterior"]


def check_posterior(
    *posteriors: Any, contract: Mapping[str, Any] | None = None, members: int = 1
) -> Callable[..., None]:
    """A test of posteriors, for pytest to run once for every check and case.

    Args:
        posteriors: classes, or names from `explore list posteriors`.
        contract: facts that the checks need, see `Contract`; None: `CONTRACT` in the file of each.
        members: 1 for themselves; more for mixtures of that many fits.
    """
    behind = f"-members-{members}" if members > 1 else ""
    return values.POSTERIORS.test(
        (name + behind, Subject(name + behind, cls, contract, members))
        for name, cls in _named("posteriors", posteriors)
    )


def check_likelihood(*likelihoods_: Any, outputs: int | None = None) -> Callable[..., None]:
    """A test of likelihoods, as `check_posterior`: their parts agree with each other and with their own samples.

    Args:
        likelihoods_: with their settings or classes alone, or names from `explore list likelihoods`.
        outputs: of the net; None: 3, or 1 where a likelihood refuses 3.
    """
    named = [
        (one, registry.find("likelihoods", one)) if isinstance(one, str) else (getattr(one, "__name__", repr(one)), one)
        for one in likelihoods_
    ]
    return likelihoods.LIKELIHOODS.test(
        (name, likelihoods.LikelihoodSubject(one() if isinstance(one, type) else one, outputs)) for name, one in named
    )


def check_acquisition(*acquisitions: Any) -> Callable[..., None]:
    """A test of acquisition rules, as `check_posterior`, with every kind of targets that a rule does not refuse.

    Args:
        acquisitions: functions, frozen dataclasses with their settings or alone, or names from
            `explore list acquisitions`.
    """
    loaded = (registry.acquisition(rule) if isinstance(rule, str) else rule for rule in acquisitions)
    built = [rule() if isinstance(rule, type) else rule for rule in loaded]  # a class with its defaults
    return rules.RULES.test(subject for rule in built for subject in rules.subjects(name_of(rule), rule))


def check_dataset(*datasets_: Any) -> Callable[..., None]:
    """A test of data sets, as `check_posterior`; one that would have to be downloaded is skipped.

    Args:
        datasets_: functions, or names from `explore list datasets`.
    """
    named = _named("data", datasets_)
    return datasets.DATASETS.test((name, datasets.DatasetSubject(name, function)) for name, function in named)


def _named(kind: str, plug_ins: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(p, registry.find(kind, p)) if isinstance(p, str) else (registry.hyphened(p.__name__), p) for p in plug_ins]
