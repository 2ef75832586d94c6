"""Training, predictions and test scores of a posterior on a loader, one batch at a time.

A loader returns batches (x, y), like a DataLoader: y are class indices [B] or targets [B, O] or [B], and x is what the
module takes, a tensor or several in a dict or tuple. A batch can also be one dict, with y under `labels` or `label`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from rich.progress import Progress
from torch import Tensor

from explore.core import files, tree
from explore.core.errors import InitialCurvatureWarning, InputError, check_range, curvature_note
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.execution import graphs
from explore.inference.base import Predictive
from explore.inference.predict import ClassPrediction, LabelMoments, Predictor
from explore.learning.classification import Classified, auroc, classify, scores
from explore.learning.compare import confidence_bins
from explore.learning.fit import Epoch
from explore.learning.identity import check_same, described
from explore.learning.items import LABELS, unlabelled
from explore.learning.model import FittedModel, check_alive, check_made
from explore.learning.pool import Scales, at_zero
from explore.learning.scaling import UNSCALED, labels, numbers, shaped
from explore.nets.protocols import check_logits, check_targets

VALIDATION = 30  # weight samples of validation scores
KIND, FORMAT = "training checkpoint", 1


def fit(
    posterior: Predictive, loader: Any, epochs: int | None = None, *, validation: Any = None,
    n_data: float | None = None, state: State | None = None, seed: int = 0, device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32, callbacks: Iterable[Callable[[Epoch], Any]] = (), progress: bool = False,
    checkpoint: str | Path | None = None,
) -> State:  # fmt: skip
    """Fit one replica of a posterior to a loader, which is read once per epoch and never kept; return the state.

    Nothing is standardised. The default settings of likelihoods are for targets of mean 0 and standard deviation 1.

    Args:
        posterior: what to fit.
        loader: a DataLoader, or any object that returns its batches anew in each loop, such as a list of batches.
        epochs: passes over the loader; None: the posterior's setting.
        validation: a loader to `evaluate` after each epoch, with 30 weight samples. The scores of an epoch are in its
            `info`, under names such as "validation/log_likelihood".
        n_data: the number of training examples, without augmentation; None: the size of the loader's sampler or
            dataset or, if these have none, the number of examples in an additional pass.
        state: a state to train further, instead of a new one. It keeps its number of training examples.
        seed: root of all random numbers, except those of the loader.
        device: device to compute on.
        dtype: floating-point type to compute in.
        callbacks: functions that are called with the `explore.learning.fit.Epoch` after each epoch.
        progress: whether to show a progress bar.
        checkpoint: a file to write after each epoch. If it exists, the fit resumes after its last epoch. The result is
            bit-identical if the loader draws from torch's generator or its own `generator`.

    Raises:
        InputError: for a posterior that needs all data at once, invalid batches, or a checkpoint of another fit.
        Failure: if the fit diverged, for example because the learning rate is far too high.
    """
    check_made(posterior)
    if posterior.whole:
        raise InputError(f"{type(posterior).__name__} needs all data at once. Use explore.FittedModel.fit")
    if isinstance(loader, Iterator):
        raise InputError(f"loader is a {type(loader).__name__}, which is read only once. Pass a DataLoader or a list")
    if state is not None and n_data is not None:
        raise InputError("state has its own number of training examples. Leave out n_data")
    posterior = posterior if epochs is None else posterior.with_settings(epochs=epochs)
    root = Rng(seed, device, dtype) if state is None else _model(posterior, state, 1, seed).rng
    steps = () if state is None else (int(state.common.step),)  # further training draws other numbers
    feed = Feed(posterior, root.stream("fit", 1, *steps), gaps=True)
    if state is None:
        if n_data is None:
            length = length_hint(getattr(loader, "sampler", None)) or length_hint(getattr(loader, "dataset", None))
            n_data = length or sum(len(pair(batch)[1]) for batch in _batches(loader))
        check_range("n_data", n_data, "(0, inf)")
        state = posterior.init(n_data, 1, feed.rng)
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint), feed, loader, state)
    done, state = (0, state) if saved is None else saved.resumed(state)
    with Progress(disable=not progress) as bar:
        task = bar.add_task("Fitting", total=1.0)
        for epoch in _epochs(feed, loader, done, state, lambda share: bar.update(task, completed=share)):
            state = epoch.state
            if validation is not None:
                found = evaluate(posterior, state, validation, samples=VALIDATION, seed=seed)
                info = {f"validation/{name}": torch.tensor([value]) for name, value in found.items()}
                epoch = epoch._replace(info=epoch.info | info)
            for callback in callbacks:
                callback(epoch)
            if saved is not None:
                saved.write(epoch)
            bar.update(task, completed=epoch.epoch / epoch.epochs)
    if note := curvature_note(posterior.initial_curvature_share(state).tolist()):
        warnings.warn(note, InitialCurvatureWarning, stacklevel=2)
    return state


def predict(
    posterior: Predictive, state: State, loader: Iterable[Any], *, samples: int = 100, seed: int = 0
) -> LabelMoments | ClassPrediction:
    """Predict at the inputs of a loader, with the same weight samples for all batches.

    The loader returns inputs x or pairs (x, y), whose y are ignored. The result has the moments of real-valued labels
    [1, P, M], or class probabilities [1, P, C] with their uncertainty, on the CPU.
    """
    model = _model(posterior, state, samples, seed)
    feed, predictor = Feed(posterior, model.rng), model.predictor()
    of = predictor.classes if posterior.likelihood.discrete else predictor.label_moments
    parts = [tree.map_tensors(Tensor.cpu, of(x)) for x in feed.inputs(loader)]
    return tree.map_tensors(lambda *t: torch.cat(t, 1), *parts)


def evaluate(
    posterior: Predictive, state: State, loader: Iterable[Any], *, outside: Iterable[Any] | None = None,
    samples: int = 100, seed: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Return test scores on a loader, averaged over examples, with the same weight samples for all batches.

    Classes: `log_likelihood`; `error`; `brier`, summed over classes; `ece`, the expected calibration error in 15
    confidence bins. If `outside` is a loader of other inputs, also the AUROC of detecting them by the entropy of the
    class (`auroc_entropy`) and by the mutual information of class and weights (`auroc_information`).
    Regression: `log_likelihood` and `rmse`, and `crps` where it is known, as in `Predictor.evaluate`; `coverage_90`,
    the share of targets in the central 90 %, see `Predictor.central_of`.
    """
    model = _model(posterior, state, samples, seed)
    feed, predictor = Feed(posterior, model.rng), model.predictor()
    discrete, uncertain = posterior.likelihood.discrete, list[Tensor]()
    if outside is not None and not discrete:
        raise InputError("outside is for classes only. Leave it out for a regression")
    n, sums, means = 0, dict[str, Any](), dict[str, Any]()
    for batch in feed(loader):
        means = _of_classes(predictor, batch, uncertain) if discrete else _of_numbers(predictor, batch)
        count = batch.y.shape[1]
        sums = {name: sums.get(name, 0.0) + count * value for name, value in means.items()}
        n += count
    means = {name: value / n for name, value in sums.items()}
    means |= {"ece": float(means["ece"].abs().sum())} if discrete else {"rmse": means["rmse"] ** 0.5}
    if outside is None:
        return means
    far = torch.cat([_uncertainty(predictor.classes(x)) for x in feed.inputs(outside)])
    near, names = torch.cat(uncertain), ("auroc_entropy", "auroc_information")
    return means | {name: auroc(*columns) for name, *columns in zip(names, near.T, far.T, strict=True)}


