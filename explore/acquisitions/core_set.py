"""Core-set: points far from all that are labelled, pending or chosen, by greedy k-centre (Sener and Savarese 2018).

Active Learning for Convolutional Neural Networks: A Core-Set Approach, Algorithm 1. In place of activations of a last
hidden layer the distance is that of the sampled nets' predictions, numbers or class probabilities,

    d(x, x')^2 = 1/S sum_s |f_s(x) - f_s(x')|^2,

so that features which the targets do not depend on do not count; or with `space=inputs` that of standardised inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore.acquisitions.base import Choice, View, greedy
from explore.core.errors import Checked
from explore.inference.predict import filled, parts


@dataclass(frozen=True)
class CoreSet(Checked):
    """The k points farthest from all that are labelled, pending or chosen before; scores are the distances."""

    space: Literal["predictions", "inputs"] = "predictions"  # where distances are measured

    def __call__(self, view: View, k: int) -> Choice:
        def update(nearest: Tensor, chosen: Int[Tensor, "R 1"]) -> Tensor:
            rows = torch.arange(len(chosen), device=chosen.device).unsqueeze(1)
            return torch.minimum(nearest, self._distances(view, view.candidates[rows, chosen]))

        return greedy(view.mask, k, self._distances(view, view.taken), lambda nearest: nearest, update)

    def _distances(self, view: View, centres: Tensor) -> Float[Tensor, "R C"]:
        """Distance of each candidate to the nearest of the centres [R, n, ...]."""
        if self.space == "inputs":
            x, n = view.candidates, centres.flatten(2)
            chunks = parts(x.shape[1], n.numel())
            return filled(((part, (_nearest(x[:, part].flatten(2), n),)) for part in chunks), x.shape[1])[0]

        def places(out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R b F"]:  # the predictions of all nets
            return view.likelihood.mean(out).movedim(1, 2).flatten(2) / out.shape[1] ** 0.5

        near = places(view.outputs_at(centres))
        return view.each(lambda out: _nearest(places(out), near))


def _nearest(points: Float[Tensor, "R b F"], centres: Float[Tensor, "R n F"]) -> Float[Tensor, "R b"]:
    """Distance of each point to the nearest centre."""
    # Matrix products would lose the digits in which near-duplicates differ.
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").amin(2)
