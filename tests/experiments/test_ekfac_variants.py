"""The experiment with noisy EK-FAC's restarts: its table by hand, and a small run that is not repeated."""

import pandas as pd
from click.testing import CliRunner

from experiments.ekfac_variants import run


def test_table_is_paired_by_split():
    rows = [
        ("boston", "kfac", 3, 1, 2.0), ("boston", "kfac", 3, 2, 4.0),
        ("boston", "code", 3, 2, 3.5), ("boston", "code", 3, 1, 1.0),
    ]  # fmt: skip
    runs = pd.DataFrame(rows, columns=["dataset", "variant", "epochs", "split", "rmse"]).assign(splits=2)
    text = run.table(runs.assign(log_likelihood=-runs["rmse"], coverage_95=0.9))
    assert "| kfac | 3.000 ± 1.000 |\n| code | 2.250 ± 1.250 |\n| paper: noisy K-FAC | 2.742 ± .015 |" in text
    assert (
        "**RMSE − that of `kfac`, 3 epochs, 2 splits**\n\n| variant | boston |\n|---|---|\n| code | -0.750 ± 0.250 |"
        in text
    )


def test_run(tmp_path):
    options = ["--datasets", "yacht", "--epochs", "1", "--splits", "2", "--out", str(tmp_path)]
    for variants in ("kfac,code", "kfac,code,step"):
        done = CliRunner().invoke(run.main, [*options, "--variants", variants], catch_exceptions=False)
        assert done.exit_code == 0
    assert done.output.startswith("yacht step 1 2, rmse ")  # what is there is not run again
    rows = pd.read_csv(tmp_path / "runs.csv")
    assert rows["variant"].tolist() == ["kfac"] * 2 + ["code"] * 2 + ["step"] * 2
    assert rows.groupby("variant")["rmse"].mean().nunique() == 3
    assert "| step | " in (tmp_path / "table.md").read_text()
