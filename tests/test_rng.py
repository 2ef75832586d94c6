"""Random streams: reproducible, independent of each other, and common to the arms of a comparison."""

import numpy as np
import pytest
import torch
from scipy import stats

from explore.core.errors import InputError
from explore.core.rng import STREAMS, Rng


def test_a_device_that_is_not_here_is_refused():
    for device in ("abacus", "cuda:250"):
        with pytest.raises(InputError, match=f"device '{device}' is not available; allowed: cpu"):
            Rng(0, device)


def test_a_stream_depends_on_seed_name_and_index_alone():
    root = Rng(3)
    first = root.stream("fit", 7).normal(2, 5)
    root.normal(100)  # what others draw
    root.stream("acquire").normal(100)
    assert torch.equal(root.stream("fit", 7).normal(2, 5), first)
    assert torch.equal(root.stream("init").stream("fit", 7).normal(2, 5), first)
    others = [Rng(4).stream("fit", 7), root.stream("fit", 8), root.stream("fit"), root.stream("fit", 7, 0), Rng(3)]
    others += [root.stream(name, 7) for name in STREAMS if name != "fit"]
    drawn = [rng.normal(2, 5) for rng in others]
    assert not any(torch.equal(a, first) for a in drawn)


def test_streams_are_uncorrelated():
    n = 10000
    drawn = torch.stack([Rng(0).stream(name, i).normal(n) for name in STREAMS for i in range(3)])
    correlation = torch.corrcoef(drawn) - torch.eye(len(drawn))
    assert correlation.abs().max() < 5 / n**0.5


def test_names_of_streams_keep_their_keys():
    # A stream's key is its position: a name moved or inserted would change every published run.
    assert STREAMS[:8] == ("split", "init", "fit", "acquire", "test", "env", "policy", "toy")
    with pytest.raises(InputError, match="unknown random stream 'fitt'; allowed: acquire, calibrate, env, fit"):
        Rng(0).stream("fitt")


def test_global_generators_are_untouched():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    rng = Rng(0)
    rng.gamma(torch.ones(2, 3))
    rng.permutation(2, 5)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # type: ignore[index]


def test_arms_get_the_same_numbers():
    rng, alone = Rng(0, arms=3).stream("fit"), Rng(0).stream("fit")
    for draw in (lambda r, n: r.normal(n, 4), lambda r, n: r.uniform(n, 4), lambda r, n: r.permutation(n, 4)):
        numbers = draw(rng, 6)
        assert torch.equal(numbers, draw(alone, 2).repeat(3, 1))
        assert not torch.equal(numbers[0], numbers[1])
    gamma = rng.gamma(torch.full((6, 5), 2.0))
    assert torch.equal(gamma[:2], gamma[4:]) and not torch.equal(gamma[0], gamma[1])
    with pytest.raises(ValueError, match="4 replicas cannot be split into 3 equal arms"):
        rng.normal(4, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_follow_their_distributions(dtype):
    rng = Rng(1, dtype=dtype)
    # A Kolmogorov-Smirnov p value below 1e-4 happens by chance in one of 10000 seeds; this seed is fixed.
    for numbers, law in ((rng.normal(20000), "norm"), (rng.uniform(20000), "uniform")):
        assert numbers.dtype == dtype and stats.kstest(numbers.double().numpy(), law).pvalue > 1e-4


@pytest.mark.parametrize("shape", [1.0, 1.5, 6.0, 300.0])
def test_gamma(shape):
    numbers = Rng(2, dtype=torch.float64).gamma(torch.full((4, 5000), shape, dtype=torch.float64))
    assert (numbers > 0).all()
    assert stats.kstest(numbers.flatten().numpy(), "gamma", args=(shape,)).pvalue > 1e-4


def test_permutation():
    order = Rng(0).permutation(50, 8)
    assert torch.equal(order.sort(1).values, torch.arange(8).expand(50, 8))
    assert len({tuple(row) for row in order.tolist()}) > 45


def test_tensor():
    rng = Rng(0, dtype=torch.float64)
    assert rng.tensor(np.zeros(2, np.float32)).dtype == torch.float64
    assert rng.tensor(np.zeros(2, np.int64)).dtype == torch.int64
    assert rng.tensor(torch.zeros(2, dtype=torch.bool)).dtype == torch.bool


@pytest.mark.parametrize("seed", [-1, 2**63, 10**400])
def test_a_seed_that_could_not_be_saved(seed):
    with pytest.raises(InputError, match="the seed is .*; it must be a whole number from 0 to 9223372036854775807"):
        Rng(seed)
    assert Rng(2**63 - 1).stream("fit").uniform(1).isfinite().all()
