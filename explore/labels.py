"""The labels told so far: checked when they come, and saved with what says which points and arms they are of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from explore.errors import InputError
from explore.pool import Pool, numbers
from explore.rng import Rng

FORMAT = 2  # of a state_dict


class Labels:
    """Which points of a pool have a label in each of R replicas, arm by arm, and what the labels are.

    Args:
        pool: of T trials.
        arms: their names; R = T * arms.
        outputs: O, numbers a label has.
        classes: of a classification; 0: a regression.
        rng: the root of the experiment.

    Attributes:
        mask: [R, P] which points may get one.
        points: [R, n] those that have one, in the order in which they were told.
        y: [R, n, O], or [R, n] class indices; None before the first.
        round: how often labels were told.
    """

    def __init__(self, pool: Pool, arms: tuple[str, ...], outputs: int, classes: int, rng: Rng):
        self._pool, self._arms, self._outputs, self.classes, self._rng = pool, arms, outputs, classes, rng
        self.allowed: Bool[Tensor, "R P"] = pool.allowed.repeat(len(arms), 1)
        self.mask = self.allowed
        self.replicas = len(self.mask)
        self.points: Int[Tensor, "R n"] = torch.zeros(self.replicas, 0, dtype=torch.long, device=rng.device)
        self.y: Tensor | None = None
        self.round = 0

    def tell(self, indices: Any, y: Any) -> None:
        """Add labels, see `ActiveLearner.tell`."""
        points, values = self.indices(indices), self.values(y)
        if self.replicas > 1 and (points.dim() != 2 or len(points) != self.replicas):
            raise InputError(
                f"the points of {self.replicas} replicas come as [{self.replicas}, k]; got {list(points.shape)}"
            )
        if not points.numel() or values.numel() != points.numel() * self._outputs:
            raise InputError(f"{points.numel()} points cannot have {values.numel()} labels; each has {self._outputs}")
        given, points = list(values.shape), points.reshape(self.replicas, -1)
        values = self._shaped(values, *points.shape)
        # In another order of axes the labels would be shuffled among the points.
        if [n for n in given if n > 1] != [n for n in values.shape if n > 1]:
            raise InputError(f"the labels of these points come as {list(values.shape)}; got {given}")
        if not (0 <= int(points.min()) and int(points.max()) < len(self._pool.x)):
            raise InputError(f"points are numbered 0 to {len(self._pool.x) - 1}; got {points.tolist()}")
        fresh = self.mask.gather(1, points)
        if not fresh.all() or any(len(set(row)) < len(row) for row in points.tolist()):
            bad = points[~fresh].tolist() or points.tolist()
            raise InputError(f"points {bad} are labelled already, held out for testing, or named twice")
        self.mask = self.mask.scatter(1, points, False)
        self.points = torch.cat([self.points, points], 1)
        self.y = values if self.y is None else torch.cat([self.y, values], 1)
        self.round += 1

    def of(self, points: Int[Tensor, "R m"], y: Any) -> Tensor:
        """The labels of some points, y being those of the whole pool: [R, m, O], or [R, m] class indices."""
        values, n = self.values(y), len(self._pool.x)
        if not values.dim() or len(values) != n or values.numel() != n * self._outputs:
            raise InputError(f"y holds the labels of all {n} points, {self._outputs} each; got {list(values.shape)}")
        return self._shaped(values, n)[points]

    def indices(self, given: Any) -> Tensor:
        """Numbers of points, in the shape in which they come."""
        try:
            points = self._rng.tensor(given)
        except (TypeError, ValueError):
            raise InputError("points are named by whole numbers") from None
        if points.numel() and (points.dtype == torch.bool or points.is_floating_point() or points.is_complex()):
            raise InputError(f"points are named by whole numbers, of an integer type; got {points.dtype}")
        return points.long()

    def values(self, y: Any) -> Tensor:
        """Checked labels: class indices as int64; real numbers, even whole ones, as float64."""
        values = numbers(y, "label").to(self._rng.device, torch.float64)
        if not self.classes:
            return values
        if ((values != values.floor()) | (values < 0) | (values >= self.classes)).any():
            raise InputError(f"class labels are whole numbers from 0 to {self.classes - 1}")
        return values.long()

    def _shaped(self, values: Tensor, *lead: int) -> Tensor:
        return values.reshape(*lead) if self.classes else values.reshape(*lead, self._outputs)

    def state_dict(self) -> dict[str, Tensor]:
        """All of them, with the fingerprints of their points and what else says what they mean."""
        return {
            "format": torch.tensor(FORMAT),
            "labelled": self.points.cpu().clone(),
            "y": torch.zeros(self.replicas, 0) if self.y is None else self.y.cpu().clone(),
            "round": torch.tensor(self.round),
            "meaning": torch.frombuffer(bytearray(json.dumps(self._meaning()).encode()), dtype=torch.uint8),
            "pool": torch.as_tensor(self._pool.digest.copy()),  # [T, 32]
            "fingerprints": torch.as_tensor(self._pool.fingerprints[self.points.cpu().numpy()]),  # [R, n, 16]
        }

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Those that were saved, see `ActiveLearner.load_state_dict`."""
        if "format" not in saved or int(saved["format"]) != FORMAT:
            raise InputError(
                "the saved learner is of another version of explore; tell its labels, saved['y'] of the points "
                "saved['labelled'], to a new one"
            )
        theirs, mine = json.loads(saved["meaning"].cpu().numpy().tobytes()), self._meaning()
        if theirs != mine:
            a, b = ({k: v for k, v in one.items() if theirs.get(k) != mine.get(k)} for one in (theirs, mine))
            raise InputError(f"the saved learner has {a}, this one {b}")
        if not np.array_equal(saved["pool"].cpu().numpy(), self._pool.digest):
            raise InputError(
                "the saved learner's pool has other points than this one, or others may be chosen; "
                "only the order of the points may differ"
            )
        known = saved["labelled"].to(self._rng.device)
        self.points = self._pool.find(saved["fingerprints"].cpu().numpy(), known)
        self.mask = self.allowed.scatter(1, self.points, False)
        self.round = int(saved["round"])
        self.y = saved["y"].to(self._rng.device) if self.points.shape[1] else None

    def _meaning(self) -> dict[str, Any]:
        """What says of which points and arms labels are, and what a label is."""
        return {
            "seed": self._rng.seed,
            "points": len(self._pool.x),
            "acquisitions": list(self._arms),
            "outputs": self._outputs,
            "classes": self.classes,
            "trials": len(self._pool.allowed),
            "replicas": self.replicas,
        }
