"""BAIT against covariances of all outputs of all points, written out."""

import dataclasses

import numpy as np
import pytest
import torch

from explore import registry
from explore.inference import predict
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic
from tests.acquisitions.views import P, R, S, outputs_of, view

ALL = pytest.mark.parametrize(
    ("likelihood", "outputs"), [(Gaussian(), 1), (Gaussian(), 2), (Categorical(), 3), (Bernoulli(), 1)]
)


def information(v, out, r):
    """Fisher information of a label about the output at its mean, [P, O, O]."""
    mean = out[r].mean(0)  # [P, O]
    if not v.likelihood.discrete:
        return np.broadcast_to(np.diag(v.noise[r, 0].numpy()), (len(mean), *[mean.shape[1]] * 2))
    p = v.likelihood.mean(torch.as_tensor(mean)[None, None])[0, 0].numpy()
    if mean.shape[1] == 1:
        return (p[:, :1] * p[:, 1:])[..., None]
    return np.einsum("pc,cd->pcd", p, np.eye(p.shape[1])) - np.einsum("pc,pd->pcd", p, p)


def left_over(covariance, fisher, labelled, pool, weight=None):
    """Mean over the pool of tr(I_x Cov f(x)), or of tr(`weight` Cov f(x)), where the labelled points have labels."""
    n, o = fisher.shape[:2]
    told = np.zeros((n * o, n * o))
    for i in labelled:
        told[i * o : (i + 1) * o, i * o : (i + 1) * o] += fisher[i]
    after = covariance @ np.linalg.inv(np.eye(n * o) + told @ covariance)
    blocks = after.reshape(n, o, n, o)
    fisher = fisher if weight is None else [weight] * n
    return np.mean([np.trace(fisher[i] @ blocks[i, :, i]) for i in pool])


@ALL
@pytest.mark.parametrize("chunked", [False, True])
def test_each_point_leaves_least(likelihood, outputs, chunked, monkeypatch):
    if chunked:
        monkeypatch.setattr(predict, "BUDGET", 4 * R * S * 6)
    mask = torch.ones(R, P, dtype=torch.bool)
    mask[1, -1] = False
    v = view(likelihood, outputs, mask=mask)
    choice = registry.acquisition("bait", alike=0.0)(v, 3)
    out = outputs_of(v).numpy()  # [R, S, P, O]
    for r in range(R):
        covariance, fisher = np.atleast_2d(np.cov(out[r].reshape(S, -1).T)), information(v, out, r)
        pool = np.flatnonzero(mask[r]).tolist()
        chosen: list[int] = []
        for step in range(3):
            left = [i for i in pool if i not in chosen]
            before = left_over(covariance, fisher, chosen, pool)
            after = [left_over(covariance, fisher, [*chosen, i], pool) for i in left]
            chosen.append(left[int(np.argmin(after))])
            assert int(choice.indices[r, step]) == chosen[-1]
            np.testing.assert_allclose(choice.scores[r, step], before - min(after), rtol=1e-8)


@pytest.mark.parametrize("likelihood", [Gaussian(), Heteroscedastic()])
def test_variance_reduction_counts_the_variance_of_predictions(likelihood):
    v = view(likelihood, 2)
    found = registry.acquisition("variance-reduction", alike=0.0)(v, 1)
    out = outputs_of(v)
    weight = np.diag([1.0, 0.0 if isinstance(likelihood, Heteroscedastic) else 1.0])
    for r in range(R):
        covariance = np.cov(out[r].numpy().reshape(S, -1).T)
        roots = likelihood.fisher_root(v.noise[r : r + 1], out[r : r + 1].mean(1, keepdim=True))[:, 0, 0]
        fisher = np.einsum("kpo,kpq->poq", *2 * [roots.expand(2, P, 2).numpy()])
        left = [left_over(covariance, fisher, on, range(P), weight) for on in ([], *([i] for i in range(P)))]
        assert int(found.indices[r, 0]) == int(np.argmin(left[1:]))
        np.testing.assert_allclose(found.scores[r, 0], left[0] - min(left[1:]), rtol=1e-8)


@ALL
def test_pending_points_and_targets(likelihood, outputs):
    v = view(likelihood, outputs)
    few = dataclasses.replace(
        v, candidates=v.x[:, :6], mask=v.mask[:, :6], uniform=v.uniform[:, :6], pending=v.x[:, 6:8], targets=v.x[:, 7:]
    )
    choice, out = registry.acquisition("bait", alike=0.0)(few, 1), outputs_of(v).numpy()
    for r in range(R):
        covariance, fisher = np.atleast_2d(np.cov(out[r].reshape(S, -1).T)), information(v, out, r)
        after = [left_over(covariance, fisher, [6, 7, i], range(7, P)) for i in range(6)]
        assert int(choice.indices[r, 0]) == int(np.argmin(after))
        before = left_over(covariance, fisher, [6, 7], range(7, P))
        np.testing.assert_allclose(choice.scores[r, 0], before - min(after), rtol=1e-8)


@ALL
def test_copies_of_what_is_chosen_come_last(likelihood, outputs):
    v = view(likelihood, outputs)
    first = int(registry.acquisition("bait")(v, 1).indices[0, 0])
    x = v.x.clone()
    x[:, :7] = x[:, first : first + 1]  # most of the pool is one point
    choice = registry.acquisition("bait")(dataclasses.replace(v, candidates=x), 4).indices[0].tolist()
    assert len({0, 1, 2, 3, 4, 5, 6, first} & set(choice)) == 1
