"""Noisy K-FAC against the equations of its paper, written out in NumPy."""

import numpy as np
import pytest
import torch

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.noisy_kfac import NoisyKFAC

NET = Net(mlp(2, [3], 2))
N = 6
TAU = 4.0
SAMPLES, ALPHA, BETA, LAMBDA, ETA, MOMENTUM = 4, 0.2, 0.3, 0.7, 0.6, 0.8
SETTINGS = dict(
    samples=SAMPLES,
    lr=ALPHA,
    beta=BETA,
    kl_weight=LAMBDA,
    prior_variance=ETA,
    adaptive_damping=False,
    momentum=MOMENTUM,
)


def build(**settings):
    return NoisyKFAC(net=NET, likelihood=Gaussian(noise_std=TAU**-0.5), **SETTINGS | settings)


def rng(seed=0):
    return Rng(seed, dtype=torch.float64)


def data():
    r = rng(9)
    return Batch(r.normal(2, N, 2), r.normal(2, N, 2))


def steps(posterior, n=1, seed=1, progress=0.0):
    state, noise, states = posterior.init(N, 2, rng()), rng(seed), []
    for _ in range(n):
        state, _ = posterior.update(state, data(), noise, progress)
        states.append(state)
    return states


def paper(state, x, y, noise, step, damping, extrinsic, fisher):
    """One step of Algorithm 2 on one replica; `state` is a list of (M, V~, A, S), a layer each."""
    gamma, (eps1, eps2, eps_y) = LAMBDA / (N * ETA), noise

    def damped(a, s, gamma):
        pi = np.sqrt((np.trace(a) / len(a) + 1e-8) / (np.trace(s) / len(s) + 1e-8))
        return a + pi * np.sqrt(gamma) * np.eye(len(a)), s + np.sqrt(gamma) / pi * np.eye(len(s))

    def solve(a, s, v, gamma):
        """(F + gamma)^-1 v."""
        if damping == "split":
            a, s = damped(a, s, gamma)
            return np.linalg.inv(a) @ v @ np.linalg.inv(s)
        f = np.kron(a, s) + gamma * np.eye(v.size)
        return np.linalg.solve(f, v.ravel()).reshape(v.shape)

    def draw(m, a, s, eps):
        if damping == "split":
            a, s = damped(a, s, gamma)
            la, ls = (np.linalg.inv(np.linalg.cholesky(k)) for k in (a, s))  # L_A^-T eps L_S^-1 per sample
            return m + np.sqrt(LAMBDA / N) * la.T @ eps @ ls
        values, vectors = np.linalg.eigh(np.kron(a, s) + gamma * np.eye(m.size))
        symmetric = vectors / np.sqrt(values) @ vectors.T
        return m + np.sqrt(LAMBDA / N) * (symmetric @ eps.ravel()).reshape(m.shape)

    gradients = [np.zeros_like(m) for m, *_ in state]
    inputs, outputs = ([np.zeros_like(k) for k in column] for column in list(zip(*state, strict=True))[2:])
    for i in range(SAMPLES):
        w1, w2 = (draw(m, a, s, eps[i]) for (m, _, a, s), eps in zip(state, (eps1, eps2), strict=True))
        for b in range(N):
            a1 = np.append(x[b], 1)
            h = a1 @ w1
            a2 = np.append(np.maximum(h, 0), 1)
            out = a2 @ w2
            sampled = out + eps_y[i, b] / np.sqrt(TAU) if fisher == "true" else y[b]
            for target, for_mean in ((y[b], True), (sampled, False)):
                g2 = TAU * (target - out)
                g1 = (w2[:-1] @ g2) * (h > 0)
                for layer, (a, g) in enumerate(((a1, g1), (a2, g2))):
                    if for_mean:
                        gradients[layer] += np.outer(a, g) / (SAMPLES * N)
                    else:
                        inputs[layer] += np.outer(a, a) / (SAMPLES * N)
                        outputs[layer] += np.outer(g, g) / (SAMPLES * N)
        for layer, w in enumerate((w1, w2)):
            gradients[layer] -= gamma * w / SAMPLES

    new = []
    for (m, v, a, s), gradient, aa, gg in zip(state, gradients, inputs, outputs, strict=True):
        a, s = (1 - BETA) * a + BETA * aa, (1 - BETA) * s + BETA * gg
        v = MOMENTUM * v + (1 - MOMENTUM) * gradient
        m = m + ALPHA * solve(a, s, v / (1 - MOMENTUM**step), gamma + extrinsic)
        new.append((m, v, a, s))
    return new


