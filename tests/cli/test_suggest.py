"""`explore suggest`: what it hands out, keeps, says and refuses."""

import hashlib
import json
import os
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest

import explore
from explore import registry
from explore.campaign import Campaign
from explore.cli.suggest import choice, report, settings, table
from explore.core import files
from explore.core.errors import InputError
from explore.inference import presets
from explore.learning.loaded import TableWarning
from tests.cli.conftest import run

LEVELS = ("mean", "low", "high")
QUICK = ("--epochs", 5, "--samples", 10)


def truth(frame):
    """What an experiment would measure."""
    return (frame.temp.fillna(50) / 10 + frame.solvent.map({"water": 0, "ethanol": 3, "Äther": -2})).round(3)


@pytest.fixture
def pool(tmp_path):
    """A table of which nothing is measured."""
    rng, n = np.random.default_rng(0), 40
    frame = pd.DataFrame(
        {
            "name": [f"S-{i:03d}" for i in range(n)],
            "solvent": rng.choice(["water", "ethanol", "Äther"], n),
            "temp": rng.uniform(20, 80, n).round(2),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
            "yield": np.nan,
        }
    )
    frame.loc[rng.random(n) < 0.1, "temp"] = np.nan
    path = tmp_path / "pool.csv"
    frame.to_csv(path, index=False)
    return path


def suggest(path, *arguments):
    """What a start says, which leaves the table as it is."""
    before = path.read_bytes()
    result = run("suggest", path, "--json", *arguments)
    assert result.exit_code == 0, result.output
    assert path.read_bytes() == before
    return json.loads(result.stdout)


def begin(path, *arguments):
    return suggest(path, "--target", "yield", "--id", "name", *QUICK, *arguments)


def refused(path, *arguments):
    result = run("suggest", path, *arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split()).partition("Error: ")[2]


def ids(said, key="rows"):
    return [row["id"] for row in said[key]]


def measure(path, names, values=None, column="yield"):
    """Write measurements into the table."""
    frame = pd.read_csv(path)
    rows = frame.name.isin(names)
    frame.loc[rows, column] = truth(frame)[rows] if values is None else values
    frame.to_csv(path, index=False)


def test_rounds(pool):
    first = begin(pool)
    assert len(first["rows"]) == 5 and first["score"] == "distance (standard deviations)"
    assert first["rows"][0]["reason"] == "nearest to the mean of all rows"
    assert "0 rows measured; a model needs 5. These suggestions are spread over" in first["notes"][-1]
    measure(pool, ids(first))
    second = suggest(pool)
    assert len(second["rows"]) == 5 and not set(ids(second)) & set(ids(first)) and not second["pending"]
    for row in second["rows"]:
        assert row["low"] < row["mean"] < row["high"] and row["reason"].startswith(
            ("far", "disa", "expected gain", "model")
        )
    assert "Only 5 rows measured so far; intervals are rough." in second["notes"]
    measure(pool, ids(second)[:4])
    third = suggest(pool, "--batch", 3)
    assert "Setting batch is now 3; it was 5." in third["notes"]
    assert ids(third, "pending") == ids(second)[4:] and len(third["rows"]) == 3
    assert not {*ids(third)} & {*ids(first), *ids(second)} and third["measured"] == 9
    assert not [note for note in suggest(pool, "--status")["notes"] if note.startswith("Setting")]


def test_next_csv_has_the_rows_as_they_are_and_comes_back_filled_in(pool):
    begin(pool)
    path, table = pool.parent / "next.csv", pd.read_csv(pool).set_index("name")
    asked = pd.read_csv(path)
    assert list(asked) == [*pd.read_csv(pool), "_id", "_rank", "_score", "_reason"]
    assert asked["yield"].isna().all() and list(asked._rank) == [1, 2, 3, 4, 5] and list(asked._id) == list(asked.name)
    pd.testing.assert_frame_equal(asked.set_index("name")[list(table)], table.loc[asked.name], check_dtype=False)
    asked["yield"] = truth(asked)
    asked.to_csv(path, index=False)
    # Without --labels they would be lost.
    assert refused(pool) == (
        f"{path} was edited, or belongs to another table, and would be overwritten. Read it with --labels {path}, "
        "delete it, or choose another --out."
    )
    measured = path.read_bytes()
    said = suggest(pool, "--labels", path)
    assert said["measured"] == 5 and len(said["rows"]) == 5
    later = pd.read_csv(path)
    assert list(later)[-6:] == ["_rank", "_mean", "_low", "_high", "_score", "_reason"]
    assert not set(later.name) & set(asked.name)
    kept = [copy.read_bytes() for copy in (pool.with_suffix(".explore") / "sheets").iterdir()]
    assert len(kept) == 3 and {measured, path.read_bytes()} < {*kept}  # what was handed out twice, and what came back


def test_the_same_again_hands_out_the_same_and_a_larger_batch_more(pool):
    first = begin(pool)
    text = (pool.parent / "next.csv").read_bytes()
    (pool.parent / "next.csv").unlink()
    again = suggest(pool)
    assert ids(again, "pending") == ids(first) and not again["rows"]
    assert (pool.parent / "next.csv").read_bytes() == text
    assert "No new measurements. 5 suggestions are still pending." in again["notes"][-1]
    assert again["notes"][-1].endswith("--release all to start over.")
    more = suggest(pool, "--batch", 7)
    assert ids(more, "pending") == ids(first) and len(more["rows"]) == 2 and not {*ids(more)} & {*ids(first)}
    assert "No new measurements. 5 suggestions are still pending; 2 rows are added." in more["notes"]