def _of_classes(predictor: Predictor, batch: Batch, uncertain: list[Tensor]) -> dict[str, Any]:
    """Return mean scores of a batch, as "ece" the excess confidence by bin; append the uncertainty of each example."""
    predicted, y = classify(predictor, batch.x, batch.y[0]), batch.y[0]
    bins = confidence_bins(predicted.probabilities[None], batch.y)
    uncertain.append(_uncertainty(predicted))
    means = scores(predicted, y)
    del means["information"]
    return means | {"ece": ((bins.expected - bins.observed) * bins.weight).double().cpu()}


def _uncertainty(predicted: Classified | ClassPrediction) -> Float[Tensor, "P 2"]:
    return torch.stack([predicted.entropy.flatten(), predicted.information.flatten()], 1).cpu()


def _of_numbers(predictor: Predictor, batch: Batch) -> dict[str, float]:
    """Return mean scores of a batch, as "rmse" the mean square."""
    means = {name: float(value) for name, value in predictor.evaluate(batch.x, batch.y).items()}
    del means["epistemic"], means["coverage_95"]
    means["rmse"] **= 2
    level = batch.y.new_tensor([0.9])
    inside = [predictor.central_of(out, batch.y[:, part], level) for part, out in predictor.outputs(batch.x)]
    return means | {"coverage_90": float(torch.cat(inside, 1).double().mean())}


def _epochs(feed: "Feed", loader: Any, done: int, state: State, show: Callable[[float], None]) -> Iterator[Epoch]:
    """Yield an `Epoch` after each pass over a loader; call `show` with the completed share after each update."""
    posterior, steps = feed.posterior, length_hint(loader)
    update = graphs.updates(posterior, feed.rng)
    for epoch in range(done, posterior.epochs):
        for i, batch in enumerate(feed(loader)):
            share = (epoch * steps + i) / (posterior.epochs * steps) if i < steps else epoch / posterior.epochs
            state, info = update(state, batch, share)
            show(share)
        state, info = update.copied((state, info))
        check_alive(state)
        if epoch + 1 == posterior.epochs:
            state = posterior.finish(state, feed(loader), feed.rng)
        yield Epoch(epoch + 1, posterior.epochs, state, info | posterior.learned(state))


