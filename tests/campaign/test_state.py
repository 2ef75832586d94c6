"""The file of a campaign: it is whole and of one time, or refused."""

import errno
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from explore.campaign import Campaign, Row, Schema, State
from explore.campaign.state import FORMER, NAME, read, write
from explore.core import files
from explore.core.errors import Failure, InputError
from explore.runs.recorded import digest

ROWS = (
    Row("a", {"temp": "20", "Ä\u2028": 'b"},\n'}, {"y": 0.1 + 0.2, "z": None}, {"y": [1e-300, 2.0]}),
    Row("b", pending=2, suggestion={"mean": 1.5, "score": None, "reason": "far"}, gone=True),
    Row("c", {}, {}, {"y": []}, skipped=True),
)


def filled(name="one"):
    state = State(name, Schema(("y", "z"), ("temp",), "name"), {row.id: row for row in ROWS})
    state.step("measure", {"a": {"y": {"values": [1.0], "from": "table"}}}, {})
    state.step("suggest", {"b": {"mean": 1.5}}, {"b": Row("b", {"temp": "1"})})
    state.aliases = {"old": "a"}
    return state


@pytest.fixture
def file(tmp_path):
    write(tmp_path, filled())
    return tmp_path / NAME


def test_what_was_written_comes_back(file):
    state = read(file.parent)
    assert state.json() == filled().json() and list(state.rows.values()) == list(ROWS)
    assert state.schema == filled().schema and [step["kind"] for step in state.steps] == ["measure", "suggest"]
    assert state.steps[0]["time"].endswith("+00:00") and state.steps[0]["before"] == {"a": None}
    write(file.parent, state)
    assert read(file.parent) == state


def test_a_new_campaign(tmp_path):
    assert read(tmp_path).id != read(tmp_path).id and read(tmp_path).rows == {}


def test_no_bit_can_flip_unnoticed(file):
    whole, state = file.read_bytes(), read(file.parent)
    for bit in np.random.default_rng(0).integers(8 * len(whole), size=1500).tolist():
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:  # a digit beyond double precision changes nothing
            assert read(file.parent) == state
        except InputError as error:
            assert re.search("campaign.json (is damaged or was edited|is missing)", str(error))


@pytest.mark.parametrize("content", [b"", b"[]", b"1", b"{}", b"null", b"\0" * 100, b"[" * 10**5, b'{"sha256": 1}'])
def test_a_damaged_file_is_refused(file, content):
    remedy = f"Restore {file.parent} from a backup, or move it away to start over from the table."
    file.write_bytes(content)
    for dry in (True, False):
        with pytest.raises(InputError, match="campaign.json is damaged or was edited") as error:
            Campaign(file.parent, dry)
        assert str(error.value).endswith(remedy)
    assert file.read_bytes() == content


def test_a_file_that_was_cut_or_edited_is_refused(file):
    whole = file.read_bytes()
    for size in range(0, len(whole) - 1, 7):
        file.write_bytes(whole[:size])
        with pytest.raises(InputError, match="is damaged or was edited"):
            read(file.parent)
    for old, new in ((b'"pending": 2', b'"pending": 1'), (b'"mean": 1.5', b'"mean": 1.6'), (b"1e-300", b"0")):
        assert old in whole
        file.write_bytes(whole.replace(old, new))
        with pytest.raises(InputError, match="its checksum is wrong"):
            read(file.parent)


def test_a_campaign_without_its_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for dry in (True, False):
        with pytest.raises(InputError, match=r"campaign.json is missing, but the campaign has started. Restore"):
            Campaign(tmp_path, dry)


def test_campaigns_of_other_versions(file):
    content = filled().json() | {"format": 3}
    files.write_json(file, content | {"sha256": digest(content)})
    with pytest.raises(InputError, match="was written by another version of explore; continue with that version"):
        read(file.parent)
    (file.parent / FORMER).write_text("")
    with pytest.raises(InputError, match="an earlier version of explore; continue with that version, or .* start over"):
        read(file.parent)


def test_a_full_disk(file, monkeypatch):
    before = file.read_bytes()

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Campaign(file.parent) as campaign:
        campaign.state.step("skip", {"a": None}, {})
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", fail)
            with pytest.raises(Failure, match="No space left on device. Nothing was recorded."):
                campaign.save()
        assert [path.name for path in file.parent.iterdir() if path.name != ".lock"] == [NAME]
        assert file.read_bytes() == before
        campaign.save()
    assert len(read(file.parent).steps) == 3


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        Campaign(tmp_path / "file")


WRITER = """
import sys
from pathlib import Path
from explore.campaign import Campaign
from explore.core.errors import InputError
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
done = 0
while done < count:
    try:
        one = Campaign(folder)
    except InputError as error:
        assert "being written by another process" in str(error), error
        continue
    one.state.step("skip", {f"{name}{done}-{i}": None for i in range(3)}, {})
    one.save()
    one.close()
    done += 1
    print(done, flush=True)
assert "torch" not in sys.modules
"""


def start(folder, name, count):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name, str(count)], stdout=subprocess.PIPE)


def skipped(folder):
    with Campaign(folder) as campaign:
        return [name for step in campaign.state.steps for name in step["rows"]]


def test_several_processes_take_turns(tmp_path):
    processes = [start(tmp_path, name, 20) for name in "abc"]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found = skipped(tmp_path)
    assert len(found) == 180
    for name in "abc":
        assert [n for n in found if n.startswith(name)] == [f"{name}{n}-{i}" for n in range(20) for i in range(3)]


def test_a_second_process_is_refused(tmp_path):
    one = Campaign(tmp_path)
    code = "import sys; from pathlib import Path; from explore.campaign import Campaign; Campaign(Path(sys.argv[1]))"
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "being written by another process" in other.stderr
    one.close()
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


@pytest.mark.parametrize("count", [1, 7, 20])
def test_a_process_killed_while_it_writes(tmp_path, count):
    process = start(tmp_path, "a", 10**6)
    assert process.stdout is not None
    for _ in range(count):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    acknowledged = count + len(process.communicate()[0].split())
    found = skipped(tmp_path)
    assert acknowledged <= len(found) / 3 <= acknowledged + 1
    assert found == [f"a{n}-{i}" for n in range(len(found) // 3) for i in range(3)]
    subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), "b", "1"], check=True, capture_output=True)
    assert skipped(tmp_path) == [*found, "b0-0", "b0-1", "b0-2"]
