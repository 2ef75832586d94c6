"""Fits, predictions and scores on a loader, against those on arrays and against direct formulas."""

import warnings
import weakref
from typing import Any, cast

import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

import explore
from explore.core import tree
from explore.core.errors import Failure, InitialCurvatureWarning, InputError
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.learning import fit as arrays
from explore.learning.compare import confidence_bins

G = torch.Generator().manual_seed(0)
X = torch.rand(60, 3, generator=G)
Y = torch.stack([torch.sin(5 * X[:, 0]), X[:, 1] - X[:, 2]], 1) + 0.1 * torch.randn(60, 2, generator=G)
CLASSES = (X[:, 0] + X[:, 1] > 1).long() + (X[:, 2] > 0.7).long()
FAR = 4 * torch.randn(25, 3, generator=G)


def posterior(name="noisy-kfac", likelihood="gaussian", outputs=2, **settings):
    net = explore.Net(explore.mlp(3, [5], outputs))
    return explore.posterior(name, net, likelihood, "plain", **{"epochs": 2} | settings)


def loader(y=Y, **options):
    return DataLoader(cast(Any, TensorDataset(X, y)), **{"batch_size": 16} | options)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(tree.tensors(one), tree.tensors(other), strict=True))


@pytest.mark.parametrize("name", ["noisy-kfac", "vogn", "bbb", "laplace", "ensemble"])
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_a_fit_is_that_of_the_same_batches_as_arrays(name, kind, monkeypatch):
    y, outputs = (Y, 2) if kind == "gaussian" else (CLASSES, 3)
    made = posterior(name, kind, outputs, batch_size=15, epochs=3)
    ours = explore.fit(made, loader(y, batch_size=15), dtype=torch.float64)
    monkeypatch.setattr(Rng, "permutation", lambda self, replicas, n: torch.arange(n).expand(replicas, -1))
    values = y[None].double() if kind == "gaussian" else y[None]
    last = arrays.last_epoch(made, X[None].double(), values, Rng(0, dtype=torch.float64).stream("fit", 1))
    assert same(ours, last.state)
    assert float(ours.common.n_data) == 60


class Counted(torch.Tensor):
    """A tensor that a weak reference can follow."""


def test_no_batch_is_read_before_it_is_needed_or_kept():
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = []

    class Source:
        def __iter__(self):
            for part in torch.arange(60).split(7):
                x = X[part].clone().as_subclass(Counted)
                most.append(len(alive))
                alive.add(x)
                yield x, Y[part]

    made = posterior("laplace")
    state = explore.fit(made, Source(), n_data=60)
    explore.evaluate(made, state, Source(), samples=2)
    explore.predict(made, state, Source(), samples=2)
    assert len(most) == 5 * 9 and max(most) <= 2  # two epochs, the curvature, the scores and the predictions


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    ("source", "options", "n"),
    [
        (loader(), {}, 60),
        (loader(), {"n_data": 1000}, 1000),
        (loader(sampler=SubsetRandomSampler(range(20), G)), {}, 20),
        (DataLoader(Stream(), batch_size=16), {}, 60),
        ([(X[:9], Y[:9]), (X[9:20], Y[9:20])], {}, 20),
    ],
    ids=["dataset", "given", "sampler", "stream", "list"],
)
def test_the_number_of_examples_is_known_or_counted(source, options, n):
    state = explore.fit(posterior("vogn", augmentation=3.0), source, 1, **options)
    assert float(state.common.n_data) == 3 * n


@pytest.mark.parametrize("source", [loader(), DataLoader(Stream(), batch_size=16)], ids=["length", "stream"])
def test_progress_is_the_share_of_updates_that_are_done(source, monkeypatch):
    seen = []
    update = type(posterior("bbb")).update

    def noted(self, state, batch, rng, progress=0.0):
        seen.append(progress)
        return update(self, state, batch, rng, progress)

    monkeypatch.setattr(type(posterior("bbb")), "update", noted)
    explore.fit(posterior("bbb"), source)
    known = isinstance(source.dataset, TensorDataset)
    assert seen == ([i / 8 for i in range(8)] if known else [0] * 4 + [0.5] * 4)


