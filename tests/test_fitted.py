"""A fitted model: its predictions against the plain formulas, its saved form, and the learner that makes one."""

import io
import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from scipy.special import logsumexp
from torch.utils.data import DataLoader, TensorDataset

from explore import registry
from explore.core.errors import FailedFitWarning, Failure, InitialCurvatureWarning, InputError, curvature_note
from explore.core.rng import Rng
from explore.inference import predict
from explore.learning.fit import last_epoch
from explore.learning.learner import ActiveLearner
from explore.learning.model import FittedModel
from explore.learning.pool import Scales
from explore.learning.scaling import UNSCALED, Standardiser
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.nets.zoo import lenet5

GENERATOR = np.random.default_rng(0)
P = 30
X = GENERATOR.normal(size=(P, 2)) * [1, 50] + [3, 0]
Y = np.stack([np.sin(X[:, 0]) * 20 + 7, X[:, 1] / 1000], 1)
CLASSES = (X[:, 0] > 3).astype(int) + (X[:, 1] > 0)
NEW = X[:7] + 0.1


def posterior(name="noisy-kfac", likelihood=None, outputs=2, **settings):
    sampled = {
        "hmc": {"epochs": 8, "warmup": 4, "max_tree_depth": 3},
        "mclmc": {"epochs": 8, "start": 2, "warmup": 2},
        "gp": {},
    }
    quick = sampled.get(name, {"epochs": 4})
    return registry.posterior(name, Net(mlp(2, [6], outputs)), likelihood or Gaussian(), "small", **quick | settings)


def regression(**kwargs):
    return FittedModel.fit(posterior(), X, Y, samples=20, dtype=torch.float64, **kwargs)


MODEL = regression()
KINDS = {"categorical": (Categorical(), 3, CLASSES), "bernoulli": (Bernoulli(), 1, np.minimum(CLASSES, 1))}


def test_a_fit_of_few_updates_warns_that_its_curvature_is_mostly_its_start():
    message = r"^9\d % of the posterior's curvature is still its initial value, so intervals are too narrow. Use more"
    with pytest.warns(InitialCurvatureWarning, match=message):
        model = regression()
    share = model.initial_curvature_share
    assert torch.equal(share, model.posterior.initial_curvature_share(model.state)) and share > 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settled = FittedModel.fit(posterior(beta=0.9), X, Y)
    assert settled.initial_curvature_share < 0.01


@pytest.mark.parametrize(
    ("shares", "begins"),
    [
        ([], ""),
        ([0.5, 0.1], ""),
        ([0.7], "70 % of the posterior's curvature is still its initial value, so"),
        ([0.2, 0.7, 0.91], "Up to 91 % of the posterior's curvature is still its initial value in 2 of 3 fits, so"),
    ],
)
def test_fits_whose_curvature_is_mostly_its_start_are_counted_in_one_sentence(shares, begins):
    note = curvature_note(shares)
    assert note.startswith(begins) and bool(note) == bool(begins)


