"""The estimators by scikit-learn's own checks, against the model they wrap, and in scikit-learn's tools."""

import io
import pickle
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_regression
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import explore
from explore.core.errors import InputError
from explore.inference import presets
from explore.learning.model import FittedModel
from explore.learning.scaling import Transform
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp

QUICK = {"preset": "small", "epochs": 20, "hidden": (10,), "samples": 10, "random_state": 0}
X, Y = make_regression(40, 3, noise=1.0, random_state=0)
IRIS = load_iris()
NAMES = IRIS.target_names[IRIS.target]


FAST = {"beta": 0.1, "lr": 0.2, "batch_size": 300, "samples": 1}
CHECKED = QUICK | {"settings": FAST, "random_state": None}


@parametrize_with_checks(
    [
        explore.BayesianRegressor("map", **CHECKED | {"epochs": 30, "settings": {"lr": 0.05, "batch_size": 300}}),
        explore.BayesianRegressor(samples=10),
        explore.BayesianClassifier(**CHECKED | {"epochs": 15}),
    ]
)
def test_scikit_learns_checks(estimator, check):  # none is waived
    check(estimator)


def test_the_default_is_a_process_for_numbers_unless_settings_of_a_network_are_given():
    def found(estimator, x=X, y=Y):
        posterior = estimator.fit(x, y).model_.posterior
        return type(posterior).__name__, type(posterior.likelihood).__name__

    assert found(explore.BayesianRegressor()) == ("GP", "Heteroscedastic")
    assert found(explore.BayesianRegressor(likelihood="gaussian")) == ("GP", "Gaussian")
    assert found(explore.BayesianRegressor(epochs=2)) == ("NoisyKFAC", "Gaussian")
    assert found(explore.BayesianClassifier(epochs=2), IRIS.data, NAMES)[0] == "NoisyKFAC"
    assert presets.recommended(513)[0] == "noisy-kfac"
    with pytest.raises(InputError, match="hidden applies to networks, but gp has none"):
        explore.BayesianRegressor("gp", hidden=(4,)).fit(X, Y)
    with pytest.raises(InputError, match="gp ignores the setting prior_rate of the likelihood"):
        explore.BayesianRegressor(noise={"prior_rate": 1.0}).fit(X, Y)


