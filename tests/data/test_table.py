"""CSV files."""

import gzip

import numpy as np
import pytest

from explore.data import load_csv

GOOD = "a,b,c,y\n1,2,3.5,-1e2\n4,2,6,0.1\n"


@pytest.fixture
def csv(tmp_path):
    def write(text):
        path = tmp_path / "houses.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_regression(csv):
    loaded = load_csv(csv(GOOD), "y")
    assert (loaded.name, loaded.features, loaded.task) == ("houses", ("a", "b", "c"), "regression")
    # Column b is constant, and kept.
    np.testing.assert_array_equal(loaded.x, [[1, 2, 3.5], [4, 2, 6]])
    np.testing.assert_array_equal(loaded.y, [[-100], [0.1]])
    assert loaded.x.dtype == loaded.y.dtype == np.float64


def test_several_targets_in_the_order_asked_for_and_dropped_columns(csv):
    loaded = load_csv(csv(GOOD), ["y", "a"], drop=["b"])
    assert loaded.features == ("c",)
    np.testing.assert_array_equal(loaded.y, [[-100, 1], [0.1, 4]])


def test_a_dropped_column_may_hold_anything(csv):
    loaded = load_csv(csv("id,a,y\nx1,1,2\n,3,4\n"), "y", drop=["id"])
    np.testing.assert_array_equal(loaded.x, [[1], [3]])


def test_numbers_are_read_to_the_last_bit(csv):
    values = np.random.default_rng(0).standard_normal((200, 2)) * 1e-7
    loaded = load_csv(csv("a,y\n" + "".join(f"{a!r},{y!r}\n" for a, y in values.tolist())), "y")
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
    loaded = load_csv(csv("a,y\n" + "".join(f"1,{label}\n" for label in labels)), "y", task="classification")
    assert loaded.task == "classification" and loaded.classes == classes
    assert loaded.y.tolist() == y and loaded.y.dtype == np.int64


@pytest.mark.parametrize(
    "text",
    ["\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD.replace(",", " , "), '"a","b","c","y"' + GOOD[7:]],
)
def test_harmless_variants(csv, text):
    loaded = load_csv(csv(text), "y")
    assert loaded.features == ("a", "b", "c")
    np.testing.assert_array_equal(loaded.x, [[1, 2, 3.5], [4, 2, 6]])


def test_compressed(tmp_path):
    path = tmp_path / "houses.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    assert load_csv(path, "y").name == "houses"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,y\n1,2\n\nx,4\n", {}, "line 4, column 'a': 'x' is not a finite number$"),
        ("a,y\n1,2\nnan,4\n", {}, "line 3, column 'a': 'nan' is not a finite number"),
        ("a,y\n1,2\n-inf,4\n", {}, "line 3, column 'a': '-inf' is not a finite number"),
        ("a,y\n,2\n3,4\n", {}, "line 2, column 'a': an empty cell instead of a finite number"),
        ("a,b,y\n1,2,3\n1,2\n", {}, "line 3, column 'y': an empty cell instead of a finite number"),
        ("a,y\n1,yes\n", {}, "line 2, column 'y': 'yes' is not a finite number .*task classification"),
        (
            "a,y\n1,u\n2,\n",
            {"task": "classification"},
            "line 3, column 'y': an empty cell instead of a class",
        ),
        ("a,y\n1,u\n2,u\n", {"task": "classification"}, "column 'y' .* has the one class 'u'; two or more"),
        ("a,y,z\n1,u,v\n", {"target": ["y", "z"], "task": "classification"}, "one target column, not 2"),
        (GOOD, {"target": "Y"}, "has no target 'Y'; its columns: a, b, c, y"),
        (GOOD, {"drop": ["d"]}, "has no column to drop 'd'; its columns: a, b, c, y"),
        (GOOD, {"target": []}, "must be one or more different columns"),
        (GOOD, {"target": ["y", "y"]}, "must be one or more different columns"),
        (GOOD, {"drop": ["y"]}, "must be one or more different columns that are not dropped"),
        (GOOD, {"drop": ["a", "b", "c"]}, "has no feature left"),
        ("y\n1\n", {}, "has no feature left"),
        ("a,a,y\n1,2,3\n", {}, "has several columns named a;"),
        (",a,y\n0,2,3\n", {}, "column 1 of .* has no name"),
        ("", {}, "houses.csv is empty"),
        ("a,y\n", {}, "has no line of data"),
        ("a,y\n\n", {}, "has no line of data"),
        ("a,y\n1,2\n1,2,3\n", {}, "not a comma-separated text file: .*Expected 2 fields in line 3, saw 3"),
        (b"a,y\n1,\xff\n", {}, "not encoded in UTF-8"),
        ("a;y\n1,5;2\n", {}, "separated by ';'; save it with commas"),
        ("a\ty\n1.5\t2\n", {}, r"separated by '\\t'; save it with commas"),
    ],
)
def test_errors(csv, text, options, message):
    with pytest.raises(ValueError, match=message):
        load_csv(csv(text), **{"target": "y"} | options)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file .*houses.csv"):
        load_csv(tmp_path / "houses.csv", "y")
