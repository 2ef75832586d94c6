"""Checks of users' inputs and labels, and the scales on which models are fitted: standard scores and `Transform`."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from explore.core.errors import UNITS, InputError, extreme, shown
from explore.core.rng import Rng
from explore.learning.items import Items, unlabelled

ROWS = 2**14  # rows checked at a time

CENTRAL = 3.29  # standard deviations between the 5 % and the 95 % quantile of a Gaussian
BOUND = 10.0  # robust scores beyond it grow logarithmically ...
INPUT_BOUND = 5.0  # ... as do standard scores of inputs beyond this: experiments/large_tables
GRID = 10  # least number of values of a designed target


class Standardiser(NamedTuple):
    """Mean and standard deviation of each column, separately for each replica if there is a replica axis."""

    mean: Float[Tensor, "*R 1 D"]
    scale: Float[Tensor, "*R 1 D"]

    @staticmethod
    def fit(values: Float[Tensor, "*R n D"], constant: float = 1.0) -> "Standardiser":
        """Fit to n >= 1 examples. A constant column gets the scale `constant` (`math.inf`: its values become 0)."""
        return Standardiser.of(lambda: [values], constant)

    @staticmethod
    def fit_measured(values: Float[Tensor, "*R n D"]) -> "Standardiser":
        """Fit to values in which NaN means missing; every column needs at least one value."""
        present = ~values.isnan()
        if not bool(present.any(-2).all()):
            raise InputError("a target has no measured value. Every target needs at least one")
        low = torch.where(present, values, torch.inf).amin(-2, keepdim=True)
        high = torch.where(present, values, -torch.inf).amax(-2, keepdim=True)
        middle = values.nanmean(-2, keepdim=True).clamp(low, high)  # exact for a constant column
        mean, scale = Standardiser.fit(torch.where(present, values, middle))
        share = present.to(values).mean(-2, keepdim=True)
        return Standardiser(mean, torch.where(low == high, scale, scale / share.sqrt()))

    @staticmethod
    def of(chunks: Callable[[], Iterable[Float[Tensor, "*R _n D"]]], constant: float = 1.0) -> "Standardiser":
        """Fit to examples that come in chunks; `constant` is as in `fit`. The function `chunks` is called twice."""
        n, total, low, high = 0, torch.zeros(()), torch.tensor(torch.inf), torch.tensor(-torch.inf)
        for values in chunks():
            n, total = n + values.shape[-2], total.to(values) + values.sum(-2, keepdim=True)
            if values.shape[-2]:
                low = torch.minimum(low.to(values), values.amin(-2, keepdim=True))
                high = torch.maximum(high.to(values), values.amax(-2, keepdim=True))
        if not n:
            raise InputError("cannot standardise an empty array; at least 1 example is needed")
        mean = total / n
        squares = sum(((values - mean).square().sum(-2, keepdim=True) for values in chunks()), torch.zeros_like(mean))
        # Not `deviation == 0`: rounding can give a constant column a small deviation.
        same, deviation, double = low == high, (squares / n).sqrt(), mean.dtype == torch.float64
        least, most = UNITS if double else (0.0, torch.inf)
        failed = ~same & ~((deviation > least) & (deviation < most)) & low.isfinite() & high.isfinite()
        if bool(failed.any()):
            if double:
                column = int(failed.reshape(-1, failed.shape[-1]).any(0).nonzero()[0])
                raise extreme(column, float(low[..., column].amin()), float(high[..., column].amax()))
            exact, scale = Standardiser.of(lambda: (values.double() for values in chunks()))
            mean, deviation = torch.where(failed, exact.to(mean), mean), torch.where(failed, scale.to(mean), deviation)
            deviation = deviation.clamp_min(torch.finfo(mean.dtype).tiny)
        return Standardiser(torch.where(same, low, mean), torch.where(same, constant, deviation))

    @staticmethod
    def robust(values: Float[Tensor, "*R n D"]) -> "Standardiser":
        """Fit a centre and a scale that are robust to outliers and rare events, for scores that `bounded` compresses.

        The spread of a column is the larger of two values: the distance between its 5 % and 95 % quantiles, and the
        median of its nonzero distances from the column's median. The scale is the spread divided by `CENTRAL`. A
        constant column gets the median spread of the other columns, but at most 1.
        """
        double, limits = values.double(), torch.finfo(values.dtype)
        low, middle, high = double.quantile(double.new_tensor([0.05, 0.5, 0.95]), -2, keepdim=True)
        distance = (double - middle).abs()
        step = torch.where(distance > 0, distance, torch.nan).nanmedian(-2, keepdim=True).values
        span = torch.fmax(high - low, step)
        typical = torch.where(span > 0, span, torch.nan).nanmedian(-1, keepdim=True).values
        span = torch.where(span > 0, span, torch.fmin(typical, torch.ones_like(typical)))
        scale = (span / CENTRAL).clamp(limits.tiny, limits.max)
        mean = middle + scale * bounded((double - middle) / scale).mean(-2, keepdim=True)
        return Standardiser(mean.to(values.dtype), scale.to(values.dtype))

    def apply(self, values: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Convert values to standard scores [*R, n, D] of this dtype. Raise InputError if a score is not finite."""
        scores = ((values - self.mean) / self.scale).to(dtype)
        if not scores.isfinite().all():
            raise InputError(
                f"an example is too far from the others to be standardised in {dtype}: it overflows. Remove outliers"
            )
        return scores

    def inputs(self, values: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Convert inputs to standard scores and compress outliers, which can ruin a fit; `UNSCALED` changes nothing."""
        scores = self.apply(values, dtype)
        return bounded(scores, INPUT_BOUND) if self.mean.dim() else scores

    def undo(self, scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Convert standard scores back to original units."""
        return scores * self.scale + self.mean


def bounded(scores: Float[Tensor, "..."], limit: float = BOUND) -> Float[Tensor, "..."]:
    """Compress the part of each score beyond ±`limit` logarithmically, which preserves the order of the scores."""
    inside = scores.clamp(-limit, limit)
    beyond = (scores - inside).abs_().clamp_max_(torch.finfo(scores.dtype).max)
    return beyond.log1p_().copysign_(scores).add_(inside)


def resolution(values: np.ndarray) -> tuple[float, ...]:
    """Return the distance between neighbouring values of each column [n, M] over its deviation; NaN is missing.

    For rounded numbers this is the unit of rounding. A few values off the grid do not count: the result is a low
    quantile of the distances. It is 0 for exact numbers: if no value occurs twice, or only the smallest or the largest,
    such as a yield of 0, or if each of at least `GRID` values occurs about equally often, as in a designed experiment.
    """

    def of(column: np.ndarray) -> float:
        present = column[~np.isnan(column)]
        distinct, counts = np.unique(present, return_counts=True)
        repeats = len(present) - len(distinct)
        if len(distinct) < 2 or repeats in (0, counts[0] - 1, counts[-1] - 1):
            return 0.0
        if len(distinct) >= GRID and counts.max() <= 2 * counts.min():
            return 0.0
        gaps, scale = np.diff(distinct), present.std()
        return float(np.quantile(gaps[gaps > 1e-9 * scale], 0.05, method="lower") / scale)

    return tuple(map(of, values.T))


UNSCALED = Standardiser(torch.zeros(()), torch.ones(()))  # leaves values unchanged


class RawInputs:
    """Finite inputs [P, ...] in original units. Memory maps stay on disk. Feature vectors are returned as float64.

    A Dataset is read item by item. A function `packed` (see `Net`) makes a tensor of its batches, and of a dict.
    """

    def __init__(self, x: Any, rng: Rng, packed: Callable[[Any], Tensor] | None = None):
        if packed is not None and isinstance(x, Dataset):
            x = Items(x, packed)
        elif packed is not None and isinstance(x, Mapping):
            x = packed({key: torch.as_tensor(value) for key, value in unlabelled(x).items()})
        values: Any = x if isinstance(x, Items) else numbers(x, "input")
        if isinstance(x, Items) and not all(part.isfinite().all() for part in x.split(ROWS)):
            raise InputError("an input is not a finite number")
        self.x = values if isinstance(x, np.memmap | Items) else values.to(rng.device)
        self.shape = self.x.shape
        self._device, self._dtype = rng.device, torch.float64 if values.dim() == 2 else rng.dtype

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, points: slice | Int[Tensor, "*n"]) -> Float[Tensor, "..."]:
        """Return the inputs of `points`, [*n, ...]."""
        return self.x[points.to(self.x.device) if isinstance(points, Tensor) else points].to(self._device, self._dtype)

    def check_shape(self, shape: tuple[int, ...], which: str) -> None:
        """Raise InputError unless inputs have shape [n, *shape]; in the message, `which` names data of that shape."""
        if not len(self) or tuple(self.shape[1:]) != shape:
            expected = ", ".join(map(str, ("n", *shape)))
            raise InputError(f"inputs must have shape [{expected}] like {which}; got {list(self.shape)}")


