"""What every posterior owes. A new file in `explore/posteriors` is tested here by existing."""

import dataclasses
import io

import pytest
import torch
from torch import nn

from explore import predict, registry, tree
from explore.errors import InputError
from explore.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets import Net, mlp
from explore.posteriors.base import Variational, settle
from explore.posteriors.gaussian import GaussianPosterior
from explore.rng import Rng
from explore.shapes import Batch
from tests import oracles
from tests.oracles import Lone, Matched, Twice

CLASSES = {name: registry.find("posteriors", name) for name in registry.names("posteriors")}
VARIATIONAL = [name for name, cls in CLASSES.items() if issubclass(cls, Variational)]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]
R, N = 3, 12

MODULE = mlp(2, [4], 2).double()
MLP = Net(MODULE)
NO_BIAS = Net(nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False)))
CONV_NO_BIAS = Net(nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2, bias=False)))
CONV = Net(nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)))
NORM = Net(nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)))

FEW_DRAWS = {"epochs": 40, "warmup": 20, "thinning": 1, "chains": 2, "max_tree_depth": 5}

# Rates at which a few updates leave a mark on every part of the state.
LIVELY: dict[str, dict] = {
    "noisy-adam": {"beta": 0.1, "gain_samples": 100},
    "noisy-kfac": {"beta": 0.1},
    "block-tridiagonal": {"beta": 0.1},
    "noisy-ekfac": {"beta": 0.1, "omega": 0.2, "basis_interval": 2},
    "vogn": {"beta2": 0.1, "damping": 0.1, "prior_variance": 1.0},
    "full": {"beta": 0.1},
    "slang": {"beta": 0.1, "rank": 3},
    "hmc": FEW_DRAWS,
}
# Rates at which the last batches are nearly all that the Fisher matrix is made of.
FORGETFUL: dict[str, dict] = {
    "noisy-adam": {"beta": 0.5},
    "noisy-kfac": {"beta": 0.5},
    "block-tridiagonal": {"beta": 0.5},
    "noisy-ekfac": {"beta": 0.5, "omega": 0.5, "basis_interval": 3},
    "full": {"beta": 0.5},
    "slang": {"beta": 0.5, "rank": 3},
    "hmc": FEW_DRAWS,
}
POINTS = {"map"}  # weights that do not vary
NORMLESS = {"hmc"}  # nets without batch normalisation only

every = pytest.mark.parametrize("name", CLASSES)
variational = pytest.mark.parametrize("name", VARIATIONAL)
gaussian = pytest.mark.parametrize(
    "name", [name for name in VARIATIONAL if issubclass(CLASSES[name], GaussianPosterior)]
)


def step_size(name):
    """A larger step, for those that take one."""
    return {"lr": 0.02} if any(field.name == "lr" for field in dataclasses.fields(CLASSES[name])) else {}


def build(name, net=MLP, likelihood=None, **settings):
    return CLASSES[name](net=net, likelihood=likelihood or Gaussian(), **LIVELY.get(name, {}) | settings)


def draw(seed=0, device="cpu", kind=Rng):
    return kind(seed, device, torch.float64)


def data(net=MLP, seed=5, device="cpu"):
    rng = draw(seed, device).stream("toy")
    x = rng.normal(R, N, *((1, 4, 4) if net in (CONV, CONV_NO_BIAS, NORM) else (2,)))
    return Batch(x, torch.stack([x.flatten(2).sum(2).sin(), x.flatten(2).prod(2)], 2))


def train(posterior, state, batch, rng, steps=3, progress=0.0):
    for _ in range(steps):
        state, _ = posterior.update(state, batch, rng, progress)
    return state


def trained(name, steps=3, **settings):
    posterior, rng = build(name, **settings), draw()
    batch = data(posterior.net)
    return posterior, train(posterior, posterior.init(N, R, rng), batch, rng, steps), batch


def assert_same_bits(one, two):
    for (path, a), (_, b) in zip(tree.leaves(one), tree.leaves(two), strict=True):
        assert torch.equal(a, b), path


