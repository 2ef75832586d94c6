"""Campaigns: which row is which, what is said, and what is refused."""

import datetime
import re

import pytest

from explore.campaign import Campaign, Schema, folder_of, state as states
from explore.campaign.state import NAME
from explore.core.errors import InputError
from tests.campaign.tables import SCHEMA, known, read, table, text

IDS = Schema(("y",), ("temp", "solvent"), "name")
POOL = """
name, temp, solvent, code, y
a,    20,   water,   1,
b,    30,   water,   1,
c,    40,   ethanol, 2,    1.5
d,    50,   ethanol, 2,
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pool.explore"


def values(campaign):
    """What is measured, by id."""
    return {row.id: row.values["y"] for row in campaign.state.rows.values() if row.values}


def of(campaign, line):
    """What is measured of the row in a line of the table."""
    row = campaign.state.rows.get(campaign.ids[line - 2])
    return row.values.get("y") if row else None


def here(campaign):
    """What is measured of the rows in the table, by id."""
    return {row.id: row.values["y"] for row in campaign.state.in_table if row.values}


def said(campaign):
    return "\n".join(campaign.notes)


def ask(folder, now, *rows, schema=IDS):
    with Campaign(folder) as campaign:
        campaign.read(now, schema)
        campaign.suggest(rows)
        campaign.save()
    return campaign


def test_the_folder_is_beside_the_table(tmp_path):
    for name in ("pool.csv", "pool.xlsx", "pool.csv.gz", "pool.parquet"):
        assert folder_of(tmp_path / name) == tmp_path / "pool.explore"


def test_a_round(folder):
    campaign = ask(folder, text(POOL), 0, 3)
    assert campaign.ids == ("a", "b", "c", "d") and campaign.pool == (1,)
    assert "New measurements: 'c' (line 4)." in campaign.notes
    assert [(row.id, row.pending) for row in campaign.pending] == [("a", 2), ("d", 2)]
    again = read(folder, text(POOL.replace("50,   ethanol, 2,", "50.0, ethanol, 2, 7")), schema=IDS)
    assert values(again) == {"c": [1.5], "d": [7]} and again.pool == (1,)
    assert "New measurements from batch 2: 'd' (line 5)." in again.notes
    assert again.status()[0] == "2 measured, 1 candidate left."
    assert re.fullmatch(r"Pending since 20\d\d-\d\d-\d\d \(batch 2\): 'a' \(line 2\)\.", again.status()[1])
    assert read(folder, text(POOL), schema=IDS, dry=True).notes == [
        "Withdrawn, because their cells were emptied: 'd' (line 5)."
    ]


def test_the_same_table_again_writes_nothing(folder):
    ask(folder, text(POOL), 0)
    before = (folder / NAME).read_bytes()
    campaign = read(folder, text(POOL), schema=IDS)
    assert (folder / NAME).read_bytes() == before and not campaign.notes


def test_only_rows_of_the_pool_are_handed_out(folder):
    with Campaign(folder) as campaign:
        campaign.read(text(POOL), IDS)
        campaign.suggest([0])
        for rows in ([0], [2], [1, 1], [4], [-1]):
            with pytest.raises(InputError, match="must be distinct indices from `pool`; got"):
                campaign.suggest(rows)
        campaign.operate("release")
        assert campaign.pool == (0, 1, 3)
        campaign.operate("skip", ["a", "b"])
        assert campaign.pool == (3,) and campaign.status()[-1] == "Skipped: 'a' (line 2), 'b' (line 3)."
        campaign.operate("release", ["a"])
        assert campaign.pool == (0, 3)
        campaign.operate("release")
        assert campaign.notes[-1] == "No row is pending." and campaign.pool == (0, 3)


@pytest.mark.parametrize(
    ("operation", "names", "sentence"),
    [
        ("skip", ["c"], "row c is already measured and will not be suggested; --retract c withdraws it"),
        ("skip", ["x"], "no row 'x'"),
        ("release", ["b"], "row b is neither pending nor skipped"),
        ("retract", ["a"], "row a was not measured"),
    ],
)
def test_what_operations_refuse(folder, operation, names, sentence):
    with Campaign(folder) as campaign:
        campaign.read(text(POOL), IDS)
        before = known(campaign), len(campaign.state.steps)
        with pytest.raises(InputError, match=sentence):
            campaign.operate(operation, ["a", *names] if operation == "skip" else names)
        assert (known(campaign), len(campaign.state.steps)) == before


def test_retract(folder):
    with Campaign(folder) as campaign:
        campaign.read(text(POOL), IDS)
        campaign.operate("retract", ["c"])
        assert not values(campaign) and campaign.pool == (0, 1, 2, 3)
        campaign.save()
    again = read(folder, text(POOL), schema=IDS)
    assert not values(again) and "The table still has withdrawn measurements: 'c' (line 4) (y 1.5)." in said(again)
    assert of(read(folder, text(POOL.replace("1.5", "1.6")), schema=IDS), 4) == [1.6]


def test_what_was_retracted_stays_so_when_more_is_retracted(folder):
    schema = Schema(("y", "z"), ("temp",), "name")
    pool = text("name,temp,y,z\na,1,2,3")
    read(folder, pool, schema=schema)
    with Campaign(folder) as campaign:
        campaign.operate("retract", ["a"])
        campaign.read(pool, schema, text("name,y\na,4", "new.csv"))
        assert campaign.state.rows["a"].values == {"y": [4]}
        campaign.operate("retract", ["a"])
        assert not campaign.state.rows["a"].values and campaign.pool == (0,)


def test_identical_rows_of_which_a_target_is_none_any_more(folder):
    schema = Schema(("y", "z"), ("temp",))
    pool = text("temp,y,z\n20,1,5\n20,,6\n20,,")
    first = ask(folder, pool, 1, 2, schema=schema)
    turned = text("temp,y,z\n20,,\n20,,6\n20,1,5")
    campaign = read(folder, turned, schema=schema._replace(targets=("y",)))
    assert of(campaign, 4) == [1] and len(campaign.pending) == 2 and campaign.ids[2] == first.ids[0]


def test_undo_takes_back_what_was_told_batch_by_batch(folder):
    with Campaign(folder) as campaign:
        campaign.read(text(POOL), IDS)
        first = known(campaign)
        campaign.suggest([0, 1])
        second = known(campaign)
        campaign.read(text(POOL.replace("1,\nb", "1, 9\nb").replace("1.5", "2")), IDS)
        assert values(campaign) == {"a": [9], "c": [2]}
        campaign.undo()
        assert campaign.notes[-1].startswith("Undid batch 3 of ") and campaign.notes[-1].endswith(": 2 x measure.")
        assert {name: row[:3] for name, row in known(campaign).items()} == {
            name: row[:3] for name, row in second.items()
        }
        campaign.undo()
        assert {name: row[:3] for name, row in known(campaign).items() if any(row[:3])} == {
            name: row[:3] for name, row in first.items()
        }
        campaign.undo()
        assert not values(campaign)
        with pytest.raises(InputError, match="nothing to undo"):
            campaign.undo()
        campaign.save()
    again = read(folder, text(POOL.replace("1,\nb", "1, 9\nb").replace("1.5", "2")), schema=IDS)
    assert not values(again) and "withdrawn measurements: 'a' (line 2) (y 9), 'c' (line 4) (y 2)" in said(again)
    told = read(folder, text(POOL), text(POOL, "pool.csv"), schema=IDS)
    assert values(told) == {"c": [1.5]}


def test_a_correction_by_a_file_stays_though_the_table_does_not_follow(folder):
    read(folder, text(POOL), schema=IDS)
    campaign = read(folder, text(POOL), text("name,y\nc,1.7", "new.csv"), schema=IDS)
    assert values(campaign) == {"c": [1.7]}
    assert "'c' (line 4): corrected y from 1.5 to 1.7 (from new.csv)." in campaign.notes
    again = read(folder, text(POOL), schema=IDS)
    assert values(again) == {"c": [1.7]} and "'c' (line 4) (y 1.5, not 1.7)" in said(again)
    assert not read(folder, text(POOL.replace("1.5", "1.7")), schema=IDS).notes
    table_last = read(folder, text(POOL.replace("1.5", "1.9")), schema=IDS)
    assert values(table_last) == {"c": [1.9]} and "corrected y from 1.7 to 1.9." in said(table_last)


def test_the_file_counts_more_than_the_table_in_one_step(folder):
    read(folder, text(POOL), schema=IDS)
    campaign = read(folder, text(POOL.replace("1.5", "1.6")), text("name,y\nc,1.7", "new.csv"), schema=IDS)
    assert values(campaign) == {"c": [1.7]} and len(campaign.state.steps) == 2
    assert campaign.state.steps[-1]["rows"] == {"c": {"y": {"values": [1.7], "from": "new.csv"}}}


def test_replicates(folder):
    replicates = text("name,y\nb,1\nb,2\nb,4.5", "new.csv")
    campaign = read(folder, text(POOL), replicates, schema=IDS)
    (row,) = [row for row in campaign.measured if row.id == "b"]
    assert row.values == {"y": [1, 2, 4.5]} and row.mean == {"y": 2.5}
    assert "Measured more than once; the mean is used: 'b' (line 3) (y 1, 2, 4.5: 2.5)." in campaign.notes
    before = (folder / NAME).read_bytes()
    shuffled = text("name,y\nb,2\nb,4.5\nb,1", "new.csv")
    assert values(read(folder, text(POOL), shuffled, schema=IDS))["b"] == [1, 2, 4.5]
    assert (folder / NAME).read_bytes() == before
    for cell in ("4.5", "2.50000001"):  # one of them, and their mean, as a spreadsheet may round it
        assert values(read(folder, text(POOL.replace("1,\nc", f"1,{cell}\nc")), schema=IDS))["b"] == [1, 2, 4.5]
    more = text("name,y\nb,1\nb,1\nb,4.5\nb,2", "new.csv")
    now = text(POOL.replace("1,\nc", "1,2.5\nc"))
    assert values(read(folder, now, more, schema=IDS))["b"] == [1, 1, 4.5, 2]
    assert values(read(folder, text(POOL.replace("1,\nc", "1,3\nc")), schema=IDS))["b"] == [3]


def test_next_csv_comes_back(folder):
    pool = text("temp,solvent,code,y\n20,water,1,\n30,water,1,\n30,water,1,\n40,water,1,")
    campaign = ask(folder, pool, 0, 2, schema=SCHEMA)
    lines = [f"{campaign.ids[0]},1,,,,,far,20.0,water,1,5", f"{campaign.ids[2]},2,,,,,far,30,water,1,6"]
    back = text("\n".join(["_id,_rank,_mean,_low,_high,_score,_reason,temp,solvent,code,y", *lines]), "next.csv")
    again = read(folder, pool, back)
    assert [of(again, line) for line in (2, 3, 4, 5)] in ([[5], None, [6], None], [[5], [6], None, None])
    assert len(again.pool) == 2 and not again.pending and "not used" not in said(again)


def test_a_label_by_features_goes_to_the_pending_one_of_identical_rows(folder):
    pool = text("temp,solvent,code,y\n30,water,1,\n30,water,1,3\n30,water,1,")
    campaign = ask(folder, pool, 0, schema=SCHEMA)
    again = read(folder, pool, text("code,temp,solvent,y\n1,30,water,4\n1,30,water,3", "new.csv"))
    assert sorted(map(str, again.state.rows)) == sorted(campaign.state.rows) and not again.pending
    assert sorted(v["y"] for v in (row.values for row in again.state.rows.values())) == [[3], [4]]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            "name,y\nx,1",
            r"new.csv, line 2: pool.csv has no row 'x'. Add the row with its result to pool.csv, or correct the ident",
        ),
        (
            "name,y,temp\na,1,21",
            r"new.csv, line 2, column 'temp': '21', but row 'a' has '20'.*add a row with its result to pool.csv",
        ),
        ("temp,y\n20,1", r"the rows of new.csv to the table. Add a column '_id' or 'name', or all feature"),
        ("name,z\na,1", r"new.csv has none of the target columns .y."),
        ("name,y\na,\nb,1;5", "new.csv, line 3, column 'y': '1;5' is not a finite number"),
        ("name,y\n,1", r"new.csv, line 2: no identifier. Fill in 'name'."),
        (
            "temp,solvent,y\n21,water,1",
            r"no row of the table has these features. Fill in '_id', or add the row with its result to pool.csv",
        ),
    ],
)
def test_a_file_of_labels_that_is_not_clear_changes_nothing(folder, lines, sentence):
    read(folder, text(POOL), schema=IDS)
    before = (folder / NAME).read_bytes()
    with pytest.raises(InputError, match=sentence):
        read(folder, text(POOL.replace("1.5", "9")), text(lines, "new.csv"), schema=IDS)
    assert (folder / NAME).read_bytes() == before


def test_columns_of_a_file_of_labels_that_the_table_does_not_have(folder):
    campaign = read(folder, text(POOL), text("name,temp,y,extra,_rank\na,20,8,1,1", "new.csv"), schema=IDS)
    assert values(campaign) == {"a": [8], "c": [1.5]} and "Ignored columns of new.csv: extra." in campaign.notes


@pytest.mark.parametrize(
    ("pool", "sentence"),
    [
        ("name,temp,solvent,y\na,1,w,\nb,1,w,\n a ,2,w,", r"identifier 'a' occurs in lines 2 and 4 of column 'name'"),
        ("name,temp,solvent,y\na,1,w,\n,1,w,", r"line 3, column 'name': the identifier is empty"),
        ("name,temp,solvent,y\na,1,w,1;5", "pool.csv, line 2, column 'y': '1;5' is not a finite number"),
        ("name,temp,solvent\na,1,w", r"pool.csv has no column 'y'; its columns: name, temp, solvent"),
        ("name,temp,y\na,1,2", r"pool.csv has no column 'solvent'"),
        ("temp,solvent,y\na,1,2", r"pool.csv has no column 'name'"),
    ],
)  # fmt: skip
def test_a_table_that_is_refused(folder, pool, sentence):
    with pytest.raises(InputError, match=sentence):
        read(folder, text(pool), schema=IDS)
    assert not (folder / NAME).exists()


def test_a_row_with_an_id_keeps_its_label_when_its_features_change(folder):
    read(folder, text(POOL), schema=IDS)
    campaign = read(folder, text(POOL.replace("40", "44")), schema=IDS)
    assert campaign.notes == ["'c' (line 4): temp was 40 and is 44; keeps its measurement."]
    assert campaign.state.rows["c"].cells["temp"] == "44" and values(campaign) == {"c": [1.5]}
    assert not read(folder, text(POOL.replace("40", "44.00")), schema=IDS).notes


def test_without_ids_another_feature_is_another_row_and_said(folder):
    first = ask(folder, text(POOL), 0, schema=SCHEMA)
    campaign = read(folder, text(POOL.replace("40", "44").replace("20, ", "21, ")))
    assert list(here(campaign).values()) == [[1.5]] and not campaign.pending and campaign.pool == (0, 1, 3)
    gone = [first.ids[i][:12] for i in (2, 0)]
    assert campaign.notes == [
        f"No longer in the table, and unused until they return: {', '.join(gone)}.",
        "New measurements: line 4.",
    ]
    back = read(folder, text(POOL))
    assert back.ids == first.ids and len(back.pending) == 1 and back.pool == (1, 3)


def test_rows_go_and_come_back(folder):
    """What a file told of a row is kept meanwhile, but not used."""
    ask(folder, text(POOL), 0)
    read(folder, text(POOL), text("name,y\nb,3\nc,1.7", "new.csv"), schema=IDS)
    few = text("name,temp,solvent,y\nd,50,ethanol,")
    campaign = read(folder, few, schema=IDS)
    assert campaign.notes == ["No longer in the table, and unused until they return: c, a, b."]
    assert not campaign.measured and not campaign.pending and campaign.pool == (0,)
    assert campaign.status() == ["0 measured (2 more no longer in the table), 1 candidate left."]
    assert not read(folder, few, schema=IDS).notes
    campaign = read(folder, text(POOL), schema=IDS)
    assert campaign.notes[0] == "Back in the table: 'a' (line 2), 'b' (line 3), 'c' (line 4)."
    assert campaign.pool == (3,) and values(campaign) == {"b": [3], "c": [1.7]} and len(campaign.pending) == 1


@pytest.mark.parametrize("schema", [IDS, SCHEMA])
def test_a_single_row_is_itself_whatever_its_cell_says(folder, schema):
    read(folder, text(POOL), text("temp,solvent,code,y,_id\n30,water,1,5,", "new.csv"), schema=schema)
    campaign = read(folder, text(POOL.replace("1,\nc", "1, 6\nc")), schema=schema)
    assert of(campaign, 3) == [6] and len(values(campaign)) == 2  # a correction of what the file told
    read(folder, text("name,temp,solvent,code,y\na,20,water,1,"), schema=schema)
    campaign = read(folder, text(POOL.replace("1.5", "1.8")), schema=schema)
    # One was away, and corrected meanwhile; the other was away with its cell emptied.
    assert of(campaign, 4) == [1.8] and of(campaign, 3) is None
    assert "corrected y from 1.5 to 1.8" in said(campaign)


def test_several_targets_of_which_one_is_measured(folder):
    schema = Schema(("y", "z"), ("temp",), "name")
    pool = "name,temp,y,z\na,1,,\nb,2,3,\nc,3,4,5"
    campaign = ask(folder, text(pool), 0, schema=schema)
    assert [row.id for row in campaign.measured] == ["c"] and [row.id for row in campaign.partly] == ["b"]
    assert campaign.pool == (1,)
    campaign = read(folder, text(pool.replace("a,1,,", "a,1,7,")), schema=schema)
    assert [row.id for row in campaign.pending] == ["a"] and len(campaign.partly) == 2
    campaign = read(folder, text(pool.replace("a,1,,", "a,1,7,")), text("name,z\na,8", "new.csv"), schema=schema)
    assert campaign.state.rows["a"].values == {"y": [7], "z": [8]} and not campaign.pending


def test_a_failed_experiment(folder):
    ask(folder, text(POOL), 0, 3)
    now = text(POOL.replace("1,\nb", "1, Failed\nb").replace("2,\n", "2, 7\n"))
    campaign = read(folder, now, schema=IDS)
    assert values(campaign) == {"a": [None], "c": [1.5], "d": [7]} and not campaign.pending and campaign.pool == (1,)
    assert [row.id for row in campaign.failed] == ["a"] and [row.id for row in campaign.measured] == ["c", "d"]
    assert "Failed, will not be suggested again: 'a' (line 2)." in campaign.notes
    assert "New measurements from batch 2: 'd' (line 5)." in campaign.notes and campaign.answered
    assert campaign.status() == ["2 measured, 1 candidate left.", "Failed: 'a' (line 2)."]
    again = read(folder, now, text("name,y\na,4", "new.csv"), schema=IDS)
    assert "'a' (line 2): corrected y from failed to 4 (from new.csv)." in again.notes
    assert "'a' (line 2) (y failed, not 4). The corrected values are used." in said(again)
    assert values(again)["a"] == [4] and not again.failed
    assert read(folder, now, text("name,y\na,FAIL\nb,error\nb,2", "new.csv"), schema=IDS).failed
    with Campaign(folder) as campaign:
        campaign.read(now, IDS)
        assert values(campaign) == {"a": [None], "b": [None, 2], "c": [1.5], "d": [7]}
        assert [row.mean["y"] for row in campaign.measured] == [1.5, 7, 2]
        assert "'b' (line 3) (y failed, 2: 2)" in said(campaign)
        campaign.operate("retract", ["a"])
        assert campaign.pool == (0,) and not campaign.failed
    gone = read(folder, text("name,temp,solvent,y\nb,30,water,"), schema=IDS)
    assert not gone.failed and gone.status() == ["1 measured (2 more no longer in the table), 0 candidates left."]
    assert [row.id for row in read(folder, now, schema=IDS).failed] == ["a"]


def test_a_text_that_is_declared_as_a_failure(folder):
    """Among classes `failed` is one until then; what a file told of it is another kind of answer from then on."""
    classes = IDS._replace(classes=True)
    campaign = read(
        folder, text(POOL.replace("1.5", "failed")), text("name,y\nb,broke\na,ok", "new.csv"), schema=classes
    )
    assert values(campaign) == {"a": ["ok"], "b": ["broke"], "c": ["failed"]} and not campaign.failed
    declared = classes._replace(failed=("Broke", "failed"))
    campaign = read(folder, text(POOL.replace("1.5", "failed")), schema=declared)
    assert values(campaign) == {"a": ["ok"], "b": [None], "c": [None]} and len(campaign.failed) == 2
    assert "'b' (line 3): corrected y from broke to failed." in campaign.notes
    assert not read(folder, text(POOL.replace("1.5", "failed")), schema=declared).notes
    assert len(read(folder, text(POOL.replace("1.5", "failed")), schema=classes).failed) == 1  # as the file told
    numbers = IDS._replace(failed=("-999",))
    campaign = read(folder.with_name("other"), text(POOL.replace("1.5", "-999.0")), schema=numbers)
    assert values(campaign) == {"c": [None]}


def test_all_cells_that_are_no_numbers_are_named_at_once(folder):
    schema = Schema(("y", "z"), ("temp",), "name")
    pool = "name,temp,y,z\na,1,12.5 mg,\nb,2,3,>95\nc,3,broke,5\nd,4,failed,NA\ne,4,2,"
    with pytest.raises(InputError) as error:
        read(folder, text(pool), schema=schema)
    assert str(error.value) == (
        "pool.csv: 3 cells of targets are not finite numbers: column 'y': '12.5 mg' (line 2), 'broke' (line 4); column "
        "'z': '>95' (line 3); write only the number, 'failed' for a failed experiment, or nothing if "
        "it is not measured yet (for classes use --task classification)"
    )
    assert not (folder / NAME).exists()


def test_a_row_of_which_one_target_failed(folder):
    """It is done, and what is measured of it counts; the failure may still be replaced."""
    schema = Schema(("y", "z"), ("temp",), "name")
    pool = "name,temp,y,z\na,1,,\nb,2,3,4"
    ask(folder, text(pool), 0, schema=schema)
    campaign = read(folder, text(pool.replace("a,1,,", "a,1,failed,")), schema=schema)
    assert not campaign.pending and campaign.pool == () and not campaign.partly
    assert "Failed, will not be suggested again: 'a' (line 2) (y)." in campaign.notes
    campaign = read(folder, text(pool.replace("a,1,,", "a,1,failed,8")), schema=schema)
    assert [row.id for row in campaign.partly] == [row.id for row in campaign.failed] == ["a"]
    assert campaign.state.rows["a"].mean == {"y": None, "z": 8} and len(campaign.measured) == 1
    assert campaign.status()[1:] == ["Failed: 'a' (line 2)."]
    campaign = read(folder, text(pool.replace("a,1,,", "a,1,6,8")), schema=schema)
    assert len(campaign.measured) == 2 and "corrected y from failed to 6." in said(campaign)


def test_next_csv_that_was_written_before_the_table_changed_tells_nothing_old(folder):
    """It has what was known of a pending row, as a mean, beside the answer that is new."""
    schema = Schema(("y", "z"), ("temp",), "name")
    pool = "name,temp,y,z\na,1,7,\nb,2,3,4"
    ask(folder, text(pool), 0, schema=schema)
    back = text("_id,_rank,name,temp,y,z\na,1,a,1,7,5", "next.csv")
    campaign = read(folder, text(pool.replace("a,1,7", "a,1,8")), back, schema=schema)
    assert campaign.state.rows["a"].values == {"y": [8], "z": [5]}
    assert "corrected y from 7 to 8." in said(campaign) and "next.csv says" not in said(campaign)
    other = folder.with_name("other")
    ask(other, text(pool.replace("a,1,7", "a,1,")), 0, schema=schema)
    read(other, text(pool.replace("a,1,7", "a,1,")), text("name,y\na,1\na,2\na,6", "new.csv"), schema=schema)
    campaign = read(other, text(pool.replace("a,1,7", "a,1,")), text("name,y,z\na,3,5", "next.csv"), schema=schema)
    assert campaign.state.rows["a"].values == {"y": [1, 2, 6], "z": [5]}


def test_a_row_without_ids_whose_columns_changed(folder):
    rows = "20,water,1,\n30,water,1,\n40,ethanol,2,1.5"
    first = ask(folder, text(f"temp,solvent,code,y\n{rows}"), 0, schema=SCHEMA)
    read(folder, text(f"temp,solvent,code,y\n{rows}"), text("temp,solvent,code,y\n40,ethanol,2,1.7", "new.csv"))

    def check(head, lines, features, *sentences):
        campaign = read(folder, text("\n".join([head, *lines])), schema=Schema(("y",), features))
        assert [name in campaign.state.rows for name in campaign.ids] == [True, False, True]
        assert of(campaign, 4) == [1.7] and not any(row.gone for row in campaign.state.rows.values())
        assert campaign.pool == (1,) and len(campaign.pending) == 1 and {*sentences} <= {*campaign.notes}
        assert campaign.state.resolve(first.ids[0]) == campaign.pending[0].id  # its former id still names it
        return campaign

    lines = ["20,water,1,,x", "30,water,1,,x", "40,ethanol,2,1.5,y"]
    check("temp,solvent,code,y,lab", lines, ("temp", "solvent", "code", "lab"), "New feature columns: lab.")
    check("celsius,solvent,code,y,lab", lines, ("celsius", "solvent", "code", "lab"))
    left = "No longer feature columns: code, solvent."
    check("celsius,solvent,code,y,lab", lines, ("celsius", "lab"), left)
    head, lines = "celsius,y,lab,temp,solvent", ["20,,x,1,a", "30,,x,2,b", "40,1.5,y,3,c"]
    campaign = check(head, lines, ("celsius", "lab", "temp", "solvent"))
    back = text(f"_id,y\n{first.ids[0]},7", "next.csv")  # as it was handed out first
    campaign = read(folder, text("\n".join([head, *lines])), back, schema=campaign.state.schema)
    assert of(campaign, 2) == [7] and not campaign.pending
    with Campaign(folder) as undone:  # of steps that had other ids
        for _ in range(4):
            undone.undo()
        assert not undone.pending and not values(undone)


def test_from_features_to_ids_and_back(folder):
    campaign = ask(folder, text(POOL), 0, schema=SCHEMA)
    ids = Schema(("y",), SCHEMA.features, "name")
    campaign = read(folder, text(POOL), schema=ids)
    assert values(campaign) == {"c": [1.5]} and [row.id for row in campaign.pending] == ["a"]
    assert "Rows were identified by their features, now by 'name'." in campaign.notes
    campaign = read(folder, text(POOL), schema=SCHEMA)
    assert of(campaign, 4) == [1.5] and campaign.pool == (1, 3)


def test_where_several_rows_may_be_meant_none_gets_the_label(folder):
    read(folder, text("temp,y\n20,\n30,"), text("temp,y\n20,5", "new.csv"), schema=Schema(("y",), ("temp",)))
    now = "temp,lab,y\n20,x,\n20,y,\n30,x,"
    campaign = read(folder, text(now), schema=Schema(("y",), ("temp", "lab")))
    assert [of(campaign, line) for line in (2, 3, 4)] == [None] * 3 and campaign.pool == (0, 1, 2)
    assert "No longer in the table, and unused until they return: " in campaign.notes[-1]


def test_measurements_decide_which_row_is_meant(folder):
    """What a file told instead of them stays where they are."""
    schema = Schema(("y",), ("temp",))
    read(folder, text("temp,y\n20,5\n30,"), text("temp,y\n20,6", "new.csv"), schema=schema)
    now = "temp,lab,y\n20,x,\n20,y,5\n30,x,"
    campaign = read(folder, text(now), schema=Schema(("y",), ("temp", "lab")))
    assert [of(campaign, line) for line in (2, 3, 4)] == [None, [6], None]


@pytest.mark.parametrize("columns", ["bar,lab,solvent", "bar,solvent"])
def test_a_column_that_was_replaced_assigns_nothing_by_chance(folder, columns):
    ask(folder, text("temp,solvent,y\n20,water,\n30,ethanol,1.5"), 0, schema=Schema(("y",), ("temp", "solvent")))
    now = text("bar,lab,solvent,y\n7,x,water,\n8,y,ethanol,2.5")
    campaign = read(folder, now, schema=Schema(("y",), tuple(columns.split(","))))
    assert [of(campaign, line) for line in (2, 3)] == [None, [2.5]] and campaign.pool == (0,)
    assert sum(row.gone for row in campaign.state.rows.values()) == 2


def test_saved_by_a_spreadsheet_with_fewer_digits(folder):
    """A row with an identifier keeps what a file told; the digits of its cells are no other values."""
    pool = text("name,temp,y\na,0.123456789012345,3.14159265358979\nb,1234.5678901234567,")
    schema = Schema(("y",), ("temp",), "name")
    ask(folder, pool, 1, schema=schema)
    read(folder, pool, text("name,temp,y\na,0.123456789,2.5", "new.csv"), schema=schema)
    short = text("name,temp,y\na,0.123456789,3.141592654\nb,1234.56789,")
    for now in (short, pool, short):
        campaign = read(folder, now, schema=schema)
        assert values(campaign) == {"a": [2.5]} and len(campaign.pending) == 1
        assert len(campaign.notes) == 1 and campaign.notes[0].startswith("The table still has the old values")
    assert of(read(folder, text("name,temp,y\na,0.123456789,3.2\nb,1234.56789,"), schema=schema), 2) == [3.2]


def test_cells_of_other_types(folder):
    schema = Schema(("y",), ("temp", "open", "day"))
    ask(folder, text("temp,open,day,y\n1.0,TRUE,2024-03-01,\n2,false,,3"), 0, schema=schema)
    typed = table(
        {"day": [None, datetime.datetime(2024, 3, 1)], "open": [False, True], "temp": [2, 1], "y": [3, float("nan")]}
    )
    campaign = read(folder, typed, schema=schema)
    assert of(campaign, 2) == [3] and campaign.pool == () and len(campaign.pending) == 1


def test_ids_by_their_first_letters(folder):
    ask(folder, text(POOL), 0, schema=SCHEMA)
    with Campaign(folder) as campaign:
        campaign.read(text(POOL + "a2, 20, water, 1,"), SCHEMA)
        name = campaign.ids[0][:64]
        for start in (name[:5], name[:12] + "-3", "g" * 8):
            with pytest.raises(InputError, match="no row"):
                campaign.operate("skip", [start])
        campaign.operate("skip", [name[:12] + "-2"])
        campaign.operate("release", [name[:12]])
        assert [row.id for row in campaign.skipped] == [name + "-2"] and not campaign.pending
    with Campaign(folder.with_name("ids")) as campaign:
        campaign.read(text(POOL.replace("a, ", "sample 10, ")), IDS)
        with pytest.raises(InputError, match="no row 'sample 1'"):
            campaign.operate("skip", ["sample 1"])


def test_killed_between_any_two_steps_of_a_round(folder, monkeypatch):
    """Each save is whole or not there; the next round then gives the same rows."""
    ask(folder, text(POOL), 0, 1)
    now = text(POOL.replace("1,\nb", "1, 9\nb").replace("1.5", "2"))
    start = (folder / NAME).read_bytes()
    for kept in range(3):
        (folder / NAME).write_bytes(start)
        saves = iter(range(kept))
        with Campaign(folder) as campaign, monkeypatch.context() as patch:
            write = states.write
            patch.setattr(states, "write", lambda *arguments: next(saves, None) is not None and write(*arguments))  # noqa: B023
            campaign.read(now, IDS)
            campaign.save()
            campaign.suggest([3])
            campaign.save()
        with Campaign(folder) as campaign:
            assert len(campaign.pending) == (2, 1, 2)[kept]
            campaign.read(now, IDS)
            campaign.suggest(campaign.pool)  # nothing, or what the process that was killed did not get to
            assert values(campaign) == {"a": [9], "c": [2]}
            assert [row.id for row in campaign.pending] == ["b", "d"]


def test_the_status_needs_no_table(folder):
    ask(folder, text(POOL), 0)
    with Campaign(folder, dry=True) as campaign:
        assert campaign.status()[0] == "1 measured." and "(batch 2): a." in campaign.status()[1]


def test_dry(tmp_path, folder):
    assert read(folder, text(POOL), schema=IDS, dry=True).pool == (0, 1, 3)
    assert not list(tmp_path.iterdir())
    read(folder, text(POOL), schema=IDS)
    before = (folder / NAME).read_bytes()
    with Campaign(folder, dry=True) as campaign, Campaign(folder):
        campaign.read(text(POOL.replace("1.5", "9")), IDS)
        campaign.suggest([0])
        campaign.undo()
        campaign.save()
        assert values(campaign) == {"c": [9]}
    assert (folder / NAME).read_bytes() == before


def test_a_second_process_is_refused(folder):
    with Campaign(folder), pytest.raises(InputError, match="being written by another process"):
        Campaign(folder)
    Campaign(folder).close()  # the lock is given back


def test_an_emptied_cell_withdraws_and_is_said_once(folder):
    """Filling it tells anew, whatever a file told in between."""
    ask(folder, text(POOL), 0)
    with Campaign(folder) as campaign:
        campaign.read(text(POOL), IDS, text("name,y\nc,1.6", "new.csv"))
        campaign.suggest([1])
        campaign.save()
    emptied = text(POOL.replace("1.5", ""))
    campaign = read(folder, emptied, schema=IDS)
    assert campaign.notes == ["Withdrawn, because their cells were emptied: 'c' (line 4)."]
    assert not values(campaign) and 2 in campaign.pool and not campaign.answered
    assert not read(folder, emptied, schema=IDS).notes
    assert values(read(folder, emptied, text("name,y\nc,1.7", "new.csv"), schema=IDS)) == {"c": [1.7]}
    assert values(read(folder, emptied, schema=IDS)) == {"c": [1.7]}
    assert values(read(folder, text(POOL), schema=IDS)) == {"c": [1.5]}
    read(folder, emptied, schema=IDS)
    with Campaign(folder) as campaign:
        campaign.undo()
        campaign.read(emptied, IDS)
        assert values(campaign) == {"c": [1.5]}


def test_a_target_that_is_none_for_a_while(folder):
    """Its measurements come back with it, also those of a file."""
    schema = Schema(("y", "z"), ("temp",), "name")
    pool = text("name,temp,y,z\na,1,2,failed\nb,2,3,4\nc,3,,5")
    assert len(ask(folder, pool, 2, schema=schema).partly) == 2
    read(folder, pool, text("name,z\nb,6", "new.csv"), schema=schema)
    campaign = read(folder, pool, schema=schema._replace(targets=("y",)))
    assert campaign.notes[0] == "No longer target columns: z." and not campaign.failed
    assert [row.id for row in campaign.measured] == ["a", "b"] and [row.id for row in campaign.pending] == ["c"]
    assert not campaign.partly
    campaign = read(folder, pool, schema=schema)
    assert [row.id for row in campaign.measured] == ["b"] and [row.id for row in campaign.failed] == ["a"]
    assert campaign.state.rows["b"].mean == {"y": 3, "z": 6}


def test_a_skipped_row_that_was_measured_all_the_same(folder):
    with Campaign(folder) as campaign:
        campaign.read(text(POOL), IDS)
        campaign.operate("skip", ["a"])
        campaign.read(text(POOL.replace("1,\nb", "1, 9\nb")), IDS)
        assert values(campaign) == {"a": [9], "c": [1.5]} and not campaign.skipped


def test_classes_are_kept_as_text(folder):
    schema = IDS._replace(classes=True)
    first = read(folder, text(POOL.replace("1.5", "low")), schema=schema)
    assert values(first) == {"c": ["low"]}
    second = read(
        folder, text(POOL.replace("1.5", "high").replace("50,   ethanol, 2,", "50, ethanol, 2, 7.0")), schema=schema
    )
    assert values(second) == {"c": ["high"], "d": ["7"]} and "corrected y from low to high." in said(second)
    back = text("_id,y\nc,low\nc,high\nc,low\n", "next.csv")
    third = read(folder, text(POOL), back, schema=schema)
    row = third.state.rows["c"]
    assert row.mean == {"y": "low"} and "Measured more than once; the most frequent class is used" in said(third)


def test_whether_anything_was_answered_and_what_was_said(folder):
    with Campaign(folder) as campaign:
        campaign.read(text(POOL), IDS)
        assert campaign.answered
        campaign.suggest([0], [{"mean": 1.5}])
        assert not campaign.answered and campaign.pending[0].suggestion == {"mean": 1.5}
        campaign.operate("skip", ["b"])
        assert not campaign.answered
        campaign.read(text(POOL.replace("20,   water,   1,", "20, water, 1, 3")), IDS)
        assert campaign.answered


def test_an_identifier_in_next_csv_that_a_spreadsheet_took_for_a_number(folder):
    pool = text("name,temp,solvent,y\n007,1,w,\n1e5,1,w,\n1.10,2,w,\n1.1,3,w,")
    ask(folder, pool, 0, 1, 2, 3)
    back = text("name,temp,solvent,y,_id\n7,1.0,w,3,7\n100000,1,w,4,1.00E+05\n1.1,2,w,5,1.1", "next.csv")
    with pytest.raises(InputError, match=r"next.csv, line 4, column 'temp': '2', but row '1.1' has '3'"):
        read(folder, pool, back, schema=IDS)
    back = text("name,temp,solvent,y,_id\n7,1.0,w,3,7\n100000,1,w,4,1.00E+05\n1.10,2,w,5,1.10", "next.csv")
    campaign = read(folder, pool, back, schema=IDS)
    assert values(campaign) == {"007": [3], "1e5": [4], "1.10": [5]} and len(campaign.state.rows) == 4
    assert [row.id for row in campaign.pending] == ["1.1"]
    few = text("name,y\n1.100,6", "few.csv")
    with pytest.raises(InputError, match=r"few.csv, line 2: pool.csv has no row '1.100'. Did you mean '1.10', '1.1'\?"):
        read(folder, pool, few, schema=IDS)


def exact(digits=17):
    """Rows with a number of so many digits."""
    numbers = ["0.12345678901234567", "1.2345678901234567", "10.123456789012345", "2.3456789012", "2.3466789012"]
    rows = [f"{float(x):.{digits}g},w,{'5' if i == 1 else ''}" for i, x in enumerate(numbers)]
    return text("\n".join(["temp,solvent,y", *rows]))


@pytest.mark.parametrize("digits", [15, 10, 7])
def test_rows_that_a_spreadsheet_rounded_are_still_the_same(folder, digits):
    schema = Schema(("y",), ("temp", "solvent"))
    before = ask(folder, exact(), 0, schema=schema)
    labels = table({"_id": (before.ids[2],), "y": ("7",)}, "next.csv")
    read(folder, exact(), labels, schema=schema)
    after = read(folder, exact(digits), schema=schema)
    assert [of(after, line) for line in range(2, 7)] == [None, [5], [7], None, None]
    assert [row.id for row in after.pending] == [after.ids[0]] and len(after.state.in_table) == 3
    assert "No longer" not in said(after) and "was" not in said(after)
    again = read(folder, exact(), table({"_id": (before.ids[0],), "y": ("8",)}, "next.csv"), schema=schema)
    assert of(again, 2) == [8] and not again.pending


def test_a_rounded_row_that_could_be_two_is_neither(folder):
    schema = Schema(("y",), ("temp", "solvent"))
    ask(folder, exact(), 3, schema=schema)
    rounded = read(folder, text("temp,solvent,y\n2.3456787,w,\n2.3456788,w,"), schema=schema)
    assert not rounded.pending and "No longer in the table, and unused until they return" in said(rounded)
    back = read(folder, exact(), schema=schema)
    assert [row.id for row in back.pending] == [back.ids[3]]


def test_identifiers_in_the_table_that_a_spreadsheet_took_for_numbers(folder):
    pool = "name,temp,solvent,y\n{},1,w,\n1e5,1,w,\n1.10,2,w,\n1.1,3,w,"
    ask(folder, text(pool.format("007")), 0, 2, schema=IDS)
    changed = text(pool.format("7").replace("1e5", "100000").replace("1.10", "1.100"))
    campaign = read(folder, changed, schema=IDS)
    assert [row.id for row in campaign.pending] == ["7"]  # 1.10 could be 1.100 or 1.1
    assert "No longer in the table, and unused until they return: 1.10." in said(campaign)


def test_a_line_of_next_csv_whose_identifiers_are_of_two_rows(folder):
    ask(folder, text(POOL), 0, 1)
    sorted_in_part = text("name,y,_id\na,5,b", "next.csv")
    sentence = r"next.csv, line 2: '_id' names row 'b', but 'name' names row 'a'. Empty the wrong cell."
    with pytest.raises(InputError, match=sentence):
        read(folder, text(POOL), sorted_in_part, schema=IDS)
    known_by_features = ask(folder.parent / "other.explore", text(POOL), 0, schema=SCHEMA).ids[0]
    moved = text(f"name,y,_id\na,5,{known_by_features}", "next.csv")
    assert values(read(folder.parent / "other.explore", text(POOL), moved, schema=IDS)) == {"a": [5], "c": [1.5]}


def test_a_class_that_is_called_none(folder):
    schema = Schema(("kind",), ("temp",), None, True)
    campaign = read(folder, text("temp,kind\n1,None\n2,none\n3,NA\n4,\n5,low"), schema=schema)
    assert [row.values["kind"] for row in campaign.measured] == [["None"], ["none"], ["low"]]