class StandardisedInputs:
    """Inputs of `points` [R, C], indexed like a tensor [R, C, ...] and standardised in `dtype` when indexed."""

    def __init__(self, raw: RawInputs, points: Int[Tensor, "R C"], scale: Standardiser, dtype: torch.dtype):
        self._raw, self._points, self._scale, self._dtype = raw, points, scale, dtype
        self.shape = torch.Size([*points.shape, *raw.shape[1:]])

    def __getitem__(self, key: Any) -> Float[Tensor, "R n ..."]:
        return self._scale.inputs(self._raw[self._points[key]], self._dtype)


def numbers(values: Any, noun: Literal["input", "label", "threshold", "cost"], gaps: bool = False) -> Tensor:
    """Convert values to a tensor; keep device and dtype. Raise InputError unless all are finite or, if `gaps`, NaN."""
    try:
        # Writable: arrays from pandas are often read-only, and torch warns about those.
        values = values if isinstance(values, Tensor | np.memmap) else np.require(values, requirements="W")
        with warnings.catch_warnings():  # about a memory map, which is never written to
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.as_tensor(values)
    except (TypeError, ValueError):
        raise InputError(f"{noun}s must be a numeric array with rows of equal length") from None
    if tensor.is_complex() or tensor.layout != torch.strided or tensor.is_meta:
        raise InputError(f"{noun}s must be a dense array of real numbers; got {tensor.dtype}, {tensor.layout}")
    parts = tensor.split(ROWS) if tensor.dim() else [tensor]
    if not all((part.isfinite() | part.isnan() if gaps else part.isfinite()).all() for part in parts):
        raise InputError(f"{'an' if noun == 'input' else 'a'} {noun} is not a finite number")
    return tensor


