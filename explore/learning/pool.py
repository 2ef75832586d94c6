"""The pool of an active learner: candidates and labelled points of R replicas, and scales to standardise them."""

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore.core.errors import InputError, check_known
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.base import Predictive
from explore.inference.predict import parts
from explore.learning.scaling import UNSCALED, RawInputs, StandardisedInputs, Standardiser, labels
from explore.nets.protocols import check_logits, check_targets

STANDARDISE = ("labelled", "pool", "none")


class Scales(NamedTuple):
    """The standardisers of inputs x and numeric targets y."""

    x: Standardiser
    y: Standardiser


class Pool:
    """A pool of P points, and the points allowed in each of T trials. R = arms * T, arm-major. See `ActiveLearner`."""

    def __init__(
        self,
        posterior: Predictive,
        x: Any,
        allowed: np.ndarray | Tensor | None,
        trials: int,
        arms: int,
        standardise: str | Standardiser,
        rng: Rng,
    ):
        if not isinstance(standardise, Standardiser):
            check_known("standardise", [standardise], STANDARDISE)
        self._trained = posterior.net.trained
        if self._trained and standardise != "none":
            raise InputError("a pretrained network (trained=True) expects raw data. Pass standardise='none'")
        self.rng, self.trials, self.standardise = rng, trials, standardise
        self._raw = RawInputs(x, rng, posterior.net.inputs.packed)
        if posterior.net.inputs.whole and standardise != "none":
            raise InputError("a network that looks up whole numbers expects raw data. Pass standardise='none'")
        self.x = self._raw.x
        if self.x.dtype == torch.uint8 and self.x.dim() > 2 and standardise in ("labelled", "pool"):
            raise InputError("uint8 images are not standardised. Scale channels yourself, or pass standardise='none'")
        if not len(self._raw):
            raise InputError("a pool must have shape [points, ...] with at least one point")
        self._likelihood = likelihood = posterior.likelihood
        out = at_zero(posterior, self._raw[:2].to(rng.dtype))
        check_logits(likelihood, out)
        width = likelihood.mean(out).shape[-1]
        self._outputs, self._classes = (1, width) if likelihood.discrete else (width, 0)
        self._scaled = likelihood.scaling == "affine" and not self._trained  # whether targets are standardised
        self._partial = bool(getattr(likelihood, "partial", False))  # whether labels may be NaN in some outputs
        self.allowed: Bool[Tensor, "R P"] = _mask(allowed, trials, len(self.x)).to(rng.device).repeat(arms, 1)
        self.mask, self.replicas = self.allowed, len(self.allowed)  # the allowed points without a label
        self.labelled: Int[Tensor, "R n"] = torch.zeros(self.replicas, 0, dtype=torch.long, device=rng.device)
        self.y: Tensor | None = None  # [R, n, O], or [R, n] class indices, in the order of `labelled`
        self.round = 0  # the number of `tell` calls

    def new(self, inputs: RawInputs, scales: Scales) -> Float[Tensor, "R n ..."]:
        """Standardise `inputs` from outside the pool for every replica."""
        return scales.x.inputs(inputs[:].unsqueeze(0), self.rng.dtype).expand(self.replicas, *inputs.shape)

    def tell(self, indices: Any, y: Any) -> None:
        """Add labels to points of the pool, see `ActiveLearner.tell`."""
        points, values = self.free(indices), self._labels(y, self._partial)
        if not points.numel() or values.numel() != points.numel() * self._outputs:
            numbers = f"got {values.numel()} labels for {points.numel()} points"
            raise InputError(f"{numbers}; each point needs {self._outputs}")
        shape, values = list(values.shape), self._shaped(values, *points.shape)
        # With axes in another order, labels would be assigned to the wrong points.
        if [n for n in shape if n > 1] != [n for n in values.shape if n > 1]:
            raise InputError(f"labels must have shape {list(values.shape)}; got {shape}")
        if self._partial and values.isnan().all(-1).any():
            raise InputError("a point has NaN in all outputs. Leave out points without measurements")
        self.mask = self.mask.scatter(1, points, False)
        self.labelled = torch.cat([self.labelled, points], 1)
        self.y = values if self.y is None else torch.cat([self.y, values], 1)
        self.round += 1

    def free(self, indices: Any) -> Int[Tensor, "R p"]:
        """Return point indices as [R, p]. Raise InputError unless each replica's points are available and distinct."""
        points, replicas = self._indices(indices), self.replicas
        if replicas > 1 and (points.dim() != 2 or len(points) != replicas):
            shape = f"[{replicas}, k] for {replicas} replicas"
            raise InputError(f"indices must have shape {shape}; got {list(points.shape)}")
        points = points.reshape(replicas, points.numel() // replicas)
        fresh = self.mask.gather(1, points)
        if not fresh.all() or any(len(set(row)) < len(row) for row in points.tolist()):
            bad = points[~fresh].tolist() or points.tolist()
            raise InputError(f"points {bad} are not available: they are already labelled, not allowed, or repeated")
        return points

    def test(self, indices: Any, y: Any, scales: Scales) -> Batch:
        """Return the standardised inputs and labels of points `indices` [R, m]; y has the labels of the whole pool."""
        points, values, n = self._indices(indices), self._labels(y), len(self.x)
        if points.dim() != 2 or len(points) != self.replicas or not points.numel():
            raise InputError(f"test indices must have shape [{self.replicas}, m]; got {list(points.shape)}")
        if not values.dim() or len(values) != n or values.numel() != n * self._outputs:
            shape = list(values.shape)
            raise InputError(f"y must have the labels of all {n} points, {self._outputs} each; got shape {shape}")
        return Batch(self.standardised(points, scales)[:], self._targets(self._shaped(values, n)[points], scales))

    def _indices(self, indices: Any) -> Tensor:
        """Return point indices as int64 in their original shape. Raise InputError for invalid indices."""
        try:
            points = self.rng.tensor(indices)
        except (TypeError, ValueError):
            raise InputError("indices must be whole numbers") from None
        if points.numel() and (points.dtype == torch.bool or points.is_floating_point() or points.is_complex()):
            raise InputError(f"indices must have an integer type; got {points.dtype}")
        if points.numel() and not (0 <= int(points.min()) and int(points.max()) < len(self.x)):
            raise InputError(f"points are numbered 0 to {len(self.x) - 1}; got {points.tolist()}")
        return points.long()

    def _labels(self, y: Any, gaps: bool = False) -> Tensor:
        values = labels(y, self._classes, self.rng.device, gaps)
        check_targets(self._likelihood, values)
        return values

    def _shaped(self, values: Tensor, *lead: int) -> Tensor:
        return values.reshape(*lead) if self._classes else values.reshape(*lead, self._outputs)

    def scales(self) -> Scales:
        """Return the scales of targets (from the labelled points) and of inputs (by the setting `standardise`)."""
        if self.y is None:
            raise InputError("no labels yet. Call tell() before ask()")
        x, y = UNSCALED, Standardiser.fit_measured(self.y) if self._scaled else UNSCALED
        if isinstance(self.standardise, Standardiser):
            x = Standardiser(*(t.expand(self.replicas, 1, *t.shape) for t in self.standardise))
        elif self.x.dim() == 2 and self.standardise != "none":
            points = self.labelled
            if self.standardise == "pool":  # equally many in every replica
                points = first(self.allowed)[:, : int(self.allowed.sum(1).min())]
            chunks = list(parts(points.shape[1], len(points) * self.x.shape[1]))
            x = Standardiser.of(lambda: (self._raw[points[:, part]] for part in chunks), math.inf)
            if (constant := x.scale.isinf()).any():
                x = x._replace(scale=torch.where(constant, self._spread, x.scale))
        return Scales(x, y)

    @cached_property
    def _spread(self) -> Float[Tensor, "1 D"]:
        """The scale of columns that are constant among the labelled points: the scale in the whole pool, at least 1."""
        chunks = list(parts(len(self._raw), self.x.shape[1]))
        return Standardiser.of(lambda: (self._raw[part] for part in chunks), math.inf).scale.clamp_min(1.0)

    def standardised(self, points: Int[Tensor, "R C"], scales: Scales) -> StandardisedInputs:
        """Return the inputs of `points`, which are standardised when indexed."""
        return StandardisedInputs(self._raw, points, scales.x, self.rng.dtype)

    def _targets(self, y: Tensor, scales: Scales) -> Tensor:
        """Return standardised labels [R, m, O], NaN where missing; class indices [R, m] stay unchanged."""
        if self._classes:
            return y
        present = ~y.isnan()
        return torch.where(present, scales.y.apply(torch.where(present, y, scales.y.mean), self.rng.dtype), torch.nan)

    def training(self, scales: Scales) -> Batch:
        """Return the standardised inputs and labels of the labelled points."""
        assert self.y is not None
        return Batch(self.standardised(self.labelled, scales)[:], self._targets(self.y, scales))


def at_zero(posterior: Predictive, x: Float[Tensor, "n ..."]) -> Float[Tensor, "1 1 n O"]:
    """Return the outputs of the posterior's network at inputs x, with all weights 0."""
    net, rng = posterior.net, Rng(0, x.device, x.dtype)
    zeros = [torch.zeros(1, 1, *shape, device=x.device, dtype=x.dtype) for shape in net.shapes]
    return net.output([*zeros, *net.unit_norms(1, rng), *net.initial_points(1, rng)], x.unsqueeze(0))


def first(mask: Bool[Tensor, "R P"]) -> Int[Tensor, "R P"]:
    """Return all point indices of each replica in ascending order, but points in the mask before all others."""
    return (~mask).to(torch.uint8).argsort(dim=1, stable=True)


def _mask(allowed: np.ndarray | Tensor | None, trials: int, points: int) -> Bool[Tensor, "trials points"]:
    """Return the mask `allowed` as a tensor (None: all points). Raise InputError for a wrong shape or type."""
    if allowed is None:
        return torch.ones(trials, points, dtype=torch.bool)
    mask = allowed if isinstance(allowed, Tensor) else np.asarray(allowed)
    if mask.dtype not in (torch.bool, np.bool_) or tuple(mask.shape) != (trials, points):
        shape = f"shape [{trials}, {points}]; got {list(mask.shape)} of {mask.dtype}"
        raise InputError(f"allowed must be a boolean array of {shape}")
    return torch.as_tensor(mask)
