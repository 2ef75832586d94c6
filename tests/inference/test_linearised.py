"""Predictions of linearised networks beside dense Jacobians: several outputs, positions, members of a mixture."""

import pytest
import torch
from torch import nn
from torch.func import jacrev

from explore import registry
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, flatten, unflatten
from explore.inference.gaussian import Functions, LinearisedNet
from explore.inference.members import mixture
from explore.inference.predict import Predictor
from explore.inference.structures.kronecker import damped
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from tests import oracles

R, K, E, B = 2, 3, 4, 5
NETS = {
    "three outputs": (Net(mlp(3, [5], 3)), (3,)),
    "one output": (Net(mlp(3, [5], 1)), (3,)),
    "tokens": (Net(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))), (3, 2)),
    "convolutions": (
        Net(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))),
        (1, 5, 5),
    ),
    "many outputs": (Net(nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(8, 9))), (1, 4, 4)),
}


def draws(net: Net, rng: Rng, *counts: int) -> tuple[torch.Tensor, ...]:
    return tuple(rng.normal(R, *counts, *shape) for shape in net.shapes)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("mixed", [False, True], ids=["at the mean", "at samples"])
def test_functions_are_those_of_the_dense_jacobian(name, mixed):
    net, shape = NETS[name]
    rng = Rng(0, dtype=torch.float64)
    x = rng.normal(R, B, *shape)
    norms = tuple(rng.uniform(R, K, 4, norm.channels) + 0.5 for norm in net.norms)
    mean, changes = draws(net, rng, K), draws(net, rng, K, E)
    weights = draws(net, rng, K, E) if mixed else ()
    chosen = torch.tensor([[11, 0, 3, 7], [2, 2, 5, 10]])
    functions = Functions(mean, norms, changes, weights, chosen)
    out = LinearisedNet(net).output((functions,), x)

    def outputs(flat: torch.Tensor, r: int, k: int) -> torch.Tensor:
        layers = unflatten(flat[None, None], net.shapes)
        return net.output((*layers, *(v[r : r + 1, k : k + 1] for v in norms)), x[r : r + 1])[0, 0]

    for r in range(R):
        for s, i in enumerate(chosen[r]):
            k, e = divmod(int(i), E)
            at = flatten(tuple(m[r, k] for m in mean))
            base = outputs(flatten(tuple(w[r, k, e] for w in weights)) if mixed else at, r, k)
            along = jacrev(outputs)(at, r, k) @ flatten(tuple(c[r, k, e] for c in changes))
            torch.testing.assert_close(out[r, s], base + along)
    assert functions.samples == 4 and functions._replace(chosen=None).samples == K * E


@pytest.mark.parametrize("predictive", ["linearised", "mixed"])
def test_predictions_are_the_same_in_inference_mode(fitted, predictive):
    posterior, state, x = fitted("noisy-kfac", 2, predictive=predictive)
    expected = Predictor.sample(posterior, state, 4, Rng(2, dtype=torch.float64)).moments(x)
    with torch.inference_mode():
        found = Predictor.sample(posterior, state, 4, Rng(2, dtype=torch.float64)).moments(1 * x)
    torch.testing.assert_close(found, expected)


@pytest.fixture
def fitted():
    """Return a function that fits a posterior for some steps."""

    def fit(name: str, members: int = 1, **settings):
        rng = Rng(1, dtype=torch.float64)
        posterior = mixture(registry.posterior(name, Net(mlp(3, [4], 2)), Gaussian(), **settings), members)
        x = rng.normal(R, 30, 3)
        state = posterior.init(30, R, rng)
        for _ in range(20):
            state, _ = posterior.update(state, Batch(x, x[:, :, :2].sin()), rng)
        return posterior, state, x

    return fit


@pytest.mark.parametrize("predictive", ["linearised", "mixed"])
def test_a_mixture_predicts_with_some_of_the_functions_of_each_member(fitted, predictive):
    posterior, state, x = fitted("noisy-kfac", 3, predictive=predictive, beta=0.1)
    few, every = (Predictor.sample(posterior, state, n, Rng(2, dtype=torch.float64)) for n in (5, 6))
    assert few.samples == 5 and every.samples == 6
    same = (few.net.output(few.layers, x).unsqueeze(2) == every.net.output(every.layers, x).unsqueeze(1)).flatten(3)
    matches = same.all(3).nonzero()
    assert len(matches) == R * 5 and len({(r, j) for r, _, j in matches.tolist()}) == R * 5
    for r, i, j in matches.tolist():
        for one, other in zip(tree.tensors(few.noise), tree.tensors(every.noise), strict=True):
            assert torch.equal(one[r, i], other[r, j])


def test_the_damped_spectrum_of_noisy_kfac_is_that_of_its_training_noise(fitted):
    posterior, state, _ = fitted("noisy-kfac", beta=0.1)
    gamma = posterior.gamma(state.common)
    for (free, noisy), moments in zip(posterior.spectra(state), state.statistics, strict=True):
        assert free.inputs is noisy.inputs and free.outputs is noisy.outputs
        basis = torch.einsum("rij,rop->riojp", free.inputs, free.outputs).flatten(1, 2).flatten(2, 3)
        raised = damped(moments, gamma)
        exact = torch.einsum("rij,rop->riojp", *moments).flatten(1, 2).flatten(2, 3)
        for values, expected in (
            (noisy.precision, torch.einsum("rij,rop->riojp", *raised).flatten(1, 2).flatten(2, 3)),
            (free.precision, exact + gamma * torch.eye(exact.shape[1], dtype=exact.dtype)),
        ):
            torch.testing.assert_close(basis @ torch.diag_embed(values.flatten(1)) @ basis.mT, expected)
        assert (noisy.precision > free.precision).all()


@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-ekfac", "vogn"])
def test_a_damped_density_is_that_of_the_training_noise(fitted, name):
    settings = {"reset_damped": True, "reset_interval": 1} if name == "noisy-ekfac" else {}
    posterior, state, _ = fitted(name, **settings)
    damped = posterior.with_settings(damped_density=True)
    narrow, wide = (oracles.implied_gaussian(p, state)[1] for p in (damped, posterior))
    assert (narrow.logdet() < wide.logdet()).all()
    if name != "vogn":
        mean, factor, _ = damped.training_density(state)
        assert all(map(torch.equal, tree.tensors(damped.gaussian(state)[:2]), tree.tensors((mean, factor))))


def test_what_has_no_density_over_weights_is_not_linearised(fitted):
    with pytest.raises(InputError, match='TensorFactorised has no density over weights.*"sampled"'):
        fitted("tensor-factorised", predictive="linearised")
