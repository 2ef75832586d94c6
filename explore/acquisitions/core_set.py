"""Core-set: points far from all labelled, pending or chosen points, by greedy k-centre (Sener and Savarese 2018).

Active Learning for Convolutional Neural Networks: A Core-Set Approach, Algorithm 1. The paper measures distances
between activations of the last hidden layer. Here, distances are between the sampled nets' predictions (numbers or
class probabilities), so that irrelevant features do not count. With `space=inputs`, distances are between
standardised inputs. For predictions,

    d(x, x')^2 = 1/S sum_s |f_s(x) - f_s(x')|^2,

where f_s are the predictions of net s.
"""

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
    """A rule for the k points farthest from all labelled, pending and already chosen points; scores are distances."""

    space: Literal["predictions", "inputs"] = "predictions"  # the space in which distances are measured

    def __call__(self, view: View, k: int) -> Choice:
        def update(nearest: Tensor, chosen: Int[Tensor, "R 1"]) -> Tensor:
            rows = torch.arange(len(chosen), device=chosen.device).unsqueeze(1)
            return torch.minimum(nearest, self._distances(view, view.candidates[rows, chosen]))

        return greedy(view.mask, k, self._distances(view, view.taken), lambda nearest: nearest, update)

    def _distances(self, view: View, centres: Tensor) -> Float[Tensor, "R C"]:
        """Return the distance of each candidate to the nearest of the centres [R, n, ...]."""
        if self.space == "inputs":
            x, n = view.candidates, centres.flatten(2)
            chunks = parts(x.shape[1], n.numel())
            return filled(((part, (_nearest(x[:, part].flatten(2), n),)) for part in chunks), x.shape[1])[0]

        def places(out: Float[Tensor, "R S b O"]) -> Float[Tensor, "R b F"]:  # the predictions of all nets
            return view.likelihood.mean(out).movedim(1, 2).flatten(2) / out.shape[1] ** 0.5

        near = places(view.outputs_at(centres))
        return view.each(lambda out: _nearest(places(out), near))


def _nearest(points: Float[Tensor, "R b F"], centres: Float[Tensor, "R n F"]) -> Float[Tensor, "R b"]:
    # With matrix products, small distances between near-duplicates would be lost to rounding.
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").amin(2)
