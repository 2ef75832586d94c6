"""CSV files."""

import bz2
import gzip
import io
import lzma
import unicodedata
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from explore.core.errors import InputError
from explore.data import Schema, load_table, packed

GOOD = "a,b,c,y\n1,2,3.5,-1e2\n4,2,6,0.1\n"


def read(*args, **kwargs):
    return load_table(*args, **kwargs).dataset


@pytest.fixture
def csv(tmp_path):
    def write(text):
        path = tmp_path / "houses.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_regression(csv):
    loaded = read(csv(GOOD), "y")
    assert (loaded.name, loaded.features, loaded.task) == ("houses", ("a", "b", "c"), "regression")
    # Column b is constant, and kept.
    np.testing.assert_array_equal(loaded.x, [[1, 2, 3.5], [4, 2, 6]])
    np.testing.assert_array_equal(loaded.y, [[-100], [0.1]])
    assert loaded.x.dtype == loaded.y.dtype == np.float64


def test_several_targets_in_the_order_asked_for_and_dropped_columns(csv):
    loaded = read(csv(GOOD), ["y", "a"], drop=["b"])
    assert loaded.features == ("c",)
    np.testing.assert_array_equal(loaded.y, [[-100, 1], [0.1, 4]])


def test_a_dropped_column_may_hold_anything(csv):
    loaded = read(csv("id,a,y\nx1,1,2\n,3,4\n"), "y", drop=["id"])
    np.testing.assert_array_equal(loaded.x, [[1], [3]])


def test_numbers_are_read_to_the_last_bit(csv):
    values = np.random.default_rng(0).standard_normal((200, 2)) * 1e-7
    loaded = read(csv("a,y\n" + "".join(f"{a!r},{y!r}\n" for a, y in values.tolist())), "y")
    np.testing.assert_array_equal(np.hstack([loaded.x, loaded.y]), values)


@pytest.mark.parametrize(
    ("labels", "classes", "y"),
    [
        (["no", "yes", "no"], ("no", "yes"), [0, 1, 0]),
        (["10", "9", "-1"], ("-1", "9", "10"), [2, 1, 0]),
        (["10", "9", "b"], ("10", "9", "b"), [0, 1, 2]),
    ],
)
def test_classification(csv, labels, classes, y):
    loaded = read(csv("a,y\n" + "".join(f"1,{label}\n" for label in labels)), "y", task="classification")
    assert loaded.task == "classification" and loaded.classes == classes
    assert loaded.y.tolist() == y and loaded.y.dtype == np.int64


@pytest.mark.parametrize(
    "text",
    ["\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace(",", " , "), '"a","b","c","y"' + GOOD[7:]],
)
def test_harmless_variants(csv, text):
    loaded = read(csv(text), "y")
    assert loaded.features == ("a", "b", "c")
    np.testing.assert_array_equal(loaded.x, [[1, 2, 3.5], [4, 2, 6]])


def zipped(*members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zip": lambda content: zipped(("__MACOSX/._in.csv", b"a twin"), ("folder/", b""), ("folder/in.csv", content)),
}


def test_packed(tmp_path):
    assert PACKINGS.keys() == set(packed.PACKED)
    for ending, pack in (PACKINGS | {".2020.GZ": gzip.compress}).items():
        path = tmp_path / f"houses.csv{ending}"
        path.write_bytes(pack(GOOD.encode()))
        loaded = read(path, "y")
        assert loaded.name == "houses"
        np.testing.assert_array_equal(loaded.x, [[1, 2, 3.5], [4, 2, 6]])


@pytest.mark.parametrize("ending", packed.PACKED)
def test_packed_files_cut_short_or_damaged_are_refused(tmp_path, ending):
    """Wherever they are cut; and a flipped bit gives the same table or a refusal."""
    table = "a,y\n" + "".join(f"{i % 7},{i * i}\n" for i in range(300))
    content = PACKINGS[ending](table.encode())
    path = tmp_path / f"houses.csv{ending}"
    path.write_bytes(content)
    good = read(path, "y")
    rng = np.random.default_rng(0)
    end = len(content)
    for size in [0, 1, end // 2, end - 1, *rng.integers(end, size=30)]:
        path.write_bytes(content[:size])
        with pytest.raises(
            InputError, match="damaged or truncated|contains nothing; it must contain one file|is empty"
        ):
            read(path, "y")
    for place in rng.integers(len(content), size=30):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            np.testing.assert_array_equal(read(path, "y").y, good.y)
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("ending", packed.PACKED)
def test_what_unpacks_beyond_the_limit_is_refused(tmp_path, ending):
    path = tmp_path / f"bomb.csv{ending}"
    path.write_bytes(PACKINGS[ending](b"a,y\n" + b"1,2\n" * 2**19))
    assert len(packed.read(path, 2**22)) == 2**21 + 4
    assert path.stat().st_size < 2**15
    with pytest.raises(InputError, match="unpacks to more than 2 MiB, the limit for its size"):
        packed.read(path, 2**21)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "contains nothing; it must contain one file"),
        ([("a.csv", b"x"), ("b.csv", b"x")], "contains a.csv, b.csv; it must contain one file"),
        ([("inner.zip", zipped(("t.csv", GOOD.encode())))], ", line 1, has a NUL byte, so it is not"),
    ],
)
def test_archives_of_anything_but_one_table(tmp_path, members, message):
    path = tmp_path / "houses.zip"
    path.write_bytes(zipped(*members))
    with pytest.raises(InputError, match=message):
        read(path, "y")


