"""What every acquisition rule owes, see `explore.testing`. A new file in `explore/acquisitions` is tested here."""

from typing import Any

import pytest
import torch

from explore import registry
from explore.acquisitions.base import Choice, Needs, best
from explore.acquisitions.power import Power
from explore.testing import check_acquisition, rules

test_acquisition = check_acquisition(*registry.names("acquisitions"))
test_a_class_has_its_defaults = check_acquisition(Power)


def zeros(view, k):
    return torch.zeros(len(view.x), k)


@Needs(targets="classes")
def one_twice(view, k):
    return Choice(torch.full((len(view.x), k), 1), zeros(view, k))


def beyond(view, k):
    return Choice(torch.arange(4 - k, 4).expand(len(view.x), k), zeros(view, k))


def of_its_own(view, k):
    return best(torch.rand(view.mask.shape), view.mask, k)


def first(view, k):
    return Choice(torch.arange(k).expand(len(view.x), k), zeros(view, k))


def together(view, k):
    return best(view.x.sum(2) * (1 if len(view.x) > 1 else -1), view.mask, k)


def grasping(view, k):
    view.x[:, 0] += 1
    return best(view.uniform, view.mask, k)


def not_a_number(view, k):
    return first(view, k)._replace(scores=zeros(view, k) / 0)


@pytest.mark.parametrize(
    ("rule", "check", "message"),
    [
        (one_twice, "it_chooses_different_candidates-3", r"one_twice returned a point twice: \[1, 1, 1\]"),
        (beyond, "it_chooses_different_candidates-1", r"beyond returned \[3\]; candidates are numbered 0 to 2"),
        (not_a_number, "it_chooses_different_candidates-1", "returns scores that are not finite:"),
        (of_its_own, "it_chooses_the_same_in_the_same_view", "random numbers must come from view.uniform or view.rng"),
        (grasping, "it_chooses_the_same_in_the_same_view", "grasping.* changes its view in place"),
        (first, "it_chooses_the_same_in_the_same_view", "chooses the first candidates of every replica"),
        (together, "replicas_choose_for_themselves", "in a replica among others, but"),
    ],
)
def test_the_fault_of_a_rule_is_named(rule, check, message):
    cases: list[Any] = rules.RULES.parameters(rules.subjects(rule))
    found = [case.values[0] for case in cases if case.id.endswith(check)]
    assert len(found) == (2 if rule is one_twice else 4)
    for run in found:
        with pytest.raises(AssertionError, match=message):
            run()


def draws(view, k):
    return best(view.rng.uniform(*view.mask.shape), view.mask, k)


def test_a_rule_may_draw_numbers_of_its_own():
    for case in rules.RULES.parameters(rules.subjects(draws)):
        run: Any = case.values[0]
        run()


def test_a_rule_that_refuses_everything_is_not_passed():
    with pytest.raises(AssertionError, match="refuses all targets: .* chooses at most 0 points at once, not 1"):
        list(rules.subjects(Needs(most=0)(lambda view, k: first(view, k))))
