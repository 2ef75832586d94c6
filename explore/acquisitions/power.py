"""Power sampling: Gumbel noise on the scores of another rule, for diverse batches (Kirsch et al. 2023).

Stochastic Batch Acquisition: A Simple Baseline for Deep Active Learning, Section 3. To draw k points without
replacement, with probabilities proportional to s^beta for scores s, take the k largest of

    beta log s + G,   G = -log(-log u),   u uniform                                  (Gumbel top-k; Kool et al. 2019)
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from explore import registry
from explore.acquisitions.base import Choice, Needs, View, best, needs_of
from explore.core.errors import Checked, InputError


@dataclass(frozen=True)
class Power(Checked):
    """A rule that draws k points with probabilities proportional to a power of another rule's scores."""

    rule: str = "information-gain"  # the other rule, which must score single points
    beta: float = 1.0

    ranges: ClassVar[dict[str, str]] = {"beta": "[0, inf)"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._base.scores is None:
            rules = {name: registry.find("acquisitions", name) for name in registry.names("acquisitions")}
            allowed = [name for name, rule in rules.items() if not isinstance(rule, type) and needs_of(rule).scores]
            needed = f"power needs an acquisition that scores single points, which {self.rule} does not"
            raise InputError(f"{needed}; allowed: {', '.join(allowed)}")

    @property
    def _base(self) -> Needs:
        return needs_of(registry.acquisition(self.rule))

    @property
    def needs(self) -> Needs:
        """The needs of the wrapped rule, changed to score points independently and without support for costs."""
        return replace(self._base, alone=True, most=None, costs=False, scores=None)

    def __call__(self, view: View, k: int) -> Choice:
        assert self._base.scores is not None
        scores = self._base.scores(view)
        smallest = torch.finfo(scores.dtype).tiny  # points with score 0 come last, in random order
        gumbel = -(-view.uniform.clamp_min(smallest).log()).log()
        drawn = best(self.beta * scores.clamp_min(smallest).log() + gumbel, view.mask, k).indices
        return Choice(drawn, scores.gather(1, drawn))
