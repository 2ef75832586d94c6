"""Comparisons of posteriors that are fitted on the same splits in parallel and measured during training.

Each split is a replica. Every posterior uses the same random stream, so its results do not depend on the other
posteriors. All posteriors report the same tags. Metrics that need a posterior density are NaN if there is none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import State
from explore.data.base import Dataset, uci_splits
from explore.inference.base import Predictive
from explore.inference.predict import CACHE, Predictor, filled
from explore.learning.calibration import held_out_factor
from explore.learning.fit import Epoch, sharded_fit, stops, streams
from explore.learning.pool import Scales
from explore.learning.scaling import UNSCALED, Standardiser
from explore.nets.protocols import check_targets

POINTS = 50  # maximum number of measurements of a posterior
TRAINING = 1000  # maximum number of training examples for train/nll
BINS = 15  # confidence bins
LEVELS = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)  # nominal coverage of central intervals
TRAIN = ("bound", "elbo", "objective", "nll", "kl")  # all other tags train/* are reported by some posteriors only


class Splits(NamedTuple):
    """Training and test examples of R splits; each split is standardised by its training part."""

    x: Tensor  # [R, n, D]
    y: Tensor  # [R, n, O], or [R, n] class indices
    test_x: Tensor
    test_y: Tensor
    scale: Tensor | None  # [R, O] standard deviation of the original targets; None for classes
    scales: Scales = Scales(UNSCALED, UNSCALED)  # used to standardise the examples


class Measured(NamedTuple):
    """Metrics and state of a posterior after an epoch."""

    epoch: int
    scalars: dict[str, Any]  # tag -> one value per split [R]; of a fit to images, a number
    state: State
    saved: dict[str, Any]  # the position from which the fit can resume
    tested: Any = None  # `classification.Classified`, the predictions for test images


class Reliability(NamedTuple):
    """A reliability diagram: observed against expected frequencies of correct predictions.

    Regression: coverage against nominal level, for central intervals, see `Predictor.central_of`. Classification:
    accuracy against mean confidence, in each of 15 confidence bins.
    """

    expected: Float[Tensor, "R K"]
    observed: Float[Tensor, "R K"]
    weight: Float[Tensor, "R K"]  # share of the predictions; sums to 1

    @property
    def error(self) -> Float[Tensor, " R"]:
        """Weighted mean of |expected - observed|; for classes, the expected calibration error (Naeini et al. 2015)."""
        return ((self.expected - self.observed).abs() * self.weight).sum(1)


def split(dataset: Dataset, k: int, rng: Rng, validation: float = 0.0, scaling: str = "affine") -> Splits:
    """Return the first k of the standard 90/10 splits, each standardised by its training part.

    With `scaling` "none", the attribute of likelihoods for counts, targets are not standardised. With `validation` > 0,
    this share of each training part becomes the test part, and the original test part is unused.
    """
    train, test = (np.stack(part) for part in zip(*uci_splits(len(dataset.x), k, validation=validation), strict=True))
    x, test_x, y, test_y = (torch.from_numpy(v[part]) for v in (dataset.x, dataset.y) for part in (train, test))
    inputs, targets, unit = Standardiser.fit(x, math.inf), UNSCALED, None  # a constant column becomes 0
    x, test_x = (inputs.inputs(part, rng.dtype) for part in (x, test_x))
    if dataset.task != "classification":
        targets = Standardiser.fit(y)
        if scaling == "none":
            targets = Standardiser(torch.zeros_like(targets.mean), torch.ones_like(targets.scale))
        y, test_y = (targets.apply(part, rng.dtype) for part in (y, test_y))
        if not ((targets.scale > 1e-15) & (targets.scale < 1e15)).all():  # squares must be finite in single precision
            raise InputError(
                f"the targets' standard deviation is {targets.scale.max():.3g}. Rescale them to values near 1"
            )
        unit = rng.tensor(targets.scale.squeeze(1))
    # In double precision, which distinguishes close time stamps.
    scales: Scales = tree.map_tensors(lambda t: t.to(rng.device), Scales(inputs, targets))
    return Splits(rng.tensor(x), rng.tensor(y), rng.tensor(test_x), rng.tensor(test_y), unit, scales)


def is_own(tag: str) -> bool:
    """Return whether only some posteriors report a tag: it is among their `learned` values."""
    part, _, name = tag.partition("/")
    return part == "train" and name not in TRAIN


def position(epoch: Epoch, shards: Sequence[Rng]) -> dict[str, Any]:
    """Return a checkpoint of a fit: the epoch's number, the posterior's state, and the random states of the shards."""
    return {
        "epoch": epoch.epoch,
        "generator": torch.stack([stream.generator.get_state() for stream in shards]),
        "state": {path: leaf.cpu() for path, leaf in tree.save(epoch.state).items()},
    }


def restore_position(
    saved: Mapping[str, Any] | None, posterior: Predictive, n: int, replicas: int, rng: Rng, shards: Sequence[Rng]
) -> tuple[int, State | None]:
    """Restore a `position`: set the streams of the shards; return the number of finished epochs and the state.

    Return (0, None) if `saved` is None. The posterior is fitted to n examples. `rng` initialises a temporary
    state, which only provides the shapes.
    """
    if saved is None:
        return 0, None
    state = tree.restore(posterior.init(n, replicas, rng), saved["state"])
    for stream, generator in zip(shards, saved["generator"].reshape(len(shards), -1), strict=True):
        stream.generator.set_state(generator.clone())
    return saved["epoch"], state


def follow(
    posterior: Predictive, splits: Splits, rng: Rng, samples: int = 100, saved: Mapping[str, Any] | None = None,
    calibrate: float = 0.0, jobs: int = 1,
) -> Iterator[Epoch | Measured]:  # fmt: skip
    """Fit a posterior on all splits in parallel, and measure it at up to `POINTS` evenly spaced epochs.

    The fit and every measurement use separate streams of `rng`; metrics are of `samples` weight samples. With `saved`,
    a `Measured.saved` of an interrupted fit, the fit resumes with bit-identical results. `calibrate` is the share of
    the training examples that a second fit holds out, to fit a factor on the predictive variance for all test metrics;
    0: no factor. `jobs` processes share the splits, see `explore.learning.fit.sharded_fit`. Yield an `Epoch` after each
    epoch (with several processes, only after measured epochs); after a measured epoch, also a `Measured`.
    """
    kind, x, y = posterior.likelihood, splits.x, splits.y
    if splits.scale is not None and kind.scaling == "none" and bool((splits.scale != 1).any()):
        raise InputError(f"{type(kind).__name__} needs raw targets; pass scaling='none' to compare.split")
    for targets in (y, splits.test_y):
        check_targets(kind, targets)
    shards = streams(rng.stream("fit"), min(jobs, len(x)))
    done, state = restore_position(saved, posterior, x.shape[1], len(x), rng.stream("fit"), shards)
    factor = (saved or {}).get("factor")
    if calibrate and factor is None:
        factor = held_out_factor(posterior, x, y, rng.stream("calibrate"), calibrate, samples)
    when = stops(posterior.epochs, POINTS)
    for epoch in sharded_fit(posterior, x, y, shards, when, done, state):
        yield epoch
        if epoch.epoch in when:
            now = position(epoch, shards) | ({} if factor is None else {"factor": factor.cpu()})
            scale = None if factor is None else factor.to(x)
            scalars = measure(posterior, epoch.state, splits, rng.stream("test", epoch.epoch), samples, scale)
            yield Measured(epoch.epoch, scalars, epoch.state, now)


def measure(
    posterior: Any, state: State, splits: Splits, rng: Rng, samples: int, factor: Float[Tensor, " R"] | None = None
) -> dict[str, Float[Tensor, " R"]]:
    """Return all metrics by tag, with one value per split.

    train/nll: E_q[-log p(y|x,w)] per example, over at most 1000 training examples, in nats, for standardised targets.
    train/kl: the KL divergence of weights and noise from their priors.
    train/elbo: -(n nll + kl), the evidence lower bound for n training examples; independent of `kl_weight`.
    train/bound: the ELBO in nats per training example, with targets in original units.
    train/objective: -(N nll + kl_weight kl), which training maximises; N is n times the setting `augmentation`.
    train/r_hat and similar: the values `learned` of posteriors that have some, see `is_own`.
    test/*: metrics of `Predictor.evaluate` in original units, and the error of `reliability`. If `factor` is given, it
        scales the predictive variance for these metrics, and is reported as test/variance_factor.
    test/joint_log_likelihood: (1/P) log 1/S sum_s prod_i p(y_i|x_i,w_s).
    structure/*: the posterior's `effective_rank`, and the share of its curvature that is still the initial value.
    """
    predictor = Predictor.sample(posterior, state, samples, rng)
    nan = torch.full((len(splits.x),), torch.nan, dtype=splits.x.dtype, device=splits.x.device)
    nll = -predictor.log_prob(splits.x[:, :TRAINING], splits.y[:, :TRAINING]).mean((1, 2))
    log_scale = 0.0 if splits.scale is None else splits.scale.log().sum(1)
    train = dict.fromkeys(TRAIN, nan) | {"nll": nll}
    share = nan
    if hasattr(posterior, "divergence"):
        kl, weighted = posterior.divergence(state), float(state.common.n_data)
        examples = weighted / posterior.stands_for(1.0)
        elbo = -(examples * nll + kl)
        train |= {"kl": kl, "elbo": elbo, "bound": elbo / examples - log_scale}
        train["objective"] = -(weighted * nll + posterior.kl_weight * kl)
        share = posterior.initial_curvature_share(state).to(nll)
    predictor = predictor if factor is None else predictor.stretched(factor)
    test = predictor.evaluate(splits.test_x, splits.test_y, splits.scale)
    joint = predictor.log_prob(splits.test_x, splits.test_y).sum(2)
    joint = (joint.logsumexp(1) - math.log(joint.shape[1])) / splits.test_x.shape[1]
    test["joint_log_likelihood"] = joint - log_scale
    test["calibration_error"] = reliability(predictor, splits.test_x, splits.test_y).error
    epistemic = test.pop("epistemic")
    test |= {} if factor is None else {"variance_factor": factor}
    return {
        **{f"train/{name}": value for name, value in train.items()},
        **{f"test/{name}": value for name, value in sorted(test.items())},
        "uncertainty/epistemic_mean": epistemic,
        "structure/effective_rank": posterior.effective_rank(state) if hasattr(posterior, "effective_rank") else nan,
        "structure/initial_curvature_share": share,
        **{f"train/{name}": value for name, value in posterior.learned(state).items()},
    }


def reliability(predictor: Predictor, x: Tensor, y: Tensor) -> Reliability:
    """Return the `Reliability` of predictions at x [R, P, D], given targets y [R, P, O] or class indices y [R, P]."""
    if not predictor.likelihood.discrete:
        levels = LEVELS.to(y)
        chunks = ((part, (predictor.central_of(out, y[:, part], levels),)) for part, out in predictor.outputs(x, CACHE))
        expected = levels.expand(len(y), -1)
        inside = filled(chunks, x.shape[1])[0].mean((1, 2))
        return Reliability(expected, inside, torch.full_like(expected, 1 / len(levels)))
    return confidence_bins(predictor.moments(x).mean, y)


def confidence_bins(mean: Float[Tensor, "R P C"], y: Tensor) -> Reliability:
    """Return the `Reliability` of class probabilities `mean`, given the true classes y [R, P]."""
    confidence, chosen = mean.max(-1)
    # The probabilities of a failed fit may be NaN.
    member = F.one_hot((confidence.nan_to_num() * BINS).long().clamp_max(BINS - 1), BINS).to(mean)  # [R, P, bins]
    count, right = member.sum(1), (chosen == y).to(mean)
    expected, observed = ((v.unsqueeze(-1) * member).sum(1) / count.clamp_min(1) for v in (confidence, right))
    return Reliability(expected, observed, count / y.shape[1])
