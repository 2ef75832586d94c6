"""Pool-based active learning: ask which points to label, tell their labels.

`ActiveLearner` holds a pool and runs R replicas of the same experiment side by side: `trials` random starts, once for
each acquisition (the arms; arm-major on the replica axis). A person with one pool uses one trial and one arm.
`active_loop` plays the oracle from known labels and measures the test error round by round.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from explore import predict, registry, tree
from explore.acquisitions.base import (
    Acquisition,
    Choice,
    RedundancyWarning,
    View,
    checked,
    name_of,
    needs_spread,
    redundancy,
)
from explore.errors import InputError, one_of
from explore.fit import Epoch, fit
from explore.labels import Labels
from explore.linalg import mean_and_scale
from explore.pool import Pool
from explore.posteriors.base import Predictive
from explore.rng import Rng
from explore.shapes import Info, State


class Fitted(NamedTuple):
    """The outcome of fitting on the labels told so far."""

    state: State
    info: Info
    x_mean: Tensor  # [R, 1, D]; inputs are standardised as (x - x_mean) / x_scale
    x_scale: Tensor
    y_mean: Tensor  # [R, 1, O]
    y_scale: Tensor


class Prediction(NamedTuple):
    """A prediction in original units, [R, P, O] each."""

    mean: Tensor
    epistemic: Tensor  # standard deviation over the weights
    total: Tensor  # with the noise


class ActiveLearner:
    """Chooses points of a pool.

    Args:
        posterior: fitted from scratch after every `tell`.
        x: [P, ...] inputs of all points, labelled or not.
        acquisitions: one rule (or its name) an arm; the arms share start, noise and everything else.
        trials: independent repetitions; R = trials * len(acquisitions).
        allowed: [trials, P] which points may ever be chosen (test points may not); all by default.
        seed: root of all random streams; together with the labels told it decides everything.
        samples: weight samples for predictions.
        standardise: inputs by mean and deviation of the "labelled" points, of all allowed points ("pool"), or not
            at all ("none", and always so for images). Targets of a regression always by those of the labelled points.
        device: where to compute.
        dtype: floating-point type to compute in.
    """

    def __init__(
        self,
        posterior: Predictive,
        x: Any,
        acquisitions: Sequence[Acquisition | str] = ("max-variance",),
        *,
        trials: int = 1,
        allowed: np.ndarray | Tensor | None = None,
        seed: int = 0,
        samples: int = 100,
        standardise: str = "labelled",
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        if isinstance(posterior, type) or not hasattr(posterior, "likelihood"):
            raise InputError(f"the posterior is a {type(posterior).__name__}; explore.posterior(name, ...) makes one")
        for name, value in (("trials", trials), ("samples", samples)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if standardise not in ("labelled", "pool", "none"):
            raise one_of("standardise", standardise, ("labelled", "pool", "none"))
        self.posterior, self.trials, self.samples, self.standardise = posterior, trials, samples, standardise
        self.acquisitions = tuple(_rules(acquisitions, posterior, samples))
        self.rng = Rng(seed, device, dtype, arms=len(self.acquisitions))
        self._pool = Pool(x, allowed, trials, self.rng)
        self.x, self.replicas = self._pool.x, trials * len(self.acquisitions)
        zeros = [torch.zeros(1, 1, *shape, device=self.rng.device, dtype=dtype) for shape in posterior.net.shapes]
        norms = posterior.net.unit_norms(1, self.rng)
        out = posterior.net.output([*zeros, *norms], self.x[None, :2].to(dtype))
        classes = 0  # a regression
        if hasattr(posterior.likelihood, "probabilities"):
            classes = posterior.likelihood.probabilities(out).shape[-1]
        self._discrete = classes > 0
        names = tuple(name_of(rule) for rule in self.acquisitions)
        self._labels = Labels(self._pool, names, 1 if self._discrete else out.shape[-1], classes, self.rng)
        self._fitted: Fitted | None = None

    @property
    def labelled(self) -> Int[Tensor, "R n"]:
        """The labelled points in the order in which they were told."""
        return self._labels.points

    @property
    def mask(self) -> Bool[Tensor, "R P"]:
        """Which points may be asked for."""
        return self._labels.mask

    @property
    def round(self) -> int:
        """How often labels were told."""
        return self._labels.round

    def tell(self, indices: Any, y: Any) -> None:
        """Add labels.

        Args:
            indices: [R, k] points ([k] where R = 1), of an integer type.
            y: [R, k, O] targets ([R, k] where O = 1; class indices always [R, k]).

        Raises:
            InputError: for a point that does not exist, may not be chosen or has a label, a label that is not a
                finite number or no class of the likelihood, or shapes that do not fit.
        """
        self._labels.tell(indices, y)
        self._fitted = None

    def fit(self) -> Iterator[Epoch]:
        """Fit from scratch on the labels told so far, unless that is done; yields after every epoch."""
        if self._fitted is not None:
            return
        y, y_mean, y_scale = self._labels.y, torch.zeros(()), torch.ones(())
        if y is None:
            raise InputError("there is no label yet; tell some first")
        x_mean, x_scale = self._input_scale()
        if not self._discrete:
            y_mean, y_scale = mean_and_scale(y)
            y = self._scaled(y, y_mean, y_scale)
        x = self._scaled(self.x[self.labelled], x_mean, x_scale)
        epoch = None
        for epoch in fit(self.posterior, x, y, self.rng.stream("fit", self.round)):
            yield epoch
        assert epoch is not None
        self._fitted = Fitted(epoch.state, epoch.info, x_mean, x_scale, y_mean, y_scale)

    @property
    def fitted(self) -> Fitted:
        """The fit on the labels told so far; runs it where it has not run."""
        for _ in self.fit():
            pass
        assert self._fitted is not None
        return self._fitted

    def ask(self, k: int = 1) -> Choice:
        """The next k points of every replica, [R, k], each arm by its own rule.

        Warns of a rule that scores points one by one where k > 1: what it chooses may be near-duplicates.

        Raises:
            InputError: where fewer than k points are left, or a rule answers with something else.
        """
        left = int(self.mask.sum(1).min())
        if not isinstance(k, int | np.integer) or not 1 <= k <= left:
            raise InputError(f"asked for {k} points, but {left} are left")
        for rule in self.acquisitions:
            if said := redundancy(rule, self.posterior.likelihood, k):
                warnings.warn(said, RedundancyWarning, stacklevel=2)
        choices = []
        for i, acquire in enumerate(self.acquisitions):
            view = self._view(slice(i * self.trials, (i + 1) * self.trials))
            choices.append(checked(acquire(view, k), acquire, view.mask, k))
        return Choice(torch.cat([c.indices for c in choices]), torch.cat([c.scores for c in choices]))

    def predict(self, x: Any) -> Prediction:
        """Predictions of a regression at new inputs x [P, ...]."""
        if self._discrete:
            raise InputError("classes have probabilities, not a mean; use probabilities(x)")
        f = self.fitted
        layers, noise = self._draw("test")
        mean, variance = predict.moments(self.posterior.net, layers, self._everywhere(self._pool.like(x), slice(None)))
        total = variance + (1 / noise).mean(1)[:, None, None]
        return Prediction(mean * f.y_scale + f.y_mean, variance.sqrt() * f.y_scale, total.sqrt() * f.y_scale)

    def probabilities(self, x: Any) -> Float[Tensor, "R P C"]:
        """Class probabilities at new inputs x [P, ...], averaged over the weights."""
        if not self._discrete:
            raise InputError("a regression has no class probabilities; use predict(x)")
        layers, _ = self._draw("test")
        outputs = predict.outputs(self.posterior.net, layers, self._everywhere(self._pool.like(x), slice(None)))
        return torch.cat([self.posterior.likelihood.probabilities(out).mean(1) for _, out in outputs], 1)  # type: ignore[attr-defined]

    def evaluate(self, indices: Any, y: Any) -> dict[str, Float[Tensor, " R"]]:
        """Test metrics in original units on points [R, m] of the pool, y [P, O] or [P] being the labels of all."""
        f = self.fitted
        layers, noise = self._draw("test")
        points, scale = self._labels.indices(indices), None
        if points.dim() != 2 or len(points) != self.replicas or not points.numel():
            raise InputError(f"test points come as [{self.replicas}, m]; got {list(points.shape)}")
        if not (0 <= int(points.min()) and int(points.max()) < len(self.x)):
            raise InputError(f"points are numbered 0 to {len(self.x) - 1}; got {points.tolist()}")
        labels = self._labels.of(points, y)
        if not self._discrete:
            labels, scale = self._scaled(labels, f.y_mean, f.y_scale), f.y_scale.squeeze(1)
        x = self._scaled(self.x[points], f.x_mean, f.x_scale)
        return predict.evaluate(self.posterior.net, self.posterior.likelihood, layers, noise, x, labels, scale)

    def state_dict(self) -> dict[str, Tensor]:
        """The labels told so far, and of what: with the same arguments and seed, everything else follows from them."""
        return self._labels.state_dict()

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict`.

        The pool may stand in another order: points are known by the hashes of their float64 values, and equal ones are
        interchangeable.

        Raises:
            InputError: when it is of another version, or was saved with other points, points that may be chosen, arms,
                trials, seed or kind of labels.
        """
        self._labels.load_state_dict(saved)
        self._fitted = None

    def _scaled(self, values: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        scaled = ((values - mean) / scale).to(self.rng.dtype)
        if not scaled.isfinite().all():
            raise InputError(f"a point or a label is too far from the others to be standardised in {self.rng.dtype}")
        return scaled

    def _everywhere(self, x: Tensor, arm: slice) -> Tensor:
        """Standardised inputs x [P, ...] for the replicas of an arm, [R, P, ...]."""
        f = self.fitted
        mean, scale = (t[arm] if len(t) > 1 else t for t in (f.x_mean, f.x_scale))
        scaled = self._scaled(x.unsqueeze(0), mean, scale)
        return scaled.expand(len(range(self.replicas)[arm]), *x.shape)

    def _draw(self, stream: str) -> tuple[Any, Any]:
        rng = self.rng.stream(stream, self.round)
        return self.posterior.joint_sample(self.fitted.state, self.samples, rng)

    def _view(self, arm: slice) -> View:
        def draw() -> Any:
            return tree.map_tensors(lambda w: w[arm], self._draw("acquire")[0])

        f = self.fitted
        noise = self.posterior.likelihood.expected(f.state.common.noise)
        alone = Rng(self.rng.seed, self.rng.device, self.rng.dtype)  # a view is of one arm only
        return View(
            net=self.posterior.net,
            likelihood=self.posterior.likelihood,
            x=self._everywhere(self.x, arm),
            mask=self.mask[arm],
            draw=draw,
            noise=None if noise is None else noise[arm],
            rng=alone.stream("acquire", self.round, 1),
        )

    def _input_scale(self) -> tuple[Tensor, Tensor]:
        if self.standardise == "none" or self.x.dim() != 2:
            return torch.zeros_like(self.x[:1]).unsqueeze(0), torch.ones_like(self.x[:1]).unsqueeze(0)
        if self.standardise == "labelled":
            return mean_and_scale(self.x[self.labelled])
        # Every replica may choose among equally many points; argsort puts theirs first.
        allowed = self._labels.allowed
        known = (~allowed).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(allowed.sum(1).min())]
        return mean_and_scale(self.x[known])