@pytest.mark.slow
@parametrize_with_checks(
    [estimator(**CHECKED | {"epochs": 40}) for estimator in (explore.BayesianRegressor, explore.BayesianClassifier)]
)
def test_scikit_learns_checks_of_noisy_kfac(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def regressor():
    return explore.BayesianRegressor(**QUICK).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    return explore.BayesianClassifier(settings={"lr": 0.1}, **QUICK).fit(IRIS.data, NAMES)


@pytest.mark.parametrize("kind", [explore.BayesianRegressor, explore.BayesianClassifier])
def test_several_fits_are_pooled(kind):
    x, y = (X, Y) if kind is explore.BayesianRegressor else (IRIS.data, NAMES)
    found = clone(kind(settings={"members": 3}, **QUICK)).fit(x, y)
    assert found.model_.posterior.members == 3 and found.model_.state.mean[0].shape[:2] == (1, 3)
    assert found.sample_y(x[:5], 7).shape == (5, 7) and found.sample_y(x[:5]).shape == (5, 1)
    predict = "predict" if kind is explore.BayesianRegressor else "predict_proba"
    one, several = (getattr(made, predict)(x) for made in (kind(**QUICK).fit(x, y), found))
    assert np.isfinite(several).all() and not np.array_equal(one, several)


def test_a_regressor_predicts_what_its_model_does(regressor):
    mean, std = regressor.predict(X, return_std=True)
    direct = regressor.model_.predict(X)
    assert np.array_equal(mean, direct.mean[0, :, 0]) and np.array_equal(std, direct.total[0, :, 0])
    assert np.array_equal(regressor.predict(X), mean) and regressor.score(X, Y) == r2_score(Y, mean)
    low, middle, high = regressor.predict_quantiles(X).T
    with pytest.raises(InputError, match="levels is 0.5; it must be a list"):
        regressor.predict_quantiles(X, 0.5)
    assert np.array_equal(regressor.predict_quantiles(X, pd.Series([0.05, 0.5, 0.95])).T, [low, middle, high])
    assert (low < middle).all() and (middle < high).all()
    interval = [q[0, :, 0] for q in regressor.model_.interval(X, 0.9)]
    np.testing.assert_allclose(np.stack([low, high]), np.stack(interval), rtol=1e-9)


@pytest.mark.parametrize(("n", "numbers", "classes"), [(20, 0.5, 0.3), (60, 1.0, 0.3), (100, None, 1.0), (250, 2, 1)])
def test_settings_go_by_the_number_of_examples(n, numbers, classes):
    x, y = np.random.default_rng(0).normal(size=(n, 2)), np.arange(n) % 3
    fit = {"epochs": 1, "hidden": (3,), "samples": 2}
    regression: Any = explore.BayesianRegressor(**fit).fit(x, y).model_.posterior
    chosen = presets.recommended_settings(type(regression), n, units=3)
    assert regression.prior_variance == chosen.settings["prior_variance"]
    assert numbers in (None, regression.prior_variance)
    assert regression.likelihood == Gaussian(**chosen.noise)
    classifier: Any = explore.BayesianClassifier(**fit).fit(x, y).model_.posterior
    ensemble: Any = explore.BayesianRegressor("ensemble", **fit).fit(x, y).model_.posterior
    assert classifier.prior_variance == classes and ensemble.lr == 0.01


def test_a_fit_is_that_of_the_posterior_by_name():
    ours = explore.BayesianRegressor("bbb", settings={"lr": 0.01}, **QUICK).fit(X, Y)
    posterior = explore.posterior("bbb", Net(mlp(3, [10], 1)), Gaussian(), "small", lr=0.01, epochs=20)
    theirs = FittedModel.fit(posterior, X, Y, 10, 0, dtype=torch.float64)
    assert np.array_equal(ours.predict(X), theirs.predict(X).mean[0, :, 0])


@pytest.mark.parametrize(
    ("own", "noise"),
    [
        ({}, Gaussian(prior_shape=3.0, prior_rate=1.0)),  # of few examples
        ({"preset": "default"}, Gaussian(prior_shape=1.0, prior_rate=0.01)),
        ({"preset": "small"}, Gaussian()),
        ({"noise": {"noise_std": 0.1}}, Gaussian(noise_std=0.1, prior_shape=3.0, prior_rate=1.0)),
    ],
)
def test_the_noise_prior_goes_with_the_preset(own, noise):
    fitted = explore.BayesianRegressor(epochs=1, **own).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
    assert fitted.model_.posterior.likelihood == noise


def test_samples_are_joint_and_named_by_their_seed(regressor):
    near = np.vstack([X[:1], X[:1] + 1e-9])
    drawn = regressor.sample_y(near, 4000, random_state=1)
    assert drawn.shape == (2, 4000)
    _, _, total, noise = (t[0, 0, 0].item() for t in regressor.model_.predict(X[:1]))
    shared = 1 - noise**2 / total**2  # one network for both points, noise for each
    assert abs(np.corrcoef(drawn)[0, 1] - shared) < 0.15
    assert np.array_equal(drawn, regressor.sample_y(near, 4000, random_state=1))
    assert not np.array_equal(drawn, regressor.sample_y(near, 4000, random_state=2))


def test_several_outputs():
    y = np.stack([Y, -Y, Y + 100], 1)
    model = explore.BayesianRegressor(**QUICK).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (40, 3) and mean[:, 2].mean() > 50
    assert model.predict_quantiles(X, (0.1, 0.9)).shape == (40, 3, 2)
    assert model.sample_y(X, 5).shape == (40, 3, 5) and np.isfinite(model.score(X, y))


@pytest.mark.parametrize("kind", ["log", "rank"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_targets_learnt_in_another_scale_come_back_in_their_own(kind, outputs):
    """As those of a model of the transformed targets, each number by the inverse; a mean is no mean any more."""
    y = np.exp(np.stack([Y, -Y, Y + 3], 1)[:, :outputs] / 40)
    y = y[:, 0] if outputs == 1 else y
    model = explore.BayesianRegressor(**QUICK, target_transform=kind).fit(X, y)
    transform = Transform.fit(kind, y.reshape(40, -1))
    twin = explore.BayesianRegressor(**QUICK).fit(X, transform.apply(y.reshape(40, -1)).reshape(y.shape))

    def undone(values):
        return transform.undo(values.reshape(40, -1)).reshape(y.shape)

    low, median, high = (undone(twin.predict_quantiles(X, (p,))) for p in stats.norm.cdf([-1, 0, 1]))
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, median, rtol=1e-6)
    np.testing.assert_allclose(std, (high - low) / 2, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.predict_quantiles(X, (0.05,))[..., 0], undone(twin.predict_quantiles(X, (0.05,))))
    np.testing.assert_allclose(model.sample_y(X, 1)[..., 0], undone(twin.sample_y(X, 1)))
    low, high = np.moveaxis(model.predict_quantiles(X, (0.05, 0.95)), -1, 0)
    assert ((y >= low) & (y <= high)).mean() > 0.7 and (low > 0).all()


def test_classes_keep_their_names(classifier):
    p = classifier.predict_proba(IRIS.data)
    assert classifier.classes_.tolist() == sorted(IRIS.target_names) and p.shape == (150, 3)
    np.testing.assert_allclose(p.sum(1), 1)
    assert np.array_equal(classifier.predict(IRIS.data), classifier.classes_[p.argmax(1)])
    assert classifier.score(IRIS.data, NAMES) > 0.8
    drawn = classifier.sample_y(IRIS.data[:5], 2000)
    frequencies = (drawn[:, :, None] == classifier.classes_).mean(1)
    np.testing.assert_allclose(frequencies, p[:5], atol=0.2)
    two = explore.BayesianClassifier(**QUICK).fit(IRIS.data[:100], NAMES[:100])
    assert two.predict_proba(IRIS.data).shape == (150, 2) and set(two.predict(IRIS.data)) <= set(IRIS.target_names[:2])


def test_in_pipelines_searches_and_other_estimators():
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=np.where(X[:, 0] > 0, "up", "down"))
    prepare = make_column_transformer((OneHotEncoder(), ["kind"]), remainder=StandardScaler())
    pipeline = make_pipeline(prepare, explore.BayesianRegressor(**QUICK | {"epochs": 3}))
    search = GridSearchCV(pipeline, {"bayesianregressor__hidden": [(5,), (5, 5)]}, cv=2).fit(table, Y)
    assert search.predict(table).shape == (40,) and search.cv_results_["mean_test_score"].shape == (2,)
    assert len(cross_val_score(pipeline, table, Y, cv=2)) == 2
    bagged = BaggingRegressor(explore.BayesianRegressor(**QUICK | {"epochs": 3}), 2, random_state=0).fit(X, Y)
    assert not np.array_equal(*[model.predict(X) for model in bagged.estimators_])


def test_copies_are_the_same(regressor, classifier):
    for model, x in ((regressor, X), (classifier, IRIS.data)):
        file = io.BytesIO()
        joblib.dump(model, file)
        file.seek(0)
        for copy in (pickle.loads(pickle.dumps(model)), joblib.load(file)):
            assert np.array_equal(copy.predict(x), model.predict(x))
        with pytest.raises(NotFittedError):
            clone(model).predict(x)
        with pytest.raises(NotFittedError):
            clone(model).sample_y(x)


def test_random_states():
    quick = QUICK | {"epochs": 2}
    one, same, other = (
        explore.BayesianRegressor(**quick | {"random_state": s}).fit(X, Y).predict(X) for s in (1, 1, 2)
    )
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    model = explore.BayesianRegressor(**quick | {"random_state": np.random.RandomState(0)})
    assert not np.array_equal(model.fit(X, Y).predict(X), model.fit(X, Y).predict(X))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"posterior": "kfac"}, "unknown posterior"),
        ({"preset": "large"}, "unknown preset"),
        ({"settings": {"learning_rate": 1}}, "unknown setting 'learning_rate'"),
        ({"settings": {"epochs": 3}}, "epochs is 20, but settings has epochs=3."),
        ({"hidden": (5, 0)}, "hidden is"),
        ({"hidden": "50"}, "hidden is '50'"),
        ({"dtype": "float16"}, "unknown dtype 'float16'; allowed: float32, float64"),
        ({"noise": {"std": 0.1}}, "unknown setting of the noise 'std'; allowed: .*noise_std"),
        ({"target_transform": "sqrt"}, "unknown target_transform 'sqrt'; allowed: log, none, rank"),
        ({"target_transform": "log"}, "has no logarithm. Use the transform 'none'"),
    ],
)
def test_wrong_parameters_are_said_when_fitting(settings, message):
    with pytest.raises(InputError, match=message):
        explore.BayesianRegressor(**QUICK | settings).fit(X, Y)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", 1], "y has labels of several types, number, str. Convert them to one type"),  # else numpy's "1"
        ([1, True], "y has labels of several types, bool, number."),
        (["a", b"a"], "y has labels of several types, bytes, str."),
        (["a", None], "y has 20 missing labels. Drop these rows"),
        (["a", np.nan], "y has 20 missing labels"),  # else a class of its own
        ([1, None], "y has 20 missing labels"),
    ],
)
@pytest.mark.parametrize("given", [list, lambda y: np.array(y, dtype=object), lambda y: pd.Series(y, dtype=object)])
def test_labels_of_several_types_are_refused(labels, message, given):
    for estimator in (explore.BayesianClassifier, explore.BayesianRegressor):
        with pytest.raises(InputError, match=message):
            estimator(**QUICK).fit(X, given(labels * 20))