class Feed:
    """Batches of one replica from a loader, checked and on the device."""

    def __init__(self, posterior: Predictive, rng: Rng, gaps: bool = False):
        self.posterior, self.rng = posterior, rng
        self._gaps = gaps and bool(getattr(posterior.likelihood, "partial", False))  # whether labels may be NaN
        self._width = 0  # the number of targets or classes

    def __call__(self, loader: Iterable[Any]) -> Iterator[Batch]:
        """Yield the batches of a loader, none of which is read ahead."""
        likelihood = self.posterior.likelihood
        for batch in _batches(loader):
            inputs, y = pair(batch)
            x = self._input(inputs)
            if not self._width:
                out = at_zero(self.posterior, x[0, :2])
                check_logits(likelihood, out)
                self._width = likelihood.mean(out).shape[-1]
            values = labels(y, self._width if likelihood.discrete else 0, self.rng.device, self._gaps)
            check_targets(likelihood, values)
            y = self.rng.tensor(shaped(values, x.shape[1], self._width, likelihood.discrete))
            yield Batch(x, y.unsqueeze(0))

    def inputs(self, loader: Iterable[Any]) -> Iterator[Float[Tensor, "1 B ..."]]:
        """Yield only the inputs; the loader returns inputs x or pairs (x, y)."""
        for batch in _batches(loader):
            if isinstance(batch, Mapping):
                batch = unlabelled(batch)
            elif isinstance(batch, tuple | list) and len(batch) < 3:
                batch = batch[0]
            yield self._input(batch)

    def _input(self, values: Any) -> Float[Tensor, "1 B ..."]:
        x = numbers(self.posterior.net.inputs.packed(values), "input")
        return x.to(self.rng.device, self.rng.dtype).unsqueeze(0)


def pair(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and labels of a batch."""
    if isinstance(batch, Mapping) and (name := next(filter(batch.__contains__, LABELS), None)):
        return unlabelled(batch), batch[name]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise InputError(f"a DataLoader must return batches (x, y); this one returns {type(batch).__name__}")


def _batches(loader: Any) -> Iterator[Any]:
    if not isinstance(loader, Iterable):  # such as a Dataset
        raise InputError(f"loader is a {type(loader).__name__}. Pass a DataLoader, or a list of batches (x, y)")
    batch = None
    for batch in loader:
        yield batch
    if batch is None:
        raise InputError("the loader returns no batches")


def _model(posterior: Predictive, state: State, samples: int, seed: int) -> FittedModel:
    check_made(posterior)
    if len(state.common.alive) > 1:
        raise InputError(f"the state has {len(state.common.alive)} replicas; it must have one")
    return FittedModel(posterior, state, Scales(UNSCALED, UNSCALED), (), samples, seed)


class Checkpoint:
    """A file from which a fit resumes: its state, number of epochs, and the random states of fit and loader."""

    def __init__(self, path: Path, feed: Feed, loader: Any, state: State):
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {path.parent}")
        self._path, self._posterior, rng = path, feed.posterior, feed.rng
        own = (getattr(part, "generator", None) for part in (loader, getattr(loader, "sampler", None)))
        generators = (rng.generator, torch.default_generator, *own)
        self._generators = [each for each in generators if isinstance(each, torch.Generator)]
        settings = {"epochs": feed.posterior.epochs, "n_data": float(state.common.n_data)}
        self._fit = settings | {"seed": rng.seed, "dtype": str(rng.dtype)}

    def resumed(self, state: State) -> tuple[int, State]:
        """Return the number of finished epochs, and the state after these; `state` is a new state."""
        if not self._path.exists():
            return 0, state
        saved = files.load(self._path, KIND, FORMAT)
        check_same(saved["posterior"], dict(described("posterior", self._posterior)))
        for name, value in self._fit.items():
            if saved["fit"][name] != value:
                other = f"{self._path} is of a fit with {name}={saved['fit'][name]}, this one has {value}"
                raise InputError(f"{other}. Pass the same value, or another checkpoint")
        for generator, values in zip(self._generators, saved["generators"], strict=False):
            generator.set_state(values)
        return saved["epoch"], tree.restore(state, saved["state"])

    def write(self, epoch: Epoch) -> None:
        """Replace the file by the position after an epoch."""
        content = {"epoch": epoch.epoch, "state": self._posterior.state_dict(epoch.state), "fit": self._fit}
        content["generators"] = [generator.get_state() for generator in self._generators]
        content["posterior"] = dict(described("posterior", self._posterior))
        files.save(self._path, KIND, FORMAT, content)
