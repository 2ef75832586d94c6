"""The bonus against what it is defined as, its order and its state."""

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from explore import registry
from explore.core import tree
from explore.core.errors import Failure, InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.members import VariationalMixture
from explore.nets.likelihoods import Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.testing.oracles import Lone
from explore.vime import IntrinsicReward, Transitions
from explore.vime.bonuses.kl import KL
from explore.vime.dynamics import DynamicsSettings

OBSERVATIONS, ACTIONS = spaces.Box(-10, 10, (2,)), spaces.Box(-1, 1, (1,))
FEW: dict[str, Any] = {"updates": 20, "minimum": 20, "hidden": (8,)}


def made(posterior="noisy-kfac", seed=3, **settings):
    settings = {"bonus": "kl"} | FEW | settings
    if posterior == "last-layer":  # which refuses it
        settings.pop("updates")
    return IntrinsicReward(OBSERVATIONS, ACTIONS, seed=seed, posterior=posterior, **settings)


def transitions(n, seed=0, shift=0.0):
    """Of a spring with friction, far from scale 1."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(n, 2)) * [3.0, 0.1] + [50.0 + shift, 0.0]
    actions = rng.uniform(-1, 1, (n, 1))
    x, v = observations.T
    v_next = 0.9 * v - 0.01 * (x - 50) + 0.05 * actions[:, 0]
    return Transitions(observations, actions, np.stack([x + v_next, v_next], 1))


def part_of(steps, rows):
    part: Any = (None if values is None else values[rows] for values in steps)
    return Transitions(*part)


def with_batch(reward, n=60):
    reward.batch(transitions(n))
    return reward


def test_nothing_is_paid_before_the_first_training():
    reward = made(minimum=100)
    for seed in (0, 1):
        found = reward.batch(transitions(40, seed))
        assert not found.raw.any() and not found.scaled.any() and "vime/dyn_nll_after" not in reward.metrics
    reward.batch(transitions(40, 2))
    found = reward.batch(transitions(40, 3))
    assert (found.raw > 0).all() and (found.scaled > 0).all()


@pytest.mark.parametrize("bonus", ["kl", "expected-gain", "variance"])
def test_a_batch_is_scored_by_the_model_before_it(bonus):
    reward = with_batch(made(bonus=bonus))
    expected = reward.score(transitions(30, 1))
    found = reward.batch(transitions(30, 1))
    np.testing.assert_array_equal(found.raw, expected)
    assert (reward.score(transitions(30, 1)) != expected).all()


def test_the_divisor_is_the_mean_of_ten_medians_with_this_one():
    reward = with_batch(made(normalise="median", eta=0.5, eta_decay=0.9, clip=None))
    medians: list[float] = []
    for i in range(1, 14):
        found = reward.batch(transitions(25, i))
        medians.append(float(np.median(found.raw)))
        divisor = np.mean(medians[-10:])
        np.testing.assert_allclose(found.scaled, 0.5 * 0.9**i * found.raw / divisor, rtol=1e-12)
        assert reward.metrics["vime/kl_divisor"] == pytest.approx(divisor)


def test_the_middle_transition_of_a_batch_is_paid_eta_whatever_the_scale(monkeypatch):
    """However far bonuses fall; the mean of ten medians stays with the largest of them."""
    latest, median = (with_batch(made(normalise=name, eta=0.5)) for name in ("latest", "median"))
    score = KL.score
    for i, scale in enumerate((1.0, 1e-12, 1e-6)):
        monkeypatch.setattr(KL, "score", lambda *given, scale=scale: scale * score(*given))
        paid = [np.median(reward.batch(transitions(25, i)).scaled) for reward in (latest, median)]
        assert paid[0] == pytest.approx(0.5) and (paid[1] < 1e-5) == (i > 0)


def test_step_by_step_the_latest_divisor_is_of_the_last_finished_batch():
    reward = made(interval=30, eta=1.0, clip=None)
    found = [reward.step(transitions(10, i)) for i in range(12)]
    for i in (6, 9):
        finished = np.concatenate([f.raw for f in found[i - 3 : i]])
        np.testing.assert_allclose(found[i].scaled, found[i].raw / np.median(finished))


def test_other_divisors():
    reward = with_batch(made(normalise="rms", eta=1.0, clip=None))
    found = [reward.batch(transitions(25, i)) for i in (1, 2)]
    level = np.mean([np.mean(f.raw**2) for f in found]) ** 0.5
    np.testing.assert_allclose(found[1].scaled, found[1].raw / level)
    plain = with_batch(made(normalise="none", eta=2.0)).batch(transitions(25, 1))
    np.testing.assert_allclose(plain.scaled, 2 * plain.raw)


def test_an_automatic_weight_follows_the_largest_reward_so_far_and_is_saved():
    reward = with_batch(made(eta="auto"))
    assert reward.eta == 0.001
    reward.saw(np.array([0.5, -20.0, np.nan, np.inf, 3.0]), np.zeros(5, bool))
    reward.saw(np.array([0.0]), np.array([False]))
    assert reward.eta == pytest.approx(0.02)
    other = made(eta="auto")
    other.load_state_dict(reward.state_dict())
    assert other.eta == reward.eta
    found = reward.batch(transitions(25, 1))
    assert np.median(found.scaled) == pytest.approx(0.02)


def test_with_an_automatic_weight_a_mean_episode_earns_at_most_a_share_of_the_largest_reward():
    reward = with_batch(made(eta="auto", interval=25))
    for i in range(1, 4):
        reward.saw(np.full(400, -2.0), np.arange(400) == 7)  # episodes of 400 steps
        found = reward.batch(transitions(25, i))
        assert reward.eta < 0.002
        assert found.scaled.mean() * 400 == pytest.approx(0.4)
    weight = reward.eta
    other = made(eta="auto", interval=25)
    other.load_state_dict(reward.state_dict())
    assert other.eta == weight
    found = other.step(transitions(24, 4))  # the weight is that of the last finished batch
    np.testing.assert_allclose(found.scaled, weight * other.multiples(found.raw))
    other.step(transitions(1, 5))
    assert other.eta != weight


def test_a_bonus_that_overflows_does_not_lower_the_automatic_weight(monkeypatch):
    reward, score = with_batch(made(eta="auto", clip=None)), KL.score

    def overflows(*given):
        return score(*given).index_fill(0, torch.tensor([0]), torch.inf)

    monkeypatch.setattr(KL, "score", overflows)
    reward.saw(np.zeros(400), np.arange(400) % 4 == 0)
    reward.batch(transitions(25, 1))
    assert reward.eta == 0.001


@pytest.mark.parametrize(("eta", "ends", "expected"), [(0.001, 1, 0.001), ("auto", 0, 0.002), ("auto", 100, 0.002)])
def test_a_given_weight_and_that_of_short_or_unknown_episodes_stay(eta, ends, expected):
    reward = with_batch(made(eta=eta))
    reward.saw(np.full(400, -2.0), np.arange(400) < ends)
    reward.batch(transitions(25, 1))
    assert reward.eta == expected


def test_a_bonus_is_cut_at_a_multiple_of_the_divisor():
    reward = with_batch(made(eta=2.0, clip=1.5))
    found = reward.batch(transitions(25, 1))
    multiples = found.raw / reward.metrics["vime/kl_divisor"]
    assert multiples.max() > 1.5 > multiples.min()
    np.testing.assert_allclose(found.scaled, 2 * multiples.clip(max=1.5))


def test_kl_is_the_posteriors_gain_of_standardised_transitions():
    reward, new = with_batch(made()), transitions(30, 1)
    seen = transitions(60)
    x, y = (np.concatenate([t.observations, t.actions], 1) for t in (seen, new)), (seen.following, new.following)
    (x_seen, x_new), (y_seen, y_new) = x, y
    tensors = []
    for a, b in ((x_seen, x_new), (y_seen, y_new)):  # without an outlier, where the centre is the mean
        low, high = np.quantile(a, [0.05, 0.95], 0)
        tensors.append(torch.tensor((b - a.mean(0)) / (high - low) * 3.29, dtype=torch.float32)[None])
    batch = reward.model.batch(*reward.tensors(new))
    for ours, expected in zip(batch, tensors, strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-4)
    gain = reward.model.posterior.gain(reward.model.state, batch, reward.rng.stream("acquire", 1, 0))
    np.testing.assert_allclose(reward.score(new), gain[0], rtol=1e-5)


def test_expected_gain_and_variance_follow_from_the_samples():
    new = transitions(30, 1)
    for kind in ("expected-gain", "variance"):
        reward = with_batch(made(bonus=kind, samples=7))
        posterior, state = reward.model.posterior, reward.model.state
        layers = posterior.sample(state, 7, reward.rng.stream("acquire", 1, 0))
        out = posterior.net.output(layers, reward.model.batch(*reward.tensors(new)).x)[0].double().numpy()
        if kind == "variance":
            expected = out.var(0, ddof=1).mean(-1)
        else:
            tau = posterior.likelihood.expected(state.common.noise)[0, 0].double().numpy()
            expected = [0.5 * np.linalg.slogdet(np.eye(2) + tau[:, None] * np.cov(out[:, i].T))[1] for i in range(30)]
        np.testing.assert_allclose(reward.score(new), expected, rtol=1e-4)


def test_scores_do_not_depend_on_the_chunks(monkeypatch):
    reward = with_batch(made())
    whole = reward.score(transitions(30, 1))
    monkeypatch.setattr("explore.vime.bonuses.base.CHUNK", 7)
    np.testing.assert_allclose(reward.score(transitions(30, 1)), whole, rtol=1e-4)


def test_what_is_new_pays_more():
    reward = made(updates=100, minimum=20)
    for seed in range(4):
        reward.batch(transitions(200, seed))
    seen, new = (np.median(reward.score(transitions(100, 9, shift))) for shift in (0.0, 30.0))
    assert new > 3 * seen


def test_the_model_learns():
    reward = made(updates=200, hidden=(32,))
    reward.batch(transitions(500))
    reward.batch(transitions(500, 1))
    metrics = reward.metrics
    assert metrics["vime/dyn_rmse_before"] < 0.3 and metrics["vime/dyn_coverage_95_before"] > 0.8


@pytest.mark.parametrize("target", ["next", "difference"])
@pytest.mark.parametrize("n_eff", [50.0, "replay"])
def test_the_effective_data_size_is_the_posteriors(target, n_eff):
    reward = with_batch(made(target=target, n_eff=n_eff), 40)
    reward.batch(transitions(30, 1))
    assert float(reward.model.state.common.n_data) == (50.0 if n_eff == 50.0 else 70.0)
    expected = (
        transitions(40).following if target == "next" else transitions(40).following - transitions(40).observations
    )
    first = with_batch(made(target=target, n_eff=n_eff), 40)
    np.testing.assert_allclose(first.model._target_mean.flatten(), expected.mean(0), rtol=1e-4, atol=1e-5)


def test_step_by_step_the_divisor_is_of_finished_batches():
    reward, data = made(normalise="median", interval=30, eta=1.0, clip=None), [transitions(10, i) for i in range(12)]
    found = [reward.step(t) for t in data]
    assert reward.batches == 4 and not any(f.raw.any() for f in found[:3])
    finished = [np.concatenate([f.raw for f in found[i : i + 3]]) for i in (3, 6, 9)]
    first = found[3].raw / found[3].scaled  # of the first batch, scored by the model that was trained on it
    np.testing.assert_allclose(first, first[0])
    for i in (6, 9):
        levels = [first[0], *(np.median(raw) for raw in finished[: i // 3 - 1])]
        np.testing.assert_allclose(found[i].scaled, found[i].raw / np.mean(levels))


MEMBERS: dict[str, Any] = {"posterior_settings": {"members": 2}}


@pytest.mark.parametrize(
    ("posterior", "settings"),
    [("noisy-kfac", {}), ("bbb", {}), ("slang", {}), ("noisy-kfac", MEMBERS), ("last-layer", {})],
)
def test_restored_it_gives_the_same_bonuses(posterior, settings):
    reward = made(posterior, interval=25, **settings)
    for i in range(4):
        reward.batch(transitions(30, i))
    reward.step(transitions(10, 5))
    saved = {name: value.clone() for name, value in reward.state_dict().items()}
    again = made(posterior, seed=99, interval=25, **settings)
    again.load_state_dict(saved)
    for i in range(6, 12):
        ours, theirs = reward.step(transitions(10, i)), again.step(transitions(10, i))
        np.testing.assert_array_equal(ours.raw, theirs.raw)
        np.testing.assert_array_equal(ours.scaled, theirs.scaled)
    assert again.metrics == reward.metrics


def test_a_recursive_posterior_learns_each_transition_once():
    reward = made("last-layer")
    for i in range(7):
        reward.batch(transitions(30, i))
    model = reward.model
    assert (int(model._learned), int(model._scaled)) == (210, 120)  # anew with 30, 60 and 120 transitions
    assert float(model.state.seen) == 210 and float(model.state.common.n_data) == 210
    fixed = made("last-layer", n_eff=50)
    fixed.batch(transitions(30, 0))
    assert int(fixed.model._scaled) == 30 and float(fixed.model.state.common.n_data) == 50


def test_a_state_of_before_recursive_posteriors_is_refused():
    saved = with_batch(made()).state_dict()
    older = {name: value for name, value in saved.items() if name not in ("dynamics/learned", "dynamics/scaled")}
    assert len(older) == len(saved) - 2
    with pytest.raises(InputError, match=r"does not fit: missing or unexpected keys \['learned', 'scaled'\]"):
        made().load_state_dict(older)


def test_state_of_other_settings_is_refused():
    with pytest.raises(InputError, match="does not fit"):
        made(hidden=(4,)).load_state_dict(with_batch(made()).state_dict())


def test_a_posterior_of_the_users_own():
    net = Net(mlp(3, [5, 5], 2))
    posterior = registry.posterior("bbb", net, Gaussian(noise_std=0.5), samples=2)
    built = {"hidden": DynamicsSettings().hidden}
    assert (with_batch(made(posterior, **built)).score(transitions(5)) > 0).all()
    with pytest.raises(InputError, match="has 4 inputs and 2 outputs; this environment needs 3 and 2"):
        made(registry.posterior("bbb", Net(mlp(4, [5], 2)), Gaussian()), **built)
    for setting in ({"preset": "vime"}, {"posterior_settings": {"lr": 1.0}}, {"noise_std": 5.0}, {"hidden": (5, 5)}):
        with pytest.raises(InputError, match=f"{next(iter(setting))} applies to posteriors by name only"):
            made(posterior, **built | setting)


@pytest.mark.parametrize(
    "other", [{"bonus": "variance"}, {"normalise": "rms"}, {"target": "difference"}, {"n_eff": 500.0}]
)
def test_a_state_of_a_bonus_with_other_settings_is_refused(other):
    state = with_batch(made(bonus="kl", normalise="latest")).state_dict()
    (name,) = other
    with pytest.raises(InputError, match=f"cannot continue from this saved bonus: it was saved with {name}="):
        made(**{"bonus": "kl", "normalise": "latest"} | other).load_state_dict(state)
    made(bonus="kl", normalise="latest").load_state_dict(state)


@pytest.mark.parametrize("bonus", ["kl", "expected-gain", "variance"])
@pytest.mark.parametrize("n_eff", [50.0, "replay"])
def test_members_learn_as_one_model(bonus, n_eff):
    reward = with_batch(made(bonus=bonus, n_eff=n_eff, **MEMBERS))
    assert float(reward.model.state.common.n_data) == (60 if n_eff == "replay" else 50)
    assert (reward.score(transitions(30, 1)) > 0).all()


def test_the_bonus_of_members_is_the_mean_of_theirs():
    reward = with_batch(made("bbb", bonus="kl", **MEMBERS))
    dynamics, new = reward.model, transitions(5, 1)
    mixture, state = dynamics.posterior, dynamics.state
    assert isinstance(mixture, VariationalMixture)
    x, y = dynamics.batch(*reward.tensors(new))
    gains = [
        mixture.posterior.gain(
            tree.map_tensors(lambda t, i=i: t[:, i] if t.dim() > 1 else t, state), Batch(x, y),
            Lone(i, 2, reward.rng.seed, _key=reward.rng.stream("acquire", reward.batches, 0)._key),
        )
        for i in range(2)
    ]  # fmt: skip
    np.testing.assert_allclose(reward.score(new), torch.cat(gains).mean(0), rtol=1e-4)


@pytest.mark.parametrize("posterior", ["ensemble", "mc-dropout"])
def test_without_a_density_there_is_no_kl_bonus(posterior):
    with pytest.raises(InputError, match=f"{posterior} use 'expected-gain'"):
        made(posterior)


def test_without_uncertainty_there_is_no_bonus():
    with pytest.raises(InputError, match="map is a point estimate"):
        made("map")


def test_an_ensemble_disagrees():
    assert (with_batch(made("ensemble", bonus="expected-gain")).score(transitions(5, 1)) > 0).all()


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"eta": -1.0}, r"eta is -1.0; it must be in \[0, inf\)"),
        ({"n_eff": 0}, r"n_eff is 0; it must be in \(0, inf\)"),
        ({"updates": 0}, r"updates is 0; it must be in \[1, 1e7\]"),
        ({"colour": 1}, "unknown setting 'colour'; allowed: .*eta"),
        ({"posterior": "noisy"}, "unknown posterior 'noisy'"),
        ({"posterior_settings": 5}, "posterior_settings is 5; it must be a dict of settings"),
    ],
)
def test_wrong_settings_say_what_is_allowed(wrong, message):
    with pytest.raises(InputError, match=message):
        made(**wrong)


@pytest.mark.parametrize("more", [{}, {"members": 2}])
def test_a_warm_start_that_would_never_end_is_refused(more):
    with pytest.raises(InputError, match="noisy-kfac has no weight noise .*=0, or use the preset vime$"):
        made(posterior="noisy-kfac", preset="default", posterior_settings=more)
    made(posterior="noisy-kfac", preset="default", posterior_settings=more | {"warm_start": 0.0})
    own = registry.posterior("noisy-kfac", Net(mlp(3, [5], 2)), Gaussian(), "default", **more)
    with pytest.raises(InputError, match="set warm_start=0$"):
        made(own, hidden=DynamicsSettings().hidden)


@pytest.mark.parametrize("name", registry.names("posteriors"))
def test_every_posterior_with_a_density_makes_a_bonus(name):
    if hasattr(registry.posterior(name, Net(mlp(3, [5], 2)), Gaussian()), "gain"):
        assert (with_batch(made(name)).batch(transitions(30, 1)).scaled > 0).any()


def test_a_posterior_of_classes_is_refused():
    classes = registry.posterior("bbb", Net(mlp(3, [8], 2)), Categorical())
    with pytest.raises(InputError, match="standardises its targets; use Gaussian instead of Categorical"):
        made(classes, hidden=DynamicsSettings().hidden)


def test_a_foreign_state_is_refused_and_changes_nothing():
    reward = with_batch(made())
    before = reward.score(transitions(9, 1))
    state = reward.state_dict()
    for wrong in (
        {"foo": torch.zeros(1)},
        made(hidden=(3,)).state_dict(),
        {k: v for k, v in state.items() if k != "reward/open"},
    ):
        with pytest.raises(InputError, match="cannot continue from this saved bonus"):
            reward.load_state_dict(wrong)
        assert (reward.score(transitions(9, 1)) == before).all() and reward.batches == 1


DROPPED = "ignore:ignored a transition with NaN"


PARTS = ("observations", "actions", "following")
BROKEN = [
    *((call, part, math.nan) for call in ("batch", "step") for part in PARTS),
    *(("batch", part, 1e300) for part in PARTS),  # beyond single precision
    ("batch", "following", math.inf), ("step", "following", -math.inf),
]  # fmt: skip


@pytest.mark.filterwarnings(DROPPED)
@pytest.mark.parametrize(("call", "part", "value"), BROKEN)
def test_transitions_that_are_not_finite_are_dropped_and_counted(call, part, value):
    """The others are paid and learnt from as if those had never been."""
    broken, rest = transitions(30, 1), np.delete(np.arange(30), [3, 7])
    getattr(broken, part)[[3, 7], 0] = value
    whole = part_of(broken, rest)
    one, two = (with_batch(made(interval=28)) for _ in range(2))
    assert one.score(broken)[[3, 7]].tolist() == [0, 0]
    ours, theirs = getattr(one, call)(broken), getattr(two, call)(whole)
    for found, expected in zip(ours, theirs, strict=True):
        assert (found[rest] == expected).all() and not found[[3, 7]].any()
    assert ours.scaled.any() == (call == "batch")
    assert (one.dropped, two.dropped, one.metrics["vime/dropped"]) == (2, 0, 2)
    assert (one.score(transitions(30, 2)) == two.score(transitions(30, 2))).all()
    again = made(interval=28)
    again.load_state_dict(one.state_dict())
    assert (again.dropped, again.restarts) == (2, 0)


@pytest.mark.parametrize("call", ["batch", "step"])
def test_the_first_transition_that_is_dropped_is_said(call):
    reward = made(interval=30)
    getattr(reward, call)(transitions(10))
    assert "vime/dropped" not in reward.metrics or not reward.metrics["vime/dropped"]
    for i in (1, 2):
        broken = transitions(10)
        broken.observations[:, 1] = math.nan
        with pytest.warns(UserWarning, match="NaN or infinity; vime/dropped") if i == 1 else nullcontext():
            found = getattr(reward, call)(broken)
        assert not found.raw.any() and reward.metrics["vime/dropped"] == 10 * i


@pytest.mark.filterwarnings(DROPPED)
@pytest.mark.parametrize("call", ["batch", "step"])
def test_a_batch_of_which_nothing_is_left(call):
    reward = with_batch(made(interval=100))
    found = getattr(reward, call)(Transitions(*(np.full_like(array, math.nan) for array in transitions(30)[:3])))
    assert not any(part.any() for part in found)
    assert reward.dropped == 30 and (reward.batch(transitions(30, 1)).scaled > 0).all()


def test_the_most_surprising_transition_is_paid_most():
    """A gain beyond single precision is cut as others are."""
    reward, new = with_batch(made(eta=1.0, clip=10.0)), transitions(30, 1)
    new.following[4] = 1e30
    found = reward.batch(new)
    assert np.isfinite(found.raw).all() and found.raw.argmax() == 4
    assert found.scaled[4] == pytest.approx(10.0)


@pytest.mark.parametrize("normalise", ["latest", "median", "rms", "none"])
@pytest.mark.parametrize("call", ["batch", "step"])
def test_an_overflow_is_paid_a_reward_that_can_be_learnt_from(call, normalise, monkeypatch):
    """And spoils neither divisor nor mean, which are those of the other transitions."""
    score = KL.score

    def overflowing(self, inputs, following, rng):
        far = self.batch(inputs, following).y[0].abs().amax(1) > 50
        return torch.where(far, math.inf, score(self, inputs, following, rng))

    monkeypatch.setattr(KL, "score", overflowing)
    settings = {"eta": 1.0, "clip": None, "normalise": normalise, "interval": 30}
    (one, two), new = (with_batch(made(**settings)) for _ in range(2)), transitions(30, 1)
    for reward in (one, two):
        getattr(reward, call)(transitions(30, 2))
    rest = np.delete(np.arange(30), 4)
    new.following[4] = 1e30
    getattr(two, call)(part_of(new, rest))
    found = getattr(one, call)(new)
    assert found.scaled.argmax() == 4
    assert np.isfinite(np.square(found.scaled.sum(dtype=np.float32)))
    if call == "batch":
        assert one.divisor == pytest.approx(two.divisor)
        for name in ("mean", "median"):
            assert one.metrics[f"vime/bonus_{name}"] == pytest.approx(two.metrics[f"vime/bonus_{name}"])
    else:
        assert max(one.divisor, one.metrics["vime/bonus_mean"]) < 1e6


@pytest.mark.parametrize("call", ["batch", "step"])
def test_a_batch_of_overflows_leaves_the_divisor(call, monkeypatch):
    reward = with_batch(made(interval=30, clip=None))
    for i in (1, 2):
        getattr(reward, call)(transitions(30, i))
    before = reward.divisor
    monkeypatch.setattr(KL, "score", lambda self, inputs, following, rng: torch.full((len(inputs),), -math.inf))
    assert (getattr(reward, call)(transitions(30, 3)).scaled > 0).all()
    assert reward.divisor == before


def fail(reward):
    """As an update does that comes to nothing."""
    state = reward.model.state
    reward.model.state = state._replace(common=state.common._replace(alive=torch.tensor([False])))


@pytest.mark.parametrize("call", ["batch", "step"])
def test_a_model_that_fails_is_begun_anew_once(call):
    reward = with_batch(made(interval=30))
    getattr(reward, call)(transitions(30, 1))
    fail(reward)
    with pytest.warns(UserWarning, match="the dynamics model diverged and was restarted on 120 stored"):
        getattr(reward, call)(transitions(30, 2))
    assert reward.restarts == reward.metrics["vime/restarts"] == 1 and reward.model.alive
    found = getattr(reward, call)(transitions(30, 3))
    assert (found.raw > 0).all() and (found.scaled > 0).all()
    again = made(interval=30)
    again.load_state_dict(reward.state_dict())
    for each in (reward, again):
        fail(each)
        with pytest.raises(Failure, match="diverged again after a restart"):
            getattr(each, call)(transitions(30, 4))


def test_a_model_that_cannot_learn_fails():
    reward = made(posterior_settings={"lr": 1e30, "adaptive_damping": False})
    with pytest.warns(UserWarning, match="restarted on 60"), pytest.raises(Failure):
        reward.batch(transitions(60))


def test_a_state_without_its_format_or_settings_is_refused():
    state = with_batch(made()).state_dict()
    without = ({k: v for k, v in state.items() if k != f"reward/{name}"} for name in ("format", "meaning"))
    for wrong in (*without, state | {"reward/format": torch.tensor(9)}):
        with pytest.raises(InputError, match="it was saved by another version of explore"):
            made().load_state_dict(wrong)


def test_seeds_decide():
    one, two, other = (with_batch(made(seed=s)).score(transitions(9, 1)) for s in (1, 1, 2))
    assert (one == two).all() and (one != other).all()
    assert Rng(0).stream("acquire", 1, 0).seed == 0


def one_hot(places, n):
    return np.eye(n, dtype=np.float32)[places]


@pytest.mark.parametrize(
    ("posterior", "space"), [("noisy-kfac", spaces.Discrete(14)), ("bbb", spaces.Box(0, 1, (14,)))]
)
def test_a_state_that_was_never_seen_is_paid_no_less_than_a_rare_one(posterior, space):
    """Observations are one-hot; a random walk visits state 12 three times in 8,000 steps and state 13 never."""
    rng, n, steps = np.random.default_rng(0), 14, 8000
    actions = rng.integers(2, size=steps)
    place = np.zeros(steps + 1, int)
    for t in range(steps):
        place[t + 1] = np.clip(place[t] + 2 * actions[t] - 1, 0, n - 3)
    place[[1000, 4000, 7000]] = n - 2
    settings: dict[str, Any] = {"updates": 300, "hidden": (32,), "posterior": posterior}
    reward = IntrinsicReward(space, spaces.Discrete(2), **settings)
    every = Transitions(one_hot(place[:-1], n), one_hot(actions, 2), one_hot(place[1:], n))
    for half in (slice(4000), slice(4000, None)):
        reward.batch(part_of(every, half))
    to = one_hot([5], n)
    common, thrice, never = (
        np.mean([reward.score(Transitions(one_hot([i], n), one_hot([a], 2), to)) for a in (0, 1)]) for i in (4, 12, 13)
    )
    assert never > 0.63 * thrice and thrice > common


@pytest.mark.parametrize("posterior", ["noisy-kfac", "bbb"])
def test_an_outlier_does_not_blind_the_bonus(posterior):
    """How well it tells transitions of another region, as the area under the curve, with one that is a million away."""

    def steps(n, low, high):
        o, a = rng.uniform(low, high, (n, 3)), rng.uniform(-1, 1, (n, 1))
        after = 0.9 * o + 0.1 * np.roll(o, 1, 1) + 0.1 * np.sin(3 * o) + 0.1 * a
        return Transitions(*(part.astype(np.float32) for part in (o, a, after)))

    rng, box = np.random.default_rng(1), spaces.Box(-np.inf, np.inf, (3,))
    reward = IntrinsicReward(box, ACTIONS, posterior=posterior, updates=300)
    for i in range(2):
        seen = steps(1000, -1, 1)
        if not i:
            seen.observations[5] = seen.following[4] = 1e6
        reward.batch(seen)
    old, new = reward.score(steps(300, -1, 1)), reward.score(steps(300, 1.5, 2.5))
    assert (new[:, None] > old).mean() > 0.99
    assert reward.metrics["vime/dyn_rmse_after"] < 0.8
