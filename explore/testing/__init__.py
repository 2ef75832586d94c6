"""Pytest suites that every plug-in must pass, in this package and in others.

    from explore.testing import check_posterior
    from mypackage import IVON

    test_ivon = check_posterior(IVON)

Requires the extra `testing`. Nothing else in `explore` imports this package.
"""

from collections.abc import Callable
from typing import Any

import pytest

# Lets pytest show the compared values next to the messages of the checks.
PARTS = ("density", "likelihoods", "rules", "subject", "suite", "values")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))

from explore import registry  # noqa: E402
from explore.testing import density, likelihoods, rules, values  # noqa: E402, F401 (importing some adds checks)
from explore.testing.subject import Subject  # noqa: E402

__all__ = ["check_acquisition", "check_likelihood", "check_posterior"]


def check_posterior(*posteriors: Any) -> Callable[..., None]:
    """Build a pytest test that runs every check on every posterior, a class or a name of `explore list posteriors`.

    The dictionary `CONTRACT` in the file of a posterior has the facts that the checks need, see `Contract`.
    """
    named = (
        (one, registry.find("posteriors", one)) if isinstance(one, str) else (registry.hyphened(one.__name__), one)
        for one in posteriors
    )
    return values.POSTERIORS.test(Subject(*one) for one in named)


def check_likelihood(*likelihoods_: Any, outputs: int | None = None) -> Callable[..., None]:
    """Build a pytest test of likelihoods: their methods must agree with each other and with samples.

    Likelihoods are instances, classes or names from `explore list likelihoods`. `outputs` is the number of outputs of
    the network; None: 3, or 1 if a likelihood does not accept 3.
    """
    loaded = [(one, registry.find("likelihoods", one) if isinstance(one, str) else one) for one in likelihoods_]
    return likelihoods.LIKELIHOODS.test(
        likelihoods.LikelihoodSubject(one() if isinstance(one, type) else one, outputs, getattr(name, "__name__", name))
        for name, one in loaded
    )


def check_acquisition(*acquisitions: Any) -> Callable[..., None]:
    """Build a pytest test of acquisition rules, for each type of targets that a rule accepts.

    Rules are functions, frozen dataclasses, instances of these, or names from `explore list acquisitions`.
    """
    loaded = (registry.acquisition(rule) if isinstance(rule, str) else rule for rule in acquisitions)
    built = [rule() if isinstance(rule, type) else rule for rule in loaded]  # for a class, use its defaults
    return rules.RULES.test(subject for rule in built for subject in rules.subjects(rule))