def assert_close(actual, expected, rtol=1e-8, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


# Values and pure functions ---------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("device", DEVICES)
def test_functions_are_pure(name, device):
    posterior, batch = build(name), data(device=device)
    state = posterior.init(N, R, draw(device=device))
    before, x, y = tree.save(state), batch.x.clone(), batch.y.clone()
    everyones_generator = torch.get_rng_state()

    new, info = posterior.update(state, batch, draw(1, device))
    again, _ = posterior.update(state, batch, draw(1, device))
    samples = posterior.sample(new, 5, draw(2, device))
    if isinstance(posterior, Variational):
        posterior.gain(state, batch, draw(3, device))
        posterior.elbo(state, batch, draw(3, device))
        drawn = posterior.sample_coordinates(new, 5, draw(2, device))
        for numbers in (posterior.log_prob(new, drawn), posterior.kl(new, state), posterior.kl_prior(new)):
            assert numbers.device == drawn[0].device and numbers.isfinite().all()
    if isinstance(posterior, GaussianPosterior):
        posterior.solve(state, samples)
        predict.linearised(posterior, state, batch.x)

    assert_same_bits(new, again)
    assert_same_bits(samples, posterior.sample(again, 5, draw(2, device)))
    assert_same_bits(tree.save(state), before)
    assert torch.equal(batch.x, x) and torch.equal(batch.y, y)
    assert torch.equal(torch.get_rng_state(), everyones_generator)
    assert not any(leaf.requires_grad for _, leaf in tree.leaves((new, info, samples)))
    assert all(v.shape == (R,) and v.isfinite().all() for v in info.values())
    assert int(new.common.step) == 1 and bool(new.common.alive.all())


@every
@pytest.mark.parametrize("device", DEVICES)
def test_same_generator_same_bits_and_another_differs(name, device):
    posterior = build(name)
    ours, same, other = (posterior.init(N, R, draw(seed, device)) for seed in (0, 0, 1))
    assert_same_bits(ours, same)
    one, another = (next(tree.leaves(posterior.sample(s, 2, draw(2, device))))[1] for s in (ours, other))
    assert not torch.equal(one, another)


def refuses(name, net):
    """Whether a posterior says that it cannot take this network."""
    try:
        train(build(name, net), build(name, net).init(N, R, draw()), data(net), draw(), 1)
    except InputError:
        return True
    return False


@every
@pytest.mark.parametrize("net", [MLP, CONV, NORM], ids=["mlp", "conv", "norm"])
def test_three_replicas_equal_three_lone_runs(name, net):
    # Batched and lone kernels differ in the last bits, 1e-15 an operation, which 20 updates magnify.
    if net is not MLP and refuses(name, net):
        pytest.skip("dense layers only")
    posterior, batch = build(name, net, batch_norm="adam"), data(net)
    rng = draw()
    together = train(posterior, posterior.init(N, R, rng), batch, rng, 20)
    drawn = posterior.sample(together, 3, draw(9))
    for r in range(R):
        rng = Lone(r, R, 0, dtype=torch.float64)
        own = Batch(batch.x[r : r + 1], batch.y[r : r + 1])
        alone = train(posterior, posterior.init(N, 1, rng), own, rng, 20)
        mine = posterior.sample(alone, 3, Lone(r, R, 9, dtype=torch.float64))
        # Cached factors may hold eigenvectors of equal eigenvalues, which are arbitrary; the samples show them right.
        kept = [pair for pair in zip(tree.leaves(together), tree.leaves(alone), strict=True) if not cached(pair[0][0])]
        for (path, a), (_, b) in [*kept, *zip(tree.leaves(drawn), tree.leaves(mine), strict=True)]:
            torch.testing.assert_close(a[r : r + 1] if a.dim() else a, b, rtol=1e-9, atol=1e-10, msg=path)


def cached(path):
    return path.partition(".")[0] in ("sampling", "step_factor")


@every
@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), Gaussian(noise_std=0.5)])
def test_fits_under_every_likelihood(name, likelihood):
    net = Net(mlp(2, [8], 1 if isinstance(likelihood, Bernoulli) else 2))
    posterior, batch = build(name, net, likelihood, **step_size(name)), data()
    if not isinstance(likelihood, Gaussian):
        batch = Batch(batch.x, (batch.x[..., 0] > 0).long())
    rng = draw()
    state = posterior.init(1000, R, rng)  # as many as make the prior harmless

    def loss(state):
        out = net.output(posterior.sample(state, 100, draw(9)), batch.x)
        noise = likelihood.draw(state.common.noise, out.shape[1], draw(9))
        return -likelihood.log_prob(noise, out, batch.y.unsqueeze(1)).mean((1, 2))

    assert (loss(train(posterior, state, batch, rng, 60)) < 0.9 * loss(state)).all()