def test_callbacks_see_each_epoch_with_scores_on_validation_data():
    epochs: list[arrays.Epoch] = []
    made = posterior("bbb")
    state = explore.fit(made, loader(), 3, validation=loader(shuffle=False), callbacks=[epochs.append], progress=True)
    assert [(e.epoch, e.epochs) for e in epochs] == [(1, 3), (2, 3), (3, 3)] and same(epochs[-1].state, state)
    expected = explore.evaluate(made, state, loader(), samples=30)
    found = {k.removeprefix("validation/"): float(v) for k, v in epochs[-1].info.items() if k.startswith("valid")}
    assert found == pytest.approx(expected) and "nll" in epochs[-1].info
    assert not same(epochs[0].state.mean, epochs[1].state.mean)


class Killed(Exception):
    pass


@pytest.mark.parametrize("own", [True, False], ids=["own generator", "torch's generator"])
@pytest.mark.parametrize("name", ["noisy-kfac", "bbb"])
def test_a_resumed_fit_is_that_of_an_undisturbed_one_to_the_bit(name, own, tmp_path):
    made, path = posterior(name), tmp_path / "fit.pt"

    def fit(callbacks=(), **options):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(5) if own else None
        source = loader(shuffle=True, generator=generator)
        return explore.fit(made, source, 4, validation=loader(shuffle=True), callbacks=callbacks, **options)

    def kill(epoch):
        if epoch.epoch == 3:
            raise Killed

    with pytest.raises(Killed):
        fit([kill], checkpoint=path)
    assert torch.load(path, weights_only=True)["content"]["epoch"] == 2
    seen: list[arrays.Epoch] = []
    torch.rand(7)
    resumed = fit([seen.append], checkpoint=path)
    assert [epoch.epoch for epoch in seen] == [3, 4] and same(resumed, fit())
    assert same(fit([kill], checkpoint=str(path)), resumed)  # which was finished


def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    path = tmp_path / "fit.pt"
    explore.fit(posterior("bbb"), loader(), 1, checkpoint=path)
    for made, options, message in (
        (posterior("bbb", lr=0.5), {}, "fitted with another posterior: its lr is 0.01, got 0.5"),
        (posterior("bbb"), {"epochs": 2}, "is of a fit with epochs=1, this one has 2. Pass the same value"),
        (posterior("bbb"), {"n_data": 61}, "is of a fit with n_data=60.0, this one has 61.0. Pass"),
        (posterior("bbb"), {"seed": 2}, "is of a fit with seed=0, this one has 2"),
        (posterior("bbb"), {"dtype": torch.float64}, "is of a fit with dtype=torch.float32, this"),
    ):
        with pytest.raises(InputError, match=message):
            explore.fit(made, loader(), checkpoint=path, **{"epochs": 1} | options)
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + b"?" + whole[501:])
    with pytest.raises(InputError, match="is damaged: its checksum has changed"):
        explore.fit(posterior("bbb"), loader(), 1, checkpoint=path)
    with pytest.raises(InputError, match="there is no folder"):
        explore.fit(posterior("bbb"), loader(), 1, checkpoint=tmp_path / "new" / "fit.pt")


def test_a_fit_can_be_continued_from_a_state():
    made = posterior("bbb")
    first = explore.fit(made, loader(), 1)
    more = explore.fit(made, loader(), 1, state=first)
    assert int(more.common.step) == 8 and float(more.common.n_data) == 60
    with pytest.raises(InputError, match="state has its own number of training examples. Leave out n_data"):
        explore.fit(made, loader(), 1, state=first, n_data=60)


