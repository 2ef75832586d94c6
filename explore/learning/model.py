"""Fitted models, which predict in the targets' original units and are saved as tensors and plain values."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from explore.core import tree
from explore.core.errors import Failure, InitialCurvatureWarning, InputError, check_count, check_range, curvature_note
from explore.core.rng import Rng
from explore.core.shapes import State
from explore.inference.base import Predictive
from explore.inference.gaussian import GaussianPosterior
from explore.inference.predict import ClassPrediction, Predictor, filled, probit
from explore.learning.calibration import held_out_factor
from explore.learning.fit import last_epoch
from explore.learning.identity import alike, check_same, described, outputs
from explore.learning.pool import Pool, Scales, at_zero
from explore.learning.scaling import RawInputs, StandardisedInputs, Standardiser, examples, labels, numbers, shaped
from explore.nets.protocols import check_targets

WHOLE = ("samples", "seed", "round", "arms")  # fields that are whole numbers


class Prediction(NamedTuple):
    """Predictive mean and standard deviations in original units, [R, P, O] each; total^2 = epistemic^2 + noise^2."""

    mean: Tensor
    epistemic: Tensor  # standard deviation over the weights
    total: Tensor  # standard deviation including the noise
    noise: Tensor  # standard deviation of the noise alone


@dataclass(frozen=True)
class FittedModel:
    """R replicas of a posterior that were fitted in parallel, each with its own scales.

    Predictions are the mixture 1/S sum_s p(y | x, w_s, noise_s) over joint samples of weights and noise. `seed` and
    `round` determine these samples, so repeated predictions are equal.
    """

    posterior: Predictive  # with its settings, network and likelihood
    state: State  # of the posterior
    scales: Scales  # of inputs and targets
    shape: tuple[int, ...]  # of one input
    samples: int = 100  # S; posteriors with a fixed number of samples use their own number
    seed: int = 0  # root of the random numbers
    round: int = 1  # of the experiment
    arms: int = 1  # equal blocks of replicas that share random numbers
    factor: Float[Tensor, " R"] | None = None  # on the predictive variance, see `explore.learning.calibration`

    def __post_init__(self) -> None:
        check_count("samples", self.samples)

    @staticmethod
    def fit(
        posterior: Predictive,
        x: Any,
        y: Any = None,
        samples: int = 100,
        seed: int = 0,
        *,
        standardise: str = "labelled",
        calibrate: float = 0.0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "FittedModel":
        """Fit one replica from scratch. An `ActiveLearner` that gets all labels at once has a bit-identical fit.

        Args:
            posterior: what to fit; its settings include the number of epochs.
            x: [P, ...] inputs in original units; or a DataLoader or Dataset of pairs (x, y). A loader is read
                once, since the posterior makes its own batches.
            y: [P, O] targets ([P] if O = 1), or [P] class indices; None if `x` has pairs (x, y).
            samples: number of weight samples for predictions.
            seed: root of all random numbers.
            standardise: "labelled" standardises inputs by their mean and standard deviation, but leaves images (which
                must not be bytes) unchanged; "none" standardises no inputs. A pretrained network (`trained`) needs
                "none"; then targets are not standardised either.
            calibrate: share of the examples, at most 0.5, that a second fit holds out, to fit a factor on the
                predictive variance; 0: no calibration. The second fit takes as long as the first.
            device: device to compute on.
            dtype: floating-point type to compute in.

        Raises:
            InputError: for numbers that are not finite, wrong shapes, invalid classes, or `calibrate` with classes.
            Failure: if the fit diverged, for example because the learning rate is far too high.
        """
        check_made(posterior)
        check_count("samples", samples)
        x, y = examples(x) if y is None else (x, y)
        rng = Rng(seed, device, dtype)
        pool = Pool(posterior, x, None, 1, 1, standardise, rng)
        pool.tell(torch.arange(len(pool.x)), y)
        scales = pool.scales()
        data, factor = pool.training(scales), None
        if calibrate:
            factor = held_out_factor(posterior, *data, rng.stream("calibrate", pool.round), calibrate, samples)
        state = last_epoch(posterior, *data, rng.stream("fit", pool.round)).state
        check_alive(state)
        model = FittedModel(posterior, state, scales, tuple(pool.x.shape[1:]), samples, seed, factor=factor)
        if note := curvature_note(model.initial_curvature_share.tolist()):
            warnings.warn(note, InitialCurvatureWarning, stacklevel=2)
        return model

    @property
    def initial_curvature_share(self) -> Float[Tensor, " R"]:
        """The share of the curvature from its initial value. If it is large, standard deviations are far too small."""
        return self.posterior.initial_curvature_share(self.state)

    @property
    def replicas(self) -> int:
        """The number of replicas, R."""
        return len(self.state.common.alive)

    @property
    def rng(self) -> Rng:
        """The root of the random numbers, with the state's device and dtype."""
        leaf = next(t for t in tree.tensors(self.state) if t.dim() and t.is_floating_point())
        return Rng(self.seed, leaf.device, leaf.dtype, self.arms)

    def predictor(self, n: int | None = None) -> Predictor:
        """Return a predictor with n sampled networks (default: `samples`), which are the same in every call."""
        check_count("n", n := self.samples if n is None else n)
        predictor = Predictor.sample(self.posterior, self.state, n, self.rng.stream("test", self.round))
        return predictor if self.factor is None else predictor.stretched(self.factor)

    def replica(self, r: int) -> "FittedModel":
        """Return replica r as a separate model, which samples other networks, so predictions differ slightly."""
        if not (isinstance(r, int) and 0 <= r < self.replicas):
            raise InputError(f"there is no replica {r!r}; they are numbered 0 to {self.replicas - 1}")
        state, scales, factor = tree.part((self.state, self.scales, self.factor), slice(r, r + 1))
        return replace(self, state=state, scales=scales, factor=factor, arms=1)

    def predict(self, x: Any) -> Prediction:
        """Return the predictive means and standard deviations of a regression at inputs x [P, ...]."""
        if self.posterior.likelihood.discrete:
            raise InputError("a classification has no mean. Use probabilities(x)")
        predictor, y = self.predictor(), self.scales.y
        mean, variance, noise = predictor.label_moments(self._standardised(x))
        epistemic, total = variance.sqrt() * y.scale, (variance + noise).sqrt() * y.scale
        return Prediction(y.undo(mean), epistemic, total, noise.sqrt() * y.scale)

    def quantiles(self, x: Any, levels: Sequence[float]) -> Float[Tensor, "K R P O"]:
        """Return marginal predictive quantiles of the targets at inputs x [P, ...], for K levels in (0, 1)."""
        if self.posterior.likelihood.discrete:
            raise InputError("a classification has no quantiles. Use probabilities(x)")
        levels = levels.tolist() if isinstance(levels, Tensor | np.ndarray) else levels
        if not isinstance(levels, Sequence) or not len(levels):
            raise InputError(f"levels is {levels!r}; it must be a list of at least one number in (0, 1)")
        for level in levels:
            check_range("a quantile's level", level, "(0, 1)")
        predictor = self.predictor()
        outputs = predictor.outputs(self._standardised(x))
        chunks = ((part, (predictor.quantiles_of(out, levels),)) for part, out in outputs)
        return self.scales.y.undo(filled(chunks, len(x), 2)[0])

    def interval(self, x: Any, level: float = 0.9) -> tuple[Float[Tensor, "R P O"], Float[Tensor, "R P O"]]:
        """Return lower and upper ends of central intervals that contain the targets at x with probability `level`."""
        check_range("an interval's level", level, "(0, 1)")
        low, high = self.quantiles(x, ((1 - level) / 2, (1 + level) / 2))
        return low, high

    def below(self, x: Any, y: Any) -> Float[Tensor, "R P O"]:
        """Return the probability that the target at each input x [P, ...] is below the threshold y, [P, O] or [P]."""
        if self.posterior.likelihood.discrete:
            raise InputError("below() applies to regression only. Use probabilities(x)")
        predictor, thresholds = self.predictor(), self._targets(x, numbers(y, "threshold")).unsqueeze(0)
        outputs = predictor.outputs(self._standardised(x))
        at = self.scales.y.apply(thresholds, self.rng.dtype).unsqueeze(1)  # [R, 1, P, O]
        return filled(((part, (predictor.below_of(out, at[:, :, part]),)) for part, out in outputs), len(x))[0]

    def evaluate(self, x: Any, y: Any) -> dict[str, Float[Tensor, " R"]]:
        """Return test metrics in original units for points x [P, ...] with labels y, see `Predictor.evaluate`."""
        inputs, width = self._standardised(x), self._width
        values = labels(y, width if self.posterior.likelihood.discrete else 0, self.rng.device)
        if self.posterior.likelihood.discrete:
            targets = shaped(values, len(x), width, classes=True)
            return self.predictor().evaluate(inputs, targets.expand(self.replicas, -1))
        check_targets(self.posterior.likelihood, values)
        scale = self.scales.y.scale.expand(self.replicas, 1, width)
        targets = self.scales.y.apply(self._targets(x, values), self.rng.dtype)
        return self.predictor().evaluate(inputs, targets.expand(self.replicas, -1, -1), scale.squeeze(1))

    @property
    def _width(self) -> int:
        """The number of targets of a regression, or of classes."""
        out = at_zero(self.posterior, torch.zeros(1, *self.shape, device=self.rng.device, dtype=self.rng.dtype))
        return self.posterior.likelihood.mean(out).shape[-1]

    def _targets(self, x: Any, values: Tensor) -> Float[Tensor, "P O"]:
        """Return `values` as [P, O]. Raise InputError unless there is one number for each input and target."""
        return shaped(values.to(self.rng.device, torch.float64), len(x), self._width, classes=False)

    def probabilities(self, x: Any) -> Float[Tensor, "R P C"]:
        """Return class probabilities at inputs x [P, ...], averaged over the weights."""
        return self.predict_classes(x).probabilities

    def probit(self, x: Any) -> Float[Tensor, "R P C"]:
        """Return class probabilities at x in closed form, see `explore.inference.predict.probit`."""
        posterior = self.posterior
        if not posterior.likelihood.discrete or not isinstance(posterior, GaussianPosterior):
            raise InputError("probit() needs classes and a Gaussian posterior. Use probabilities(x)")
        if hasattr(posterior.likelihood, "given"):
            kind = type(posterior.likelihood).__name__
            raise InputError(f"probit() does not support the likelihood {kind}. Use probabilities(x)")
        return probit(posterior, self.state, self._standardised(x)[:, :])

    def predict_classes(self, x: Any) -> ClassPrediction:
        """Return class probabilities at x, their entropy, and the mutual information of class and weights, in nats."""
        if not self.posterior.likelihood.discrete:
            raise InputError("a regression has no class probabilities. Use predict(x)")
        return self.predictor().classes(self._standardised(x))

    def sample(self, x: Any, n: int) -> Tensor:
        """Draw n joint samples of targets [R, n, P, O] or classes [R, n, P] at x [P, ...], each using one network."""
        predictor = self.predictor(n)
        turn = torch.arange(n, device=self.rng.device) % predictor.samples
        noise = tree.map_tensors(lambda t: t[:, turn], predictor.noise)
        chunks = ((part, (out[:, turn],)) for part, out in predictor.outputs(self._standardised(x)))
        (out,) = filled(chunks, len(x), 2)
        drawn = self.posterior.likelihood.sample(noise, out, self.rng.stream("test", self.round, 1))
        if self.posterior.likelihood.discrete:
            return drawn
        return self.scales.y.undo(drawn.flatten(1, 2)).unflatten(1, drawn.shape[1:3])

    def _standardised(self, x: Any) -> StandardisedInputs:
        """Return inputs that are standardised when indexed. Images scaled by channel must be integers, 0 to 255."""
        inputs = RawInputs(x, self.rng, self.posterior.net.inputs.packed)
        inputs.check_shape(self.shape, "the training inputs")
        values, by_channel = inputs.x, self.scales.x.mean.dim() > 3  # as the commands scale images, which are bytes
        checked = by_channel and values.dtype != torch.uint8
        if checked and bool(((values < 0) | (values > 255) | (values != values.round())).any()):
            raise InputError("images must be whole numbers from 0 to 255; the model scales them")
        points = torch.arange(len(inputs), device=self.rng.device).expand(self.replicas, -1)
        return StandardisedInputs(inputs, points, self.scales.x, self.rng.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole model as tensors on the CPU, numbers, and strings that identify the posterior."""
        tensors = tree.save({"state": self.state, "scales": self.scales, "factor": self.factor})
        whole = {name: getattr(self, name) for name in WHOLE}
        plain = {"shape": list(self.shape), "posterior": dict(described("posterior", self.posterior))}
        tensors["net"] = outputs(self.posterior.net, self.shape, self.rng)
        return {name: t.cpu() for name, t in tensors.items()} | whole | plain

    @staticmethod
    def from_state_dict(
        posterior: Predictive, saved: Mapping[str, Any], device: str | torch.device = "cpu"
    ) -> "FittedModel":
        """Restore a model from its `state_dict`.

        Raise InputError unless the posterior has the same class, network, likelihood and settings (except `epochs`).
        """
        rng = Rng(0, device)
        try:
            state = {name[6:]: t for name, t in saved.items() if name.startswith("state.")}
            moments = {of: [saved[f"scales.{of}.{name}"].to(device) for name in Standardiser._fields] for of in "xy"}
            whole, shape = {name: int(saved[name]) for name in WHOLE}, tuple(map(int, saved["shape"]))
            texts = {str(name): str(text) for name, text in saved.get("posterior", {}).items()}
            dtype = next(t.dtype for t in state.values() if t.dim() and t.is_floating_point())
            n_data, replicas = float(state["common.n_data"]), len(state["common.alive"])
            factor = saved["factor"].to(device) if "factor" in saved else None
            probed = saved["net"].float()
        except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
            raise InputError(f"not a saved model ({error!r}). Pass the result of FittedModel.state_dict()") from None
        check_same(texts, dict(described("posterior", posterior)))
        like = posterior.init(n_data, replicas, Rng(0, rng.device, dtype))
        scales = Scales(*(Standardiser(*parts) for parts in moments.values()))
        model = FittedModel(posterior, tree.restore(like, state), scales, shape, factor=factor, **whole)
        if not alike(posterior.net, outputs(posterior.net, shape, model.rng), probed):
            raise InputError("the saved model's network has another forward(). Pass the posterior that was fitted")
        return model


def check_alive(state: State) -> None:
    """Raise Failure if a replica diverged."""
    if not bool(state.common.alive.all()):
        raise Failure("the fit diverged. Lower the learning rate (lr), or use another posterior")


def check_made(posterior: Any) -> None:
    """Raise InputError unless `posterior` is a posterior object, not the class or the name of a posterior."""
    if isinstance(posterior, type) or not hasattr(posterior, "likelihood"):
        raise InputError(f"posterior is a {type(posterior).__name__}. Create one with explore.posterior(name, ...)")
