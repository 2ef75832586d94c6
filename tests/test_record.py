"""Run folders, without any command."""

import csv
import json
import math
import os
import shutil

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from explore.core import files
from explore.core.errors import InputError
from explore.runs.provenance import session
from explore.runs.record import Run, plain

SETTINGS = {"command": "test", "widths": (4, 5), "lr": 0.1}


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "runs" / "a", SETTINGS, {"x": torch.zeros(2)}, session(device="cpu")) as run:
        yield run


def test_create_and_open(run):
    run.close()
    opened = Run.open(run.folder)
    assert opened.config["settings"] == {"command": "test", "widths": [4, 5], "lr": 0.1}
    assert opened.config["sessions"][0]["device"] == "cpu"
    assert torch.equal(opened.state["x"], torch.zeros(2))
    assert not [p.name for p in run.folder.parent.iterdir() if p != run.folder]


def test_create_leaves_an_existing_run_alone(run):
    run.rows("results.csv", [{"a": 1}])
    with pytest.raises(InputError, match="it exists already"):
        Run.create(run.folder, {}, {}, {})
    assert (run.folder / "results.csv").read_text() == "a\n1\n"
    assert [p.name for p in run.folder.parent.iterdir()] == ["a"]


def test_rows_keep_every_bit_and_are_cut_to_the_checkpoint(run):
    values = [0.1 + 0.2, 1e-300, float(torch.tensor(0.1))]
    run.rows("results.csv", [{"v": v} for v in values[:2]])
    run.checkpoint({}, step=1)
    run.rows("results.csv", [{"v": 7}])
    run.rows("selected.csv", [{"w": 7}])
    run.close()
    opened = Run.open(run.folder)
    assert not (run.folder / "selected.csv").exists()
    opened.rows("results.csv", [])
    opened.rows("results.csv", [{"v": values[2]}])
    with open(run.folder / "results.csv") as file:
        assert [float(row["v"]) for row in csv.DictReader(file)] == values


def test_a_replaced_checkpoint_is_the_old_or_the_new_one(run, monkeypatch):
    run.checkpoint({"n": 1}, step=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.checkpoint({"n": 2}, step=2)
    run.close()
    assert Run.open(run.folder).state == {"n": 1}
    run.checkpoint({"n": 2}, step=2)
    assert Run.open(run.folder).state == {"n": 2}


def test_drafts_of_a_killed_process_go_and_other_hidden_folders_stay(run):
    with pytest.raises(KeyboardInterrupt), files.replacing(run.folder / "checkpoint.pt") as draft:
        shutil.copytree(draft.parent, run.folder / f".killed{draft.parent.name}")
        raise KeyboardInterrupt
    (run.folder / ".git").mkdir()
    run.close()
    Run.open(run.folder)
    assert [path.name for path in run.folder.glob(".*/")] == [".git"]


def test_scalars_go_to_lines_and_events(run):
    run.hparams("a", {"lr": 0.1, "widths": (4, 5), "none": None}, ["test/x"])
    run.scalars("a", 1, {"test/x": 0.5, "test/se": math.nan})
    run.checkpoint({}, step=1)
    run.scalars("a", 2, {"test/x": 99.0})  # lost: no checkpoint follows
    run.close()
    with Run.open(run.folder) as opened:
        opened.hparams("a", {"lr": 0.1}, ["test/x"])
        opened.scalars("a", 2, {"test/x": 0.25})
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [
        {"series": "a", "step": 1, "test/x": 0.5, "test/se": None},
        {"series": "a", "step": 2, "test/x": 0.25},
    ]
    first, second = sorted(run.folder.glob("tensorboard/a/events.out.tfevents.*"))
    assert int(first.name.split(".")[3]) < int(second.name.split(".")[3])  # their order, whatever follows
    events = EventAccumulator(str(run.folder / "tensorboard" / "a")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("test/x")] == [(1, 0.5), (2, 0.25)]
    assert {"_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info"} <= set(
        events.summary_metadata
    )


def test_resumed_adds_a_session(run):
    run.close()
    Run.open(run.folder).resumed(session(device="cuda"))
    assert [s["device"] for s in Run.open(run.folder).config["sessions"]] == ["cpu", "cuda"]


def test_plain():
    assert plain({"a": [1.0, math.nan, (math.inf, "x", None, True)]}) == {"a": [1.0, None, [None, "x", None, True]]}


def test_a_run_in_use_is_refused(tmp_path):
    with Run.create(tmp_path / "run", {"a": 1}, {}, {}):
        with pytest.raises(InputError, match="being written by another process"):
            Run.open(tmp_path / "run")
    Run.open(tmp_path / "run").close()
