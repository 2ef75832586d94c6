"""The benchmark of an epoch of LeNet-5."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks import lenet5, lenet5_ours, lenet5_peers
from explore.nets.zoo import lenet5 as network

ROWS = pd.DataFrame(
    [
        ("Adam", 0.001, 0, 0.02, -0.1, 0.01, 2.0),
        ("Adam", 0.003, 0, 0.01, -0.2, 0.01, 2.0),
        ("vogn", 0.01, 0, 0.03, -0.3, 0.02, 4.0),
    ],
    columns=["method", "lr", "seed", "error", "log_likelihood", "calibration_error", "seconds"],
)


def test_the_step_with_the_best_log_likelihood_is_taken():
    assert lenet5.best(ROWS) == {"Adam": 0.001, "vogn": 0.01}


def test_seconds_are_put_beside_adams():
    assert "| vogn | 0.01 | 4.0 | 2.00 |" in lenet5.table(ROWS)


def test_the_nets_are_the_same():
    ours, theirs = network(in_channels=1, size=28), lenet5_peers.lenet5()
    assert [type(m) for m in ours.modules()] == [type(m) for m in theirs.modules()]
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]


@pytest.mark.parametrize(
    ("script", "method"), [(lenet5_ours, "noisy-kfac"), (lenet5_ours, "bbb"), (lenet5_peers, "Adam")]
)
def test_a_fit(script, method, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 1, 28, 28), np.uint8)
    np.savez(tmp_path / "data.npz", x=x[:30], y=np.arange(30) % 10, test_x=x[30:])
    out = tmp_path / "probabilities.npy"
    monkeypatch.setattr(sys, "argv", ["", method, "0.001", "0", str(tmp_path / "data.npz"), str(out)])
    script.main()
    assert json.loads(capsys.readouterr().out)["seconds"] > 0
    found = np.load(out)
    assert found.shape == (10, 10) and np.allclose(found.sum(1), 1, atol=1e-4)
