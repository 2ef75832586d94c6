"""Settings that several posteriors share, each against its formula on the state after an update."""

import dataclasses

import pytest
import torch
from torch import nn

from explore import registry
from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.base import Variational
from explore.inference.members import mixture
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from tests import oracles

R, N, O = 2, 6, 2  # noqa: E741
NET = Net(mlp(2, [3], O).double())
KNOWN = Gaussian(noise_std=0.5)
CLASSES = {name: registry.find("posteriors", name) for name in registry.names("posteriors")}


def having(field):
    """The posteriors with a setting of this name."""
    return pytest.mark.parametrize(
        "name", [n for n, cls in CLASSES.items() if field in {f.name for f in dataclasses.fields(cls)}]
    )


def build(name, likelihood=KNOWN, net=NET, **settings):
    """Every step is taken, and nothing is done now and then only."""
    own = {"adaptive_damping": False, "basis_interval": 1000}
    fields = {f.name for f in dataclasses.fields(CLASSES[name])}
    return CLASSES[name](net=net, likelihood=likelihood, **{k: v for k, v in own.items() if k in fields} | settings)


def draw(seed=0):
    return Rng(seed, dtype=torch.float64)


def data(scale=1.0):
    noise = draw(9)
    return Batch(noise.normal(R, N, 2), scale * noise.normal(R, N, O))


def after(posterior, steps):
    state, noise = posterior.init(N, R, draw()), draw(1)
    for _ in range(steps):
        state, _ = posterior.update(state, data(), noise)
    return state


def each(value):
    """The same number for all replicas."""
    return torch.full((R,), float(value), dtype=torch.float64)


def close(actual, expected, rtol=1e-8, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", [n for n, cls in CLASSES.items() if issubclass(cls, Variational)])
def test_the_noise_weighs_the_data_as_the_weights_do(name):
    """One whole step towards a0 + N / (2 lambda), b0 + N E(y - f)^2 / (2 lambda), with targets far from any f."""
    settings = {"kl_start": 0.2, "kl_warmup": 0.5, "augmentation": 3.0} if name == "vogn" else {}
    count, weight = (3 * N, 0.7 * 0.6) if name == "vogn" else (N, 0.7)  # halfway through its warm-up
    posterior = build(name, Gaussian(rate=1.0), kl_weight=0.7, **settings)
    batch = data(scale=1e3)
    state, _ = posterior.update(posterior.init(N, R, draw()), batch, draw(1), 0.25)
    close(state.common.noise.shape, torch.full((R, O), 6 + count / (2 * weight), dtype=torch.float64))
    squares = batch.y.square().mean(1)  # [R, O]
    close(state.common.noise.rate, 6 + count * squares / (2 * weight), rtol=0.02)


@pytest.mark.parametrize("name", [n for n, cls in CLASSES.items() if issubclass(cls, Variational)])
def test_an_augmented_example_counts_several_times(name):
    """Alone, and in a mixture."""
    settings = {"kl_start": 1.0} if name == "vogn" else {}
    augmented, plain = build(name, augmentation=4.0, **settings), build(name, **settings)
    ours, theirs = augmented.init(N, R, draw()), plain.init(4 * N, R, draw())
    assert float(ours.common.n_data) == augmented.stands_for(N) == 4 * N
    assert augmented.mixture_error or mixture(augmented, 2).stands_for(N) == 4 * N
    ours, theirs = (p.update(s, data(), draw(1))[0] for p, s in ((augmented, ours), (plain, theirs)))
    assert all(map(torch.equal, tree.tensors(ours), tree.tensors(theirs)))


def change(posterior, before, new):
    """What a step does to the predictions, d^T P d, where P is the Fisher matrix with its damping."""
    d = oracles.flat([(b - a).unsqueeze(1) for a, b in zip(before.mean, new.mean, strict=True)]).squeeze(1)
    return torch.einsum("ri,rij,rj->r", d, oracles.dense(posterior.training_density(new)[1]), d)


@having("kl_clip")
def test_steps_are_bounded_by_what_they_do_to_the_predictions(name):
    state = after(build(name), 2)

    def step(limit):
        return build(name, kl_clip=limit).update(state, data(), draw(2))[0]

    free = change(build(name), state, step(None))
    close(change(build(name), state, step(0.1 * float(free.min()))), each(0.1 * free.min()))
    assert all(map(torch.equal, step(10 * float(free.max())).mean, step(None).mean))


@having("trust_region")
def test_steps_are_bounded_by_how_far_they_move_the_posterior(name):
    """The divergence N / (2 lambda) d^T P d is at most that many nats; the tighter of two bounds holds.

    SLANG's P is the precision as it is.
    """
    own, state = build(name, kl_weight=0.5), after(build(name), 2)

    def moved(**limits):
        new, _ = dataclasses.replace(own, **limits).update(state, data(), draw(2))
        return (0.5 if name == "slang" else N / (2 * 0.5)) * change(own, state, new)

    limit = 0.1 * float(moved().min())
    close(moved(trust_region=limit), each(limit))
    assert torch.equal(moved(trust_region=10 * float(moved().max())), moved())
    if hasattr(own, "noisy_trust"):
        close(moved(trust_region=limit, noisy_trust=0.2, warm_start=0.0), each(0.2 * limit))
        close(moved(trust_region=limit, noisy_trust=0.2, warm_start=0.5), each(limit))
    if hasattr(own, "kl_clip"):
        close(moved(trust_region=limit, kl_clip=0.1 * limit / N), each(0.1 * limit))


@having("kl_clip")
def test_the_bound_shrinks_with_the_steps(name):
    state = after(build(name), 3)
    free = float(change(build(name), state, build(name).update(state, data(), draw(2))[0]).min())
    new = build(name, kl_clip=0.01 * free, lr_decay_at=0.0, lr_decay=0.5).update(state, data(), draw(2))[0]
    close(change(build(name), state, new), each(torch.tensor(0.01 * free / 4)))


@having("lr_decay_at")
def test_a_linear_decay_is_that_of_its_steps(name):
    state = after(build(name), 3)
    linear = build(name, lr_schedule="linear", lr_decay=0.0, lr_decay_at=0.5)
    for progress, factor in ((0.4, 1.0), (0.5, 1.0), (0.75, 0.5), (0.95, 0.1)):
        ours, _ = linear.update(state, data(), draw(2), progress)
        step, _ = build(name, lr_decay=factor, lr_decay_at=0.0).update(state, data(), draw(2), progress)
        close(ours.mean, step.mean)


@having("decay")
def test_a_power_of_the_steps_divides_the_step_and_the_rates(name):
    own = build(name)
    rates = {rate: getattr(own, rate) / 3 for rate in ("lr", "beta", "omega", "beta2") if hasattr(own, rate)}
    state = after(own, 3)
    ours, _ = build(name, decay=0.5).update(state, data(), draw(2))  # at step 4: 1 / (1 + 4^0.5)
    theirs, _ = build(name, **rates).update(state, data(), draw(2))
    plain, _ = own.update(state, data(), draw(2))
    for (path, a), (_, b) in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        if not path.startswith("precision.columns"):  # eigenvectors, whose signs are arbitrary
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-12, msg=path)
    drawn, expected = (own.sample(state, 3, draw(3)) for state in (ours, theirs))
    close(drawn, expected, rtol=1e-7)
    assert not any(map(torch.equal, ours.mean, plain.mean))


