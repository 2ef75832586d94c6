"""The benchmark of updates, on a processor."""

import pandas as pd
import torch
from click.testing import CliRunner

from experiments.benchmarks import updates


def test_the_same_numbers_in_every_precision():
    one, two = (updates.Shared(3, "cpu", dtype) for dtype in (torch.float32, torch.float64))
    for draw in (lambda r: r.normal(2, 3), lambda r: r.uniform(2, 3), lambda r: r.gamma(r.tensor([[2.0, 40.0]]))):
        single, double = draw(one), draw(two)
        assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6)


def test_what_is_off_is_seen():
    assert updates.off("noisy-kfac", "small", "cpu") < 1e-5


def test_single_precision_is_that_of_the_libraries_that_compute(monkeypatch):
    monkeypatch.setattr(updates, "off", lambda *_: float(torch.backends.cudnn.enabled))
    assert updates.compared("map", "one", "cpu") == {"off": 1.0}


def test_it_writes_a_table(tmp_path):
    options = ["--case", "small", "--posterior", "vogn", "--updates", "1", "--repeats", "1"]
    done = CliRunner().invoke(updates.main, [*options, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "updates.csv")
    assert found.method.tolist() == ["vogn"] and (found.off < 1e-4).all()
    assert (found.seconds > 0).all()
    assert "| vogn | " in (tmp_path / "updates.md").read_text()


def test_times_over_those_of_sgd():
    row = {"case": "resnet", "refused": ""}
    rows = [
        row | {"method": updates.SGD, "seconds": 0.1, "bfloat16": 0.05},
        row | {"method": "a", "seconds": 0.2, "bfloat16": 0.2, "off": 1e-6},
        row | {"method": "b", "refused": "no convolutions"},
    ]
    lines = updates.table(pd.DataFrame(rows)).splitlines()
    assert lines[0] == "## ResNet-18"
    assert "| a | 200 | 200 | 2.00 | 4.00 | 1.0e-06 |  |" in lines
    assert "| b |  |  |  |  |  | no convolutions |" in lines
