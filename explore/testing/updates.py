"""The check that each replica of a fit learns what it learns alone."""

import functools
from collections.abc import Callable
from typing import Any

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.testing.oracles import Lone
from explore.testing.subject import N, R, Subject, data, seeded, start
from explore.testing.suite import assert_close
from explore.testing.values import POSTERIORS

CACHED = ("sampling", "step_factor")  # matrix factors, which are not unique (eigenvectors of equal eigenvalues)


@POSTERIORS.check("mlp", "norm-adam")
def three_replicas_equal_lone_runs(subject: Subject, net: str) -> None:
    # Kernels round differently with and without a batch, by 1e-15 per operation, which 12 updates amplify.
    posterior = subject.build(**subject.variant(net))
    batch = data(posterior.net)
    together = _run(posterior, batch, R, Rng)
    for r in (0, R - 1):
        part = slice(r, r + 1)
        alone = _run(posterior, tree.part(batch, part), 1, functools.partial(Lone, r, R))
        expect_equal_states(tree.part(together, part), alone, f"replica {r} differs from a run of this replica alone:")


def _run(posterior: Any, batch: Batch, replicas: int, kind: Callable[..., Rng]) -> tuple[State, Any]:
    """Return the state after 12 updates with increasing progress, and samples; `kind` makes the random streams."""
    rng = seeded(kind=kind)
    state = start(posterior, N, replicas, rng)
    for i in range(12):
        state, _ = posterior.update(state, batch, rng, i / 12)
    return state, posterior.sample(state, 3, seeded(9, kind=kind))


def expect_equal_states(actual: tuple[State, Any], expected: tuple[State, Any], why: str) -> None:
    """Assert that two pairs (state, samples) agree. Cached matrix factors are compared through the samples only."""
    for (path, a), (_, b) in zip(*map(tree.leaves, (actual[0], expected[0])), strict=True):
        if path.partition(".")[0] not in CACHED:
            assert_close(a, b, f"{why} {path}", rtol=1e-9)
    assert_close(actual[1], expected[1], f"{why} samples", rtol=1e-9)
