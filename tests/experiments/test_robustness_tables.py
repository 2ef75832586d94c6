"""Random tables, most of them spoilt: the reader gives a table or one sentence."""

import numpy as np
import pytest
from click.testing import CliRunner

from experiments.robustness import tables
from explore.core.errors import InputError
from explore.data import load_table


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_reader_gives_a_table_or_a_sentence(tmp_path, task):
    read, refused = 0, set()
    for seed in range(10_000, 10_250):
        name, content, options = tables.table(seed)
        path = tmp_path / name
        path.write_bytes(content)
        try:
            found = load_table(path, "y", ["id"], task, "id" if "--id" in options else None).dataset
        except InputError as error:
            assert str(error).isprintable() and len(str(error)) < 1000
            refused.add(str(error).replace(str(path), "")[:20])
            continue
        read += 1
        n = len(found.x)
        assert np.isfinite(found.x).all() and np.isfinite(found.y).all() and len(found.y) == len(found.lines) == n > 0
        assert list(found.lines) == sorted(set(found.lines)) and len(found.ids) in (0, n)
    assert read > 20 and len(refused) > 20


def test_the_script_tells_outcomes_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = "".join(f"{i % 7},{i}\n" for i in range(20))
    made: dict[int, tuple[str, bytes, list[str]]] = {
        0: ("a.csv", f"a,y\n{good}".encode(), []),
        1: ("b.csv", b"a,y\n1,x\n", []),
        3: ("d.csv", f"a,y\n{good}".encode(), []),
    }
    monkeypatch.setattr(tables, "table", made.__getitem__)
    assert [tables.outcome(i)[0] for i in range(2)] == ["trained", "refused"]
    monkeypatch.setattr("explore.cli.start.run", lambda *_: 1 / 0)
    done = CliRunner().invoke(tables.main, ["--tables", "1", "--seed", "3", "--out", str(tmp_path)])
    assert "table 3: traceback" in done.output and "ZeroDivisionError" in done.output
    assert "| traceback | 1 |" in (tmp_path / "tables.md").read_text()