class Pair(nn.Module):
    """Words and a number as inputs by name."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 4), nn.Linear(5, 2)

    def forward(self, input_ids, size):
        return self.head(torch.cat([self.words(input_ids).mean(1), size[:, None]], 1))


@pytest.mark.parametrize("labels", ["labels", "label", None])
def test_inputs_can_be_dicts_with_or_without_their_labels(labels):
    words = torch.randint(11, (24, 6), generator=G)
    made = explore.posterior("bbb", explore.Net(Pair()), "categorical", "plain")
    x = {"input_ids": words, "size": X[:24, 0]}
    parts = [({k: v[i : i + 8] for k, v in x.items()}, CLASSES[i : i + 8].clamp_max(1)) for i in (0, 8, 16)]
    batches = [batch | {labels: y} for batch, y in parts] if labels else parts
    state = explore.fit(made, batches, 2)
    predicted: Any = explore.predict(made, state, batches, samples=7)
    assert predicted.probabilities.shape == (1, 24, 2)
    assert same(predicted, explore.predict(made, state, [batch for batch, _ in parts], samples=7))
    assert float(state.common.n_data) == 24
    assert set(explore.evaluate(made, state, batches)) == {"log_likelihood", "error", "brier", "ece"}


def fitted(name, kind, outputs, y, **settings):
    made = posterior(name, kind, outputs, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return made, explore.fit(made, loader(y), dtype=torch.float64)


def test_scores_of_classes_are_those_of_the_formulas():
    made, state = fitted("bbb", "categorical", 3, CLASSES, lr=0.05, initial_std=0.5, epochs=15)
    found = explore.evaluate(made, state, loader(CLASSES, shuffle=True), outside=[FAR[:9], FAR[9:]], samples=9)
    predictor = Predictor.sample(made, state, 9, Rng(0, dtype=torch.float64).stream("test", 1))
    p = predictor.net.output(predictor.layers, X[None].double()).softmax(-1)[0]
    mean, rows = p.mean(0), torch.arange(60)
    assert found["log_likelihood"] == pytest.approx(float(mean[rows, CLASSES].log().mean()))
    assert found["error"] == pytest.approx(float((mean.argmax(1) != CLASSES).double().mean()))
    assert found["brier"] == pytest.approx(float((mean - torch.eye(3)[CLASSES]).square().sum(1).mean()))
    assert (
        found["ece"] == pytest.approx(float(confidence_bins(mean[None], CLASSES[None]).error)) and found["ece"] > 0.01
    )
    outside = predictor.net.output(predictor.layers, FAR[None].double()).softmax(-1)[0]
    entropy, information = [], []
    for each in (p, outside):
        entropy.append(torch.special.entr(each.mean(0)).sum(1))
        information.append(entropy[-1] - torch.special.entr(each).sum(2).mean(0))
    truth = torch.cat([torch.zeros(60), torch.ones(25)])
    assert found["auroc_entropy"] == pytest.approx(roc_auc_score(truth, torch.cat(entropy)))
    assert found["auroc_information"] == pytest.approx(roc_auc_score(truth, torch.cat(information)))


def test_scores_of_numbers_are_those_of_the_mixture():
    settings: dict[str, Any] = {"lr": 0.05, "initial_std": 0.5, "epochs": 15}
    made, state = fitted("bbb", explore.Gaussian(noise_std=0.2), 2, Y, **settings)
    found = explore.evaluate(made, state, loader(), samples=9)
    predictor = Predictor.sample(made, state, 9, Rng(0, dtype=torch.float64).stream("test", 1))
    whole = predictor.evaluate(X[None].double(), Y[None].double())
    for name in ("log_likelihood", "rmse", "crps"):
        assert found[name] == pytest.approx(float(whole[name]))
    out = predictor.net.output(predictor.layers, X[None].double())[0].detach().numpy()
    score = (Y.double().numpy() - out.mean(0)) / (out.var(0) + 0.04) ** 0.5
    assert found["coverage_90"] == pytest.approx((abs(score) <= stats.norm.ppf(0.95)).mean())
    assert found.keys() == {"log_likelihood", "rmse", "crps", "coverage_90"} and 0.5 < found["coverage_90"] < 1
    with pytest.raises(InputError, match="outside is for classes only"):
        explore.evaluate(made, state, loader(), outside=[FAR])


def test_predictions_share_their_samples_and_are_those_of_a_model():
    made, state = fitted("bbb", "gaussian", 2, Y)
    predicted: Any = explore.predict(made, state, loader(), samples=8)
    predictor = Predictor.sample(made, state, 8, Rng(0, dtype=torch.float64).stream("test", 1))
    for a, b in zip(predicted, predictor.label_moments(X[None].double()), strict=True):
        torch.testing.assert_close(a, b)
    assert predicted.mean.shape == predicted.noise.shape == (1, 60, 2)
    for a, b in zip(predicted, explore.predict(made, state, [X[:50], [X[50:]]], samples=8), strict=True):
        torch.testing.assert_close(a, b)
    assert not same(predicted, explore.predict(made, state, loader(), samples=8, seed=1))


def test_a_laplace_approximation_is_scored_on_a_loader():
    module = explore.mlp(3, [5], 3)
    model = explore.laplace(module, X, CLASSES, samples=30)
    found = explore.evaluate(model.posterior, model.state, loader(CLASSES), samples=30)
    expected = model.evaluate(X, CLASSES)
    for name in ("log_likelihood", "error"):
        assert found[name] == pytest.approx(float(expected[name]), rel=1e-5)


DIGITS, DIGIT = (torch.as_tensor(values) for values in load_digits(return_X_y=True))
DIGITS = DIGITS.float() / 16


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    module = explore.mlp(64, [50], 10)
    optimiser = torch.optim.Adam(module.parameters(), 0.005)
    for part in [part for _ in range(12) for part in torch.randperm(1000).split(64)]:
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(DIGITS[part]), DIGIT[part]).backward()
        optimiser.step()
    return module


@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-adam", "vogn", "slang", "bbb"])
def test_an_epoch_makes_a_trained_module_no_worse(name, module):
    made = explore.posterior(name, explore.Net(module, trained=True), "categorical")
    state = explore.fit(made, [(DIGITS[part], DIGIT[part]) for part in torch.arange(1000).split(32)], 1)
    found = explore.evaluate(made, state, [(DIGITS[1000:], DIGIT[1000:])], samples=30)
    out = module(DIGITS[1000:]).detach()
    assert found["log_likelihood"] > -nn.functional.cross_entropy(out, DIGIT[1000:]) - 0.02
    assert found["error"] < (out.argmax(1) != DIGIT[1000:]).double().mean() + 0.01
    untrained = explore.posterior(name, explore.Net(module), "categorical")
    assert untrained == explore.posterior(name, untrained.net, "categorical", "default")


@pytest.mark.parametrize("name", ["noisy-kfac", "slang", "map", "last-layer", "whvi"])
def test_a_state_is_saved_as_tensors(name, tmp_path):
    made, state = fitted(name, "gaussian", 2, Y)
    torch.save(made.state_dict(state), tmp_path / "state.pt")
    again = made.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert same(again, state) and type(again) is type(state)
    assert explore.evaluate(made, again, loader()) == explore.evaluate(made, state, loader())
    for saved, message in (
        ({}, "not a saved state. Pass the result of state_dict"),
        (made.state_dict(state), "does not fit"),
    ):
        with pytest.raises(InputError, match=message):
            posterior(name, outputs=1).load_state(saved)


def test_a_fit_warns_and_fails_like_that_of_arrays():
    with pytest.warns(InitialCurvatureWarning, match="of the posterior's curvature is still its initial value"):
        explore.fit(posterior(), loader())
    seen: list[arrays.Epoch] = []
    with pytest.raises(Failure, match="the fit diverged. Lower the learning rate"):
        explore.fit(posterior("vogn", lr=1e30), loader(), 3, callbacks=[seen.append])
    assert not seen


def batches(x=X, y=Y):
    return [(x, y)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: explore.fit(posterior("gp"), loader()), "GP needs all data at once. Use explore.FittedModel.fit"),
        (lambda: explore.fit(posterior(), iter(loader())), "which is read only once. Pass a DataLoader or a list"),
        (lambda: explore.fit(posterior(), TensorDataset(X, Y)), "loader is a TensorDataset. Pass a DataLoader, or a"),
        (lambda: explore.fit(posterior(), loader(), 0), r"epochs is 0; it must be in \[1,"),
        (lambda: explore.fit(posterior(), loader(), n_data=-1), "n_data is -1; it must be in"),
        (lambda: explore.fit(posterior(), [], n_data=9), "the loader returns no batches"),
        (lambda: explore.fit(posterior(), [X]), "a DataLoader must return batches .x, y.; this one returns Tensor"),
        (lambda: explore.fit(posterior(), batches(X / 0)), "an input is not a finite number"),
        (lambda: explore.fit(posterior(), batches(y=Y / 0)), "a label is not a finite number"),
        (lambda: explore.fit(posterior(), batches(y=Y[:, 0])), r"y must have shape \[60, 2\], one number for each"),
        (lambda: explore.fit(posterior("bbb", "categorical"), batches(y=CLASSES)), "whole numbers from 0 to 1"),
        (lambda: explore.fit(posterior("bbb", "categorical", 3), batches(y=CLASSES[1:])), r"must have shape \[60\]"),
        (
            lambda: explore.predict(posterior(), posterior().init(9, 2, Rng(0)), [X]),
            "the state has 2 replicas; it must",
        ),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
