"""The log: what is appended is there, and what is not whole is not."""

import errno
import json
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from explore.campaign import log
from explore.campaign.log import Log
from explore.core.errors import Failure, InputError

FIRST: list[dict[str, Any]] = [
    {"event": "label", "id": "a", "values": {"y": [0.1 + 0.2, 1e-300]}},
    {"event": "skip", "id": 'b"},\nÄ\u2028'},
]
SECOND: list[dict[str, Any]] = [
    {"event": "suggest", "id": name, "values": {}, "cells": {"sum": "0123456789abcdef"}} for name in "cde"
]


def write(folder, *batches):
    one = Log(folder)
    for batch in batches:
        one.append(batch)
    one.close()
    return one.path


def events(folder, dry=False):
    one = Log(folder, dry)
    one.close()
    return one.events, " ".join(one.notes)


def snapshot(folder):
    """The files of a campaign."""
    return {path: path.read_bytes() for path in (folder / log.NAME, folder / log.HEAD)}


def restore(files):
    for path, content in files.items():
        path.write_bytes(content)


def test_what_was_appended_comes_back(tmp_path):
    path = write(tmp_path / "a" / "b", FIRST, [], SECOND)
    found, cut = events(path.parent)
    assert not cut
    kept = [{k: e[k] for k in given} for e, given in zip(found, FIRST + SECOND, strict=True)]
    assert kept == FIRST + SECOND
    assert [(e["batch"], e["left"]) for e in found] == [(1, 1), (1, 0), (2, 2), (2, 1), (2, 0)]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line.keys() >= {"event", "id", "values", "time", "batch"} for line in lines)
    assert all(line["time"].endswith("+00:00") for line in lines)


def test_killed_at_every_byte(tmp_path):
    path = write(tmp_path, FIRST)
    before, old = snapshot(tmp_path), events(tmp_path)[0]
    write(tmp_path, SECOND)
    after, new = snapshot(tmp_path), events(tmp_path)[0]
    start, whole = before[path], after[path]
    for size in [*range(len(start), len(whole), 7), *range(len(whole) - 12, len(whole) + 1)]:
        restore(before | {path: whole[:size]})  # campaign.json is written after the log
        found, cut = events(tmp_path, dry=True)
        assert path.read_bytes() == whole[:size]
        assert events(tmp_path) == (found, cut)
        assert found == (new if size >= len(whole) - 1 else old)  # but for its last byte, it is whole
        assert bool(cut) == (len(start) < size < len(whole) - 1)
        assert snapshot(tmp_path) == (after if size >= len(whole) - 1 else before)
        write(tmp_path, SECOND)
        again, cut = events(tmp_path)
        assert [e["id"] for e in again] == [e["id"] for e in found] + list("cde") and not cut


def test_killed_at_every_byte_of_the_first(tmp_path):
    path = write(tmp_path, FIRST)
    whole = path.read_bytes()
    saved = log.read_head(tmp_path)
    assert saved is not None
    start = log.Head(saved.id, 0, saved.id)
    for size in range(0, len(whole) - 1, 7):
        log.write_head(tmp_path, start)
        path.write_bytes(whole[:size])
        assert events(tmp_path)[0] == []
    path.unlink()
    assert events(tmp_path) == ([], "")


def test_a_log_that_is_not_all_of_the_campaigns_is_refused(tmp_path):
    """Deleted, emptied, cut anywhere, an old copy, or the log of another campaign or of a copy of the folder."""
    folder, other = tmp_path / "a", tmp_path / "b"
    path = write(folder, FIRST)
    old = snapshot(folder)
    shutil.copytree(folder, other)
    write(other, SECOND[:1])
    write(folder, SECOND)
    whole = path.read_bytes()
    path.unlink()
    missing = r"has \d of the 5 entries that were written: .* Restore .* from a backup, or move it away to start over"
    with pytest.raises(InputError, match=missing):
        events(folder)
    for size in [*range(0, len(whole), 9), len(whole) - 2]:
        path.write_bytes(whole[:size])
        for dry in (True, False):
            with pytest.raises(InputError, match=missing):
                events(folder, dry)
        assert path.read_bytes() == whole[:size]
    for strange in (old[path], snapshot(other)[other / log.NAME]):
        path.write_bytes(strange)
        with pytest.raises(InputError, match="has [23] of the 5 entries"):
            events(folder)
    write(other, SECOND)
    path.write_bytes((other / log.NAME).read_bytes())
    with pytest.raises(InputError, match="campaign.json belong to different campaigns. Restore"):
        events(folder)
    path.write_bytes(write(tmp_path / "c", FIRST, SECOND).read_bytes())
    with pytest.raises(InputError, match="line 1: it was damaged .*, or it belongs to another campaign. Restore"):
        events(folder)
    path.write_bytes(whole)
    assert len(events(folder)[0]) == 5


