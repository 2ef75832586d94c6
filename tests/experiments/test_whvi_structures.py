"""The experiment on WHVI's structures: parameters counted by hand, and a small run."""

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.whvi_structures import run
from tests.pictures import shares


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    options = ["--datasets", "boston", "--sizes", "boston", "--widths", "64", "--depths", "1,2", "--splits", "2"]
    options += ["--steps", "7", "--size-steps", "7", "--samples", "5", "--out", str(folder)]
    done = CliRunner().invoke(run.main, options, catch_exceptions=False)
    assert done.exit_code == 0
    return folder


def test_structures(results):
    rows = pd.read_csv(results / "structures.csv")
    counts = rows.groupby("method")["parameters"].first()
    # With 13 inputs, D = 16 and 8 blocks: S1, S2, g and biases; then D = 128; then the Gaussian output.
    assert counts["S1HGHS2"] == (128 + 8 * 13 + 2 * 16 + 2 * 128) + (2 * 128 + 2 * 128 + 2 * 128) + 2 * 129
    assert counts["V1HGHS2"] == counts["S1HGHS2"] + 2 * 128
    assert counts["GH"] == 2 * (2 * 128 + 2 * 128) + 2 * 129
    assert abs(counts["tensor-factorised"] / counts["S1HGHS2"] - 1) < 0.05
    assert list(counts.sort_index().index) == sorted(run.STRUCTURES) and len(rows) == 2 * len(run.STRUCTURES)
    rmse = rows.pivot(index="split", columns="method", values="rmse")
    difference = (rmse["GH"] - rmse["S1HGHS2"]).mean()
    line = next(x for x in (results / "table.md").read_text().splitlines() if x.startswith("| GH |"))
    assert f"| {rmse['GH'].mean():.3f} (" in line and f"| {difference:.3f} ± " in line


def test_sizes(results):
    rows = pd.read_csv(results / "sizes.csv")
    assert len(rows) == 2 * 3 * 2 and set(rows["method"]) == set(run.SIZES)
    counts = rows.groupby(["method", "depth", "width"])["parameters"].first()
    assert counts["bbb", 2, 64] == 2 * (14 * 64 + 65 * 64 + 65)
    assert (abs(counts["tensor-factorised"] / counts["S1HGHS2"] - 1) < 0.1).all()
    own = rows[(rows["method"] == "bbb") & (rows["depth"] == 2) & (rows["width"] == 64)]["rmse"]
    assert f"| {own.mean():.3f} ({own.std():.3f}) | {counts['bbb', 2, 64]} |" in (results / "table.md").read_text()
    for i in range(len(run.SIZES)):  # one width
        assert min(shares(results / "sizes.png", f"C{i}", panels=3)) > 0.01
