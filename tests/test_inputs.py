"""Inputs of any type and size: memory maps, and pools in little memory."""

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference import predict
from explore.learning.learner import ActiveLearner
from explore.learning.scaling import RawInputs, StandardisedInputs, Standardiser
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.bbb import BBB

X = 1e9 + 100 * np.random.default_rng(0).standard_normal((90, 3))
POSTERIOR = BBB(net=Net(mlp(3, [4], 1)), likelihood=Gaussian(), epochs=3)


def mapped(folder, x, mode):
    np.save(folder / "pool.npy", x)
    return np.load(folder / "pool.npy", mmap_mode=mode)


@pytest.mark.parametrize("rule", ["max-variance", "information-gain", "epig", "random"])
@pytest.mark.parametrize("standardise", ["labelled", "pool", "none"])
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_memory_map_is_the_same_pool_as_an_array(tmp_path, rule, standardise, mode, monkeypatch):
    x = X if standardise != "none" else X - 1e9
    for budget in ("BUDGET", "CACHE"):  # several chunks
        monkeypatch.setattr(predict, budget, 2**11)
    given = [x, mapped(tmp_path, x, mode)]
    learners = [ActiveLearner(POSTERIOR, pool, [rule], standardise=standardise, samples=8) for pool in given]
    chosen = []
    for learner in learners:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learner.tell(range(5), np.arange(5.0))
            chosen.append(learner.ask(1))
    assert torch.equal(chosen[0].indices, chosen[1].indices) and torch.equal(chosen[0].scores, chosen[1].scores)
    means = [learner.predict(pool).mean for learner, pool in zip(learners, given, strict=True)]
    assert torch.equal(*means)
    learners[1].load_state_dict(learners[0].state_dict())


def test_a_memory_map_is_not_read_into_memory(tmp_path):
    pool = mapped(tmp_path, X.astype(np.float32), "r")
    learner = ActiveLearner(POSTERIOR, pool)
    assert learner.x.data_ptr() == pool.ctypes.data and learner.x.dtype == torch.float32
    bad = X.copy()
    bad[-1, -1] = np.nan
    with pytest.raises(InputError, match="an input is not a finite number"):
        ActiveLearner(POSTERIOR, mapped(tmp_path, bad, "r"))


@pytest.mark.parametrize("shape", [(9, 3), (9, 2, 4, 5)], ids=["features", "images"])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.uint8])
def test_standardised_inputs_stand_for_a_tensor(shape, kind):
    rng = Rng(0)
    x = (50 * np.random.default_rng(1).random(shape)).astype(kind)
    points = torch.stack([torch.arange(8), torch.arange(8) + 1])
    wide = torch.as_tensor(x)[points].to(torch.float64 if len(shape) == 2 else torch.float32)
    flat = Standardiser.fit(wide.double()) if len(shape) == 2 else Standardiser(torch.tensor(3.0), torch.tensor(2.0))
    whole, lazy = flat.apply(wide, rng.dtype), StandardisedInputs(RawInputs(x, rng), points, flat, rng.dtype)
    assert isinstance(lazy, predict.Inputs) and lazy.shape == whole.shape
    rows, chosen = torch.tensor([[0], [1]]), torch.tensor([[7, 2], [0, 0]])
    keys: list[Any] = [(slice(None), slice(None)), (slice(None), slice(2, 5)), (rows, chosen)]
    for key in keys:
        assert torch.equal(lazy[key], whole[key]) and lazy[key].dtype == rng.dtype


SCRIPT = """
import resource, sys
import numpy as np
import explore

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

x = np.random.default_rng(0).standard_normal((20_000, 8)).astype(np.float32)
posterior = explore.posterior("bbb", explore.Net(explore.mlp(8, [50], 1)), explore.Gaussian(), epochs=3)
learner = explore.ActiveLearner(posterior, x, ["max-variance"])
learner.tell(range(5), np.zeros(5))
learner.fitted
before = peak()
learner.ask(1)
learner.predict(x)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_a_large_pool_takes_little_memory():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100  # MiB; kept between freed chunks, results of this pool took 400
