"""Pool-based active learning: ask which points to label, tell their labels.

`ActiveLearner` holds a pool and runs R replicas of the same experiment side by side: `trials` random starts, once for
each acquisition (the arms; arm-major on the replica axis). A person with one pool uses one trial and one arm.
`active_loop` plays the oracle from known labels and measures the test error round by round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from explore import predict, registry, tree
from explore.acquisitions.base import Acquisition, Choice, View
from explore.errors import InputError, one_of
from explore.fit import Epoch, fit
from explore.linalg import mean_and_scale
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
        self.posterior, self.trials = posterior, trials
        self.acquisitions: tuple[Acquisition, ...] = tuple(
            registry.find("acquisitions", rule) if isinstance(rule, str) else rule for rule in acquisitions
        )
        self.samples, self.standardise = samples, standardise
        if standardise not in ("labelled", "pool", "none"):
            raise one_of("standardise", standardise, ("labelled", "pool", "none"))
        if not self.acquisitions or trials < 1:
            raise InputError("at least one acquisition and one trial are needed")
        self.rng = Rng(seed, device, dtype, arms=len(self.acquisitions))
        self.x = self._pool(x)
        zeros = [torch.zeros(1, 1, *shape, device=self.rng.device, dtype=dtype) for shape in posterior.net.shapes]
        norms = posterior.net.unit_norms(1, self.rng)
        out = posterior.net.output([*zeros, *norms], self.x[None, :1].to(dtype))
        self._classes = 0  # a regression
        if hasattr(posterior.likelihood, "probabilities"):
            self._classes = posterior.likelihood.probabilities(out).shape[-1]
        self._discrete = self._classes > 0
        self._labels_each = 1 if self._discrete else out.shape[-1]
        self.replicas = trials * len(self.acquisitions)
        mask = torch.ones(trials, len(self.x), dtype=torch.bool) if allowed is None else torch.as_tensor(allowed)
        self.mask = mask.to(self.rng.device).repeat(len(self.acquisitions), 1)  # [R, P] may be asked for
        self._labelled = torch.zeros(self.replicas, 0, dtype=torch.long, device=self.rng.device)
        self._y: Tensor | None = None  # [R, n, O], or [R, n] class indices
        self._pool_mask = self.mask
        self.round = 0  # how often labels were told
        self._fitted: Fitted | None = None

    @property
    def labelled(self) -> Int[Tensor, "R n"]:
        """The labelled points in the order in which they were told."""
        return self._labelled

    def tell(self, indices: Any, y: Any) -> None:
        """Add labels.

        Args:
            indices: [R, k] points ([k] where R = 1).
            y: [R, k, O] targets ([R, k] where O = 1; class indices always [R, k]).

        Raises:
            InputError: for a point that does not exist, may not be chosen or has a label, a label that is not a
                finite number or no class of the likelihood, or shapes that do not fit.
        """
        points, values = self.rng.tensor(indices).long(), self._targets(y)
        if self.replicas > 1 and (points.dim() != 2 or len(points) != self.replicas):
            raise InputError(
                f"the points of {self.replicas} replicas come as [{self.replicas}, k]; got {list(points.shape)}"
            )
        if not points.numel() or values.numel() != points.numel() * self._labels_each:
            raise InputError(
                f"{points.numel()} points cannot have {values.numel()} labels; each has {self._labels_each}"
            )
        points = points.reshape(self.replicas, -1)
        values = values.reshape(*points.shape, *([] if self._discrete else [-1]))
        if not (0 <= int(points.min()) and int(points.max()) < len(self.x)):
            raise InputError(f"points are numbered 0 to {len(self.x) - 1}; got {points.tolist()}")
        fresh = self.mask.gather(1, points)
        if not fresh.all() or any(len(set(row)) < len(row) for row in points.tolist()):
            bad = points[~fresh].tolist() or points.tolist()
            raise InputError(f"points {bad} are labelled already, held out for testing, or named twice")
        self.mask = self.mask.scatter(1, points, False)
        self._labelled = torch.cat([self._labelled, points], 1)
        self._y = values if self._y is None else torch.cat([self._y, values], 1)
        self.round += 1
        self._fitted = None

    def fit(self) -> Iterator[Epoch]:
        """Fit from scratch on the labels told so far, unless that is done; yields after every epoch."""
        if self._fitted is not None:
            return
        if self._y is None:
            raise InputError("there is no label yet; tell some first")
        x_mean, x_scale = self._input_scale()
        y, y_mean, y_scale = self._y, torch.zeros(()), torch.ones(())
        if not self._discrete:
            y_mean, y_scale = mean_and_scale(y)
            y = self._scaled(y, y_mean, y_scale)
        x = self._scaled(self.x[self._labelled], x_mean, x_scale)
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

        Raises:
            InputError: where fewer than k points are left.
        """
        left = int(self.mask.sum(1).min())
        if not 1 <= k <= left:
            raise InputError(f"asked for {k} points, but {left} are left")
        choices = [
            acquire(self._view(slice(i * self.trials, (i + 1) * self.trials)), k)
            for i, acquire in enumerate(self.acquisitions)
        ]
        return Choice(torch.cat([c.indices for c in choices]), torch.cat([c.scores for c in choices]))

    def predict(self, x: Any) -> Prediction:
        """Predictions of a regression at new inputs x [P, ...]."""
        if self._discrete:
            raise InputError("classes have probabilities, not a mean; use probabilities(x)")
        f = self.fitted
        layers, noise = self._draw("test")
        mean, variance = predict.moments(self.posterior.net, layers, self._everywhere(self._pool(x), slice(None)))
        total = variance + (1 / noise).mean(1)[:, None, None]
        return Prediction(mean * f.y_scale + f.y_mean, variance.sqrt() * f.y_scale, total.sqrt() * f.y_scale)

    def probabilities(self, x: Any) -> Float[Tensor, "R P C"]:
        """Class probabilities at new inputs x [P, ...], averaged over the weights."""
        if not self._discrete:
            raise InputError("a regression has no class probabilities; use predict(x)")
        layers, _ = self._draw("test")
        outputs = predict.outputs(self.posterior.net, layers, self._everywhere(self._pool(x), slice(None)))
        return torch.cat([self.posterior.likelihood.probabilities(out).mean(1) for _, out in outputs], 1)  # type: ignore[attr-defined]

    def evaluate(self, indices: Any, y: Any) -> dict[str, Float[Tensor, " R"]]:
        """Test metrics in original units on points [R, m] of the pool, y [P, O] or [P] being the labels of all."""
        f = self.fitted
        layers, noise = self._draw("test")
        indices = self.rng.tensor(indices)
        y, scale = self._targets(y)[indices], None
        if not self._discrete:
            y, scale = self._scaled(y, f.y_mean, f.y_scale), f.y_scale.squeeze(1)
        x = self._scaled(self.x[indices], f.x_mean, f.x_scale)
        return predict.evaluate(self.posterior.net, self.posterior.likelihood, layers, noise, x, y, scale)

    def state_dict(self) -> dict[str, Tensor]:
        """The labels told so far; with the same arguments and seed, everything else follows from them."""
        empty = torch.zeros(self.replicas, 0)
        return {
            "labelled": self._labelled.cpu().clone(),
            "y": empty if self._y is None else self._y.cpu().clone(),
            "round": torch.tensor(self.round),
            "seed": torch.tensor(self.rng.seed),
            "points": torch.tensor(len(self.x)),
        }

    def load_state_dict(self, saved: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`.

        Raises:
            InputError: when it was saved with another seed, pool size or number of replicas.
        """
        labelled = saved["labelled"].to(self.rng.device)
        mine = {"seed": self.rng.seed, "points": len(self.x), "replicas": self.replicas}
        theirs = {"seed": int(saved["seed"]), "points": int(saved["points"]), "replicas": len(labelled)}
        if mine != theirs:
            raise InputError(f"the saved learner has {theirs}, this one {mine}")
        self.mask = self._pool_mask.scatter(1, labelled, False)
        self._labelled, self.round, self._fitted = labelled, int(saved["round"]), None
        self._y = saved["y"].to(self.rng.device) if labelled.shape[1] else None

    def _pool(self, x: Any) -> Tensor:
        """Features in double precision until they are standardised: single would merge neighbouring time stamps."""
        values = torch.as_tensor(x if isinstance(x, Tensor) else np.require(x, requirements="W"))
        if not values.isfinite().all():
            raise InputError("an input is not a finite number")
        return values.to(self.rng.device, torch.float64 if values.dim() == 2 else self.rng.dtype)

    def _scaled(self, values: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        return ((values - mean) / scale).to(self.rng.dtype)

    def _everywhere(self, x: Tensor, arm: slice) -> Tensor:
        """Standardised inputs x [P, ...] for the replicas of an arm, [R, P, ...]."""
        f = self.fitted
        mean, scale = (t[arm] if len(t) > 1 else t for t in (f.x_mean, f.x_scale))
        scaled = self._scaled(x.unsqueeze(0), mean, scale)
        return scaled.expand(len(range(self.replicas)[arm]), *x.shape)

    def _targets(self, y: Any) -> Tensor:
        """Checked labels: class indices as int64; real numbers, even whole ones, as float64 [..., O]."""
        try:
            values = torch.as_tensor(y if isinstance(y, Tensor) else np.require(y, requirements="W"))
        except TypeError:
            raise InputError("labels must be numbers") from None
        values = values.to(self.rng.device, torch.float64)
        if not values.isfinite().all():
            raise InputError("a label is not a finite number")
        if self._discrete:
            if ((values != values.floor()) | (values < 0) | (values >= self._classes)).any():
                raise InputError(f"class labels are whole numbers from 0 to {self._classes - 1}")
            return values.long()
        return values.flatten(1) if values.dim() > 1 else values.reshape(-1, 1)

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
            return mean_and_scale(self.x[self._labelled])
        # Every replica may choose among equally many points; argsort puts theirs first.
        known = (~self._pool_mask).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(self._pool_mask.sum(1).min())]
        return mean_and_scale(self.x[known])


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
