"""When a campaign has done enough: conditions such as gain<0.01, width<2.5, budget<=100 and labels<=60."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from explore.core.errors import InputError, shown
from explore.data.texts import number

# What each measures, as sentences call it: below its limit enough is known, within it rows may be handed out.
BELOW = {
    "gain": "the best candidate's score",
    "width": "the mean width of the candidates' intervals",
}
WITHIN = {
    "budget": "the cost of all rows that are measured, failed or pending",
    "labels": "the number of rows that are measured or pending",
}


class Limit(NamedTuple):
    """A condition that ends a campaign."""

    name: str
    value: float
    text: str  # as it was given


def parse(text: str, classes: bool = False) -> Limit:
    """A condition from its text.

    Raises:
        InputError: when it is none, or says nothing of classes.
    """
    match = re.fullmatch(r"\s*(?:(gain|width)\s*<|(budget|labels)\s*<=)\s*([^\s=]\S*)\s*", text)
    value = number(match[3]) if match else None
    if not match or value is None or not (0 < value < math.inf):
        raise InputError(
            f"--stop-when is {shown(text)}; it must be gain<X, width<X, budget<=X or labels<=X with a positive number X"
        )
    if match[1] == "width" and classes:
        raise InputError("--stop-when width<X is for numbers; classes have no intervals")
    return Limit(match[1] or match[2], value, text.strip())


def allowed(limits: Sequence[Limit], spent: Mapping[str, float], costs: Sequence[Mapping[str, float]]) -> int:
    """How many of the next rows, of which each has `costs`, stay within the limits on what is `spent`."""
    total = dict(spent)
    for n, cost in enumerate(costs):
        total = {name: total[name] + cost[name] for name in total}
        # Sums of decimals, such as ten times 0.1, may be above by their last digit.
        if any(total[limit.name] > limit.value * (1 + 1e-12) for limit in limits if limit.name in WITHIN):
            return n
    return len(costs)


def reached(limits: Sequence[Limit], measures: Mapping[str, float]) -> str:
    """A sentence on the first condition that is fulfilled; "": none is."""
    for name, limit, text in limits:
        if name in BELOW and measures.get(name, math.inf) < limit:
            return (
                f"Enough is known: {BELOW[name]} is {measures[name]:.4g}, which --stop-when {text} asks for; no row is "
                "handed out."
            )
    return ""


def exhausted(limits: Sequence[Limit], spent: Mapping[str, float]) -> str:
    """A sentence where no further row stays within the limits."""
    within = [limit for limit in limits if limit.name in WITHIN]
    sums = " and ".join(f"{WITHIN[limit.name]} is {spent[limit.name]:.12g}" for limit in within)
    texts = ", ".join(limit.text for limit in within)
    return f"The limit is reached: {sums}, and --stop-when {texts} leaves no row to hand out."