@every
def test_saved_state_continues_bit_for_bit(name):
    posterior, state, batch = trained(name)
    file = io.BytesIO()
    torch.save(tree.save(state), file)
    file.seek(0)
    loaded = tree.restore(posterior.init(N, R, draw(8)), torch.load(file, weights_only=True))
    assert_same_bits(train(posterior, loaded, batch, draw(4)), train(posterior, state, batch, draw(4)))


@every
@pytest.mark.parametrize(
    ("part", "value"), [("y", torch.nan), ("y", torch.inf), ("x", torch.nan), ("x", 1e200), ("y", 1e200)]
)
def test_a_failed_replica_is_frozen_and_touches_no_other(name, part, value):
    posterior, state, batch = trained(name)
    broken = Batch(batch.x.clone(), batch.y.clone())
    getattr(broken, part)[1, 0] = value
    hurt, healthy = (train(posterior, state, b, draw(4)) for b in (broken, batch))
    dead = not hurt.common.alive[1]
    assert dead or value == 1e200  # which some survive
    assert hurt.common.alive.tolist() == [True, not dead, True]
    for (path, a), (_, b), (_, old) in zip(*map(tree.leaves, (hurt, healthy, state)), strict=True):
        if a.dim() and path != "common.alive":
            assert torch.equal(a[[0, 2]], b[[0, 2]]), path
            assert torch.equal(a[1], old[1]) if dead else a[1].isfinite().all(), path
    # Dead is dead: good data do not revive it.
    assert bool(train(posterior, hurt, batch, draw(5)).common.alive[1]) == (not dead)


@every
def test_a_replica_has_failed_wherever_in_its_state_a_number_is_not_finite(name):
    posterior, state, _ = trained(name)
    floats = [path for path, leaf in tree.leaves(state) if leaf.dim() and leaf.is_floating_point()]
    assert floats
    for broken in floats:
        paths = iter([path for path, _ in tree.leaves(state)])

        def spoil(leaf, broken=broken, paths=paths):
            if next(paths) != broken:
                return leaf
            leaf = leaf.clone()
            leaf[(1, *[-1] * (leaf.dim() - 1))] = torch.nan
            return leaf

        settled = settle(tree.map_tensors(spoil, state), state)
        assert settled.common.alive.tolist() == [True, False, True], broken
        assert all(leaf.isfinite().all() for _, leaf in tree.leaves(settled)), broken


@every
def test_every_numeric_setting_is_checked(name):
    for field in dataclasses.fields(CLASSES[name]):
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            for wrong in (-1, float("nan")) if isinstance(field.default, float) else (-1,):
                with pytest.raises(InputError, match=field.name):
                    build(name, **{field.name: wrong})


@every
def test_presets_are_valid_settings(name):
    for preset in registry.presets(CLASSES[name]):
        build(name, **registry.preset(CLASSES[name], preset))


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in POINTS])
def test_less_certain_where_no_data_were_seen(name):
    net = Net(mlp(1, [20], 1))
    posterior = build(name, net, Gaussian(noise_std=0.1), **step_size(name))
    rng = draw()
    x = (2 * rng.uniform(R, 20, 1) - 1).sort(1).values
    batch = Batch(x, (3 * x).sin())
    state = posterior.init(20, R, rng)
    for i in range(300):
        state, _ = posterior.update(state, batch, rng, i / 300)
    on, off = (
        predict.moments(net, posterior.sample(state, 200, draw(1)), points).variance.mean((1, 2))
        for points in (x, torch.cat([x - 4, x + 4], 1))
    )
    assert (off > 2 * on).all()