def test_names_within_archives_write_nothing(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/houses.zip").write_bytes(zipped(("../escaped.csv", GOOD.encode())))
    assert len(read(tmp_path / "in/houses.zip", "y").x) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_an_encrypted_archive(tmp_path):
    content = bytearray(zipped(("t.csv", GOOD.encode())))
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + flags] |= 1
    (tmp_path / "houses.zip").write_bytes(content)
    with pytest.raises(InputError, match="is encrypted, password required"):
        read(tmp_path / "houses.zip", "y")


def test_lines_are_those_of_the_file(csv):
    """Blank lines and quoted cells over several lines count."""
    path = csv('name,a,y\r\n\r\n"two\r\nlines",1,2\r\nx,3,4\r\n,,\r\n\r\nz,5,6\r\n')
    loaded = read(path, "y", drop=["name"])
    assert loaded.lines == (3, 5, 8)
    assert [path.read_text().splitlines()[line - 1][-1] for line in loaded.lines] == ["o", "4", "6"]
    with pytest.raises(
        InputError,
        match="3 cells of targets are not .* column 'name': 'two.*lines' \\(line 3\\), 'x' \\(line 5\\), 'z'",
    ):
        read(path, "name", drop=["y"])


def test_identifiers(csv):
    path = csv("house,a,y\nx1,1,2\nx2,3,4\n")
    loaded = read(path, "y", id_column="house")
    assert (loaded.ids, loaded.features, loaded.note) == (("x1", "x2"), ("a",), "")
    assert read(path, "y", drop=["house"], id_column="house").ids == ("x1", "x2")
    with pytest.raises(InputError, match="has no column of identifiers 'hose'; its columns: house, a, y"):
        read(path, "y", id_column="hose")
    with pytest.raises(InputError, match="neither dropped nor identifiers"):
        read(path, "y", id_column="y")
    with pytest.raises(InputError, match="line 3, column 'house': the identifier is missing"):
        read(csv("house,a,y\nx1,1,2\n,3,4\n"), "y", id_column="house")
    repeated = read(csv("house,a,y\nx1,1,2\nx2,3,4\nx1,3,4\nx1,3,5\n"), "y", id_column="house")
    assert repeated.note == "1 identifiers of 'house' occur in several rows, such as 'x1'."


def test_a_number_is_no_class_unless_it_is_whole(csv):
    values = np.random.default_rng(0).standard_normal(150)
    continuous = csv("a,y\n" + "".join(f"1,{v}\n" for v in values))
    with pytest.raises(
        InputError,
        match="line 2, column 'y': class '0.1257.*' is not a whole number.*--task regression",
    ):
        read(continuous, "y", task="classification")
    with pytest.raises(InputError, match="line 4, column 'y': 'nan' marks a missing value;"):
        read(csv("a,y\n1,0\n2,1\n3,nan\n"), "y", task="classification")
    with pytest.raises(InputError, match="has one class written as '1' and as '1.0'."):
        read(csv("a,y\n1,0\n2,1\n3,1.0\n"), "y", task="classification")