def labels(values: Any, classes: int, device: torch.device, gaps: bool = False) -> Tensor:
    """Copy labels to a tensor: class indices as int64 or, if `classes` is 0, real numbers as float64."""
    copy = numbers(values, "label", gaps).to(device, torch.float64, copy=True)
    if not classes:
        return copy
    if ((copy != copy.floor()) | (copy < 0) | (copy >= classes)).any():
        raise InputError(f"class labels must be whole numbers from 0 to {classes - 1}")
    return copy.long()


def shaped(values: Tensor, n: int, width: int, classes: bool) -> Tensor:
    """Return labels of n examples as class indices [n] or targets [n, width]; raise InputError for another shape."""
    given = list(values.shape)
    if classes and values.numel() != n:
        raise InputError(f"class labels must have shape [{n}]; got {given}")
    if not classes and given != [n, width] and not (width == 1 and given == [n]):
        raise InputError(f"y must have shape {[n, width]}, one number for each input and output; got {given}")
    return values.flatten() if classes else values.reshape(n, width)


def examples(source: Any) -> tuple[Tensor, Tensor]:
    """Return all inputs and all labels of a DataLoader or Dataset of pairs (inputs, labels)."""
    loader = DataLoader(source, batch_size=ROWS) if isinstance(source, Dataset) else source
    if not isinstance(loader, DataLoader):
        raise InputError("labels are missing. Pass arrays x and y, or a single DataLoader (or Dataset) of pairs (x, y)")
    batches = list(loader)
    if not batches or not all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in batches):
        kind = type(batches[0]).__name__ if batches else "nothing"
        raise InputError(f"a DataLoader must return batches (x, y); this one returns {kind}")
    try:
        x, y = (torch.cat([torch.as_tensor(part) for part in parts]) for parts in zip(*batches, strict=True))
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"a DataLoader's batches must have the same shape except for the batch size: {error}"
        ) from None
    return x, y


