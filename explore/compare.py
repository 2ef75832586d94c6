"""Posteriors under the same splits: each is fitted on all splits at once, and measured as it learns.

The splits are replicas. Every posterior starts from the same random stream and never sees another, so that its numbers
do not depend on what it is compared with. What a posterior without a density does not have is NaN: all report the same
tags.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from explore import predict, tree
from explore.data.base import Dataset
from explore.data.splits import Standardiser, uci_splits
from explore.errors import InputError
from explore.fit import Epoch, fit
from explore.likelihoods import Likelihood, Noise
from explore.nets import Layer, Net
from explore.posteriors.base import Predictive
from explore.rng import Rng
from explore.shapes import State

POINTS = 50  # how often a posterior is measured
TRAINING = 1000  # training examples at most that it is measured on
BINS = 15  # of confidence
LEVELS = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)  # nominal coverage of central intervals
STRUCTURE = ("damping_share", "effective_rank", "condition")


class Splits(NamedTuple):
    """Training and test examples of R splits, in standard scores of each training part."""

    x: Tensor  # [R, n, D]
    y: Tensor  # [R, n, O], or [R, n] class indices
    test_x: Tensor
    test_y: Tensor
    scale: Tensor | None  # [R, O] original deviation of the targets; None for classes


class Measured(NamedTuple):
    """What a posterior is worth after some epochs."""

    epoch: int
    scalars: dict[str, Float[Tensor, " R"]]  # tag -> a value for each split
    state: State
    saved: dict[str, Any]  # where to continue


class Reliability(NamedTuple):
    """How often predictions are right against how often they say they are.

    Regression: coverage of the central intervals of a Gaussian with the predictive mean and total variance, against
    their level. Classification: accuracy against mean confidence of the predictions in each of 15 bins of confidence.
    """

    expected: Float[Tensor, "R K"]
    observed: Float[Tensor, "R K"]
    weight: Float[Tensor, "R K"]  # share of the predictions; sums to 1

    @property
    def error(self) -> Float[Tensor, " R"]:
        """The mean distance; for classes the expected calibration error (Naeini et al. 2015)."""
        return ((self.expected - self.observed).abs() * self.weight).sum(1)


def split(dataset: Dataset, k: int, rng: Rng) -> Splits:
    """The first k of the standard 90/10 splits; inputs and real targets in standard scores of the training part.

    Raises:
        InputError: when there are too few examples, or their units are extreme.
    """
    train, test = (np.stack(part) for part in zip(*uci_splits(len(dataset.x), k), strict=True))
    inputs = Standardiser.fit(dataset.x[train])
    x, test_x = (_tensor(inputs.apply(dataset.x[part]), rng) for part in (train, test))
    y, test_y = dataset.y[train], dataset.y[test]
    if dataset.task == "classification":
        return Splits(x, rng.tensor(y), test_x, rng.tensor(test_y), None)
    targets = Standardiser.fit(y)
    y, test_y = (_tensor(targets.apply(part), rng) for part in (y, test_y))
    if not ((targets.scale > 1e-15) & (targets.scale < 1e15)).all():  # single precision must hold its square
        raise InputError(f"the targets' deviation is {targets.scale.max():.3g}; give units in which it is near 1")
    return Splits(x, y, test_x, test_y, rng.tensor(targets.scale.squeeze(1)))


def _tensor(scaled: np.ndarray, rng: Rng) -> Tensor:
    found = rng.tensor(scaled)
    if not found.isfinite().all():
        raise InputError(f"an example is too far from the others to be standardised in {rng.dtype}")
    return found


def points(epochs: int) -> set[int]:
    """About `POINTS` epochs at equal distances, the last one among them."""
    return {math.ceil(epochs * i / POINTS) for i in range(1, POINTS + 1)}


def follow(
    posterior: Predictive, splits: Splits, rng: Rng, samples: int = 100, saved: Mapping[str, Any] | None = None
) -> Iterator[Epoch | Measured]:
    """Fit a posterior on all splits side by side, and measure it now and then.

    Args:
        posterior: what to fit; its own settings say for how long.
        splits: the examples.
        rng: the root; streams of it fix the fit and each measurement.
        samples: weight samples for predictions.
        saved: of a `Measured`, to continue after it bit for bit.

    Yields:
        `Epoch` after each epoch, and then `Measured` at those that `points` names.
    """
    stream, done, state = rng.stream("fit"), 0, None
    if saved is not None:
        state = tree.restore(posterior.init(splits.x.shape[1], len(splits.x), stream), saved["state"])
        stream.generator.set_state(saved["generator"])
        done = saved["epoch"]
    when = points(posterior.epochs)
    for epoch in fit(posterior, splits.x, splits.y, stream, done, state):
        yield epoch
        if epoch.epoch in when:
            here = {
                "epoch": epoch.epoch,
                "generator": stream.generator.get_state(),
                "state": {path: leaf.cpu() for path, leaf in tree.save(epoch.state).items()},
            }
            scalars = measure(posterior, epoch.state, splits, rng.stream("test", epoch.epoch), samples)
            yield Measured(epoch.epoch, scalars, epoch.state, here)


def measure(posterior: Any, state: State, splits: Splits, rng: Rng, samples: int) -> dict[str, Float[Tensor, " R"]]:
    """Every tag and its value for each split.

    train/nll is E_q[-log p(y|x,w)] of an example, on at most 1000 training examples, in nats of standardised targets;
    train/kl that of weights and noise from their priors; train/elbo = -(N nll + kl_weight kl). test/* are those of
    `predict.evaluate` in original units, `joint_log_likelihood` (1/P) log 1/S sum_s prod_i p(y_i|x_i,w_s), and the
    error of `reliability`. structure/* are the posterior's own diagnostics.
    """
    layers, noise = posterior.joint_sample(state, samples, rng)
    net, likelihood = posterior.net, posterior.likelihood
    nan = torch.full((len(splits.x),), torch.nan, dtype=splits.x.dtype, device=splits.x.device)
    nll = -log_probs(net, likelihood, layers, noise, splits.x[:, :TRAINING], splits.y[:, :TRAINING]).mean((1, 2))
    kl = elbo = nan
    if hasattr(posterior, "kl_prior"):
        kl = posterior.kl_prior(state) + likelihood.kl(state.common.noise)
        elbo = -(float(state.common.n_data) * nll + posterior.kl_weight * kl)
    test = predict.evaluate(net, likelihood, layers, noise, splits.test_x, splits.test_y, splits.scale)
    joint = log_probs(net, likelihood, layers, noise, splits.test_x, splits.test_y).sum(2)
    joint = (joint.logsumexp(1) - math.log(joint.shape[1])) / splits.test_x.shape[1]
    test["joint_log_likelihood"] = joint if splits.scale is None else joint - splits.scale.log().sum(1)
    test["calibration_error"] = reliability(net, likelihood, layers, noise, splits.test_x, splits.test_y).error
    epistemic = test.pop("epistemic")
    structure = posterior.diagnostics(state) if hasattr(posterior, "diagnostics") else dict.fromkeys(STRUCTURE, nan)
    return {
        "train/elbo": elbo,
        "train/nll": nll,
        "train/kl": kl,
        **{f"test/{name}": value for name, value in sorted(test.items())},
        "uncertainty/epistemic_mean": epistemic,
        **{f"structure/{name}": structure[name] for name in STRUCTURE},
    }


def log_probs(
    net: Net, likelihood: Likelihood, layers: tuple[Layer, ...], noise: Noise, x: Tensor, y: Tensor
) -> Float[Tensor, "R S P"]:
    """Log density of each target under each weight sample."""
    chunks = predict.outputs(net, layers, x)
    return torch.cat([likelihood.log_prob(noise, out, y[:, part].unsqueeze(1)) for part, out in chunks], 2)


def reliability(
    net: Net, likelihood: Any, layers: tuple[Layer, ...], noise: Noise, x: Tensor, y: Tensor
) -> Reliability:
    """Of the predictions for x [R, P, D] with targets y [R, P, O], or classes [R, P]."""
    if not hasattr(likelihood, "probabilities"):
        mean, variance = predict.moments(net, layers, x)
        score = (y - mean).abs() / (variance + (1 / noise).mean(1)[:, None, None]).sqrt()
        levels = LEVELS.to(score)
        inside = score.unsqueeze(-1) <= torch.special.ndtri((1 + levels) / 2)
        expected = levels.expand(len(y), -1)
        return Reliability(expected, inside.to(score).mean((1, 2)), torch.full_like(expected, 1 / len(levels)))
    p = torch.cat([likelihood.probabilities(out).mean(1) for _, out in predict.outputs(net, layers, x)], 1)
    confidence, chosen = p.max(-1)
    member = F.one_hot((confidence * BINS).long().clamp_max(BINS - 1), BINS).to(p)  # [R, P, bins]
    count = member.sum(1)
    expected, observed = (
        (value.unsqueeze(-1) * member).sum(1) / count.clamp_min(1) for value in (confidence, (chosen == y).to(p))
    )
    return Reliability(expected, observed, count / y.shape[1])