def test_a_campaign_without_its_head(tmp_path):
    """Where the head was removed, nothing says that the log is whole."""
    path = write(tmp_path, FIRST)
    (tmp_path / log.HEAD).unlink()
    missing = r"campaign.json is missing, but .* belongs to a started campaign. Restore"
    for dry in (True, False):
        with pytest.raises(InputError, match=missing):
            events(tmp_path, dry)
    path.unlink()
    (tmp_path / "config.json").write_text("{}")
    for dry in (True, False):
        with pytest.raises(InputError, match=missing):
            events(tmp_path, dry)
    (tmp_path / log.HEAD).write_text("[" * 10**5)
    with pytest.raises(InputError, match=r"campaign.json is damaged .*. Restore"):
        events(tmp_path)


def test_zeros_where_a_power_cut_left_them(tmp_path):
    path = write(tmp_path, FIRST)
    old = events(tmp_path)[0]
    path.write_bytes(path.read_bytes() + bytes(100))
    found, cut = events(tmp_path)
    assert found == old and cut == f"Discarded an incomplete entry at the end of {path} (the last run was interrupted)."


def test_no_bit_can_flip_unnoticed(tmp_path):
    path = write(tmp_path, FIRST, SECOND)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    ends = [8 * i + b for i, byte in enumerate(whole) if byte == 10 for b in range(8)]
    for bit in [*rng.integers(8 * len(whole), size=600).tolist(), *ends]:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        line = whole[: bit // 8].count(b"\n") + 1
        with pytest.raises(InputError, match=rf"log.jsonl is inconsistent at line {line}: it was damaged or edited"):
            events(tmp_path)


def test_no_line_can_be_left_out_moved_or_edited(tmp_path):
    path = write(tmp_path, FIRST, SECOND)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = [[*lines[:i], *lines[i + 1 :]] for i in range(len(lines) - 1)]
    damaged += [[lines[1], lines[0], *lines[2:]], [*lines[:2], lines[1], *lines[2:]], [*lines[:2], b"\n", *lines[2:]]]
    damaged += [[lines[0].replace(b": ", b":"), *lines[1:]], [lines[0].replace(b'"a"', b'"x"'), *lines[1:]]]
    for some in damaged:
        path.write_bytes(b"".join(some))
        with pytest.raises(InputError, match=r"inconsistent at line \d: it was damaged"):
            events(tmp_path)


def test_a_full_disk(tmp_path, monkeypatch):
    path = write(tmp_path, FIRST)
    before = path.read_bytes()
    one = Log(tmp_path)

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log.os, "fsync", fail)
        with pytest.raises(Failure, match="No space left on device. No entry was added."):
            one.append(SECOND)
    assert path.read_bytes() == before
    one.append(SECOND)
    one.close()
    assert [e["batch"] for e in events(tmp_path)[0]] == [1, 1, 2, 2, 2]


def test_dry(tmp_path):
    one = Log(tmp_path / "none", dry=True)
    assert [e["batch"] for e in one.append(FIRST)] == [1, 1]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        Log(tmp_path / "file")


WRITER = """
import sys
from pathlib import Path
from explore.campaign.log import Log
from explore.core.errors import InputError
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
done = 0
while done < count:
    try:
        one = Log(folder)
    except InputError as error:
        assert "being written by another process" in str(error), error
        continue
    one.append([{"event": "skip", "id": f"{name}{done}-{i}"} for i in range(3)])
    one.close()
    done += 1
    print(done, flush=True)
assert "torch" not in sys.modules
"""


def start(folder, name, count):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name, str(count)], stdout=subprocess.PIPE)


def test_several_processes_take_turns(tmp_path):
    processes = [start(tmp_path, name, 20) for name in "abc"]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found, cut = events(tmp_path)
    assert not cut and [e["batch"] for e in found] == [1 + i // 3 for i in range(180)]
    for name in "abc":
        assert [e["id"] for e in found if e["id"].startswith(name)] == [
            f"{name}{n}-{i}" for n in range(20) for i in range(3)
        ]


def test_a_second_process_is_refused(tmp_path):
    one = Log(tmp_path)
    code = "import sys; from pathlib import Path; from explore.campaign.log import Log; Log(Path(sys.argv[1]))"
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "being written by another process" in other.stderr
    one.close()
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_process_killed_while_it_writes(tmp_path):
    process = start(tmp_path, "a", 10**6)
    assert process.stdout is not None
    for _ in range(30):
        process.stdout.readline()
    process.kill()
    acknowledged = 30 + len(process.communicate()[0].split())
    found, _ = events(tmp_path)
    assert acknowledged <= found[-1]["batch"] <= acknowledged + 1
    assert [e["id"] for e in found] == [f"a{n}-{i}" for n in range(found[-1]["batch"]) for i in range(3)]