def _rules(given: Sequence[Acquisition | str], posterior: Predictive, samples: int) -> Iterator[Acquisition]:
    """One rule an arm; refuses what is none, and what this posterior leaves nothing to choose by."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InputError(f"acquisitions is {given!r:.100}; it must be a list of at least one rule, as ['random']")
    for rule in given:
        found = registry.find("acquisitions", rule) if isinstance(rule, str) else rule
        if not callable(found):
            raise InputError(f"an acquisition is {found!r:.100}; it must be a name, or a function of a View and k")
        if needs_spread(found) and (posterior.certain or samples < 2):
            raise InputError(
                f"{name_of(found)} goes by how predictions vary over the weights, and with {type(posterior).__name__} "
                f"and samples={samples} nothing varies; choose random, or a posterior with several samples"
            )
        yield found


class Round(NamedTuple):
    """A round of active learning is done."""

    round: int  # from 1
    labels: int  # the metrics are those of a fit on this many
    metrics: dict[str, Float[Tensor, " R"]]
    info: Info  # of the last training batch
    choice: Choice | None  # what was labelled next; None in the last round
    state: State


def active_loop(learner: ActiveLearner, y: np.ndarray, test: Any, rounds: int, k: int = 1) -> Iterator[Epoch | Round]:
    """Run rounds of fit, test, acquire; continues where the learner stands.

    Args:
        learner: with its initial labels told (that is round 1).
        y: [P, O] or [P] the labels of all points; the oracle.
        test: [R, m] indices of the held-out points of every replica.
        rounds: fits in all; one acquisition fewer.
        k: points acquired after each fit.

    Yields:
        `Epoch` after each epoch of a fit, `Round` after each round, when the labels chosen in it are told.
    """
    labels = np.asarray(y)
    while learner.round <= rounds:
        this, n = learner.round, learner.labelled.shape[1]
        yield from learner.fit()
        state, info = learner.fitted.state, learner.fitted.info
        metrics = learner.evaluate(test, labels)
        choice = learner.ask(k) if this < rounds else None
        if choice is None:
            yield Round(this, n, metrics, info, choice, state)
            return
        learner.tell(choice.indices, labels[choice.indices.cpu().numpy()])
        yield Round(this, n, metrics, info, choice, state)