@pytest.mark.parametrize("damping", ["split", "exact"])
@pytest.mark.parametrize("fisher", ["true", "empirical"])
def test_updates_follow_the_paper(damping, fisher):
    posterior = build(damping=damping, fisher=fisher, extrinsic_damping=0.05)
    start, x, y = posterior.init(N, 2, rng()), *(t.numpy() for t in data())
    ours = steps(posterior, 2)
    noise = rng(1)
    layers = [(m, v, *am) for m, v, am in zip(start.mean, start.momentum, start.statistics, strict=True)]
    theirs = [[tuple(t[r].numpy() for t in layer) for layer in layers] for r in range(2)]
    for step, state in enumerate(ours, 1):
        drawn = [noise.normal(2, 4, *shape).numpy() for shape in NET.shapes]
        drawn.append(noise.normal(2, 4, N, 2).numpy() if fisher == "true" else np.zeros((2, 4, N, 2)))
        for r in range(2):
            theirs[r] = paper(theirs[r], x[r], y[r], [e[r] for e in drawn], step, damping, 0.05, fisher)
            for layer in range(2):
                mean, momentum, *moments = theirs[r][layer]
                np.testing.assert_allclose(state.mean[layer][r], mean, rtol=1e-8, atol=1e-10)
                np.testing.assert_allclose(state.momentum[layer][r], momentum, rtol=1e-8, atol=1e-10)
                for got, expected in zip(state.statistics[layer], moments, strict=True):
                    np.testing.assert_allclose(got[r], expected, rtol=1e-8, atol=1e-10)


def test_extrinsic_damping_enters_the_mean_step_only():
    plain, damped = (steps(build(extrinsic_damping=e))[0] for e in (0.0, 10.0))
    same = lambda a, b: [torch.equal(p, q) for (_, p), (_, q) in zip(tree.leaves(a), tree.leaves(b), strict=True)]  # noqa: E731
    assert all(same(plain.sampling, damped.sampling)) and all(same(plain.statistics, damped.statistics))
    start = build().init(N, 2, rng()).mean
    for before, free, held in zip(start, plain.mean, damped.mean, strict=True):
        assert 0 < (held - before).norm() < 0.2 * (free - before).norm()


def test_factors_are_renewed_at_their_interval():
    states = steps(build(factor_interval=3), 4)
    factors = [s.sampling.blocks[0].inputs for s in states]
    start = build().init(N, 2, rng())
    assert torch.equal(factors[0], start.sampling.blocks[0].inputs) and torch.equal(factors[1], factors[0])
    assert not torch.equal(factors[2], factors[1]) and torch.equal(factors[3], factors[2])
    moments = [s.statistics[0].inputs for s in states]
    assert all(not torch.equal(a, b) for a, b in zip(moments, moments[1:], strict=False))
    # What is renewed is the factor of the moments at that step.
    fresh, _ = build().structure.factor(states[2].statistics, 0.7 / (N * 0.6))
    assert torch.equal(fresh.blocks[0].inputs, factors[2])


def test_rates_decay_late_in_training():
    late, early = steps(build(), progress=0.5)[0], steps(build(lr=0.02, beta=0.03))[0]
    for (path, a), (_, b) in zip(tree.leaves(late), tree.leaves(early), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, msg=path)


def test_covariance_shrinks_with_the_data_and_grows_with_the_kl_weight():
    def deviation(n, **settings):
        posterior = build(**settings)
        mean, precision, scale = posterior.gaussian(posterior.init(n, 2, rng()))
        return torch.cat([v.flatten() for v in precision.variance()]).mul(scale).mean().sqrt()

    # At the start F is near the identity, which damping of size lambda / (N eta) hardly moves.
    assert deviation(4000) == pytest.approx(float(deviation(1000)) / 2, rel=0.05)
    assert deviation(4000, kl_weight=2.8) == pytest.approx(2 * float(deviation(4000)), rel=0.05)
