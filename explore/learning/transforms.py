"""Targets learnt in another scale that keeps their order: their logarithm, or the normal score of their rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float

from explore.core.errors import InputError, shown

Kind = Literal["none", "log", "rank"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Transform:
    """A transform of each of O targets.

    Ranks: the i-th smallest of n targets has the normal score Phi^-1((i - 1/2) / n), equal ones the mean of their
    scores (van der Waerden). Between targets scores are interpolated, and beyond them constant.
    """

    kind: Kind = "none"
    knots: tuple[tuple[float, ...], ...] = ()  # of "rank", for each target its values, ascending
    scores: tuple[tuple[float, ...], ...] = ()  # of these

    @staticmethod
    def fit(kind: Kind, y: Float[np.ndarray, "n O"]) -> Transform:
        """Fit to targets; NaN means unmeasured."""
        if kind != "rank":
            return Transform(kind)
        pairs = [_ranked(column) for column in y.T]
        return Transform(kind, tuple(knots for knots, _ in pairs), tuple(scores for _, scores in pairs))

    def apply(self, y: Float[np.ndarray, "n O"]) -> Float[np.ndarray, "n O"]:
        """Convert targets to the scale in which they are learnt; refuse those without a logarithm."""
        if self.kind == "log" and (y <= 0).any():
            raise InputError(f"a target of {y[y <= 0][0]:.12g} has no logarithm; leave the transform at 'none'")
        if self.kind == "rank":
            return self._interpolated(y, self.knots, self.scores)
        return np.log(y) if self.kind == "log" else y

    def undo(self, z: Float[np.ndarray, "*n O"]) -> Float[np.ndarray, "*n O"]:
        """Convert back to targets."""
        if self.kind == "rank":
            return self._interpolated(z, self.scores, self.knots)
        return np.exp(z) if self.kind == "log" else z

    def _interpolated(self, values: np.ndarray, at: Any, of: Any) -> np.ndarray:
        columns = np.moveaxis(values, -1, 0)
        return np.stack([np.interp(column, x, y) for column, x, y in zip(columns, at, of, strict=True)], -1)

    def to_json(self) -> dict[str, Any]:
        """The transform as JSON values."""
        return {"kind": self.kind, "knots": list(map(list, self.knots)), "scores": list(map(list, self.scores))}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Transform:
        """Undo `to_json`; refuse other values."""
        try:
            knots, scores = (tuple(tuple(map(float, row)) for row in value[name]) for name in ("knots", "scores"))
            if value["kind"] not in KINDS or list(map(len, knots)) != list(map(len, scores)):
                raise ValueError("its parts are inconsistent")
            return Transform(value["kind"], knots, scores)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{shown(value)} is no transform of targets ({error})") from None


def _ranked(y: Float[np.ndarray, " n"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Distinct values, and their normal scores."""
    y = y[~np.isnan(y)]
    values, counts = np.unique(y, return_counts=True)
    ends = counts.cumsum()
    levels = (torch.arange(len(y), dtype=torch.float64) + 0.5) / len(y)
    each = torch.special.ndtri(levels).numpy()
    scores = np.add.reduceat(each, ends - counts) / counts
    return tuple(values.tolist()), tuple(scores.tolist())
