"""Comparisons of posteriors that are fitted on the same splits in parallel and measured during training.

Each split is a replica. Candidates, which differ only in some numeric settings, are replicas too. Every posterior uses
the same random stream, so its results do not depend on the others (for candidates, up to rounding). All report the same
tags; values that need a posterior density are NaN without one.
"""

from __future__ import annotations

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
from explore.inference import candidates
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning.calibration import held_out_factors
from explore.learning.fit import Epoch, sharded_fit, stops, streams
from explore.learning.pool import Scales
from explore.learning.scaling import UNSCALED, Standardiser

POINTS, FEWEST = 50, 10  # measurements of a posterior, and the minimum for each of several candidates
TRAINING = 1000  # maximum number of training examples for train/nll
BINS = 15  # confidence bins
LEVELS = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)  # nominal coverage of central intervals
STRUCTURE = ("damping_share", "effective_rank", "condition")
OWN = "train/prior_variance"  # prefix of tags that only some posteriors have


class Splits(NamedTuple):
    """Training and test examples of R splits, standardised by the training part of each."""

    x: Tensor  # [R, n, D]
    y: Tensor  # [R, n, O], or [R, n] class indices
    test_x: Tensor
    test_y: Tensor
    scale: Tensor | None  # [R, O] standard deviation of the original targets; None for classes
    scales: Scales | None = None  # used to standardise the examples


class Measured(NamedTuple):
    """The measurements of a posterior after some epochs."""

    epoch: int
    scalars: dict[str, Float[Tensor, " R"]]  # tag -> one value per split
    state: State
    saved: dict[str, Any]  # the position from which the fit can resume


class Reliability(NamedTuple):
    """A reliability diagram: observed against expected frequencies of correct predictions.

    Regression: coverage of central intervals against their level, for a Gaussian with the predictive mean and total
    variance. Classification: accuracy against mean confidence in each of 15 confidence bins.
    """

    expected: Float[Tensor, "R K"]
    observed: Float[Tensor, "R K"]
    weight: Float[Tensor, "R K"]  # share of the predictions; sums to 1

    @property
    def error(self) -> Float[Tensor, " R"]:
        """Weighted mean of |expected - observed|; for classes, the expected calibration error (Naeini et al. 2015)."""
        return ((self.expected - self.observed).abs() * self.weight).sum(1)


def split(dataset: Dataset, k: int, rng: Rng, validation: float = 0.0) -> Splits:
    """Return the first k of the standard 90/10 splits, standardised by the training part.

    With `validation`, this share of each training part becomes the test part; the original test part is not used.
    """
    train, test = (np.stack(part) for part in zip(*uci_splits(len(dataset.x), k, validation=validation), strict=True))
    x, test_x, y, test_y = (torch.from_numpy(v[part]) for v in (dataset.x, dataset.y) for part in (train, test))
    inputs, targets, unit = Standardiser.fit(x, math.inf), UNSCALED, None  # a constant column becomes 0
    x, test_x = (inputs.apply(part, rng.dtype) for part in (x, test_x))
    if dataset.task != "classification":
        targets = Standardiser.fit(y)
        y, test_y = (targets.apply(part, rng.dtype) for part in (y, test_y))
        if not ((targets.scale > 1e-15) & (targets.scale < 1e15)).all():  # squares must be finite in single precision
            raise InputError(
                f"the targets' standard deviation is {targets.scale.max():.3g}. Rescale them to values near 1"
            )
        unit = rng.tensor(targets.scale.squeeze(1))
    # In double precision, which distinguishes close time stamps.
    scales: Scales = tree.map_tensors(lambda t: t.to(rng.device), Scales(inputs, targets))
    return Splits(rng.tensor(x), rng.tensor(y), rng.tensor(test_x), rng.tensor(test_y), unit, scales)


def follow(posterior: Predictive, *args: Any, **kwargs: Any) -> Iterator[Epoch | Measured]:
    """Fit and measure one posterior; for arguments and events see `follow_candidates`."""
    for event in follow_candidates([posterior], *args, **kwargs):
        yield event if isinstance(event, Epoch) else event[0]


def position(epoch: Epoch, shards: Sequence[Rng]) -> dict[str, Any]:
    """Return the position from which a fit can resume, given its last epoch and the streams of its shards."""
    return {
        "epoch": epoch.epoch,
        "generator": torch.stack([stream.generator.get_state() for stream in shards]),
        "state": {path: leaf.cpu() for path, leaf in tree.save(epoch.state).items()},
    }


def restore_position(
    saved: Mapping[str, Any] | None, posterior: Predictive, n: int, replicas: int, rng: Rng, shards: Sequence[Rng]
) -> tuple[int, State | None]:
    """Restore a `position`: set the streams, and return the number of epochs and the state; (0, None) without one.

    The posterior is fitted to n examples. `rng` initialises a temporary state, which only provides the shapes.
    """
    if saved is None:
        return 0, None
    state = tree.restore(posterior.init(n, replicas, rng), saved["state"])
    for stream, generator in zip(shards, saved["generator"].reshape(len(shards), -1), strict=True):
        stream.generator.set_state(generator.clone())
    return saved["epoch"], state