def test_classes_that_differ_in_case_are_two_and_said(csv):
    loaded = read(csv("a,y\n1,Yes\n2,yes\n3,No\n"), "y", task="classification")
    assert loaded.classes == ("No", "Yes", "yes")
    assert loaded.note.endswith("has 'Yes' and 'yes', read as two classes.")


def test_what_stands_for_nothing_is_no_class(csv):
    with pytest.raises(InputError, match="line 3, column 'y': 'NA' marks a missing value;"):
        read(csv("a,y\n1,Na\n2,NA\n3,K\n"), "y", task="classification")
    with pytest.raises(InputError, match="line 3, column 'y': the class is missing"):
        read(csv("a,y\n1,Na\n2,\n3,K\n"), "y", task="classification")


def test_a_target_with_one_value_is_refused(csv):
    with pytest.raises(InputError, match="column 'y' of .* has the same value, 7e-06, in all rows; there is nothing"):
        load_table(csv("a,y\n1,7e-06\n2,7e-06\n3,7e-06\n"), "y")
    table = load_table(csv("a,y\n1,1\n2,7\n"), "y")
    assert load_table(csv("a,y\n1,7\n2,7\n"), "y", schema=table.schema).dataset.y.tolist() == [[7], [7]]


def test_many_classes(csv):
    def classes(count, rows):
        return read(csv("a,y\n" + "".join(f"{i % 2},{i % count}\n" for i in range(rows))), "y", task="classification")

    with pytest.raises(
        InputError, match="column 'y' of .*has 76 classes for 150 examples. Every class needs at least 2."
    ):
        classes(76, 150)
    assert "has 75 classes for 150 examples, so few of each class are in" in classes(75, 150).note
    assert classes(10, 10).note == classes(15, 150).note == ""


def test_long_cells_and_names_are_cut_in_messages(csv):
    with pytest.raises(InputError, match=r"column 'y': 'x{39}...x{19}' \(130000 characters\) is not a finite") as found:
        read(csv(f"a,y\n2,{'x' * 130_000}\n"), "y")
    assert len(str(found.value)) < 400
    header = ",".join(f"c{i}" for i in range(9000))
    with pytest.raises(InputError, match="its columns: c0, c1, .*, c59 and 8940 more$"):
        read(csv(f"{header}\n{'1,' * 8999}1\n"), "y")
    with pytest.raises(InputError, match=r"its columns: a, 'b\\x1b\[31m'$"):
        read(csv("a,b\x1b[31m\n1,2\n"), "y")


