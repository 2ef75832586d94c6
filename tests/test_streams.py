"""Work side by side."""

from functools import partial

import pytest
import torch

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.execution.parallel import side_by_side
from explore.inference.structures import base as structures
from explore.nets.likelihoods import Categorical
from explore.nets.net import Net
from explore.nets.zoo import lenet5
from explore.posteriors.noisy_kfac import NoisyKFAC


def test_elsewhere_one_after_the_other():
    done: list[int] = []

    def work(i: int) -> int:
        done.append(i)
        return -i

    assert side_by_side([partial(work, i) for i in range(3)], torch.device("cpu")) == [0, -1, -2]
    assert done == [0, 1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_has_the_numbers_of_one_after_the_other_however_memory_is_used_again():
    x = [torch.randn(n, n, device="cuda", dtype=torch.float64) for n in (300, 20, 500, 7) * 5]
    expected = [m @ m.mT @ m for m in x]
    for _ in range(20):
        found = side_by_side([partial(torch.linalg.multi_dot, [m, m.mT, m]) for m in x], x[0].device)
        sums = [f.sum() for f in found]
        del found
        scratch = torch.full((2000, 2000), torch.nan, device="cuda")  # in what memory has become free
        for total, e in zip(sums, expected, strict=True):
            torch.testing.assert_close(total, e.sum(), rtol=1e-9, atol=1e-6)
        del scratch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_factorises_layers_side_by_side():
    posterior = NoisyKFAC(net=Net(lenet5()), likelihood=Categorical())
    rng = Rng(0, "cuda", torch.float64)
    state = posterior.init(1000, 1, rng)
    for _ in range(3):
        state, _ = posterior.update(state, Batch(rng.normal(1, 8, 3, 32, 32), (10 * rng.uniform(1, 8)).long()), rng)
    damping = posterior.gamma(state.common)
    for _ in range(5):
        ours, ok = posterior.structure.factor(state.statistics, damping)
        theirs, _ = structures.PerLayer.factor(posterior.structure, state.statistics, damping)
        assert ok.all()
        for (_, a), (_, b) in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
            torch.testing.assert_close(a, b)
