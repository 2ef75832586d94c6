"""Requirements on posteriors' settings: ranges, presets, refusals, the prior."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from explore import registry
from explore.core import tree
from explore.core.errors import InputError, check_range
from explore.learning.fit import fit
from explore.testing.subject import (
    PARTS,
    N,
    R,
    Subject,
    assert_same_bits,
    data,
    refused,
    seeded,
    start,
)  # fmt: skip
from explore.testing.values import POSTERIORS


@POSTERIORS.check()
def every_numeric_setting_is_checked(subject: Subject) -> None:
    subject.build()
    fields = dataclasses.fields(subject.cls)
    unknown = sorted(vars(subject.cls).get("ranges", {}).keys() - {field.name for field in fields})
    assert not unknown, (
        f"{subject.name}: `ranges` of {subject.cls.__name__} names {unknown[0]}, which is no setting of it"
    )
    ranges = {k: v for cls in reversed(subject.cls.__mro__) for k, v in getattr(cls, "ranges", {}).items()}
    for field in fields:
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            for wrong in (-1, float("nan")) if isinstance(field.default, float) else (-1,):
                if not _inside(wrong, ranges.get(field.name, "(0, inf)")):
                    with pytest.raises(InputError) as error:
                        subject.build(**dict[str, Any]({field.name: wrong}))
                        pytest.fail(f"{subject.name} takes {field.name}={wrong}; does it call super().__post_init__()?")
                    assert field.name in str(error.value), f"{subject.name}: {error.value!r} does not name {field.name}"


def _inside(number: float, interval: str) -> bool:
    try:
        check_range("", number, interval)
    except InputError:
        return False
    return True


@POSTERIORS.check()
def presets_are_valid_settings(subject: Subject) -> None:
    for preset in registry.presets(subject.cls):
        subject.build(**registry.settings_in(subject.cls, preset))


@POSTERIORS.check()
def every_part_of_a_net_is_taken_or_refused_as_declared(subject: Subject) -> None:
    for part, net in PARTS.items():
        is_refused = refused(subject, net)
        assert is_refused or subject.takes(part), f'{subject.name} takes {part}: drop them from "refuses" in CONTRACT'
        assert not is_refused or not subject.takes(part), (
            f"{subject.name} refuses a net with {part}; where it cannot do otherwise, "
            + subject.add("refuses", f'("{part}",)')
        )


@POSTERIORS.check()
def a_prior_is_learned_or_that_is_refused(subject: Subject) -> None:
    if not subject.learns_prior:
        return
    posterior, batch, states = subject.build(epochs=2, batch_size=4, prior_variance="learned"), data(), []
    first = start(posterior, N, R, seeded())
    for epoch in fit(posterior, batch.x, batch.y, seeded(), state=first):
        states.append(epoch.state)
    variances = [s.common.prior.variance for s in (first, *states)]
    for one, two in zip(variances[:-1], variances[1:], strict=True):
        assert all((a != b).all() for a, b in zip(one, two, strict=True)), (
            f"{subject.name}: an epoch learns no variance"
        )
    again = fit(posterior, batch.x, batch.y, seeded(), state=first)
    saved = tree.restore(first, tree.save(next(again).state))
    assert_same_bits(saved.common.prior, states[0].common.prior, f"{subject.name}: learned variances are saved")