def test_what_is_not_supported_is_refused(regressor):
    with pytest.raises(ValueError, match="NaN"):
        regressor.predict(np.full((1, 3), np.nan))
    with pytest.raises(TypeError, match="sample_weight"):
        explore.BayesianRegressor(**QUICK).fit(X, Y, **{"sample_weight": np.ones(40)})
    with pytest.raises(InputError, match="one class, 'setosa'"):
        explore.BayesianClassifier(**QUICK).fit(IRIS.data[:10], NAMES[:10])
    with pytest.raises(InputError, match="noise applies to regression only. Leave it"):
        explore.BayesianClassifier(**QUICK, noise={"noise_std": 0.1}).fit(IRIS.data, NAMES)
    with pytest.raises(InputError, match="target_transform='log' applies to regression"):
        explore.BayesianClassifier(**QUICK, target_transform="log").fit(IRIS.data, NAMES)


def test_labels_that_say_that_nothing_is_measured_are_no_classes_unless_they_are_kept():
    y = np.array(["EU", "NA", "-", "EU", "NA", "EU"] * 5, object)
    with pytest.raises(InputError, match="y has 15 labels '-', 'NA', which mark missing values. Drop these rows"):
        explore.BayesianClassifier(**QUICK).fit(IRIS.data[:30], y)
    kept = explore.BayesianClassifier(**QUICK, keep_na=True).fit(IRIS.data[:30], y)
    assert kept.classes_.tolist() == ["-", "EU", "NA"]
    y[0] = ""
    with pytest.raises(InputError, match="y has 16 labels '', '-', 'NA', which mark missing values."):
        explore.BayesianClassifier(**QUICK, keep_na=True).fit(IRIS.data[:30], y)
    names = np.array(["none", "Na", "failed"] * 10)
    assert explore.BayesianClassifier(**QUICK).fit(IRIS.data[:30], names).classes_.tolist() == ["Na", "failed", "none"]
    with pytest.raises(InputError, match="keep_na applies to classification only. Leave"):
        explore.BayesianRegressor(**QUICK, keep_na=True).fit(X, Y)