def test_a_long_number_is_read(csv):
    """A column as wide as its longest cell would take gigabytes."""
    path = csv("a,y\n" + f"0.{'0' * 100_000}1,3\n" + "1,2\n" * 20_000)
    assert read(path, "y").x.sum() == 20_000


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,y\n1,2\n\nx,4\n", {}, "line 4, column 'a': 'x' is not a finite number or date like the other cells"),
        ("a,y\n1,2\n-inf,4\n", {}, "line 3, column 'a': '-inf' is not a finite number"),
        ("a,y\n1,2\n2,-inf\n", {}, "line 3, column 'y': '-inf' is not a finite number"),
        ("a,b,y\n1,2,3\n1,2\n", {}, "line 3, column 'y': an empty cell instead of a finite number"),
        ("a,y\n1,yes\n", {}, "line 2, column 'y': 'yes' is not a finite number; .*task classification"),
        (
            "a,y\n1,u\n2,\n",
            {"task": "classification"},
            "line 3, column 'y': the class is missing; for tables with unmeasured rows use explore suggest$",
        ),
        ("a,y\n1,u\n2,u\n", {"task": "classification"}, "column 'y' .*has a single class, 'u'; at least 2 are"),
        (
            "a,y,z\n1,u,v\n",
            {"target": ["y", "z"], "task": "classification"},
            "classification needs one target column, not 2",
        ),
        (GOOD, {"target": "Y"}, "has no target 'Y'; its columns: a, b, c, y"),
        (GOOD, {"drop": ["d"]}, "has no column to drop 'd'; its columns: a, b, c, y"),
        (GOOD, {"target": []}, "must be one or more different columns"),
        (GOOD, {"target": ["y", "y"]}, "must be one or more different columns"),
        (GOOD, {"drop": ["y"]}, "must be one or more different columns, neither dropped nor identifiers"),
        (GOOD, {"drop": ["a", "b", "c"]}, "has no feature besides targets and dropped"),
        ("y\n1\n", {}, "has no feature besides targets and dropped"),
        ("a,a,y\n1,2,3\n", {}, "has several columns named a. Rename them"),
        ("", {}, "houses.csv is empty"),
        ("a,y\n", {}, "has no rows below its header"),
        ("a,y\n\n", {}, "has no rows below its header"),
        ("a,y\n1,2\n1,2,3\n", {}, "line 3: 3 cells, but the first line names 2 columns"),
        (
            "a,y\n1,\n",
            {},
            "line 2, column 'y': an empty cell instead of a finite number; .* use explore suggest$",
        ),
        (
            "a,y\n1,nan\n",
            {},
            "line 2, column 'y': 'nan' is not a finite number; .* use explore suggest$",
        ),
        ("a,y\n1,1_0\n", {}, "line 2, column 'y': '1_0' is not a finite number"),
        ("a,y\n\u0663,2\n", {}, "line 2, column 'a': '٣' is not a finite number"),
        ('a,y\n1,2\n"3,4\n5,6\n', {}, "line 3: a quote is not closed"),
        ('a,y\n"1"2,3\n', {}, "line 2: ',' expected after '\"'"),
        (f"a,y\n{'1' * 200_000},3\n", {}, "line 2: field larger than field limit"),
        ("\na,y\n1,2\n", {}, "the first line of .*is blank. It must name the columns"),
        (" \n\n", {}, "houses.csv is empty"),
        ("\ufeff", {}, "houses.csv is empty"),
        (b"a,y\n1,2\n3,\x004\n", {}, ", line 3, has a NUL byte, so it is not"),
        ("a,y\n1,2\n".encode("utf-16"), {}, ", line 1, has a NUL byte, so it is not UTF-8 text;"),
        (b"a,y\n1,\x81\n", {}, r"line 2, is not encoded in UTF-8; save .* packed \(.gz, .bz2, .xz, .zip\)"),
    ],
)
def test_errors(csv, text, options, message):
    with pytest.raises(ValueError, match=message):
        read(csv(text), **{"target": "y"} | options)


def test_names_are_one_in_whatever_form_unicode_has_them(csv):
    path = csv(unicodedata.normalize("NFD", "größe,höhe,nämlich,zähler\n" + "1,2,7,a\n" * 2 + "4,5,8,b\n" * 2))
    for form in ("NFC", "NFD"):
        y, drop, code, name = (unicodedata.normalize(form, n) for n in ("größe", "höhe", "nämlich", "zähler"))
        numbers = read(path, y, [drop], id_column=name)
        assert numbers.features == ("nämlich",) and numbers.y[:, 0].tolist() == [1, 1, 4, 4]
        table = load_table(path, [y], [drop], id_column=name, categorical=[code])
        assert table.dataset.features == ("nämlich = 7", "nämlich = 8") and table.dataset.ids == ("a", "a", "b", "b")
        kept = {"columns": [{"kind": "number", "name": drop, "fill": 0.0, "gaps": False}]}
        assert Schema.from_json(kept).apply(table.cells).x[:, 0].tolist() == [2, 2, 5, 5]
    with pytest.raises(ValueError, match="has several columns named höhe. Rename them"):
        read(csv(f"höhe,{unicodedata.normalize('NFD', 'höhe')},y\n1,2,3\n"), "y")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file .*houses.csv"):
        read(tmp_path / "houses.csv", "y")
