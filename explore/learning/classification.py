"""Image classification: training with periodic evaluation, test scores, and out-of-distribution detection."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from sklearn.metrics import roc_auc_score
from torch import Tensor

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import State
from explore.execution import graphs
from explore.inference.base import Predictive
from explore.inference.predict import CACHE, Inputs, Predictor, divided
from explore.learning.compare import TRAINING, Measured, confidence_bins, position, restore_position
from explore.learning.fit import Epoch, ImageFeed, fit, stops

POINTS = 20  # default number of measurements of a posterior


class Classified(NamedTuple):
    """Class predictions of one replica for P inputs."""

    probabilities: Float[Tensor, "P C"]  # averaged over the weights
    log_likelihood: Float[Tensor, " P"]  # of the true class; NaN if it is unknown
    information: Float[Tensor, " P"]  # mutual information between class and weights, in nats

    @property
    def entropy(self) -> Float[Tensor, " P"]:
        """Predictive entropy of each input, in nats."""
        return torch.special.entr(self.probabilities).sum(1)


def classify(predictor: Predictor, x: Inputs, y: Int[Tensor, " P"] | None = None) -> Classified:
    """Predict the classes of inputs x [1, P, ...]; score true classes y if given. Several processes share the work."""
    likelihood, noise = predictor.likelihood, predictor.noise

    def of(part: slice, out: Float[Tensor, "R S b O"]) -> tuple[Tensor, Tensor]:
        prediction = predictor.classes_of(out)
        log_likelihood = torch.full_like(prediction.information, torch.nan)
        if y is not None:  # from log-probabilities, which stay finite if a probability underflows to 0
            log_likelihood = likelihood.log_prob(noise, out, y[None, None, part]).logsumexp(1) - math.log(out.shape[1])
        return prediction.probabilities, torch.stack([log_likelihood, prediction.information], -1)

    mean, columns = divided(lambda share: predictor.outputs(x, CACHE, share), x.shape[1], of)
    return Classified(mean[0], *columns[0].unbind(-1))


def scores(predicted: Classified, y: Int[Tensor, " P"]) -> dict[str, float]:
    """Return error rate, mean log-likelihood, Brier score (sum over classes, in [0, 2]) and mean mutual information."""
    distance = predicted.probabilities - F.one_hot(y, predicted.probabilities.shape[1])
    return {
        "error": float((predicted.probabilities.argmax(1) != y).double().mean()),
        "log_likelihood": float(predicted.log_likelihood.double().mean()),
        "brier": float(distance.square().sum(1).double().mean()),
        "information": float(predicted.information.double().mean()),
    }


def auroc(inside: Float[Tensor, " P"], outside: Float[Tensor, " Q"]) -> float:
    """Return the AUROC of detecting out-of-distribution inputs by uncertainty; NaN if a value is not finite."""
    truth, values = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]), torch.cat([inside, outside])
    return float(roc_auc_score(truth.numpy(), values.double().cpu().numpy())) if values.isfinite().all() else math.nan


class Task(NamedTuple):
    """Training and test images, with their class indices."""

    x: ImageFeed  # [1, n, C, H, W]
    y: Int[Tensor, "1 n"]
    test_x: ImageFeed
    test_y: Int[Tensor, " P"]


def follow(
    posterior: Predictive, task: Task, rng: Rng, samples: int, warmup: int = 0,
    saved: Mapping[str, Any] | None = None, points: int = POINTS,
) -> Iterator[Epoch | Measured]:  # fmt: skip
    """Fit a posterior to images, and measure it after up to `points` evenly spaced epochs, including the last.

    The feed `task.x` must draw from the stream `rng.stream("fit")`; every measurement uses a separate stream. In the
    first `warmup` epochs, the learning rate rises in equal steps to the posterior's `lr`. With `saved`, a
    `Measured.saved` of an interrupted fit, the fit resumes with bit-identical results. Yield an `Epoch` after each
    epoch; after a measured epoch, also a `Measured`.
    """
    check_warmup(posterior, warmup)
    done, state = restore_position(saved, posterior, task.x.shape[1], 1, rng.stream("fit"), [task.x.rng])
    when = stops(posterior.epochs, points)
    for event in _epochs(posterior, task, warmup, done, state):
        yield event
        if event.epoch in when:
            now = position(event, [task.x.rng])
            scalars, predicted = measure(posterior, event.state, task, rng.stream("test", event.epoch), samples)
            yield Measured(event.epoch, scalars, event.state, now, predicted)


def _epochs(posterior: Predictive, task: Task, warmup: int, done: int, state: State | None) -> Iterator[Epoch]:
    """Yield the epochs of a fit that begins with `warmup` epochs of warm-up, resuming after `done` epochs."""
    for epoch in range(done, min(warmup, posterior.epochs)):
        with graphs.use(False):  # each of these epochs would need graphs of its own
            event = next(fit(_warmed(posterior, epoch, warmup), task.x, task.y, task.x.rng, epoch, state))
        done, state = event.epoch, event.state
        yield event
    yield from fit(posterior, task.x, task.y, task.x.rng, done, state)


def check_warmup(posterior: Predictive, warmup: int) -> None:
    """Raise InputError if the warm-up is longer than training, or `warmup` > 0 without a learning rate."""
    if warmup and _lr(posterior) is None:
        raise InputError(f"{type(posterior).__name__} has no learning rate to warm up. Leave out warmup (--warmup)")
    if warmup > posterior.epochs:
        epochs = f"warm-up of {warmup} epochs, but training has {posterior.epochs}"
        raise InputError(f"{epochs}. Use a shorter warm-up (--warmup)")


def _warmed(posterior: Predictive, epoch: int, warmup: int) -> Predictive:
    return posterior.with_settings(lr=_lr(posterior) * (epoch + 1) / warmup)


def _lr(posterior: Predictive) -> Any:
    """Return the learning rate of a posterior or, for a mixture, of its members; None if there is none."""
    return getattr(getattr(posterior, "posterior", posterior), "lr", None)


def measure(posterior: Any, state: State, task: Task, rng: Rng, samples: int) -> tuple[dict[str, float], Classified]:
    """Return metrics by tag (train/* as in `compare.measure`, test/* with `scores`), and test predictions."""
    predictor = Predictor.sample(posterior, state, samples, rng)
    nll = -float(predictor.log_prob(task.x[:, :TRAINING], task.y[:, :TRAINING]).mean())
    scalars = {"train/nll": nll}
    if hasattr(posterior, "divergence"):
        kl, examples = float(posterior.divergence(state)), float(state.common.n_data) / posterior.stands_for(1.0)
        scalars |= {"train/kl": kl, "train/bound": -nll - kl / examples}
    predicted = classify(predictor, task.test_x, task.test_y)
    error = float(confidence_bins(predicted.probabilities[None], task.test_y[None]).error)
    test = scores(predicted, task.test_y) | {"calibration_error": error}
    learned = {f"train/{name}": float(value) for name, value in posterior.learned(state).items()}
    return scalars | {f"test/{name}": value for name, value in test.items()} | learned, predicted