# Adaptive damping ------------------------------------------------------------------------------------------


def linear(**settings):
    """A linear net with known noise and the dense Fisher matrix, whose quadratic model is the objective itself."""
    exact: dict = {"beta": 1.0, "fisher": "exact", "momentum": 0.0, "adaptive_damping": True} | settings
    posterior = build("full", net=Net(nn.Linear(2, 1).double()), **exact)
    state = posterior.init(N, R, draw())
    return posterior, state, Batch(data().x, data().x[..., :1])


@pytest.mark.parametrize(("lr", "factor"), [(0.4, 19 / 20), (0.8, 1.0), (1.2, 20 / 19), (2.2, 2.0)])
def test_a_narrow_prior_is_part_of_the_curvature(lr, factor):
    """With next to no damping beside the prior's the overshoot is the size of the step, as with a wide prior."""
    posterior, state, batch = linear(lr=lr, prior_variance=1e-3)
    gamma = 1 / (N * 1e-3)  # 167, where the data have about 4
    state = state._replace(damping=each(1.0))
    new, _ = posterior.update(state, batch, draw(1))
    close(new.damping, each((gamma + 1) * factor - gamma).clamp_min(0))


def test_damping_never_falls_below_the_extrinsic_one():
    posterior, state, batch = linear(lr=0.1, extrinsic_damping=0.5)
    new, _ = posterior.update(state, batch, draw(1))
    close(new.damping, each(0.5))
    raised = state._replace(damping=each(5.0))
    gamma = 1 / N
    close(posterior.update(raised, batch, draw(1))[0].damping, each((gamma + 5) * 19 / 20 - gamma))
