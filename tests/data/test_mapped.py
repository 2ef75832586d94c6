"""Parquet files as memory maps."""

import numpy as np
import pandas as pd
import pytest

from explore.core.errors import InputError
from explore.data import load_table, map_parquet, table

FRAME = pd.DataFrame({
    "solvent": ["water", "ethanol", "water", "ethanol", "water", "ethanol"] * 4,
    "heat": [20.5, 35.0, None, 50.0, 1e9, -3.0] * 4,
    "yield": [float(i) for i in range(24)],
})  # fmt: skip


@pytest.mark.parametrize("rows", [5, 24, 100])
def test_the_map_holds_what_the_table_does(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(table, "ROWS", rows)
    FRAME.to_parquet(tmp_path / "pool.parquet")
    loaded = load_table(FRAME, "yield")
    x, notes = map_parquet(tmp_path / "pool.parquet", loaded.schema, tmp_path / "pool.npy")
    assert isinstance(x, np.memmap) and not x.flags.writeable
    assert np.array_equal(x, loaded.dataset.x)
    assert len(notes) == len({i // rows for i in (2, 8, 14, 20)}) and notes[0].startswith(
        f"Rows 1 to {min(rows, 24)}: Column 'heat': "
    )


def test_what_is_no_pool_is_refused(tmp_path):
    schema = load_table(FRAME, "yield").schema
    (tmp_path / "text").write_text("a,b")
    with pytest.raises(InputError, match="as a Parquet file"):
        map_parquet(tmp_path / "text", schema, tmp_path / "pool.npy")
    with pytest.raises(InputError, match="as a Parquet file"):
        map_parquet(tmp_path / "missing", schema, tmp_path / "pool.npy")
    for frame, message in [
        (FRAME.drop(columns="heat"), "no column 'heat'"),
        (FRAME[:0], "has no row"),
        (FRAME.assign(heat="hot"), "heat"),
    ]:
        frame.to_parquet(tmp_path / "pool.parquet")
        with pytest.raises(InputError, match=message):
            map_parquet(tmp_path / "pool.parquet", schema, tmp_path / "pool.npy")