@pytest.fixture(params=["whole", "blocks"])
def memory(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(predict, "BUDGET", 3 * 2)  # three points a block, one a pass


def outputs(model, x):
    """Of each net in the target's units [R, S, P, O], and the deviation of its noise [R, S, 1, O]."""
    predictor, scales = model.predictor(), model.scales
    inputs = (torch.as_tensor(x) - scales.x.mean) / scales.x.scale
    out = predictor.net.output(predictor.layers, inputs.to(model.rng.dtype))
    noise = predictor.noise.unsqueeze(2).rsqrt() * scales.y.scale.unsqueeze(1)
    return (out * scales.y.scale.unsqueeze(1) + scales.y.mean.unsqueeze(1)).numpy(), noise.numpy()


def test_a_regression_is_predicted_in_its_own_units(memory):
    out, noise = outputs(MODEL, NEW)
    found = MODEL.predict(NEW)
    np.testing.assert_allclose(found.mean, out.mean(1))
    np.testing.assert_allclose(found.epistemic, out.std(1, ddof=1))
    np.testing.assert_allclose(found.noise, np.broadcast_to(np.sqrt((noise**2).mean(1)), (1, 7, 2)))
    np.testing.assert_allclose(found.total, np.sqrt(out.var(1, ddof=1) + (noise**2).mean(1)))


def test_quantiles_are_those_of_the_mixture_and_not_of_one_gaussian(memory):
    levels = (0.05, 0.5, 0.999)
    (out, noise), found = outputs(MODEL, NEW), MODEL.quantiles(NEW, levels)
    assert found.shape == (3, 1, 7, 2)
    for level, x in zip(levels, found.numpy(), strict=True):
        np.testing.assert_allclose(stats.norm.cdf(x[:, None], out, noise).mean(1), level, rtol=1e-8)
    gaussian = MODEL.predict(NEW)
    upper = gaussian.mean + stats.norm.ppf(0.999) * gaussian.total
    assert not np.allclose(found[2], upper, rtol=0.01)
    for level, x in zip(levels, found, strict=True):
        torch.testing.assert_close(MODEL.below(NEW, x[0]), torch.full_like(x, level))
    low, high = MODEL.interval(NEW, 0.8)
    torch.testing.assert_close(torch.stack([low, high]), MODEL.quantiles(NEW, (0.1, 0.9)))


@pytest.mark.parametrize("kind", KINDS)
def test_classes_have_probabilities(memory, kind):
    likelihood, width, y = KINDS[kind]
    model = FittedModel.fit(posterior(likelihood=likelihood, outputs=width), X, y, samples=20, dtype=torch.float64)
    predictor = model.predictor()
    inputs = (torch.as_tensor(NEW) - model.scales.x.mean) / model.scales.x.scale
    out = predictor.net.output(predictor.layers, inputs)
    each = torch.cat([torch.zeros_like(out), out], -1).softmax(-1) if width == 1 else out.softmax(-1)
    torch.testing.assert_close(model.probabilities(NEW), each.mean(1))
    found, entropy = model.predict_classes(NEW), torch.special.entr(each.mean(1)).sum(-1)
    torch.testing.assert_close(found, (each.mean(1), entropy, entropy - torch.special.entr(each).sum(-1).mean(1)))
    drawn = model.sample(NEW, 5)
    assert drawn.shape == (1, 5, 7) and drawn.dtype == torch.int64 and drawn.max() < each.shape[-1]
    for wrong in (model.predict, model.interval, lambda x: model.quantiles(x, [0.5])):
        with pytest.raises(InputError, match="a classification has no (mean|quantiles)"):
            wrong(NEW)
    with pytest.raises(InputError, match="a regression has no class probabilities"):
        MODEL.probabilities(NEW)


def test_samples_are_joint_over_points():
    """Each from one net: their covariance is that of the nets' outputs, with the noise on its diagonal."""
    drawn = MODEL.sample(NEW, 40_000)[0, :, :, 0].numpy()
    (out, noise), n = outputs(FittedModel(*many(MODEL)), NEW), 40_000
    expected = np.cov(out[0, :, :, 0].T) + np.eye(7) * (noise[0, :, 0, 0] ** 2).mean()
    scale = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(np.cov(drawn.T) / np.outer(scale, scale), expected / np.outer(scale, scale), atol=0.03)
    np.testing.assert_allclose(drawn.mean(0), out[0, :, :, 0].mean(0), atol=4 * scale.max() / np.sqrt(n))


def many(model):
    return model.posterior, model.state, model.scales, model.shape, 40_000, model.seed


def test_members_of_an_ensemble_are_sampled_in_turn(memory):
    model = FittedModel.fit(posterior("ensemble", Gaussian(noise_std=1e-6), members=3), X, Y, dtype=torch.float64)
    drawn, (out, _) = model.sample(NEW, 7), outputs(model, NEW)
    np.testing.assert_allclose(drawn, out[:, np.arange(7) % 3], atol=1e-3)


def test_a_fit_is_that_of_a_learner_that_was_told_all_at_once():
    learner = ActiveLearner(posterior(), X, seed=3, samples=20)
    learner.tell(range(P), Y)
    model = FittedModel.fit(posterior(), X, Y, samples=20, seed=3)
    for a, b in zip(learner.predict(NEW), model.predict(NEW), strict=True):
        assert torch.equal(a, b)
    for c, d in zip(learner.fitted.interval(NEW, 0.5), model.interval(NEW, 0.5), strict=True):
        assert torch.equal(c, d)


def test_images_as_bytes_are_not_taken_for_standardised_ones():
    posterior = registry.posterior("map", Net(lenet5(1, 3, 28)), Categorical(), epochs=1)
    x, y = np.arange(3 * 784, dtype=np.uint8).reshape(3, 1, 28, 28), [0, 1, 2]
    with pytest.raises(InputError, match="uint8 images are not standardised. Scale"):
        FittedModel.fit(posterior, x, y)
    raw = FittedModel.fit(posterior, x, y, standardise="none")
    assert raw.probabilities(x / 255).shape == (1, 3, 3)
    scale = Standardiser(*torch.full((2, 1, 1, 1, 1, 1), 100.0))
    model = replace(raw, scales=raw.scales._replace(x=scale))
    np.testing.assert_array_equal(model.probabilities(x), model.probabilities(x.astype(float)))
    for wrong in (x / 255, x * 2.0, x - 1.0):
        with pytest.raises(InputError, match="images must be whole numbers from 0 to 255; the model scales them"):
            model.probabilities(wrong)


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


SLOW = {"hmc": pytest.mark.slow}
NAMES = [pytest.param(name, {}, marks=SLOW.get(name, ())) for name in registry.names("posteriors")]


@pytest.mark.parametrize(("name", "settings"), [*NAMES, *((name, {"members": 3}) for name in ("noisy-kfac", "whvi"))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_predicts_the_same_to_the_bit(name, settings, dtype):
    made = posterior(name, **settings)
    model = FittedModel.fit(made, X, Y, samples=10, seed=2, dtype=dtype)
    again = FittedModel.from_state_dict(made, saved(model.state_dict()))
    assert again.state_dict().keys() == model.state_dict().keys()
    for a, b in zip(again.predict(NEW), model.predict(NEW), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(again.sample(NEW, 3), model.sample(NEW, 3))


def network(activation):
    return Net(torch.nn.Sequential(torch.nn.Linear(2, 6), activation, torch.nn.Linear(6, 2)))


def twin(net=None, likelihood=None, **settings):
    """The posterior of `MODEL`, or one whose state has the same shapes."""
    return registry.posterior(
        "noisy-kfac", net or network(torch.nn.ReLU()), likelihood or Gaussian(), "small", **{"epochs": 4} | settings
    )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: twin(network(torch.nn.Tanh())), r"its net is \(1\): ReLU\(\), got \(1\): Tanh\(\)"),
        (lambda: twin(network(torch.nn.LeakyReLU(0.2))), r"got \(1\): LeakyReLU\(negative_slope=0.2\)"),
        (lambda: twin(kl_weight=1.0), "its kl_weight is 0.35, got 1."),
        (lambda: twin(fisher="exact"), "its fisher is .*, got exact"),
        (lambda: twin(likelihood=Gaussian(noise_std=0.1)), "its likelihood.noise_std is None, got 0.1"),
        (lambda: twin(likelihood=Gaussian(prior_rate=0.01)), "its likelihood.prior_rate is 6, got 0.01"),
        (lambda: twin(likelihood=Bernoulli()), "its likelihood is Gaussian, got Bernoulli"),
        (lambda: twin(members=2), "does not fit"),
    ],
)
def test_a_saved_model_of_another_posterior_is_refused(other, message):
    with pytest.raises(InputError, match=message):
        FittedModel.from_state_dict(other(), saved(MODEL.state_dict()))


def test_a_mixture_is_known_by_its_members_and_their_settings():
    made = posterior(members=2)
    state = FittedModel.fit(made, X, Y, samples=4).state_dict()
    FittedModel.from_state_dict(posterior(members=2), state)
    with pytest.raises(InputError, match="its members is 2, got 3"):
        FittedModel.from_state_dict(posterior(members=3), state)
    with pytest.raises(InputError, match="its kl_weight is 0.35, got 1."):
        FittedModel.from_state_dict(posterior(members=2, kl_weight=1.0), state)


def test_an_equal_posterior_is_the_same_one():
    """However its numbers are written, and however long it was fitted."""
    state = saved(MODEL.state_dict())
    for made in (twin(), twin(epochs=9), twin(likelihood=Gaussian(prior_shape=6, prior_rate=np.float64(6)))):
        assert torch.equal(FittedModel.from_state_dict(made, state).predict(NEW).mean, MODEL.predict(NEW).mean)

    class Shown(torch.nn.ReLU):
        def extra_repr(self):  # an address, which is another one in another process
            return repr(self.forward)

    one, other = Shown(), Shown()
    for module in (one, other):
        vars(module)["forward"] = lambda x: x.relu()
    assert repr(one) != repr(other)
    FittedModel.from_state_dict(twin(network(other)), FittedModel.fit(twin(network(one)), X, Y).state_dict())


class Printed(torch.nn.Module):
    """Its text has its layers, but not what its `forward` does with them."""

    def __init__(self, activation):
        super().__init__()
        self.one, self.two = torch.nn.Linear(2, 6), torch.nn.Linear(6, 2)
        self.activation = activation

    def forward(self, x):
        return self.two(self.activation(self.one(x)))


def test_a_net_that_prints_alike_and_computes_something_else_is_refused():
    fitted, *others = (twin(Net(Printed(f))) for f in (torch.relu, torch.tanh, F.relu6, F.leaky_relu))
    assert fitted.net.text == others[0].net.text
    model = FittedModel.fit(fitted, X, Y)
    state = saved(model.state_dict())
    FittedModel.from_state_dict(twin(Net(Printed(torch.nn.functional.relu))), state)
    for other in others:
        with pytest.raises(InputError, match="the saved model's network has another"):
            FittedModel.from_state_dict(other, state)
    old = {name: value for name, value in state.items() if name != "net"}  # of an older version
    with pytest.raises(InputError, match=r"^not a saved model \(KeyError\('net'\)\). Pass the result of"):
        FittedModel.from_state_dict(fitted, old)


def test_what_an_older_or_a_newer_version_does_not_name_is_no_difference():
    state = MODEL.state_dict()
    named = {name: text for name, text in state.pop("posterior").items() if name != "kl_weight"}
    for old in (state, state | {"posterior": named | {"once": "a setting"}}):
        again = FittedModel.from_state_dict(twin(), old)
        assert torch.equal(again.predict(NEW).mean, MODEL.predict(NEW).mean)
    with pytest.raises(InputError, match="not a saved model"):
        FittedModel.from_state_dict(twin(), state | {"posterior": 3})


def test_a_model_of_a_learner_with_arms_and_trials_is_saved_too():
    learner = ActiveLearner(posterior(), X, ["information-gain", "random"], trials=2, samples=10)
    for _ in range(2):
        points = learner.ask(2).indices if learner.round else np.tile([[0, 1], [2, 3]], (2, 1))
        learner.tell(points, Y[points])
    model = FittedModel.from_state_dict(learner.posterior, saved(learner.model.state_dict()))
    assert model.replicas == 4 and (model.round, model.arms) == (2, 2)
    for a, b in zip(model.predict(NEW), learner.predict(NEW), strict=True):
        assert torch.equal(a, b)
    alone, every = model.replica(3).predict(NEW), model.predict(NEW)
    scale = every.total[3]
    assert alone.mean.shape == (1, 7, 2) and ((alone.mean[0] - every.mean[3]).abs() < scale).all()
    assert not torch.allclose(alone.mean[0], every.mean[0])


def trained_module():
    torch.manual_seed(0)
    module = mlp(2, [6], 2)
    for p in module.parameters():
        torch.nn.init.normal_(p)
    return module


def test_a_trained_module_is_fitted_in_the_units_that_it_knows():
    module = trained_module()
    given = registry.posterior("map", Net(module, trained=True), "gaussian", epochs=1, lr=1e-9)  # as good as no steps
    model = FittedModel.fit(given, X, Y, standardise="none", dtype=torch.float64)
    out = module.double()(torch.as_tensor(NEW)).detach()
    torch.testing.assert_close(model.predict(NEW).mean[0], out, rtol=1e-5, atol=1e-5)
    off = torch.tensor(GENERATOR.normal(size=out.shape))
    found = float(model.evaluate(NEW, out + off)["rmse"])
    assert found == pytest.approx(float(off.square().mean().sqrt()), rel=1e-4)
    again = FittedModel.from_state_dict(given, model.state_dict())
    assert torch.equal(again.replica(0).predict(NEW).mean, model.predict(NEW).mean)


@pytest.mark.parametrize("standardise", ["labelled", "pool"])
def test_what_a_trained_module_does_not_know_is_refused(standardise):
    given = registry.posterior("noisy-kfac", Net(trained_module(), trained=True), "gaussian", "default")
    with pytest.raises(InputError, match="expects raw data. Pass standardise='none'"):
        FittedModel.fit(given, X, Y, standardise=standardise)
    with pytest.raises(InputError, match="different initial weights"):
        registry.posterior("noisy-kfac", Net(trained_module(), trained=True), "gaussian", members=2)


def test_images_are_not_standardised_and_keep_their_axes():
    net = Net(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2)))
    model = FittedModel.fit(
        registry.posterior("noisy-kfac", net, Categorical(), epochs=2), torch.rand(9, 1, 4, 4), np.arange(9) % 2
    )
    assert model.probabilities(torch.rand(3, 1, 4, 4)).shape == (1, 3, 2)
    with pytest.raises(InputError, match=r"inputs must have shape \[n, 1, 4, 4\]"):
        model.probabilities(torch.rand(3, 1, 4, 5))