@every
def test_single_precision_survives_data_without_rank(name):
    # One example at a time, with inputs that are equal, zero or constant: moments of next to no rank.
    posterior = CLASSES[name](net=Net(mlp(4, [20], 2)), likelihood=Gaussian(), **FORGETFUL.get(name, {}))
    rng = Rng(0)
    x = 100 * rng.normal(R, N, 1)
    x, y = torch.cat([x, x, 0 * x, 0 * x + 1], 2), torch.cat([x.sin(), x / 100], 2)
    state = posterior.init(N, R, rng)
    for i in range(2 * N):
        example = slice(i % N, i % N + 1)
        state, _ = posterior.update(state, Batch(x[:, example], y[:, example]), rng)
    assert state.common.alive.all()
    assert all(t.dtype == torch.float32 for _, t in tree.leaves(state) if t.dim() and t.is_floating_point())
    assert all(w.isfinite().all() for _, w in tree.leaves(posterior.sample(state, 100, rng)))
    if isinstance(posterior, Variational):
        samples = posterior.sample_coordinates(state, 100, rng)
        assert (posterior.kl_prior(state) > 0).all() and (posterior.gain(state, Batch(x, y), rng) > 0).all()
        # -E log q = H, as in double precision.
        error = posterior.log_prob(state, samples).mean(1) + posterior.entropy(state)
        assert error.abs().max() < 5 * (oracles.flat(samples).shape[2] / 2 / 100) ** 0.5


# Densities -------------------------------------------------------------------------------------------------


@variational
def test_samples_follow_the_stated_density(name):
    posterior, state, _ = trained(name)
    mean, covariance = oracles.implied_gaussian(posterior, state, R)
    n = 100_000
    samples = posterior.sample_coordinates(state, n, draw(6))
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), (oracles.flat(samples) - mean.unsqueeze(1)).mT, upper=False
    )
    # Whitened entries of mean and covariance have standard errors 1/sqrt(n) and at most sqrt(2/n).
    assert white.mean(2).abs().max() < 5 / n**0.5
    eye = torch.eye(mean.shape[1], dtype=torch.float64)
    assert (white @ white.mT / n - eye).abs().max() < 5 * (2 / n) ** 0.5
    # -E log q = H; log q of d coordinates has standard deviation sqrt(d / 2).
    error = posterior.log_prob(state, samples).mean(1) + posterior.entropy(state)
    assert error.abs().max() < 5 * (mean.shape[1] / 2 / n) ** 0.5


@variational
@pytest.mark.parametrize("net", [MLP, NO_BIAS, CONV_NO_BIAS], ids=["mlp", "no-bias", "conv-no-bias"])
def test_density_equals_the_dense_gaussian(name, net):
    if net is CONV_NO_BIAS and refuses(name, net):
        pytest.skip("dense layers only")
    posterior, old, batch = trained(name, net=net, kl_weight=0.7, prior_variance=0.6)
    new = train(posterior, old, batch, draw(7))
    old = old._replace(common=old.common._replace(n_data=1.5 * old.common.n_data))  # the scale may depend on N
    (mean, cov), (mean0, cov0) = (oracles.implied_gaussian(posterior, s, R) for s in (new, old))
    q, q0 = oracles.normal(mean, cov), oracles.normal(mean0, cov0)
    samples = posterior.sample_coordinates(new, 4, draw(6))
    assert_close(posterior.log_prob(new, samples).mT, q.log_prob(oracles.flat(samples).transpose(0, 1)))
    assert_close(posterior.entropy(new), q.entropy())

    assert_close(posterior.kl(new, new), torch.zeros(R, dtype=torch.float64))
    assert_close(posterior.kl(new, old), oracles.kl(mean, cov, mean0, cov0))
    assert_close(posterior.kl(new, old), torch.distributions.kl_divergence(q, q0))

    prior = 0.6 * torch.eye(mean.shape[1], dtype=torch.float64).expand_as(cov)
    assert_close(posterior.kl_prior(new), oracles.kl(mean, cov, torch.zeros_like(mean), prior))


@gaussian
def test_products_with_the_covariance_are_those_of_the_dense_gaussian(name):
    posterior, state, batch = trained(name, likelihood=Gaussian(noise_std=0.5))
    mean, covariance = oracles.implied_gaussian(posterior, state, R)
    v = draw(7).normal(R, 4, posterior.net.weights)
    assert_close(oracles.flat(posterior.solve(state, oracles.unflat(v, MLP.shapes))), v @ covariance)

    # Gradients at the very samples that `quad` draws.
    weights = posterior.sample(state, posterior.gain_samples, draw(2))
    score = (batch.y.unsqueeze(1) - oracles.run(MODULE, weights, batch.x)) / 0.25
    g = torch.einsum("rsbo,rsbow->rsbw", score, oracles.jacobians(MODULE, weights, batch.x, MLP.shapes)).mean(1)
    assert_close(posterior.quad(state, batch, draw(2)), torch.einsum("rbv,rvw,rbw->rb", g, covariance, g))

    at_mean = oracles.unflat(mean.unsqueeze(1), MLP.shapes)
    jacobian = oracles.jacobians(MODULE, at_mean, batch.x, MLP.shapes)[:, 0]
    found = predict.linearised(posterior, state, batch.x)
    assert_close(found.mean, oracles.run(MODULE, at_mean, batch.x)[:, 0])
    assert_close(found.variance, torch.einsum("rbov,rvw,rbow->rbo", jacobian, covariance, jacobian))


