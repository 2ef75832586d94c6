import json

import numpy as np
import pandas as pd
import pytest

PARTS = (40, 60, 20)


@pytest.fixture
def pool(tmp_path):
    """A folder of three parts and one file with the same rows, of which nine are measured."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 3)), columns=["a", "b", "c"]).assign(kind=rng.choice(["u", "v"], 120))
    frame["y"] = np.nan
    measured = rng.choice(120, 9, replace=False)
    frame.loc[measured, "y"] = frame["a"][measured] + 0.1 * rng.normal(size=9)
    (tmp_path / "pool").mkdir()
    for i, rows in enumerate(np.split(np.arange(120), np.cumsum(PARTS)[:-1])):
        frame.loc[rows].to_parquet(tmp_path / "pool" / f"{i}.parquet", index=False)
    frame.to_parquet(tmp_path / "whole.parquet", index=False)
    return tmp_path


@pytest.fixture
def suggest(explore, pool):
    def succeed(name, *options):
        result = explore("suggest", pool / name, "--target", "y", "--json", "--out", pool / f"{name}.csv", *options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return succeed


def row(line):
    """The index in the whole table of a row of a part."""
    number, _, part = line.partition(" of ")
    return sum(PARTS[: int(part[0])]) + int(number)


def test_rows_of_a_folder_are_those_of_one_file(suggest, pool):
    for labels in (False, True):
        of_parts, whole = (
            suggest(name, "--batch", 4, *(("--labels", pool / f"{name}.csv") if labels else ()))
            for name in ("pool", "whole.parquet")
        )
        assert [row(r["id"]) for r in of_parts["rows"]] == [r["line"] for r in whole["rows"]]
        for key in ("mean", "low", "high", "score", "reason", "rank"):
            assert [r[key] for r in of_parts["rows"]] == [r[key] for r in whole["rows"]]
        assert [of_parts[key] for key in ("pool", "measured", "measures")] == [
            whole[key] for key in ("pool", "measured", "measures")
        ]
        for name in ("pool", "whole.parquet"):
            answers = pd.read_csv(pool / f"{name}.csv")
            answers.assign(y=answers.a).to_csv(pool / f"{name}.csv", index=False)
    assert of_parts["measured"] == 13 and of_parts["pool"] == 103
    written, names = pd.read_csv(pool / "pool.csv"), ["a", "b", "c", "kind"]
    frame = pd.read_parquet(pool / "whole.parquet").loc[[row(name) - 1 for name in written["_id"]], names]
    pd.testing.assert_frame_equal(written[names], frame.reset_index(drop=True), check_exact=True)


def test_operations_name_rows_of_parts(suggest, explore, pool):
    first = suggest("pool", "--batch", 2)["rows"][0]["id"]
    assert suggest("pool", "--skip", first)["skipped"] == [first]
    again = suggest("pool", "--batch", 3)
    assert first not in {r["id"] for r in (*again["rows"], *again["pending"])} and again["pool"] == 120 - 9 - 1 - 3
    wrong = explore("suggest", pool / "pool", "--skip", "41 of 0.parquet")
    assert wrong.exit_code == 2 and "no row '41 of 0.parquet'" in wrong.stderr
    refused = explore("suggest", pool / "pool", "--id", "kind")
    assert refused.exit_code == 2 and "rows of the folder" in refused.stderr


def test_a_measurement_in_a_part_counts(suggest, pool):
    chosen = suggest("pool", "--batch", 1)["rows"][0]["id"]
    number, _, part = chosen.partition(" of ")
    frame = pd.read_parquet(pool / "pool" / part)
    frame.loc[int(number) - 1, "y"] = 0.5
    frame.to_parquet(pool / "pool" / part, index=False)
    later = suggest("pool", "--status")
    assert later["measured"] == 10 and not later["pending"]
    assert f"New measurements from batch 2: row {chosen}." in later["notes"]


def test_predictions_of_a_folder_are_those_of_one_file(suggest, explore, pool):
    suggest("pool", "--batch", 1)
    run = pool / "pool.explore"
    predict = ("predict", run, "--device", "cpu")
    assert explore(*predict, pool / "whole.parquet", "--out", pool / "one.parquet").exit_code == 0
    result = explore(*predict, pool / "pool", "--out", pool / "predicted")
    assert result.exit_code == 0 and f"Wrote predictions for 120 rows to {pool / 'predicted'}" in result.stdout
    parts = pd.concat([pd.read_parquet(path) for path in sorted((pool / "predicted").iterdir())], ignore_index=True)
    pd.testing.assert_frame_equal(parts, pd.read_parquet(pool / "one.parquet"))
    for out in ((), ("--out", pool / "pool"), ("--out", pool / "one.parquet")):
        refused = explore(*predict, pool / "pool", *out)
        assert refused.exit_code == 2 and "Pass --out with another folder" in refused.stderr
