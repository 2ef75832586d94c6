"""Files of tensors: what comes back, and what is refused."""

import errno
import os
import pickle
import stat
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from explore.core import files
from explore.core.errors import InputError

CONTENT: Any = {
    "x": torch.arange(7.0),
    "steps": 3,
    "names": ["a", None],
    "nested": {"y": torch.ones(2, dtype=torch.bool)},
}


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "state.pt"
    files.save(found, "checkpoint", 2, CONTENT)
    return found


def equal(content):
    return (
        torch.equal(content["x"], CONTENT["x"])
        and torch.equal(content["nested"]["y"], CONTENT["nested"]["y"])
        and (content["steps"], content["names"]) == (3, ["a", None])
    )


def test_what_was_saved_comes_back(path):
    assert equal(files.load(path, "checkpoint", 2))
    assert equal(torch.load(path, weights_only=True)["content"])  # without explore, too
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    assert [p.name for p in path.parent.iterdir()] == ["state.pt"]


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_no_bit_can_flip_unnoticed(path):
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    last = range(8 * (len(whole) - 200), 8 * len(whole))  # the end of the archive, and the digest
    for bit in [*range(400), *rng.integers(8 * len(whole), size=300).tolist(), *last]:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(InputError, match=r"state.pt is damaged: its checksum has changed since it was written$"):
            files.load(path, "checkpoint", 2)


def test_no_length_but_the_whole_is_read(path):
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="state.pt is damaged"):
            files.load(path, "checkpoint", 2)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InputError, match="is damaged"):
        files.load(path, "checkpoint", 2)


class Code:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_other_files_are_refused_in_a_sentence(path, tmp_path):
    def refused(kind="checkpoint", format=2):
        with pytest.raises(InputError) as caught:
            files.load(path, kind, format)
        message = str(caught.value)
        assert "weights_only" not in message and "\n" not in message and len(message) < 200 + len(str(path))
        return message.removeprefix(f"{path} ")

    assert refused(kind="bonus") == "is a checkpoint, not a bonus"
    for other in (1, 3):
        assert refused(format=other).startswith("was written by another version of explore; continue with that version")
    torch.save(CONTENT, path)
    assert refused() == "is damaged: its checksum has changed since it was written"
    marker = tmp_path / "executed"
    files.save(path, "checkpoint", 2, Code(marker))
    assert refused() == "is not a checkpoint of explore, which has only tensors and plain values"
    files.save(path, "checkpoint", 2, {"x": np.float64(1)})
    assert refused().startswith("is not a checkpoint")
    torch.save({"kind": "checkpoint", "format": None, "content": 0}, path)
    assert refused().startswith("is damaged")
    path.write_bytes(pickle.dumps(Code(marker)))
    assert refused().startswith("is damaged")
    assert not marker.exists()
    path.unlink()
    assert refused() == f"cannot read {path}: No such file or directory"
    path.mkdir()
    assert refused() == f"cannot read {path}: Is a directory"


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(path, monkeypatch, function):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        with pytest.raises(OSError, match="No space left"):
            files.save(path, "checkpoint", 2, {})
    assert equal(files.load(path, "checkpoint", 2))
    assert [p.name for p in path.parent.iterdir()] == ["state.pt"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_torch_hides_no_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "replacing", lambda path: _itself("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        files.save(tmp_path / "x", "checkpoint", 2, {"x": torch.zeros(100_000)})


class _itself:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        pass


def test_drafts_of_others_are_left_alone(path):
    (path.parent / ".state.pt.draft").mkdir()
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as draft:
        draft.write_text("half")
        raise KeyboardInterrupt
    assert sorted(p.name for p in path.parent.iterdir()) == [".state.pt.draft", "state.pt"]
    with files.replacing(path.parent / "folder") as draft:
        draft.mkdir()
        (draft / "a").touch()
    assert [p.name for p in (path.parent / "folder").iterdir()] == ["a"]


def test_of_a_refused_pickle_torch_says_nothing(path, monkeypatch):
    monkeypatch.setattr(torch, "save", partial(torch.save, pickle_protocol=4))
    files.save(path, "checkpoint", 2, Code(path))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(InputError, match="is not a checkpoint of explore"):
            files.load(path, "checkpoint", 2)
    assert said == []