@gaussian
def test_sampled_and_linearised_predictions_of_a_linear_net_agree(name):
    posterior, state, batch = trained(name, net=Net(nn.Linear(2, 2)))
    exact, n = predict.linearised(posterior, state, batch.x), 20_000
    found = predict.moments(posterior.net, posterior.sample(state, n, draw(6)), batch.x)
    assert ((found.mean - exact.mean) / exact.variance.sqrt()).abs().max() < 5 / n**0.5
    assert (found.variance / exact.variance - 1).abs().max() < 5 * (2 / n) ** 0.5


@gaussian
def test_diagnostics_equal_those_of_the_dense_covariance(name):
    posterior, state, _ = trained(name, kl_weight=0.7, prior_variance=0.6)
    state = state._replace(common=state.common._replace(n_data=1.5 * state.common.n_data))
    _, covariance = oracles.implied_gaussian(posterior, state, R)
    spectrum = torch.linalg.eigvalsh(covariance)
    found = posterior.diagnostics(state)
    w = posterior.net.weights
    assert_close(found["condition"], spectrum[:, -1] / spectrum[:, 0], rtol=1e-6)
    assert_close(found["damping_share"], w / 0.6 / (1 / spectrum).sum(1))
    assert_close(found["effective_rank"], w - spectrum.sum(1) / 0.6)


# Exact answers ---------------------------------------------------------------------------------------------

# Settings with which a linear-Gaussian model reaches its fixed point, and for how many steps.
LINEAR: dict[str, dict] = {
    "bbb": {"lr": 0.05, "initial_std": 0.3},
    "noisy-adam": {"lr": 0.2, "beta": 0.1},
    "noisy-kfac": {"lr": 0.2, "beta": 0.05, "damping": "exact"},
    "noisy-ekfac": {"lr": 0.2, "beta": 0.05, "omega": 0.05},
    "block-tridiagonal": {"lr": 0.2, "beta": 0.05},
    "vogn": {"lr": 0.05, "beta2": 0.05},
    "full": {"lr": 0.2, "beta": 0.05},
    "slang": {"lr": 0.1, "beta": 0.1, "rank": 4},
    "whvi": {"lr": 0.05, "initial_std": 0.3},  # one layer alone is the last one, which is factorised
    "tensor-factorised": {"lr": 0.05, "initial_std": 0.3},
}
VARIANTS: list[tuple[str, dict]] = [(name, {}) for name in VARIATIONAL] + [
    ("noisy-kfac", {"damping": "split"}),
    ("bbb", {"reparameterisation": "weights"}),
]
DIAGONAL = {
    "bbb",
    "noisy-adam",
    "whvi",
    "tensor-factorised",
}  # exact where the columns of the design stand at right angles
INEXACT = [
    ("noisy-kfac", {"damping": "split"}),  # the papers' damping is no plain sum
    ("block-tridiagonal", {}),  # nor here
    ("slang", {}),  # the data's own targets: squares of the residuals stand for the noise's variance
    ("vogn", {}),  # squares of the residuals stand for the noise's variance, and gamma is part of the posterior
]