def test_metrics_of_a_test_set_are_those_of_the_predictions():
    truth = np.stack([np.sin(NEW[:, 0]) * 20 + 7, NEW[:, 1] / 1000], 1)
    (out, noise), found = outputs(MODEL, NEW), MODEL.evaluate(NEW, truth)
    each = stats.norm(out, np.broadcast_to(noise, out.shape)).logpdf(truth).sum(-1)  # [R, S, P]
    expected = (logsumexp(each, 1) - np.log(each.shape[1])).mean(1)
    np.testing.assert_allclose(found["log_likelihood"], expected)
    mean, _, total, _ = MODEL.predict(NEW)
    np.testing.assert_allclose(found["rmse"], np.sqrt(((truth - mean.numpy()) ** 2).mean((1, 2))))
    held = np.abs(truth - mean.numpy()) <= 1.959964 * total.numpy()
    np.testing.assert_allclose(found["coverage_95"], held.mean((1, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_of_classes(kind):
    likelihood, width, classes = KINDS[kind]
    model = FittedModel.fit(posterior("noisy-kfac", likelihood, width), X, classes, samples=20, dtype=torch.float64)
    found, p = model.evaluate(X, classes), model.probabilities(X)[0].numpy()
    np.testing.assert_allclose(found["log_likelihood"], [np.log(p[np.arange(P), classes]).mean()])
    np.testing.assert_allclose(found["error"], [(p.argmax(1) != classes).mean()])
    with pytest.raises(InputError, match=r"class labels must have shape \[30\]; got \[29\]"):
        model.evaluate(X, classes[1:])
    with pytest.raises(InputError, match="class labels must be whole numbers from 0 to"):
        model.evaluate(X, classes + 3)


def test_a_state_of_ones_own_predicts_without_scales():
    made = posterior()
    state = last_epoch(made, torch.tensor(X)[None], torch.tensor(Y)[None], Rng(0, dtype=torch.float64)).state
    model = FittedModel(made, state, Scales(UNSCALED, UNSCALED), (2,))
    drawn, (mean, _, total, _) = model.sample(NEW, 400), model.predict(NEW)
    assert drawn.shape == (1, 400, 7, 2)
    assert ((drawn.mean(1) - mean).abs() < 5 * total / 20).all()
    assert set(model.evaluate(NEW, Y[:7])) == {"rmse", "log_likelihood", "coverage_95", "crps", "epistemic"}


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, 7)], ids=["dataset", "loader"])
def test_a_loader_is_read_once_and_is_its_arrays(wrap):
    source = wrap(TensorDataset(torch.tensor(X), torch.tensor(Y)))
    ours = FittedModel.fit(posterior(), source, samples=20, dtype=torch.float64)
    assert torch.equal(ours.predict(NEW).mean, MODEL.predict(NEW).mean)
    for batches, message in (
        ([{"x": X, "y": Y}], "must return batches .x, y.; this one returns dict"),
        ([], "must return batches .x, y.; this one returns nothing"),
        (
            [(torch.zeros(2, 3), torch.zeros(2)), (torch.zeros(2, 4), torch.zeros(2))],
            "a DataLoader's batches must have the same",
        ),
    ):
        with pytest.raises(InputError, match=message):
            FittedModel.fit(posterior(), DataLoader(cast(Any, batches), batch_size=None))