def follow_candidates(
    posteriors: Sequence[Predictive], splits: Splits, rng: Rng, samples: int = 100,
    saved: Mapping[str, Any] | None = None, calibrate: float = 0.0, jobs: int = 1,
) -> Iterator[Epoch | list[Measured]]:  # fmt: skip
    """Fit posteriors on all splits in parallel, and measure them at evenly spaced epochs.

    Args:
        posteriors: one, or several that are `candidates.alike`, which are measured less often.
        splits: the examples.
        rng: the root generator; the fit and every measurement have streams of their own.
        samples: weight samples for predictions.
        saved: `Measured.saved`, to resume from that epoch with bit-identical results.
        calibrate: the share of the training examples held out of a second fit, which determines the factor on the
            predictive variance for all test metrics; 0: no factor.
        jobs: processes that share the splits, see `explore.learning.fit.sharded_fit`.

    Yields:
        `Epoch` after each epoch (in several processes only after measured epochs). After about `POINTS` of them, a list
        with the `Measured` of each posterior follows.
    """
    if splits.scale is not None and (kind := posteriors[0].likelihood).scaling == "none":
        raise InputError(
            f"{type(kind).__name__} needs raw targets, but these splits are standardised. Fit it with FittedModel"
        )
    count, replicas = len(posteriors), len(splits.x)
    posterior, root = candidates.together(posteriors, replicas, rng), rng.stream("fit").in_arms(count)
    x, y = (torch.cat([t] * count) if count > 1 else t for t in (splits.x, splits.y))
    shards = streams(root, min(jobs, replicas))
    done, state = restore_position(saved, posterior, x.shape[1], len(x), rng.stream("fit").in_arms(count), shards)
    factor = (saved or {}).get("factor")
    if calibrate and factor is None:
        stream = rng.stream("calibrate")
        factor = torch.cat(held_out_factors(posteriors, splits.x, splits.y, stream, calibrate, samples))
    when = stops(posterior.epochs, max(FEWEST, POINTS // count))
    for epoch in sharded_fit(posterior, x, y, shards, when, done, state):
        yield epoch
        if epoch.epoch in when:
            now = position(epoch, shards) | ({} if factor is None else {"factor": factor.cpu()})
            measured = []
            for one, part in zip(posteriors, candidates.blocks(count, replicas), strict=True):
                one_state, stream = tree.part(epoch.state, part), rng.stream("test", epoch.epoch)
                scale = None if factor is None else factor[part].to(splits.x)
                scalars = measure(one, one_state, splits, stream, samples, scale)
                measured.append(Measured(epoch.epoch, scalars, one_state, now))
            yield measured


def measure(
    posterior: Any, state: State, splits: Splits, rng: Rng, samples: int, factor: Float[Tensor, " R"] | None = None
) -> dict[str, Float[Tensor, " R"]]:
    """Return the values of all tags for each split.

    train/nll: E_q[-log p(y|x,w)] per example, over at most 1000 training examples, in nats of standardised targets.
    train/kl: the KL divergence of weights and noise from their priors.
    train/elbo: -(n nll + kl), the evidence lower bound for n training examples, whatever the `kl_weight`.
    train/bound: the ELBO in nats per training example, with targets in original units.
    train/objective: -(N nll + kl_weight kl), which training maximises; N is n times the augmentation.
    train/prior_variance_* and similar: only for posteriors that learn them.
    test/*: metrics of `Predictor.evaluate` in original units, and the error of `reliability`. With a `factor` on the
        predictive variance (test/variance_factor), these are calibrated.
    test/joint_log_likelihood: (1/P) log 1/S sum_s prod_i p(y_i|x_i,w_s).
    structure/*: the posterior's own diagnostics, and the share of its curvature that is still the initial one.
    """
    predictor = Predictor.sample(posterior, state, samples, rng)
    nan = torch.full((len(splits.x),), torch.nan, dtype=splits.x.dtype, device=splits.x.device)
    nll = -predictor.log_prob(splits.x[:, :TRAINING], splits.y[:, :TRAINING]).mean((1, 2))
    log_scale = 0.0 if splits.scale is None else splits.scale.log().sum(1)
    train = dict.fromkeys(("bound", "elbo", "objective"), nan) | {"nll": nll, "kl": nan}
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
    structure = posterior.diagnostics(state) if hasattr(posterior, "diagnostics") else dict.fromkeys(STRUCTURE, nan)
    return {
        **{f"train/{name}": value for name, value in train.items()},
        **{f"test/{name}": value for name, value in sorted(test.items())},
        "uncertainty/epistemic_mean": epistemic,
        **{f"structure/{name}": structure[name] for name in STRUCTURE},
        "structure/initial_curvature_share": share,
        **{f"train/{name}": value for name, value in posterior.learned(state).items()},
    }


def reliability(predictor: Predictor, x: Tensor, y: Tensor) -> Reliability:
    """Return the `Reliability` of predictions at x [R, P, D] for targets y [R, P, O], or classes [R, P]."""
    if not predictor.likelihood.discrete:
        mean, variance, noise = predictor.label_moments(x)
        score = (y - mean).abs() / (variance + noise).sqrt()
        levels = LEVELS.to(score)
        inside = score.unsqueeze(-1) <= torch.special.ndtri((1 + levels) / 2)
        expected = levels.expand(len(y), -1)
        return Reliability(expected, inside.to(score).mean((1, 2)), torch.full_like(expected, 1 / len(levels)))
    return confidence_bins(predictor.moments(x).mean, y)


def confidence_bins(mean: Float[Tensor, "R P C"], y: Tensor) -> Reliability:
    """Return the `Reliability` of class probabilities for the true classes y [R, P]."""
    confidence, chosen = mean.max(-1)
    # The probabilities of a failed fit may be NaN.
    member = F.one_hot((confidence.nan_to_num() * BINS).long().clamp_max(BINS - 1), BINS).to(mean)  # [R, P, bins]
    count = member.sum(1)
    expected, observed = (
        (value.unsqueeze(-1) * member).sum(1) / count.clamp_min(1) for value in (confidence, (chosen == y).to(mean))
    )
    return Reliability(expected, observed, count / y.shape[1])