def linear_fit(name, orthogonal, **settings):
    """A posterior trained on a linear-Gaussian model, and Bayesian linear regression with noise 0.5, prior 0.8."""
    rng = Matched(3, dtype=torch.float64)
    x = rng.normal(2, 24, 3)
    if orthogonal:  # columns, the constant one included, at right angles
        x = torch.linalg.qr(torch.cat([torch.ones(2, 24, 1), x], 2).double())[0][:, :, 1:] * 3
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 + 0.5 * rng.normal(2, 24, 1)
    posterior = CLASSES[name](
        net=Net(nn.Linear(3, 1)),
        likelihood=Gaussian(noise_std=0.5),
        prior_variance=0.8,
        **LINEAR.get(name, {}) | settings,
    )
    state = posterior.init(24, 2, rng)
    for i in range(600):
        state, _ = posterior.update(state, Batch(x, y), rng, i / 600)
    return oracles.implied_gaussian(posterior, state, 2), oracles.ridge(x, y, 0.5, 0.8)


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_linear_gaussian_mean_is_ridge_regression(name, settings):
    (mean, _), (exact, _) = linear_fit(name, orthogonal=False, **settings)
    assert_close(mean, exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("name", "settings"), [v for v in VARIANTS if v not in INEXACT])
def test_linear_gaussian_covariance_is_exact(name, settings):
    (_, covariance), (_, exact) = linear_fit(name, orthogonal=name in DIAGONAL, **settings)
    assert_close(covariance, exact, rtol=1e-6, atol=1e-8)


# Scaling with the data -------------------------------------------------------------------------------------


@variational
def test_elbo_counts_every_example_once(name):
    posterior, state, batch = trained(name, likelihood=Gaussian(noise_std=0.5))
    samples = posterior.sample(state, 6, draw(2))
    out = posterior.net.output(samples, batch.x)
    # Here the batch is all the data, so the bound is the plain sum over them.
    fit = torch.distributions.Normal(out, 0.5).log_prob(batch.y.unsqueeze(1)).sum((2, 3)).mean(1)
    elbo = posterior.elbo(state, batch, draw(2), samples=6)
    assert_close(elbo, fit - posterior.kl_weight * posterior.kl_prior(state))


@variational
def test_elbo_and_its_gradient_ignore_batch_size_and_number_of_samples(name):
    posterior, state, batch = trained(name)

    def value_and_gradients(x, y, samples, kind):
        floats = [t.clone().requires_grad_(t.dim() > 0) for _, t in tree.leaves(state) if t.is_floating_point()]
        remaining = iter(floats)
        own = tree.map_tensors(lambda t: next(remaining) if t.is_floating_point() else t, state)
        elbo = posterior.elbo(own, Batch(x, y), draw(2, kind=kind), samples)
        inputs = [t for t in floats if t.requires_grad]
        found = torch.autograd.grad(elbo.sum(), inputs, allow_unused=True, materialize_grads=True)
        return [elbo.detach(), *found]

    whole = value_and_gradients(batch.x, batch.y, 4, Rng)
    halves = [value_and_gradients(batch.x[:, p], batch.y[:, p], 4, Rng) for p in (slice(0, 6), slice(6, 12))]
    assert any(g.abs().max() > 1e-3 for g in whole[1:])
    for full, one, two in zip(whole, *halves, strict=True):
        assert_close((one + two) / 2, full)
    for full, repeated in zip(whole, value_and_gradients(batch.x, batch.y, 8, Twice), strict=True):
        assert_close(repeated, full)


# Information gain ------------------------------------------------------------------------------------------


@variational
def test_gain_is_one_number_an_example_and_knows_no_neighbours(name):
    posterior, state, batch = trained(name, likelihood=Gaussian(noise_std=0.5))
    gain = posterior.gain(state, batch, draw(2))
    assert gain.shape == (R, N) and (gain > 0).all()
    part = posterior.gain(state, Batch(batch.x[:, 2:5], batch.y[:, 2:5]), draw(2))
    assert_close(part, gain[:, 2:5])


@variational
def test_gain_grows_with_the_square_of_its_step(name):
    once, state, batch = trained(name)
    twice = dataclasses.replace(once, gain_step=2 * once.gain_step)
    assert_close(twice.gain(state, batch, draw(2)), 4 * once.gain(state, batch, draw(2)))


@variational
def test_gain_falls_when_a_transition_repeats(name):
    posterior, state, batch = trained(name, steps=30, lr=0.02, likelihood=Gaussian(noise_std=0.5))
    two = torch.full((R, 1, 2), 2.0, dtype=torch.float64)
    novel = Batch(two, two)
    both = Batch(torch.cat([batch.x, two], 1), torch.cat([batch.y, two], 1))
    with_it, without = (posterior.gain(train(posterior, state, b, draw(3), 200), novel, draw(2)) for b in (both, batch))
    assert (with_it < 0.5 * without).all()