def test_killed_before_next_csv_is_written(pool, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(report, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run("suggest", pool, "--target", "yield", "--id", "name", *QUICK).exit_code == 130
    assert not (pool.parent / "next.csv").exists()
    again = suggest(pool)
    assert len(again["pending"]) == 5 and not again["rows"]
    assert list(pd.read_csv(pool.parent / "next.csv").name) == ids(again, "pending")


@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut", "edited"])
def test_a_damaged_campaign_is_refused_and_no_pending_row_handed_out_again(pool, damage):
    begin(pool)
    folder, out = pool.with_suffix(".explore"), pool.with_name("next.csv")
    file = folder / "campaign.json"
    measure(pool, [f"S-{i:03d}" for i in range(3)])
    suggest(pool, "--status")  # which writes nothing
    suggest(pool, "--batch", 6)
    whole, asked = file.read_bytes(), out.read_bytes()
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes({"emptied": b"", "cut": whole[:-9], "edited": whole.replace(b"S-001", b"S-009")}[damage])
    for more in ((), ("--status",), ("--dry-run",)):
        said = refused(pool, *more)
        assert said.startswith(f"{file} is {'missing' if damage == 'deleted' else 'damaged or was edited'}")
        assert said.endswith(f"Restore {folder} from a backup, or move it away to start over from the table.")
    assert out.read_bytes() == asked
    file.write_bytes(whole)
    assert suggest(pool, "--status")["measured"] == 3


def test_a_campaign_of_an_earlier_version_is_refused(pool):
    begin(pool)
    (pool.with_suffix(".explore") / "log.jsonl").write_text("")
    assert "was written by an earlier version of explore; continue with that version, or move the folder" in refused(
        pool
    )
    report = run("report", pool.with_suffix(".explore"))
    assert report.exit_code == 2 and "an earlier version of explore" in report.stderr


def test_operations(pool):
    first = ids(begin(pool))
    said = suggest(pool, "--skip", first[0])
    assert said["skipped"] == first[:1] and ids(said, "pending") == first[1:] and not said["rows"]
    added = suggest(pool)
    assert len(added["rows"]) == 1 and ids(added)[0] not in first
    said = suggest(pool, "--release", first[1])
    assert first[1] not in ids(said, "pending")
    assert not suggest(pool, "--release", "all")["pending"]
    measure(pool, first[:2], 7.0)
    assert suggest(pool, "--status")["measured"] == 2
    said = suggest(pool, "--retract", first[0])
    assert said["measured"] == 1 and any("still has withdrawn measurements" in note for note in suggest(pool)["notes"])
    said = suggest(pool, "--undo")
    assert not said["rows"] and not said["pending"] and said["notes"][0].endswith("5 x suggest.")
    assert "no row 'nobody'" in refused(pool, "--skip", "nobody")


def test_a_dry_run_writes_nothing(pool):
    before = sorted(pool.parent.rglob("*"))
    said = begin(pool, "--dry-run")
    assert len(said["rows"]) == 5 and said["out"] is None and sorted(pool.parent.rglob("*")) == before
    begin(pool)
    kept = {p: hashlib.sha256(p.read_bytes()).digest() for p in pool.parent.rglob("*") if p.is_file()}
    measure(pool, ids(said))
    kept[pool] = hashlib.sha256(pool.read_bytes()).digest()
    assert suggest(pool, "--dry-run")["measured"] == 5
    assert {p: hashlib.sha256(p.read_bytes()).digest() for p in pool.parent.rglob("*") if p.is_file()} == kept
    assert "Nothing was written (--dry-run)." in run("suggest", pool, "--dry-run").stdout


def test_what_is_printed(pool):
    first = ids(begin(pool))
    measure(pool, first)
    said = run("suggest", pool)
    assert "Measure next" in said.stdout and "5 measured, 30 candidates left." in said.stdout
    assert "New measurements from batch 1" in said.stderr and "--labels" in said.stdout
    assert "variance-reduction" in said.stdout and "rows measured or pending: 10" in said.stdout
    quiet = run("suggest", pool, "--quiet")
    assert not quiet.stderr and "Pending from earlier batches" in quiet.stdout
    assert "variance-reduction" not in quiet.stdout  # older rows may be of another rule


def test_a_second_process_is_refused(pool):
    begin(pool)
    lock = files.lock(pool.with_suffix(".explore"))
    assert "is being written by another process" in refused(pool)
    lock.release()


def test_without_ids_rows_are_known_by_their_features(pool):
    frame = pd.read_csv(pool).drop(columns="name")
    frame.to_csv(pool, index=False)
    first = suggest(pool, "--target", "yield", *QUICK)
    assert all(len(name) == 64 for name in ids(first))
    lines = [row["line"] - 2 for row in first["rows"]]
    frame.loc[lines, "yield"] = truth(frame)[lines]
    frame.sample(frac=1, random_state=0).to_csv(pool, index=False, sep=";", encoding="latin-1")
    second = suggest(pool)
    assert second["measured"] == 5 and not set(ids(second)) & set(ids(first))
    assert suggest(pool, "--skip", ids(second)[0][:8])["skipped"] == ids(second)[:1]


def test_a_column_that_names_the_rows_is_noticed(pool):
    said = suggest(pool, "--target", "yield", *QUICK)
    assert "Pass --id if column 'name' identifies the rows." in " ".join(said["notes"])


def test_a_decimal_comma(pool):
    frame = pd.read_csv(pool)
    frame.to_csv(pool, index=False, sep=";", decimal=",")
    first = begin(pool, "--decimal", ",")
    path = pool.parent / "next.csv"
    asked = pd.read_csv(path, sep=";", decimal=",")
    assert asked.temp.dtype == float
    asked["yield"] = truth(asked)
    asked.to_csv(path, index=False, sep=";", decimal=",")
    said = suggest(pool, "--labels", path)
    assert said["measured"] == 5 and not set(ids(said)) & set(ids(first))
    text = path.read_text(encoding="utf-8-sig").splitlines()[1].split(";")
    assert "," in text[-3] and "." not in text[-3]


def test_several_targets(pool):
    frame = pd.read_csv(pool)
    frame["purity"] = np.nan
    frame.loc[:9, "yield"], frame.loc[:8, "purity"] = truth(frame)[:10], np.arange(9.0)
    frame.to_csv(pool, index=False)
    said = begin(pool, "--target", "purity")
    assert said["measured"] == 9
    assert {"mean_yield", "low_yield", "high_purity"} <= said["rows"][0].keys()
    assert "_mean_purity" in pd.read_csv(pool.parent / "next.csv")
    assert "Measured in part: 'S-009' (line 11)." in run("suggest", pool, "--status").stdout


def test_partial_answers(pool):
    """They stay open, next.csv keeps what is known, and the model learns from them."""
    frame = pd.read_csv(pool)
    frame["purity"] = np.nan
    frame.loc[:9, "yield"], frame.loc[:5, "purity"] = truth(frame)[:10], np.arange(6.0)
    frame.loc[6, "purity"] = 3.25
    frame = frame.astype({"purity": object})
    frame.loc[10, "purity"] = "failed"
    frame.to_csv(pool, index=False)
    first = begin(pool, "--target", "purity", "--batch", 3, "--likelihood", "heteroscedastic")
    assert first["measured"] == 7 and first["partly"] == ["S-007", "S-008", "S-009"] and first["failed"] == ["S-010"]
    path = pool.with_name("next.csv")
    asked = pd.read_csv(path)
    asked.loc[0, "yield"], asked.loc[1, "purity"] = 0.1, 123456.789
    asked.to_csv(path, index=False)
    second = suggest(pool, "--labels", path)
    assert ids(second, "pending") == ids(first) and len(second["rows"]) == 3
    later = pd.read_csv(path).set_index("name")
    assert later.loc[ids(first)[0], "yield"] == 0.1 and later.loc[ids(first)[1], "purity"] == 123456.789
    open_rows = set(first["partly"]) & set(later.index)  # whose yield is in the table
    assert later[["yield", "purity"]].notna().sum().sum() == 2 + len(open_rows)
    assert not set(ids(second)) & {"S-010", *ids(first)}
    result = run("predict", pool.with_suffix(".explore"), pool, "--out", pool.with_name("predicted.csv"))
    assert result.exit_code == 0, result.output
    model = explore.load_run(pool.with_suffix(".explore")).fitted.posterior
    assert isinstance(model.likelihood, explore.Heteroscedastic) and model.net.outputs == 4
    # One is withdrawn and the other completed, while next.csv still has what was known.
    assert suggest(pool, "--retract", ids(first)[0])["measured"] == 7
    later = pd.read_csv(path)
    later.loc[later.name == ids(first)[1], "yield"] = 4
    later.to_csv(path, index=False)
    third = suggest(pool, "--labels", path)
    assert third["measured"] == 8 and ids(first)[1] not in ids(third, "pending")
    said = suggest(pool, "--posterior", "hmc", "--status")
    assert said["measured"] == 8


def test_a_target_with_few_measurements_waits_for_a_model(pool):
    frame = pd.read_csv(pool)
    frame["purity"] = np.nan
    frame.loc[:9, "yield"], frame.loc[:3, "purity"] = truth(frame)[:10], np.arange(4.0)
    frame.to_csv(pool, index=False)
    said = begin(pool, "--target", "purity")
    assert "10 rows measured; a model needs 5 of each target." in said["notes"][-1]
    frame.loc[4, "purity"] = 3.0
    frame.loc[9, "yield"] = np.nan
    frame.to_csv(pool, index=False)
    assert suggest(pool, "--batch", 6)["score"] == "variance-reduction"


def test_classes(pool):
    frame = pd.read_csv(pool)
    frame["kind"] = None
    kinds = np.where(frame.temp > 50, "high", "low")
    frame.loc[:11, "kind"] = kinds[:12]
    frame = frame.drop(columns="yield")
    frame.to_csv(pool, index=False)
    said = suggest(pool, "--target", "kind", "--id", "name", "--task", "classification", *QUICK)
    for row in said["rows"]:
        assert row["p_high"] + row["p_low"] == pytest.approx(1)
    assert "Classes so far: high, low." in said["notes"]
    frame.loc[:11, "kind"] = kinds[:12]
    frame.loc[frame.name.isin(ids(said)), "kind"] = "middle"
    frame.loc[0, "kind"] = "low" if kinds[0] == "high" else "high"
    frame.to_csv(pool, index=False)
    said = suggest(pool)
    assert "p_middle" in said["rows"][0] and said["measured"] == 17
    assert any(f"corrected kind from {kinds[0]} to" in note for note in said["notes"])
    assert "pool.csv already has a classification campaign. For regression, copy the table" in refused(
        pool, "--task", "regression"
    )


def test_a_failed_experiment_is_done(pool):
    first = begin(pool)
    names = ids(first)
    measure(pool, names[1:], 5.0)
    frame = pd.read_csv(pool)
    frame["yield"] = frame["yield"].astype(object)
    frame.loc[frame.name.isin(names[:1]), "yield"] = "Failed"
    frame.to_csv(pool, index=False)
    said = suggest(pool)
    assert said["failed"] == names[:1] and said["measured"] == 4 and said["measures"]["labels"] == 9
    assert f"Failed, will not be suggested again: '{names[0]}'" in " ".join(said["notes"])
    asked = suggest(pool, "--batch", 40)  # all that are left
    assert len(asked["rows"]) + len(asked["pending"]) == 35 and asked["pool"] == 0
    assert names[0] not in [*ids(asked), *ids(asked, "pending"), *pd.read_csv(pool.with_name("next.csv")).name]
    assert f"Failed: '{names[0]}' (line" in run("suggest", pool, "--status").stdout
    assert "failed and will not be suggested" in refused(pool, "--skip", names[0])
    frame.loc[frame.name.isin(names[:1]), "yield"] = 3  # measured after all
    frame.to_csv(pool, index=False)
    said = suggest(pool)
    assert any(note.endswith("corrected yield from failed to 3.") for note in said["notes"])
    assert said["failed"] == [] and said["measured"] == 5
    assert run("report", pool.with_suffix(".explore"), "--out", pool.with_name("r.html")).exit_code == 0


def test_a_number_declares_a_failure_among_classes_too(pool):
    frame = pd.read_csv(pool).drop(columns="yield")
    frame.assign(kind=["0", "1", "-0.50", "1", *[""] * 36]).to_csv(pool, index=False)
    begun = "--target", "kind", "--id", "name", "--task", "classification", "--failed", "-0.5", *QUICK
    said = suggest(pool, *begun)  # -0.5 would be no class beside 0 and 1
    assert said["failed"] == ["S-002"] and said["measured"] == 3


def test_a_failure_told_by_next_csv_and_a_text_that_declares_one(pool):
    names = ids(begin(pool, "--failed", "Broke", "--failed", "-999"))
    path = pool.with_name("next.csv")
    asked = pd.read_csv(path)
    asked["yield"] = ["broke", "-999.0", "error", "4", ""]
    asked.to_csv(path, index=False)
    said = suggest(pool, "--labels", path)
    assert set(said["failed"]) == set(names[:3]) and said["measured"] == 1
    assert ids(said, "pending") == names[4:] and len(said["rows"]) == 5
    frame = pd.read_csv(pool)
    frame["yield"] = frame["yield"].astype(object)
    frame.loc[:2, "yield"] = ["12.5 mg", ">95", "broke"]
    frame.to_csv(pool, index=False)
    state = (pool.with_suffix(".explore") / "campaign.json").read_bytes()
    said = refused(pool, "--failed", "none")
    assert (
        "pool.csv: 3 cells of targets are not finite numbers: column 'yield': '12.5 mg' (line 2), '>95' (line 3), "
        in said
    )
    assert "'broke' (line 4); write only the number, 'failed' for a failed experiment, or nothing if it" in said
    assert "2 cells of targets" in refused(pool)
    assert (pool.with_suffix(".explore") / "campaign.json").read_bytes() == state


def test_marks_among_classes(pool):
    """NA is a continent only where it is said to be one; either way it is said, and a failure is a class."""
    frame = pd.read_csv(pool).drop(columns="yield")
    kinds = ["EU", "NA", "failed", "none", "EU", "AS", "NA", "AS", "none", "failed", "-", *[""] * 29]
    frame.assign(kind=kinds).to_csv(pool, index=False)
    begun = "--target", "kind", "--id", "name", "--task", "classification", "--batch", 40, *QUICK
    said = suggest(pool, *begun)
    note = (
        "Column 'kind' reads '-' (1 cell), 'NA' (2 cells) as not measured (use --keep-na kind, in Python keep_na, to "
        "read them as classes), and 'failed' (2 cells), 'none' (2 cells) as classes (use --failed TEXT for failed "
        "experiments)."
    )
    assert note in said["notes"] and said["measured"] == 8 and {"S-001", "S-006", "S-010"} < set(ids(said))
    said = suggest(pool, "--keep-na", "kind", "--failed", "FAILED")
    note = "Column 'kind' reads '-' (1 cell), 'NA' (2 cells), 'none' (2 cells) as classes."
    assert note in said["notes"] and said["measured"] == 9 and said["failed"] == ["S-002", "S-009"]
    assert "'S-002' (line 4): corrected kind from 'failed' to failed." in said["notes"]
    assert {*ids(said), *ids(said, "pending")} == {f"S-{i:03d}" for i in range(11, 40)}
    assert note in suggest(pool, "--status")["notes"]  # it is kept
    suggest(pool, "--release", "all")
    assert {"p_NA", "p_-", "p_none", "p_EU", "p_AS"} < suggest(pool, "--batch", 3)["rows"][0].keys()
    frame.assign(kind=["NA", *kinds[1:10], "", "NA", *[""] * 28]).to_csv(pool, index=False)
    said = suggest(pool, "--batch", 30)
    assert said["measured"] == 9 and "Withdrawn, because their cells were emptied: 'S-010' (line 12)." in said["notes"]
    said = refused(pool, "--keep-na", "temp")
    assert said.startswith("keep_na (--keep-na) names 'temp', which is not a class target of")


def test_one_class_alone_is_too_few(pool):
    frame = pd.read_csv(pool).rename(columns={"yield": "kind"})
    frame["kind"] = frame.kind.astype(object)
    frame.loc[:11, "kind"] = "a"
    frame.to_csv(pool, index=False)
    said = suggest(pool, "--target", "kind", "--task", "classification", "--id", "name", *QUICK)
    assert "a model needs 5 and two classes." in said["notes"][-1] and len(said["rows"]) == 5


def test_when_nothing_is_left(pool):
    frame = pd.read_csv(pool)
    frame["yield"] = truth(frame)
    frame.loc[:2, "yield"] = np.nan
    frame.to_csv(pool, index=False)
    said = begin(pool)
    assert len(said["rows"]) == 3 and "Only 3 candidates left." in said["notes"]
    measure(pool, ids(said))
    said = suggest(pool)
    assert not said["rows"] and "No candidates left." in said["notes"]


def test_the_default_posterior_of_numbers_is_a_process(pool):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    settings = pool.with_suffix(".explore") / "config.json"
    assert run("suggest", pool, "--target", "yield", "--id", "name").exit_code == 0
    found = json.loads(settings.read_text())["settings"]
    assert (found["posterior"], found["likelihood"]) == ("gp", "heteroscedastic")
    assert refused(pool, "--hidden", "4") == "--hidden applies to networks, but gp has none. Leave it out"
    said = suggest(pool, "--posterior", "noisy-kfac", "--hidden", "4", "--epochs", 2)
    assert any(note.startswith("Setting posterior is now noisy-kfac; it was gp.") for note in said["notes"])


def test_many_measurements_ask_for_another_default_posterior(pool, monkeypatch):
    def choose(content, rows, now, *rest):
        raise InputError(now.posterior)

    monkeypatch.setattr(choice, "choose", choose)
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    for most, posterior in ((11, "noisy-kfac"), (12, "gp")):
        monkeypatch.setattr(presets, "FEW_LABELS", most)
        assert refused(pool, "--target", "yield", "--id", "name", "--dry-run") == posterior


def test_settings_of_the_model_are_kept(pool):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    begin(pool, "--posterior", "bbb", "-p", "lr=0.01", "-p", "members=2", "--hidden", "4")
    assert getattr(explore.load_run(pool.with_suffix(".explore")).fitted.posterior, "members", 1) == 2
    config = json.loads((pool.with_suffix(".explore") / "config.json").read_text())["settings"]
    assert config["posterior"] == "bbb" and config["posterior_settings"]["lr"] == 0.01 and config["hidden"] == [4]
    said = suggest(pool, "-p", "samples=3", "--target", "yield")
    assert [n for n in said["notes"] if n.startswith("Setting")] == [
        "Setting posterior.samples is now 3; it was the default."
    ]
    said = suggest(pool, "--posterior", "mc-dropout")
    assert any(note.startswith("Setting posterior is now mc-dropout; it was bbb.") for note in said["notes"])
    assert suggest(pool, "--status")["notes"] == []


@pytest.mark.parametrize("transform", ["log", "rank"])
def test_a_transform_is_undone(pool, transform):
    """Intervals of amounts over four decades; without it they would reach below 0."""
    frame = pd.read_csv(pool)
    frame.loc[:19, "yield"] = 10.0 ** np.linspace(-2, 2, 20)
    frame.to_csv(pool, index=False)
    said = begin(pool, "--transform", transform)
    for row in said["rows"]:
        assert 0 < row["low"] <= row["mean"] <= row["high"]
        assert transform == "log" or (row["low"] >= 0.0099 and row["high"] <= 100.01)
    assert f"With --transform {transform}, predictions are medians." in said["notes"]
    frame.loc[3, "yield"] = 0
    frame.to_csv(pool, index=False)
    if transform == "log":
        assert "a target of 0 has no logarithm. Use the transform 'none'" in refused(pool)
        assert suggest(pool, "--status")["measured"] == 20
    assert suggest(pool, "--transform", "none")["measured"] == 20


@pytest.mark.parametrize("goal", ["maximise", "minimise"])
@pytest.mark.parametrize("rule", ["expected-improvement", "upper-confidence-bound"])
def test_scores_of_a_goal_are_in_the_units_of_the_target(pool, rule, goal, tmp_path):
    frame, said = pd.read_csv(pool), []
    for name, scale, offset in (("small.csv", 1, 0), ("large.csv", 1000, 5000)):
        frame.loc[:11, "yield"] = scale * truth(frame)[:12] + offset
        frame.to_csv(tmp_path / name, index=False)
        words = "--goal", goal, "--acquisition", rule, "--batch", 3, "--out", tmp_path / f"next-{name}"
        said.append(begin(tmp_path / name, *words))
    small, large = (np.array([row["score"] for row in s["rows"]]) for s in said)
    assert ids(said[0]) == ids(said[1]) and said[0]["score"] == f"{rule} (units of yield)"
    np.testing.assert_allclose(large, 1000 * small + (5000 if rule == "upper-confidence-bound" else 0), rtol=1e-3)
    if rule == "upper-confidence-bound":
        sign = {"maximise": 1, "minimise": -1}[goal]
        assert all(sign * (row["score"] - row["mean"]) > 0 for row in said[0]["rows"])


def test_limits(pool):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    said = begin(pool, "--stop-when", "labels<=14", "--stop-when", "gain<0.000001")
    assert len(said["rows"]) == 2 and "Only 2 of 5 suggestions stay within --stop-when." in said["notes"]
    assert said["measures"]["labels"] == 14
    measure(pool, ids(said))
    said = suggest(pool)
    reached = "Stopped by --stop-when labels<=14: the number of measured or pending rows is 14."
    more = "Another row would exceed the limit; raise it to continue."
    assert not said["rows"] and said["stopped"] == f"{reached} {more}"
    said = suggest(pool, "--stop-when", "gain<1000", "--batch", 1)
    assert not said["rows"] and said["stopped"].startswith(
        "Stopped by --stop-when gain<1000: the best candidate's score is "
    )
    assert said["measures"]["gain"] < 1000 and said["measures"]["labels"] == 14
    assert said["stopped"] in run("suggest", pool).stdout
    said = suggest(pool, "--stop-when", "width<1000000")
    assert "mean width of the candidates' intervals is" in said["stopped"] and said["measures"]["width"] > 0
    said = suggest(pool, "--stop-when", "none")
    assert len(said["rows"]) == 1 and said["stopped"] is None


def test_a_budget(pool):
    frame = pd.read_csv(pool)
    frame["price"] = 10.0 + np.arange(len(frame)) % 2
    frame.to_csv(pool, index=False)
    said = begin(pool, "--cost", "price", "--stop-when", "budget<=25")
    assert len(said["rows"]) == 2 and "Costs are ignored until there is a model." in said["notes"]
    assert all(row["cost"] in (10, 11) for row in said["rows"])
    frame.loc[5, "price"] = 0
    frame.to_csv(pool, index=False)
    assert "line 7, column 'price': cost '0.0' is invalid; every row needs a positive number" in refused(pool)
    frame["price"] = frame.price.astype(object)
    frame.loc[5, "price"] = ""
    frame.to_csv(pool, index=False)
    assert "line 7, column 'price': cost '' is invalid" in refused(pool)
    said = suggest(pool, "--cost", "none")
    assert "New feature columns: price." in said["notes"]


def test_a_budget_of_decimals_pays_for_all_of_them():
    costs = pd.DataFrame({"labels": 1.0, "budget": [0.1] * 11})
    spent = {"labels": 0.0, "budget": 0.0}
    assert settings.allowed([settings.Limit("budget", 1.0, "budget<=1")], {}, spent, costs)[0] == 10
    assert settings.allowed([settings.Limit("labels", 2.5, "labels<=2.5")], {}, spent, costs)[0] == 2
    assert settings.allowed([], {}, spent, costs)[0] == 11


@pytest.mark.parametrize("goal", ["maximise", "minimise"])
def test_the_best_row_is_looked_for(pool, goal):
    """Where rows differ by one column, the first one lies at its better end."""
    measure(pool, [f"S-{i:03d}" for i in range(0, 24, 2)], np.linspace(0, 1, 12))
    frame = pd.read_csv(pool)[["name", "temp", "yield"]].fillna({"temp": 50})
    frame["yield"] = frame.temp.where(frame["yield"].notna())
    frame.to_csv(pool, index=False)
    said = suggest(pool, "--target", "yield", "--id", "name", "--goal", goal, "--batch", 3, "--epochs", 120)
    assert said["score"] == "expected-improvement (units of yield)"
    left = frame[frame["yield"].isna()].temp
    first = frame.set_index("name").temp[ids(said)[0]]
    assert first > left.median() if goal == "maximise" else first < left.median()
    best = frame["yield"].max() if goal == "maximise" else frame["yield"].min()
    assert said["measures"]["gain"] > 0
    for row in said["rows"]:
        better = row["mean"] > best if goal == "maximise" else row["mean"] < best
        words = "better than the best" if better else f"{row['high' if goal == 'maximise' else 'low']:.4g} is possible"
        assert row["reason"].startswith(f"predicted {row['mean']:.4g}, ") and words in row["reason"]
    assert f"Best so far: {best:.12g}." in said["notes"]
    measure(pool, ids(said), 50)
    said = suggest(pool, "--acquisition", "upper-confidence-bound")
    assert said["score"] == "upper-confidence-bound (units of yield)"
    assert said["rows"][0]["reason"].startswith("predicted ")
    assert "is not supported with --acquisition upper-confidence-bound, whose best score is not a gain" in refused(
        pool, "--stop-when", "gain<0.1"
    )
    assert suggest(pool, "--goal", "learn", "--status")["notes"][0] == (
        "Setting acquisition is now variance-reduction; it was upper-confidence-bound."
    )


def fill(out, **cells):
    """Write into next.csv."""
    frame = pd.read_csv(out)
    for name, cell in cells.items():
        frame[name] = frame.get(name, pd.Series(dtype=object)).astype(object)
        frame.loc[0, name] = cell
    frame.to_csv(out, index=False)


def test_what_another_table_left_in_next_csv_is_not_overwritten(pool):
    measure(pool, [f"S-{i:03d}" for i in range(6)])
    begin(pool)
    out, other = pool.with_name("next.csv"), pool.with_name("other.csv")
    before = out.read_bytes()
    pd.read_csv(pool).assign(name=[f"T-{i:03d}" for i in range(40)]).to_csv(other, index=False)
    words = "--target", "yield", "--id", "name", *QUICK
    assert "was edited, or belongs to another table, and would be overwritten" in refused(other, *words)
    fill(out, **{"yield": 7.5})
    assert "next.csv, line 2: " in (said := refused(other, *words, "--labels", out)) and "has no row 'S-" in said
    out.write_bytes(before)
    assert suggest(pool)["pending"]


def test_what_was_filled_in_beside_the_target_is_kept(pool):
    """Where next.csv was not read, it is not overwritten; where it was, the folder has a copy."""
    measure(pool, [f"S-{i:03d}" for i in range(6)])
    begin(pool)
    out = pool.with_name("next.csv")
    fill(out, **{"yield": 7.5, "operator": "Ada"})
    assert "next.csv was edited, or" in refused(pool) and "Ada" in out.read_text()
    said = suggest(pool, "--labels", out)
    assert said["measured"] == 7 and "Ada" not in out.read_text()
    assert f"Ignored columns of {out}: operator." in said["notes"]
    copies = (pool.with_suffix(".explore") / "sheets").glob("next-*.csv")
    assert sum("Ada" in copy.read_text() for copy in copies) == 1


def test_killed_after_next_csv_was_read(pool, monkeypatch):
    """It is not asked for again, and its measurements are there."""
    begin(pool)
    out = pool.with_name("next.csv")
    fill(out, **{"yield": 7.5})
    with monkeypatch.context() as patched:
        patched.setattr(choice, "choose", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run("suggest", pool, "--labels", out).exit_code == 130
    said = suggest(pool)
    assert said["measured"] == 1 and len(said["rows"]) == 5


def test_killed_before_any_of_its_files_is_in_place(pool, monkeypatch):
    """The same command again has the same results as one that was not killed."""
    measure(pool, [f"S-{i:03d}" for i in range(3)])
    begin(pool)
    out, file = pool.with_name("next.csv"), pool.with_suffix(".explore") / "campaign.json"
    frame = pd.read_csv(out)
    frame.assign(**{"yield": truth(frame)})[:4].to_csv(out, index=False)
    measure(pool, ["S-001"], 9.5)
    shutil.copytree(pool.parent, before := pool.parent.with_name("before"))
    replace, found = os.replace, []

    def known():
        return json.loads(file.read_text())["rows"], out.read_text()

    for most in range(20):
        left = iter(range(most))
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", lambda *paths: replace(*paths) if next(left, None) is not None else stop())  # noqa: B023
            killed = run("suggest", pool, "--labels", out).exit_code
        if killed:
            assert killed == 130
            assert run("suggest", pool, "--labels", out).exit_code == 0
        found.append(known())
        if not killed:
            break
        shutil.rmtree(pool.parent)
        shutil.copytree(before, pool.parent)
    assert len(found) > 5 and all(some == found[-1] for some in found)


def stop():
    raise KeyboardInterrupt


def test_status_writes_nothing(pool):
    measure(pool, [f"S-{i:03d}" for i in range(6)])
    begin(pool)
    out, file = pool.with_name("next.csv"), pool.with_suffix(".explore") / "campaign.json"
    before = out.read_bytes(), file.read_bytes()
    measure(pool, ["S-010"])
    assert suggest(pool, "--status")["measured"] == 7
    assert (out.read_bytes(), file.read_bytes()) == before


def test_next_csv_without_a_row_tells_nothing(pool):
    measure(pool, [f"S-{i:03d}" for i in range(40)])
    begin(pool)
    out = pool.with_name("next.csv")
    assert len(out.read_text().splitlines()) == 1
    assert suggest(pool, "--labels", out)["measured"] == 40
    own = pool.with_name("own.csv")
    own.write_bytes(out.read_bytes())
    assert "has no rows below its header" in refused(pool, "--labels", own)


def test_a_row_that_is_gone_is_not_used(pool):
    """Neither for the model nor in a budget, which is said; it comes back with what was told of it."""
    frame = pd.read_csv(pool)
    frame.loc[:9, "yield"] = truth(frame)[:10]
    frame.to_csv(pool, index=False)
    begin(pool)
    names = pool.with_name("new.csv")
    names.write_text("name,yield\nS-000,5\n")
    suggest(pool, "--labels", names)
    frame[1:].to_csv(pool, index=False)
    said = suggest(pool, "--batch", 11)  # one more than are pending
    assert said["measured"] == 9 and said["measures"]["labels"] == 20
    assert "No longer in the table, and unused until they return: S-000." in said["notes"]
    assert "9 measured (1 more no longer in the table), 19 candidates left." in run("suggest", pool, "--status").stdout
    frame.to_csv(pool, index=False)
    said = suggest(pool, "--status")
    assert said["measured"] == 10 and "Back in the table: 'S-000' (line 2)." in said["notes"]
    assert any("(yield" in note and "not 5). The corrected values are used." in note for note in said["notes"])


def test_measurements_that_are_all_the_same_are_said(pool):
    measure(pool, [f"S-{i:03d}" for i in range(8)], 3.5)
    assert "All measured values of yield are 3.5, so the model cannot learn how it varies." in begin(pool)["notes"]


def test_a_cheap_row_of_little_gain_is_not_enough(pool):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    frame = pd.read_csv(pool)
    frame["price"] = 1000.0
    frame.loc[20, "price"] = 1e-6
    frame.to_csv(pool, index=False)
    said = begin(pool, "--cost", "price", "--dry-run")
    scores = [row["score"] for row in said["rows"]]
    assert said["rows"][0]["id"] == "S-020" and said["measures"]["gain"] == max(scores) > scores[0]


def test_the_model_is_kept(pool):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    said = begin(pool, "--transform", "log")
    table = pd.read_csv(pool)
    with warnings.catch_warnings(action="ignore", category=TableWarning):
        found = explore.load_run(pool.with_suffix(".explore")).predict(table).set_index(table.name)
    for row in said["rows"]:
        np.testing.assert_allclose(found.loc[row["id"], ["mean", "low", "high"]], [row[k] for k in LEVELS], rtol=1e-4)
    suggest(pool, "--hidden", "3", "--release", "all")  # what is there would be of other settings
    with pytest.raises(InputError, match="has no model.pt"):
        explore.load_run(pool.with_suffix(".explore"))


@pytest.mark.parametrize("name", registry.names("acquisitions"))
def test_any_rule(pool, name):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    words = ("--target", "yield", "--id", "name", *QUICK, "--batch", 2, "--acquisition", name)
    result = run("suggest", pool, "--json", *words)
    if result.exit_code:
        assert f"{name} supports classes only" in result.stderr
    else:
        said = json.loads(result.stdout)
        assert len(said["rows"]) == 2 and said["score"].startswith(name) and said["rows"][0]["reason"]


def test_dear_rows_are_left_for_later(pool):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    frame = pd.read_csv(pool)
    frame["price"] = 1.0
    frame.to_csv(pool, index=False)
    said = begin(pool, "--cost", "price", "--dry-run")
    assert said["score"] == "variance-reduction"
    frame.loc[frame.name.isin(ids(said)), "price"] = 1e6
    frame.to_csv(pool, index=False)
    assert not {*ids(begin(pool, "--cost", "price"))} & {*ids(said)}


@pytest.mark.parametrize("text", ["gain", "gain<=1", "budget<5", "width<0", "width<nan", "size<3", "gain<1e999"])
def test_limits_that_are_none(pool, text):
    assert f"--stop-when is {text!r}; it must be gain<X" in refused(pool, "--target", "yield", "--stop-when", text)


@pytest.mark.parametrize(
    ("edit", "arguments", "sentence"),
    [
        (None, (), "--target is missing. Pass --target with the column to predict"),
        (None, ("--target", "price"), "pool.csv has no target 'price'; its columns: name, solvent"),
        (None, ("--target", "yield", "--out", "next.txt"), "its name must end with .csv or .xlsx"),
        (None, ("--target", "yield", "--out", "pool.csv"), "--out is the input table, which must not be"),
        (None, ("--target", "yield", "--out", "notes.csv"), "notes.csv exists, and was not written by explore suggest"),
        (None, ("--target", "yield", "--categorical", "x"), "'x' is not a feature column of pool.csv (features: "),
        (None, ("--target", "y", "--goal", "maximise", "--task", "classification"), "needs exactly one --target and"),
        (None, ("--target", "y", "--transform", "log", "--task", "classification"), "applies to regression only"),
        (None, ("--target", "y", "--stop-when", "width<2", "--task", "classification"), "classes have no intervals"),
        (None, ("--target", "yield", "-p", "epochs=3"), "-p epochs=... is not supported. Use --epochs."),
        (("name", "S-001", "S-000"), ("--target", "yield", "--id", "name"), "occurs in lines 2 and 3 of column 'name'"),
        (("yield", np.nan, "3 mg"), ("--target", "yield"), "'3 mg' is not a finite number; write only the number"),
        (("yield", np.nan, "good"), ("--target", "yield"), "for classes use --task classification"),
        (("yield", np.nan, "71,3"), ("--target", "yield"), "'71,3' is not a finite number; write a point, or"),
        (("temp", np.nan, "3 mg"), ("--target", "yield"), "'3 mg' is not a finite number or date like the other"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing_behind(pool, edit, arguments, sentence, monkeypatch):
    monkeypatch.chdir(pool.parent)
    (pool.parent / "notes.csv").write_text("a,b\n1,2\n")
    if edit:
        frame = pd.read_csv(pool, dtype=object)
        frame.loc[1, edit[0]] = edit[2]
        frame.to_csv(pool, index=False)
    assert sentence in refused(pool.relative_to(pool.parent), *arguments)
    assert not (pool.parent / "next.csv").exists() and not list(pool.parent.glob("*.explore/*.json"))
    assert (pool.parent / "notes.csv").read_text() == "a,b\n1,2\n"


def test_modules_that_the_folder_names_are_imported_only_when_trusted(pool, monkeypatch):
    begin(pool)
    monkeypatch.syspath_prepend(pool.parent)
    (pool.parent / "stranger.py").write_text("import pathlib\npathlib.Path(__file__).with_name('mark').touch()\n")
    config = pool.with_suffix(".explore") / "config.json"
    foreign = json.loads(config.read_text())
    foreign["settings"]["posterior"] = "stranger:Class"
    config.write_text(json.dumps(foreign))
    sentence = refused(pool)
    assert "imports the module 'stranger', whose code would run. If you" in sentence and "--trust stranger" in sentence
    assert not (pool.parent / "mark").exists()
    assert "cannot load the posterior 'stranger:Class'" in refused(pool, "--trust", "stranger")
    assert (pool.parent / "mark").exists()


def test_beside_an_excel_table_the_next_rows_are_excel_too(pool):
    book, out = pool.with_suffix(".xlsx"), pool.with_name("next.xlsx")
    pd.read_csv(pool, parse_dates=["day"]).to_excel(book, index=False)
    begin(book)
    asked = pd.read_excel(out)
    assert list(asked["_id"]) == list(asked.name) and asked.temp.dtype == float and asked["yield"].isna().all()
    assert asked.day.str.fullmatch(r"2024-\d\d-\d\d").all()
    asked["yield"] = truth(asked)
    asked.to_excel(out, index=False)
    assert f"{out} was edited, or belongs to another table, and would be overwritten" in refused(book)
    said = suggest(book, "--labels", out)
    assert said["measured"] == 5 and "'S-" in said["notes"][0] and "(row " in said["notes"][0]
    pd.DataFrame({"name": ["mine"]}).to_excel(out, index=False)
    assert "next.xlsx exists, and was not written by explore suggest" in refused(book)


@pytest.mark.parametrize("header", ["sample_id,temp", "id;_id2", "note\n_id"])
def test_a_table_of_the_users_own_is_never_taken_for_next_csv(pool, header):
    own = pool.with_name("next.csv")
    own.write_text(f"{header}\n1,2\n")
    assert "next.csv exists, and was not written by explore suggest" in refused(pool, "--target", "yield")
    assert own.read_text() == f"{header}\n1,2\n"


def test_a_refused_undo_takes_nothing_back(pool):
    measure(pool, [f"S-{i:03d}" for i in range(3)])
    begin(pool)
    out = pool.with_name("next.csv")
    frame = pd.read_csv(out)
    frame.loc[0, "yield"] = 1.5
    frame.to_csv(out, index=False)
    file = pool.with_suffix(".explore") / "campaign.json"
    before = file.read_bytes()
    assert "was edited, or belongs to another table, and would be overwritten" in refused(pool, "--undo")
    assert file.read_bytes() == before


def test_operations_are_refused_together(pool):
    measure(pool, ["S-001"])
    begin(pool)
    file = pool.with_suffix(".explore") / "campaign.json"
    before = file.read_bytes()
    assert "S-002" in refused(pool, "--retract", "S-001", "--release", "S-002", "--skip", "S-001")
    assert file.read_bytes() == before


def test_next_csv_of_a_table_whose_names_have_several_lines(pool):
    pool.write_text(pool.read_text().replace("temp", '"temp\nCelsius"', 1))
    begin(pool)
    assert len(suggest(pool)["pending"]) == 5


def test_measurements_of_a_target_that_is_none_any_more_are_not_written_over(pool):
    frame = pd.read_csv(pool)
    frame["purity"] = np.nan
    frame.to_csv(pool, index=False)
    begin(pool, "--target", "purity")
    out = pool.with_name("next.csv")
    filled = pd.read_csv(out)
    filled.loc[0, "purity"] = 0.9
    filled.to_csv(out, index=False)
    assert "was edited, or belongs" in refused(pool, "--target", "yield", "--drop-columns", "purity")
    assert pd.read_csv(out).purity[0] == 0.9


@pytest.mark.parametrize(
    ("name", "task"), [("_mean", "regression"), ("_low_yield", "regression"), ("_p_good", "classification")]
)
def test_columns_that_next_csv_has_too_are_refused(pool, name, task):
    frame = pd.read_csv(pool)
    frame[name] = 1.0
    frame.to_csv(pool, index=False)
    assert f"has a column '{name}', a name reserved for next.csv" in refused(pool, "--target", "yield", "--task", task)


@pytest.mark.parametrize("rule", ["random", "power"])
def test_scores_that_are_no_gain_stop_nothing(pool, rule):
    sentence = refused(pool, "--target", "yield", "--acquisition", rule, "--stop-when", "gain<0.5")
    assert f"gain<X is not supported with --acquisition {rule}, whose best score is not a gain" in sentence


def test_what_is_filled_in_while_the_model_is_fitted_is_not_written_over(pool, monkeypatch):
    first = ids(begin(pool))
    path, choose = pool.parent / "next.csv", choice.choose

    def slow(*arguments):
        asked = pd.read_csv(path)
        asked["yield"] = truth(asked)
        asked.to_csv(path, index=False)
        return choose(*arguments)

    measure(pool, first[:1])
    with monkeypatch.context() as patched:
        patched.setattr(choice, "choose", slow)
        assert "was edited, or belongs to another table, and would be overwritten" in refused(pool)
    said = suggest(pool, "--labels", path)
    assert said["measured"] == 5 and not {*ids(said), *ids(said, "pending")} & set(first)


def test_settings_that_another_start_changed_meanwhile_are_not_taken_back(pool, monkeypatch):
    begin(pool)
    read = table.read

    def slow(*arguments):
        with monkeypatch.context() as patched:
            patched.setattr(table, "read", read)
            suggest(pool, "--batch", 3, "--release", "all")
        return read(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(table, "read", slow)
        assert "pool.explore while this one was running. Run the command again." in refused(pool)
    assert not [note for note in suggest(pool, "--batch", 3)["notes"] if note.startswith("Setting batch")]


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%d.%m.%Y"])
def test_dates_that_a_spreadsheet_saved_in_another_form(pool, form):
    frame = pd.read_csv(pool).drop(columns="name")
    frame.to_csv(pool, index=False)
    first = suggest(pool, "--target", "yield", *QUICK)
    path, local = pool.parent / "done.csv", frame.assign(day=pd.to_datetime(frame.day).dt.strftime(form))
    local.sample(frac=1, random_state=0).to_csv(pool, index=False)
    again = suggest(pool)
    assert ids(again, "pending") == ids(first) and not again["rows"]
    assert not any("No longer in the table" in note or "written in another way" in note for note in again["notes"])
    asked = pd.read_csv(pool.parent / "next.csv")
    asked["yield"] = truth(asked)
    asked["day"] = pd.to_datetime(asked.day, format=form).dt.strftime("%Y-%m-%d")
    asked.drop(columns="_id").to_csv(path, index=False)
    frame.to_csv(pool, index=False)
    second = suggest(pool, "--labels", path)
    assert second["measured"] == 5 and not set(ids(second)) & set(ids(first)) and not second["pending"]
    with Campaign(pool.with_suffix(".explore"), dry=True) as known:
        assert len(known.state.rows) == 10


def test_a_point_where_commas_are_decimal_marks(pool):
    frame = pd.read_csv(pool)
    frame.to_csv(pool, index=False, sep=";", decimal=",")
    lines = pool.read_text().splitlines()
    for column, what in (
        ("temp", "is not a finite number or date like the other"),
        ("yield", "has a decimal point, but --decimal is"),
    ):
        cells = lines[1].split(";")
        cells[list(frame).index(column)] = "1.234"
        pool.write_text("\n".join([lines[0], ";".join(cells), *lines[2:]]))
        said = refused(pool, "--target", "yield", "--id", "name", "--decimal", ",")
        assert f"line 2, column '{column}': '1.234' {what}" in said


@pytest.mark.parametrize("column", ["temp", "yield"])
def test_units_that_no_double_holds_are_refused_by_the_name_of_their_column(pool, column):
    frame = pd.read_csv(pool)
    frame.loc[:9, "yield"] = truth(frame)[:10]
    frame[column] *= 1e200
    frame.to_csv(pool, index=False)
    said = refused(pool, "--target", "yield", "--id", "name", *QUICK)
    assert said.startswith(f"column '{column}' ranges from ") and "; rescale it" in said


def test_what_else_an_experiment_tells_is_no_feature(pool):
    frame = pd.read_csv(pool).drop(columns="name")
    frame["purity"], frame["operator"] = np.nan, ""
    frame.to_csv(pool, index=False)
    asked: list[int] = []
    for _ in range(3):
        said = suggest(pool, *(() if asked else ("--target", "yield", *QUICK)))
        lines = [row["line"] - 2 for row in said["rows"]]
        assert len(lines) == 5 and not said["pending"] and not set(lines) & set(asked)
        asked += lines
        frame.loc[lines, "yield"] = truth(frame)[lines]
        frame.loc[lines, "purity"] = np.arange(5) + len(asked)
        frame.loc[lines, "operator"] = "Ada"
        frame.to_csv(pool, index=False)
    said = suggest(pool, "--status")
    assert said["measured"] == 15 and not said["pending"]
    left = "Left out 'purity', 'operator': (nearly) empty where yield is unmeasured"
    assert any(note.startswith(left) for note in said["notes"])
    assert explore.load_run(pool.with_suffix(".explore")).features[-1].startswith("day")
    frame.loc[frame["yield"].isna().idxmax(), "purity"] = 3.0  # one cell that strayed into the pool
    frame.to_csv(pool, index=False)
    assert any(note.startswith(left) for note in suggest(pool, "--status")["notes"])
    frame.loc[frame["yield"].isna(), "purity"] = 3.0
    frame.to_csv(pool, index=False)
    assert any("Left out 'operator': (nearly) empty where" in note for note in suggest(pool, "--status")["notes"])


@pytest.mark.parametrize("left", [1, 2, 30])
def test_features_are_features_however_few_rows_are_left(pool, left):
    """Also with an empty cell among the last two rows, and where nothing is measured but one row has a cell."""
    frame = pd.read_csv(pool)
    frame["yield"] = truth(frame).where(frame.index < 40 - left)
    frame.loc[39, "temp"] = np.nan
    frame.to_csv(pool, index=False)
    assert not any("(nearly) empty" in note for note in begin(pool, "--batch", 1)["notes"])
    bare = pool.with_name("bare.csv")
    frame["yield"], frame["temp"] = np.nan, frame.temp.where(frame.index == 3)
    frame.to_csv(bare, index=False)
    said = suggest(bare, "--target", "yield", "--id", "name", "--out", bare.with_name("b.csv"), *QUICK)
    assert not any("(nearly) empty" in note for note in said["notes"])


def test_a_column_that_was_renamed_or_taken_out_loses_nothing(pool):
    frame = pd.read_csv(pool)
    measure(pool, [f"S-{i:03d}" for i in range(6)])
    first = begin(pool)
    frame = pd.read_csv(pool).rename(columns={"temp": "temperature"}).drop(columns="solvent")
    frame.to_csv(pool, index=False)
    said = suggest(pool)
    assert "No longer feature columns: solvent, temp." in said["notes"] and ids(said, "pending") == ids(first)
    assert list(pd.read_csv(pool.with_name("next.csv")))[:4] == ["name", "temperature", "day", "yield"]


def test_what_writes_nothing_is_not_refused_for_what_it_would_write_over(pool):
    measure(pool, [f"S-{i:03d}" for i in range(6)])
    begin(pool)
    out = pool.with_name("next.csv")
    fill(out, **{"yield": 7.5})
    sentence = f"Without --dry-run or --status, this command would fail: {out} was edited, or belongs to another table"
    for option in ("--status", "--dry-run"):
        said = suggest(pool, option)
        assert said["measured"] == 6 and any(note.startswith(sentence) for note in said["notes"])
    file = pool.with_suffix(".explore") / "campaign.json"
    before = file.read_bytes()
    measure(pool, ["S-000"], 99)
    assert "was edited, or belongs" in refused(pool) and file.read_bytes() == before  # all or nothing
    assert any("corrected yield from" in note for note in suggest(pool, "--labels", out)["notes"])


@pytest.mark.parametrize(
    "cell, sentence",
    [
        (
            "inf",
            "'inf' is not a finite number; write only the number, 'failed' for a failed experiment, or nothing if "
            "it is not measured yet",
        ),
        ("high", "(for classes use --task classification)"),
        ("1,5", "write a point, or pass --decimal ,"),
    ],
)
def test_what_is_said_of_a_target_that_is_no_number(pool, cell, sentence):
    frame = pd.read_csv(pool)
    frame["yield"] = frame["yield"].astype(object)
    frame.loc[0, "yield"] = cell
    frame.to_csv(pool, index=False)
    assert refused(pool, "--target", "yield", *QUICK).endswith(sentence)


def test_the_best_bound_is_the_lowest_where_less_is_better(pool):
    measure(pool, [f"S-{i:03d}" for i in range(12)])
    said = begin(pool, "--goal", "minimise", "--acquisition", "upper-confidence-bound", "--batch", 4)
    assert said["measures"]["gain"] == min(row["score"] for row in said["rows"])


@pytest.mark.parametrize("kind", [".csv", ".xlsx"])
def test_names_that_look_like_formulas_come_back(pool, kind):
    """Neither does a spreadsheet program compute them, nor is a measurement of theirs lost."""
    frame = pd.read_csv(pool)
    frame["name"] = [f"{'=+-@'[i % 4]}{name}" for i, name in enumerate(frame.name)]
    frame["solvent"] = "=" + frame.solvent
    frame.loc[:5, "yield"] = range(6)
    frame.to_csv(pool, index=False)
    path = pool.with_name(f"next{kind}")
    said = begin(pool, "--out", path)
    read = pd.read_csv if kind == ".csv" else pd.read_excel
    mark, asked = "'" if kind == ".csv" else "", read(path)
    assert [mark + name for name in ids(said)] == asked.name.tolist() == asked["_id"].tolist()
    assert asked.solvent.str.startswith(f"{mark}=").all()
    assert any("Wrote an apostrophe before " in note for note in said["notes"]) == (kind == ".csv")
    asked["yield"] = [1.5, 2.5, 3.5, 4.5, 5.5]
    asked.to_csv(pool.with_name("told.csv"), index=False)  # by whatever program
    later = suggest(pool, "--out", path, "--labels", "told.csv")
    assert not any("Not in the table" in note for note in later["notes"]) and later["measured"] == 11


def numbered(path, numbers):
    """A column beside the others; what is learnt from."""
    frame = pd.read_csv(path)
    frame["n"] = numbers
    frame.to_csv(path, index=False)


def learnt(path):
    with Campaign(path.with_suffix(".explore"), dry=True) as known:
        assert known.state.schema is not None
        return known.state.schema.features


def test_a_column_that_numbers_the_rows_stays_left_out_when_rows_come(pool):
    numbered(pool, range(1, 41))
    said = begin(pool)
    assert "Column 'n' numbers the rows and is left out; use --feature 'n' to include it." in said["notes"]
    assert learnt(pool) == ("solvent", "temp", "day")
    numbered(pool, [5] * 20 + [900] * 20)  # no order any more
    said = suggest(pool, "--drop-columns", "day")
    assert "Still left out, as in the last run: 'n'. Use --feature to include a column." in said["notes"]
    assert learnt(pool) == ("solvent", "temp")
    suggest(pool, "--feature", "n")
    assert learnt(pool) == ("solvent", "temp", "n")
    numbered(pool, range(40))
    said = suggest(pool)  # the option is kept
    assert learnt(pool) == ("solvent", "temp", "n") and not any("'n' numbers" in note for note in said["notes"])


def test_texts_that_differ_in_a_small_pool_are_learnt_from_when_it_grows(pool):
    frame = pd.read_csv(pool).assign(name=range(40), tag=["u", "v"] * 20)
    frame.head(2).to_csv(pool, index=False)
    begin(pool)
    assert "tag" not in learnt(pool)
    frame.to_csv(pool, index=False)
    suggest(pool)
    assert "tag" in learnt(pool)


def test_a_column_that_is_learnt_from_stays_when_it_numbers_the_rows(pool):
    """And a column that was left out stays left out."""
    numbered(pool, [1, 2] * 20)
    frame = pd.read_csv(pool)
    frame.insert(0, "nr.", range(40))
    frame.to_csv(pool, index=False)
    begin(pool)
    config = pool.with_suffix(".explore") / "config.json"
    numbered(pool, range(40))
    suggest(pool)
    assert learnt(pool) == ("solvent", "temp", "day", "n")
    decided = {"features": ["solvent", "temp", "day", "n"], "left_out": ["nr."]}
    assert json.loads(config.read_text())["learnt"] == decided


def test_a_sheet_of_the_table_and_of_its_answers(pool):
    frame = pd.read_csv(pool)
    frame.loc[:5, "yield"] = range(6)
    path = pool.with_suffix(".xlsx")
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"Read": ["me"]}).to_excel(book, sheet_name="About", index=False)
        frame.to_excel(book, sheet_name="Data", index=False)
    assert "(sheet 'About' was read; --sheet reads another: 'Data')" in refused(path, "--target", "yield")
    assert "pool.xlsx 'data'; allowed: About, Data" in refused(path, "--target", "yield", "--sheet", "data")
    first = begin(path, "--sheet", "Data")
    answers = pd.read_excel(path.with_name("next.xlsx"))  # whose one sheet has another name
    answers["yield"] = [1.5, 2.5, 3.5, 4.5, 5.5]
    answers.to_excel("next.xlsx", index=False)
    later = suggest(path, "--labels", "next.xlsx")
    assert later["measured"] == 11 and not {*ids(later)} & {*ids(first)}
