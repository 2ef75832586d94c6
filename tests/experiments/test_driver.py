"""What the experiments share."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import driver

TABLES = [path for path in Path(driver.__file__).parent.rglob("*.csv") if path.name != "paper.csv"]


def test_rows_of_the_same_key_are_replaced_and_others_kept(tmp_path):
    path = tmp_path / "new" / "table.csv"
    rows = pd.DataFrame({"name": ["b", "b", "a", "c"], "value": [1 / 3, 2.0, 1e-9, float("nan")], "n": [1, 2, 3, 4]})
    found = driver.merge(path, rows, ["name"], "%.3g")
    assert path.read_text() == "name,value,n\nb,0.333,1\nb,2,2\na,1e-09,3\nc,,4\n"
    pd.testing.assert_frame_equal(found, pd.read_csv(path))
    # b has one row instead of two, in its place; d is new, and so is a column that the others have nothing in.
    new = pd.DataFrame({"more": ["x", "y"], "name": ["d", "b"], "value": [0.5, 0.25], "n": [5, 6]})
    driver.merge(path, new, ["name"])
    assert path.read_text() == "name,value,n,more\nb,0.25,6,y\na,1e-09,3,\nc,,4,\nd,0.5,5,x\n"
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


def test_a_command_is_run_in_a_process_of_its_own():
    found: Any = driver.explore("list", "posteriors")
    assert "vogn" in [row["name"] for row in found]


def test_a_run_is_known_by_its_step(tmp_path):
    path = tmp_path / "table.csv"
    assert not driver.recorded(path, ["lr", "seed"], (1.0, 0))
    steps = [1.0, 0.0003, 1e-5, 1 / 3]
    driver.merge(path, pd.DataFrame({"lr": steps, "seed": 0, "error": 0.5}), ["lr", "seed"])
    assert all(driver.recorded(path, ["lr", "seed"], (step, 0)) for step in steps)
    assert not driver.recorded(path, ["lr", "seed"], (1.0, 1))
    assert not driver.recorded(path, ["lr", "seed"], (3.0, 0))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: "/".join(path.parts[-3:]))
def test_what_a_published_table_has_stays_to_the_letter(path, tmp_path):
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    columns = [str(name) for name in pd.read_csv(path)]
    driver.merge(copy, pd.DataFrame([dict.fromkeys(columns, "new")]), columns[:1])
    assert copy.read_text() == path.read_text() + ",".join(["new"] * len(columns)) + "\n"
