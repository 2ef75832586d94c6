"""The table of updates on a GPU."""

import torch

from experiments.benchmarks import updates


def test_single_precision_is_that_of_the_libraries_that_compute(monkeypatch):
    monkeypatch.setattr(updates, "off", lambda *_: float(torch.backends.cudnn.enabled))
    assert updates.compared("map", "one", "cpu") == {"off": 1.0}
