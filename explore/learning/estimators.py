"""scikit-learn estimators for any posterior: `FittedModel` behind scikit-learn's interface."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Real
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from explore import registry
from explore.core.errors import InputError, check_known, counted, listed, shown
from explore.data.texts import absent
from explore.inference.presets import Recommended, chosen, noise_for, recommended_settings, recommended_widths
from explore.learning import build
from explore.learning.model import FittedModel
from explore.learning.scaling import KINDS, Transform
from explore.nets.likelihoods import Bernoulli, Categorical
from explore.nets.net import Net, mlp
from explore.nets.protocols import Likelihood

SIGMA = 0.15865525393145707, 0.5, 0.8413447460685429  # Gaussian probabilities below -1, 0 and 1
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(eq=False, repr=False)
class _Bayesian(BaseEstimator):
    """The base class of both estimators; `BayesianRegressor` documents the parameters."""

    posterior: Any = None  # parameters of any type, as in scikit-learn: `fit` checks them
    _: KW_ONLY
    preset: Any = None
    settings: Any = None
    hidden: Any = None
    epochs: Any = None
    samples: Any = 100
    standardise: Any = True
    dtype: Any = "float64"
    calibrate: Any = 0.0
    likelihood: Any = None
    noise: Any = None
    target_transform: Any = "none"  # not `transform`, a method of transformers in scikit-learn
    keep_na: Any = False
    random_state: Any = None

    model_: FittedModel = field(init=False)

    def _fit(self, x: np.ndarray, y: np.ndarray, likelihood: Likelihood, outputs: int) -> None:
        check_known("dtype", [self.dtype], DTYPES)
        settings, preset = dict(self.settings or {}), self.preset
        if self.epochs is not None and (other := settings.setdefault("epochs", self.epochs)) != self.epochs:
            raise InputError(f"epochs is {self.epochs}, but settings has epochs={other}. Pass only one of them")
        name, _, recommended = self._chosen(x, likelihood.discrete)
        if preset is None:
            preset, settings = "plain", recommended.settings | settings
        build.check_used(name, self.hidden is not None, self.noise or ())
        net = Net(mlp(x.shape[1], self._widths(len(x)), outputs))
        posterior = registry.posterior(name, net, likelihood, preset, **settings)
        self.model_ = FittedModel.fit(
            posterior, x, y, self.samples, _seed(self.random_state), dtype=DTYPES[self.dtype],
            standardise="labelled" if self.standardise else "none", calibrate=self.calibrate,
        )  # fmt: skip

    def _chosen(self, x: np.ndarray, classes: bool) -> tuple[str, str, Recommended]:
        """Return the names of posterior and likelihood for examples x, and the settings that apply without a preset."""
        task, default = ("classification", "categorical") if classes else ("regression", "gaussian")
        of_net = any(value is not None for value in (self.hidden, self.preset, self.settings, self.epochs))
        name, kind = chosen(self.posterior, self.likelihood, default, len(x), of_net)
        posterior, units = registry.find("posteriors", name), max(self._widths(len(x)), default=1)
        return name, kind, recommended_settings(posterior, len(x), x.shape[1], task, units=units, likelihood=kind)

    def _widths(self, rows: int) -> list[int]:
        hidden = recommended_widths(rows) if self.hidden is None else self.hidden
        widths = list(hidden) if isinstance(hidden, Sequence | np.ndarray) else [hidden]
        if not all(isinstance(n, int | np.integer) and n > 0 for n in widths):
            raise InputError(f"hidden is {shown(self.hidden)}; it must be positive whole numbers such as (50, 50)")
        return [int(n) for n in widths]

    def _inputs(self, x: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, x, reset=False, dtype=np.float64)

    def _sampled(self, x: Any, n_samples: int, random_state: Any) -> np.ndarray:
        """Draw n joint samples of targets [n, P, O], or of class indices [n, P], at features x [P, D]."""
        inputs = self._inputs(x)
        return replace(self.model_, seed=_seed(random_state)).sample(inputs, n_samples)[0].cpu().numpy()


class BayesianRegressor(MultiOutputMixin, RegressorMixin, _Bayesian):
    """A Bayesian neural network for regression with one or more targets.

    Args:
        posterior: a name from `explore list posteriors`; None: for numbers and without settings of a network
            (`hidden`, `preset`, `settings`, `epochs`), what `explore.inference.presets.recommended` gives for the
            number of examples; otherwise noisy-kfac.
        preset: name of a preset of the posterior; None: the settings that
            `explore.inference.presets.recommended_settings` gives for the number of examples.
        settings: settings of the posterior, which override those of the preset.
        hidden: units of each hidden layer; None: `presets.recommended_widths` of the number of rows.
        epochs: passes over the data; None: as in the preset or the recommended settings.
        samples: number of networks to sample for predictions.
        standardise: whether to standardise the features by the training data; targets are always standardised.
        dtype: floating-point type to compute in: "float64", as in scikit-learn, or "float32".
        calibrate: share of the data that a second fit holds out, to fit one factor on the predictive variance;
            0: no calibration. Must be 0 for classification.
        likelihood: a name from `explore list likelihoods`, for numbers; None: "heteroscedastic" for a recommended
            posterior, otherwise "gaussian". With "heteroscedastic", the noise depends on the features, and targets with
            repeated values are taken as rounded, unless noise is {"resolution": ()}.
        noise: settings of the likelihood, such as {"noise_std": 0.1}, in standard deviations of the targets.
            None: the noise is learned. The prior on the noise precision then comes from the preset or, without a
            preset, from the recommended settings.
        target_transform: scale on which targets are fitted: unchanged ("none"), logarithm ("log"), or normal score of
            the rank ("rank"), as in `explore suggest --transform`. Predictions are in original units.
        keep_na: whether a classifier accepts labels such as "NA", "nan" and "-" as classes. If False, such labels
            raise InputError, since they mark missing measurements in tables.
        random_state: seed of all random numbers, as in scikit-learn.

    Attributes:
        model_: the `FittedModel` of the transformed targets, which can be saved without pickle.
        transform_: the `Transform` that was fitted to the targets.
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit from scratch to features X [P, D] and targets y, [P] or [P, O]."""
        _check_types(y)
        x, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        if self.keep_na:
            raise InputError("keep_na applies to classification only. Leave it out")
        self._flat = y.ndim == 1
        _, likelihood, recommended = self._chosen(x, classes=False)
        prior = noise_for(self.preset) if self.preset else recommended.noise
        kind = registry.find("likelihoods", likelihood)
        if kind.discrete:
            raise InputError(f"likelihood={shown(self.likelihood)} is for classes. Use BayesianClassifier")
        allowed, noise = registry.settings_of(kind), dict(self.noise or {})
        check_known("setting of the noise", sorted(noise), allowed)
        check_known("target_transform", [self.target_transform], KINDS)
        targets = y.reshape(len(x), -1).astype(np.float64)
        self.transform_ = Transform.fit(self.target_transform, targets)
        scores, outputs = self.transform_.apply(targets), targets.shape[1] * getattr(kind, "outputs_per_target", 1)
        self._fit(x, scores, kind(**(build.noise_of(kind, prior, scores) | noise)), outputs)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:  # noqa: N803
        """Return the predictive mean, in the shape of y; if `return_std`, also the standard deviation, including noise.

        For transformed targets, return the median and half the distance between the 16 % and 84 % quantiles instead.
        """
        x = self._inputs(X)
        if self.transform_.kind == "none":
            moments = self.model_.predict(x)
            middle, deviation = self._out(moments.mean), self._out(moments.total)
        else:
            quantiles = self.transform_.undo(self.model_.quantiles(x, SIGMA).cpu().numpy())
            low, middle, high = map(self._out, quantiles)
            deviation = (high - low) / 2
        return (middle, deviation) if return_std else middle

    def predict_quantiles(self, X: Any, levels: Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:  # noqa: N803
        """Return the predictive quantiles at K levels: [P, K], or [P, O, K] if the training targets were [P, O]."""
        x = self._inputs(X)
        quantiles = self.model_.quantiles(x, tuple(levels) if isinstance(levels, Iterable) else levels)  # [K, R, P, O]
        return np.stack([self._out(one) for one in self.transform_.undo(quantiles.cpu().numpy())], -1)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:  # noqa: N803
        """Draw n joint samples of the targets, [P, n] or [P, O, n]. Each sample uses one network for all points."""
        drawn = self._sampled(X, n_samples, random_state)
        drawn = np.moveaxis(self.transform_.undo(drawn), 0, -1)
        return drawn[:, 0] if self._flat else drawn

    def _out(self, values: Any) -> np.ndarray:
        array = np.asarray(values[0])
        return array[:, 0] if self._flat else array


class BayesianClassifier(ClassifierMixin, _Bayesian):
    """A Bayesian neural network for classification with two or more classes, which may have any names.

    Parameters are as in `BayesianRegressor`; `likelihood`, `noise`, `calibrate` and `target_transform` must keep their
    defaults.

    Attributes:
        classes_: names of the classes, in the order of the columns of probabilities.
        model_: the `FittedModel`, which can be saved without pickle.
    """

    classes_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Fit from scratch to features X [P, D] and classes y [P]."""
        _check_types(y)
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        for name in ("noise", "likelihood"):
            if getattr(self, name) is not None:
                raise InputError(f"{name} applies to regression only. Leave it out")
        if (scale := self.target_transform) != "none":
            raise InputError(f"target_transform={shown(scale)} applies to regression only. Leave it out")
        marks = [text for text in y.ravel().tolist() if isinstance(text, str) and absent(text.strip(), "classes")]
        if marks and not (self.keep_na and all(map(str.strip, marks))):  # an empty label is never a class
            marked = f"{counted(len(marks), 'label')} {listed(map(shown, sorted(set(marks))))}"
            raise InputError(f"y has {marked}, which mark missing values. Drop these rows, or pass keep_na=True")
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        if (n := len(self.classes_)) < 2:
            raise InputError(f"y has one class, {shown(str(self.classes_[0]))}; a classifier needs at least 2 classes")
        likelihood: Likelihood = Bernoulli() if n == 2 else Categorical()
        self._fit(x, encoder.transform(y), likelihood, 1 if n == 2 else n)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the class probabilities [P, C], averaged over the sampled networks."""
        x = self._inputs(X)
        return self.model_.probabilities(x)[0].cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the name of the most likely class of each point, [P]."""
        indices = self.predict_proba(X).argmax(1)  # before `classes_` is read, since this checks that there is a fit
        return self.classes_[indices]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:  # noqa: N803
        """Draw n joint samples of the classes, [P, n]. Each sample uses one network for all points."""
        indices = self._sampled(X, n_samples, random_state).T
        return self.classes_[indices]


def _check_types(y: Any) -> None:
    """Raise InputError for missing labels, or labels of several types: NumPy would convert [1, "a"] to ["1", "a"]."""
    if y is None or (isinstance(getattr(y, "dtype", None), np.dtype) and y.dtype != object):
        return  # scikit-learn rejects None, and such an array has one type
    labels = np.asarray(y, dtype=object).ravel()
    if missing := int(pd.isna(labels).sum()):
        raise InputError(f"y has {counted(missing, 'missing label')}. Drop these rows")
    types = set(map(type, labels))
    numbers = {t for t in types if issubclass(t, Real) and t is not bool}
    kinds = {"str" if issubclass(t, str) else t.__name__ for t in types - numbers} | ({"number"} if numbers else set())
    if len(kinds) > 1:
        raise InputError(f"y has labels of several types, {listed(sorted(kinds))}. Convert them to one type")


def _seed(random_state: Any) -> int:
    """Return `random_state` if it is an integer; otherwise draw a seed from scikit-learn's `check_random_state`."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