@pytest.mark.filterwarnings("error")
def test_a_fit_that_failed_is_no_model():
    hot = posterior("bbb", lr=1e20)
    with pytest.raises(Failure, match="the fit diverged. Lower the learning rate"):
        FittedModel.fit(hot, X, Y)
    learner = ActiveLearner(hot, X)
    learner.tell(np.arange(10), Y[:10])
    with pytest.warns(FailedFitWarning, match="the fit of 1 of 1 replicas diverged; ignore"):
        learner.ask()


@pytest.mark.parametrize(
    ("likelihood", "end"),
    [(Categorical(), torch.nn.Softmax(-1)), (Bernoulli(), torch.nn.Sigmoid())],
    ids=["softmax", "sigmoid"],
)
def test_probabilities_in_place_of_logits_are_refused(likelihood, end):
    width = 3 if likelihood == Categorical() else 1
    net = torch.nn.Sequential(mlp(2, [6], width), end)
    made = registry.posterior("bbb", Net(net), likelihood, epochs=2)
    with pytest.raises(InputError, match=f"expects logits; remove the final {type(end).__name__.lower()}"):
        FittedModel.fit(made, X, np.minimum(CLASSES, 1))
    FittedModel.fit(registry.posterior("bbb", Net(net), epochs=2), X, np.tile(X[:, :1], width))  # of numbers it may be


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MODEL.predict(NEW[:, :1]), r"inputs must have shape \[n, 2\]"),
        (lambda: MODEL.predict(NEW * np.nan), "an input is not a finite number"),
        (lambda: MODEL.interval(NEW, 90), r"an interval's level is 90; it must be in \(0, 1\)"),
        (lambda: MODEL.quantiles(NEW, [0.5, 1.0]), r"a quantile's level is 1.0; it must be in \(0, 1\)"),
        (lambda: MODEL.quantiles(NEW, []), r"levels is \[\]; it must be a list of at least one number"),
        (lambda: MODEL.quantiles(NEW, 0.5), "levels is 0.5; it must be a list"),
        (lambda: MODEL.sample(NEW, 0), "n is 0; it must be a whole number of at least 1"),
        (lambda: MODEL.sample(NEW, 2.5), "n is 2.5; it must be a whole number"),
        (lambda: MODEL.predictor(0), "n is 0; it must be a whole number"),
        (lambda: MODEL.replica(1), "there is no replica 1; they are numbered 0 to 0"),
        (lambda: FittedModel.fit(posterior(), X, Y, samples=0), "samples is 0; it must be"),
        (lambda: FittedModel.fit(cast(Any, "noisy-kfac"), X, Y), "posterior is a str. Create one with"),
        (lambda: FittedModel.fit(posterior(), X), "labels are missing. Pass arrays x and y, or a single"),
        (lambda: FittedModel.fit(posterior(), X, Y, dtype=torch.float16), "dtype is torch.float16; it must be"),
        (lambda: FittedModel.fit(posterior(), X + 0j, Y), "inputs must be a dense array of real"),
        (
            lambda: FittedModel.fit(posterior(), torch.tensor(X).to_sparse(), Y),
            "inputs must be a dense array of real",
        ),
        (
            lambda: MODEL.below(NEW, Y[:7, 0]),
            r"y must have shape \[7, 2\], one number for each input and output; got \[7\]",
        ),
        (
            lambda: MODEL.below(NEW, Y[:8]),
            r"y must have shape \[7, 2\], one number for each input and output; got \[8, 2\]",
        ),
        (lambda: MODEL.below(NEW, 0.0), r"y must have shape \[7, 2\], one number for each input and output; got \[\]"),
        (lambda: MODEL.below(NEW, Y[:7] * np.nan), "a threshold is not a finite number"),
        (
            lambda: MODEL.evaluate(NEW, Y[:8]),
            r"y must have shape \[7, 2\], one number for each input and output; got \[8, 2\]",
        ),
        (
            lambda: FittedModel.from_state_dict(posterior(), MODEL.state_dict(), "nowhere"),
            "device 'nowhere' is not available; allowed",
        ),
        (lambda: FittedModel.fit(posterior(), X, Y[:-1]), "got 58 labels for 30 points; each point needs 2"),
        (lambda: FittedModel.from_state_dict(posterior(), {"seed": 1}), "not a saved model"),
        (
            lambda: FittedModel.from_state_dict(posterior("bbb"), MODEL.state_dict()),
            "is NoisyKFAC, got BBB",
        ),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