Kind = Literal["none", "log", "rank"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Transform:
    """A transform of O targets, which are transformed separately.

    Ranks: the i-th smallest of n targets has the normal score Phi^-1((i - 1/2) / n); equal targets have the mean of
    their scores (van der Waerden). Between these targets, scores are interpolated; beyond them, constant.
    """

    kind: Kind = "none"
    knots: tuple[tuple[float, ...], ...] = ()  # for "rank": the distinct values of each target, ascending
    scores: tuple[tuple[float, ...], ...] = ()  # the normal scores of these values

    @staticmethod
    def fit(kind: Kind, y: Float[np.ndarray, "n O"]) -> "Transform":
        """Fit a transform to targets, in which NaN means not measured."""
        if kind != "rank":
            return Transform(kind)
        pairs = [_ranked(column) for column in y.T]
        return Transform(kind, tuple(knots for knots, _ in pairs), tuple(scores for _, scores in pairs))

    def apply(self, y: Float[np.ndarray, "n O"]) -> Float[np.ndarray, "n O"]:
        """Convert targets to the scale on which models are fitted. Raise InputError for the log of a target <= 0."""
        if self.kind == "log" and (y <= 0).any():
            raise InputError(f"a target of {y[y <= 0][0]:.12g} has no logarithm. Use the transform 'none'")
        return self._mapped(y, np.log, self.knots, self.scores)

    def undo(self, z: Float[np.ndarray, "*n O"]) -> Float[np.ndarray, "*n O"]:
        """Convert transformed targets back to original units."""
        return self._mapped(z, np.exp, self.scores, self.knots)

    def _mapped(self, values: np.ndarray, function: np.ufunc, at: Any, of: Any) -> np.ndarray:
        """Map by `function` for logarithms, for ranks by interpolation between the points (`at`, `of`)."""
        if self.kind != "rank":
            return function(values) if self.kind == "log" else values
        columns = np.moveaxis(values, -1, 0)
        return np.stack([np.interp(column, x, y) for column, x, y in zip(columns, at, of, strict=True)], -1)

    def to_json(self) -> dict[str, Any]:
        """Return the transform as JSON values."""
        return {"kind": self.kind, "knots": list(map(list, self.knots)), "scores": list(map(list, self.scores))}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Transform":
        """Restore a transform from `to_json`. Raise InputError for invalid values."""
        try:
            knots, scores = (tuple(tuple(map(float, row)) for row in value[name]) for name in ("knots", "scores"))
            if value["kind"] not in KINDS or list(map(len, knots)) != list(map(len, scores)):
                raise ValueError("its parts are inconsistent")
            return Transform(value["kind"], knots, scores)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{shown(value)} is not a valid target transform ({error})") from None


def _ranked(y: Float[np.ndarray, " n"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the distinct values of y in ascending order, without NaN, and their normal scores."""
    y = y[~np.isnan(y)]
    values, counts = np.unique(y, return_counts=True)
    ends = counts.cumsum()
    each = torch.special.ndtri((torch.arange(len(y), dtype=torch.float64) + 0.5) / len(y)).numpy()
    scores = np.add.reduceat(each, ends - counts) / counts
    return tuple(values.tolist()), tuple(scores.tolist())
