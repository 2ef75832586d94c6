"""experiments/absent: the generated tables have the shapes of the sets, and the commands accept them."""

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.absent import run
from experiments.logistic_regression.run import main as logistic
from explore.cli.main import main


@pytest.mark.parametrize("name", ["year", *(pytest.param(n, marks=pytest.mark.slow) for n in ("usps-3-5", "drive"))])
def test_commands_accept_generated_tables(tmp_path, name):
    own = run.SETS[name]
    path = run.generated(name, tmp_path, rows=250)
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    assert table.shape == (250, own.features + 1)
    assert table.y.nunique() == (own.classes or 250)
    arguments = run.called(name, path, tmp_path / "out", short=True)
    module, *rest = arguments[2:]
    command, rest = (main, rest) if module == "explore.cli" else (logistic, [*rest, "--methods", "slang-1"])
    done = CliRunner().invoke(command, rest, catch_exceptions=False)
    assert done.exit_code == 0, done.output
