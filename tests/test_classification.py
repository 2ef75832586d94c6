"""Fits to images, and scores of class probabilities."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from explore import images, registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference.predict import Predictor
from explore.learning import classification
from explore.learning.classification import Classified, Measured, Task, auroc, check_warmup, classify, follow, scores
from explore.learning.fit import Epoch, ImageFeed
from explore.nets.likelihoods import Categorical
from explore.nets.net import Net, mlp
from explore.nets.zoo import build

DIGITS = images.load("digits")


def task(rng, augmentation="crop"):
    mean, scale = map(torch.from_numpy, DIGITS.moments())
    x, y, test_x, test_y = (torch.from_numpy(part) for part in DIGITS[1:5])

    def feed(part, own, how="none"):
        return ImageFeed(part, mean, scale, 1, own, how)

    return Task(feed(x[:200], rng.stream("fit"), augmentation), y[None, :200], feed(test_x[:50], rng), test_y[:50])


def posterior(name="noisy-kfac", **settings):
    net = Net(build("mlp", (1, 8, 8), 10, {"hidden": (12,)}))
    return registry.posterior(name, net, Categorical(), "plain", epochs=4, batch_size=50, **settings)


def followed(rng, saved=None, **options):
    return list(follow(posterior(), task(rng), rng, 5, saved=saved, **options))


def test_a_fit_goes_on_bit_for_bit():
    rng = Rng(3)
    whole = followed(rng)
    assert [type(event) for event in whole] == [Epoch, Measured] * 4
    middle = whole[3]
    rest = followed(Rng(3), middle.saved)
    assert [event.epoch for event in rest] == [3, 3, 4, 4]
    for ours, theirs in zip(rest, whole[4:], strict=True):
        if isinstance(ours, Measured):
            assert ours.scalars == theirs.scalars
            assert all(torch.equal(ours.saved["state"][name], t) for name, t in theirs.saved["state"].items())


def test_fewer_measurements_are_at_equal_distances_and_of_the_same_values():
    whole = [event for event in followed(Rng(3)) if isinstance(event, Measured)]
    found = [event for event in followed(Rng(3), points=2) if isinstance(event, Measured)]
    assert [event.epoch for event in found] == [2, 4]
    assert [event.scalars for event in found] == [whole[1].scalars, whole[3].scalars]


def test_what_is_measured_is_of_the_last_state():
    rng = Rng(3)
    *_, last = followed(rng)
    own, data = posterior(), task(Rng(3))
    predictor = Predictor.sample(own, last.state, 5, rng.stream("test", 4))
    out = predictor.net.output(predictor.layers, data.test_x[:, :])
    each = out.double().softmax(-1)[0]  # [S, P, C]
    mean, y = each.mean(0).numpy(), data.test_y.numpy()
    torch.testing.assert_close(last.tested.probabilities.double(), torch.from_numpy(mean), rtol=1e-5, atol=1e-7)
    entropy = torch.special.entr(each.mean(0)).sum(-1) - torch.special.entr(each).sum(-1).mean(0)
    torch.testing.assert_close(last.tested.information.double(), entropy, rtol=1e-3, atol=1e-6)
    assert last.scalars["test/log_likelihood"] == pytest.approx(-log_loss(y, mean, labels=range(10)), rel=1e-5)
    assert last.scalars["test/error"] == pytest.approx((mean.argmax(1) != y).mean())
    brier = ((mean - np.eye(10)[y]) ** 2).sum(1).mean()
    assert last.scalars["test/brier"] == pytest.approx(brier, rel=1e-5)
    kl = float(own.divergence(last.state))
    assert last.scalars["train/bound"] == pytest.approx(-last.scalars["train/nll"] - kl / 200)


def test_a_warm_up_changes_the_steps_of_its_epochs_only(monkeypatch):
    steps: list[float] = []
    cls = type(posterior())
    update = cls.update

    def noted(self, *args):
        steps.append(self.lr)
        return update(self, *args)

    monkeypatch.setattr(cls, "update", noted)
    followed(Rng(0), warmup=2)
    lr = posterior().lr
    assert steps == [lr / 2] * 4 + [lr] * 12
    mixture = registry.posterior("noisy-kfac", Net(mlp(4, [3], 2)), Categorical(), lr=0.4, members=2)
    assert vars(classification._warmed(mixture, 0, 4))["posterior"].lr == 0.1
    check_warmup(mixture, 1)
    with pytest.raises(InputError, match="HMC has no learning rate to warm up"):
        check_warmup(registry.posterior("hmc", Net(mlp(4, [3], 2)), Categorical()), 1)


def test_scores_of_certain_and_of_wrong_predictions():
    y = torch.tensor([0, 1])
    sure = Classified(torch.eye(2), torch.zeros(2), torch.zeros(2))
    assert scores(sure, y) == {"error": 0.0, "log_likelihood": 0.0, "brier": 0.0, "information": 0.0}
    assert scores(sure, 1 - y)["brier"] == 2.0 and scores(sure, 1 - y)["error"] == 1.0
    assert sure.entropy.tolist() == [0.0, 0.0]


def test_probabilities_that_are_no_numbers_above_zero_have_a_logarithm():
    """A net that is sure of the wrong class beyond what a float can hold."""
    own = posterior()
    layers = tuple(torch.zeros(1, 1, i, o) for i, o in own.net.shapes)
    layers[-1][..., -1, 0] = 500.0
    found = classify(Predictor(own.net, own.likelihood, layers, None), torch.zeros(1, 2, 1, 8, 8), torch.tensor([0, 1]))
    assert found.log_likelihood.tolist() == [0.0, -500.0] and found.probabilities[1, 1] == 0
    unknown = classify(Predictor(own.net, own.likelihood, layers, None), torch.zeros(1, 2, 1, 8, 8))
    assert unknown.log_likelihood.isnan().all() and torch.equal(unknown.probabilities, found.probabilities)


def test_auroc():
    known, other = torch.tensor([0.1, 0.2, 0.5]), torch.tensor([0.2, 0.9])
    pairs = [(o > k) + 0.5 * (o == k) for o in other.tolist() for k in known.tolist()]
    assert auroc(known, other) == pytest.approx(np.mean(pairs))
    assert auroc(known, other) == pytest.approx(roc_auc_score([0, 0, 0, 1, 1], torch.cat([known, other])))
