"""The benchmark sets: contents, local folder, download."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import sys
import threading
import traceback
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import requests

from explore import data, registry
from explore.core.errors import InputError
from explore.data import source

FOLDER = os.environ.get("EXPLORE_DATA_DIR", "")
with_folder = pytest.mark.skipif(not FOLDER, reason="EXPLORE_DATA_DIR is not set")


@pytest.mark.parametrize("name", registry.names("data"))
def test_a_set_is_what_its_description_says(name, monkeypatch):
    monkeypatch.setattr(source, "download", lambda *_: pytest.skip(f"{name} is not in EXPLORE_DATA_DIR"))
    loaded, again = data.load(name), data.load(name)
    x, y, d = loaded.x, loaded.y, loaded.x.shape[1]
    assert registry.names("data")[name].endswith(f"({len(x)} x {d}, {loaded.task}).") and loaded.name == name
    assert x.dtype == np.float64 and np.isfinite(x).all() and len(set(loaded.features)) == d
    assert x.std(0).any() and y.std(0).all()
    if loaded.task == "regression":
        assert y.shape == (len(x), y.shape[-1]) and y.dtype == np.float64 and np.isfinite(y).all()
    else:
        assert y.shape == (len(x),) and y.dtype == np.int64 and set(y) == set(range(len(loaded.classes)))
    assert np.array_equal(x, again.x) and np.array_equal(y, again.y)


def test_the_benchmark_sets_are_there():
    uci = {"boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht"}
    assert uci | {"australian", "breast-cancer"} <= set(registry.names("data"))


@with_folder
@pytest.mark.parametrize("name", registry.names("data"))
def test_rows_are_those_of_the_folder(name, monkeypatch):
    read, local = [], source.local

    def watched(file, *rest):
        read.append(file)
        return local(file, *rest)

    monkeypatch.setattr(source, "local", watched)
    loaded = data.load(name)
    if not read:
        pytest.skip("it comes from no folder")
    lines = gzip.decompress(Path(FOLDER, read[0]).read_bytes()).decode().splitlines()
    assert len(loaded.x) == len(lines) and not loaded.note
    for i in (0, 1, -1):
        *x, y = map(float, lines[i].split())
        assert loaded.x[i].tolist() == x
        assert loaded.y[i].item() == (y if loaded.task == "regression" else (y + 1) / 2)


@with_folder
def test_all_of_boston_equals_the_folder():
    # The embedded file is written apart from the folder's, so every value is compared.
    table = np.loadtxt(Path(FOLDER, "uci/boston.txt.gz"))
    boston = data.load("boston")
    np.testing.assert_array_equal(np.hstack([boston.x, boston.y]), table)


def test_boston_without_column_b():
    boston = data.load("boston")
    assert "column B" in boston.note and "--drop-columns B" in boston.note
    dropped = data.drop_columns(boston, ["B"])
    assert dropped.features == tuple(f for f in boston.features if f != "B")
    np.testing.assert_array_equal(dropped.x, np.delete(boston.x, 11, axis=1))
    with pytest.raises(ValueError, match="unknown feature of boston 'b'; allowed: AGE, B, "):
        data.drop_columns(boston, ["b"])
    with pytest.raises(ValueError, match="without a feature"):
        data.drop_columns(boston, boston.features)


def test_unknown_set_and_folder(tmp_path):
    with pytest.raises(ValueError, match="unknown dataset 'yatch'; allowed: australian, boston,"):
        data.load("yatch")
    with pytest.raises(ValueError, match="nowhere .* does not exist"):
        data.load("yacht", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # mtime=0: the time would be in the test's name, which two testers would not agree on.
        (gzip.compress(b"1 2 3 4 5 6 7\n", mtime=0), r"yacht.txt.gz has the wrong content \(sha256 .*, expected e494"),
        (gzip.compress(b"1 2 3 4 5 6 7\n" * 99, mtime=0)[:-12], "yacht.txt.gz is damaged"),
        (b"no gzip file", "yacht.txt.gz is damaged"),
        pytest.param(gzip.compress(b"1 " * 2**25 + b"2"), "yacht.txt.gz unpacks to more than 64 MiB", id="bomb"),
    ],
)
def test_damaged_local_file(tmp_path, content, message):
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci/yacht.txt.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data.load("yacht", tmp_path)


# Download: a local server gives made-up archives in the publishers' layouts.


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The folder that a local server serves in place of the publishers, with an empty cache."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    served = tmp_path / "site"
    served.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for publisher in ("UCI", "OPENML", "LIBSVM"):
        monkeypatch.setattr(source, publisher, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(source.pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.delenv("EXPLORE_DATA_DIR", raising=False)
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def few_rows(monkeypatch):
    """Lets any rows pass for a whole set that comes in another order."""
    fields = source.Published.__call__

    def call(published, folder=None):
        text = "".join(" ".join(row) + "\n" for row in published.fetch()).encode()
        known = hashlib.sha256(b"".join(sorted(text.splitlines(keepends=True)))).hexdigest()
        return fields(published._replace(sorted_sha256=known), folder)

    monkeypatch.setattr(source.Published, "__call__", call)


def put(path, content, member=None):
    """Writes a file, or an archive with one member, below the served folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if member is None:
        path.write_bytes(content)
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"__MACOSX/{member}", b"not this one")
        archive.writestr(member, content)


def excel(*sheets):
    buffer = io.BytesIO()
    with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
        for i, rows in enumerate(sheets):
            pd.DataFrame(rows).to_excel(writer, sheet_name=f"Sheet{i}", index=False)
    return buffer.getvalue()


A, B = np.arange(1.0, 20.0), np.arange(2.0, 40.0, 2.0)
BLANK = [np.nan] * 10


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(
    ("name", "file", "member", "content", "x", "y"),
    [
        (
            "yacht",
            "243/yacht+hydrodynamics.zip",
            "yacht_hydrodynamics.data",
            b"1 2  3 4 5 6 .7 \n2 4 6 8 10 12 14 \n \n",
            [A[:6], B[:6]],
            [0.7, 14],
        ),
        (
            "wine",
            "186/wine+quality.zip",
            "winequality-red.csv",
            b'"fixed acidity";"quality"\r\n1;2;3;4;5;6;7;8;9;10;11;12\r\n2;4;6;8;10;12;14;16;18;20;22;24\r\n',
            [A[:11], B[:11]],
            [12, 24],
        ),
        (
            "naval",
            "316/condition+based+maintenance+of+naval+propulsion+plants.zip",
            "UCI CBM Dataset/data.txt",
            "\n".join("   ".join(f"{v:.7e}" for v in row[:18]) for row in (A, B)).encode(),
            [A[:16], B[:16]],
            [17, 34],
        ),
        (
            "protein",
            "265/physicochemical+properties+of+protein+tertiary+structure.zip",
            "CASP.csv",
            b"RMSD,F1\n77,1,2,3,4,5,6,7,8,9\n88,2,4,6,8,10,12,14,16,18\n",
            [A[:9], B[:9]],
            [77, 88],
        ),
        (
            "power",
            "294/combined+cycle+power+plant.zip",
            "CCPP/Folds5x2_pp.xlsx",
            excel([A[:5], B[:5]], [B[:5], A[:5]]),
            [A[:4], B[:4]],
            [5, 10],
        ),
        (
            "energy",
            "242/energy+efficiency.zip",
            "ENB2012_data.xlsx",
            excel([A[:10], B[:10], BLANK]),
            [A[:8], B[:8]],
            [9, 18],
        ),
        (  # the publisher's is an older Excel format, told apart by its content
            "concrete",
            "165/concrete+compressive+strength.zip",
            "Concrete_Data.xls",
            excel([[*A[:8], 79.98611], [*B[:8], 18]]),
            [A[:8], B[:8]],
            [79.99, 18],
        ),
        (
            "kin8nm",
            "3626/dataset_2175_kin8nm.arff",
            None,
            b"theta1,y\n1,2,3,4,5,6,7,8,9\n2,4,6,8,10,12,14,16,18\n",
            [A[:8], B[:8]],
            [9, 18],
        ),
        (
            "australian",
            "australian_scale",
            None,
            b"-1 1:1 3:-0.5 \n+1 2:2 14:7 \n",
            [[1, 0, -0.5] + [0] * 11, [0, 2] + [0] * 11 + [7]],
            [0, 1],
        ),
        (
            "breast-cancer",
            "breast-cancer_scale",
            None,
            b"2.000000 1:1 \n4.000000 10:-1 \n",
            [[1] + [0] * 9, [0] * 9 + [-1]],
            [0, 1],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # archives differ by the second in which they are made
)
def test_download(site, name, file, member, content, x, y):
    put(site / file, content, member)
    loaded = data.load(name)
    np.testing.assert_array_equal(loaded.x, x)
    np.testing.assert_array_equal(loaded.y.ravel(), y)
    assert "not in the canonical row order" in loaded.note
    (site / file).unlink()
    np.testing.assert_array_equal(data.load(name).x, x)  # now from the cache


@with_folder
@pytest.mark.parametrize(
    ("name", "file", "member"),
    [
        ("concrete", "165/concrete+compressive+strength.zip", "Concrete_Data.xls"),
        ("energy", "242/energy+efficiency.zip", "ENB2012_data.xlsx"),
        ("power", "294/combined+cycle+power+plant.zip", "Folds5x2_pp.xlsx"),
        ("kin8nm", "3626/dataset_2175_kin8nm.arff", None),
    ],
)
def test_numbers_are_written_as_in_the_canonical_text(site, name, file, member):
    """From the plain numbers of the canonical set the loader makes the text with the canonical sha256."""
    table = np.loadtxt(Path(FOLDER, f"uci/{name}.txt.gz"))
    content = excel(table) if member else pd.DataFrame(table).to_csv(index=False).encode()
    put(site / file, content, member)
    assert data.load(name).note == ""


def test_a_download_must_have_the_known_rows(site):
    def load(*digests):
        place = ("uci", 1, "made+up", "made_up.data")
        return source.Published("made-up", "", digests[0], "a b", place, (), *digests[1:])()

    put(site / "1/made+up.zip", b" 4  5 6\r\n1 2 3 \r\n\r\n", "made_up.data")
    canonical, other, third = (
        hashlib.sha256(text).hexdigest() for text in (b"4 5 6\n1 2 3\n", b"1 2 3\n4 5 6\n", b"1 2 3\n4 5 7\n")
    )
    loaded = load(canonical)
    assert loaded.note == ""
    assert loaded.x.tolist() == [[4, 5], [1, 2]] and loaded.y.tolist() == [[6], [3]]
    message = f"the download of made-up differs from the expected content .sha256 {canonical}, expected {other}"
    with pytest.raises(InputError, match=message):
        load(other)
    with pytest.raises(InputError, match="differs from the expected content"):
        load(other, third)
    # In another order only where a set is known to be published so.
    assert load(third, other).note == (
        "made-up: the download is not in the canonical row order; splits differ from published ones"
    )


@with_folder
def test_only_power_may_come_in_another_order(site, tmp_path):
    table = np.loadtxt(Path(FOLDER, "uci/power.txt.gz"))[::-1]
    put(site / "294/combined+cycle+power+plant.zip", excel(table), "Folds5x2_pp.xlsx")
    assert "power: the download is not in the canonical row order" in data.load("power").note
    lines = gzip.decompress(Path(FOLDER, "uci/yacht.txt.gz").read_bytes()).splitlines()
    sevens = [b" ".join([*line.split()[:-1], b"7"]) for line in lines]
    for wrong in (lines[::-1], sevens):
        put(site / "243/yacht+hydrodynamics.zip", b"\n".join(wrong), "yacht_hydrodynamics.data")
        with pytest.raises(InputError, match="the download of yacht differs from the expected content"):
            data.load("yacht")
        (tmp_path / "cache/yacht+hydrodynamics.zip").unlink()


@pytest.mark.parametrize(
    ("name", "file", "member"),
    [
        ("yacht", "243/yacht+hydrodynamics.zip", "yacht_hydrodynamics.data"),
        ("energy", "242/energy+efficiency.zip", "ENB2012_data.xlsx"),
    ],
)
def test_a_bomb_is_not_unpacked(site, name, file, member):
    zeros = bytes(2**26 + 1)
    if member.endswith("xlsx"):  # an archive within an archive
        bomb = io.BytesIO()
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("xl/worksheets/sheet1.xml", zeros)
        zeros = bomb.getvalue()
    (site / file).parent.mkdir()
    with zipfile.ZipFile(site / file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, zeros)
    assert (site / file).stat().st_size < 2**17
    with pytest.raises(InputError, match=f"the download of {name} cannot be read .it unpacks to more than 64 MiB"):
        data.load(name)


def test_a_download_without_end_is_stopped(site, monkeypatch, tmp_path):
    monkeypatch.setattr(source, "LIMIT", 2**20)
    put(site / "australian_scale", bytes(2**20 + 1))
    with pytest.raises(InputError, match="cannot download http.*/australian_scale .it is larger than 1 MiB"):
        data.load("australian")
    assert not list((tmp_path / "cache").iterdir())
    assert (
        source.download(f"{source.LIBSVM}/australian_scale", "large", 2**21).stat().st_size == 2**20 + 1
    )  # as of images


def test_a_download_stays_within_https(monkeypatch, tmp_path):
    """An answer to an https address that was passed on to a plain one on the way."""
    addresses = ["https://a.org/f", "http://b.org/f", "https://c.org/f"]

    def get(*_, **__):
        answer, *history = [requests.Response() for _ in addresses]
        for step, address in zip([*history, answer], addresses, strict=True):
            step.url, step.status_code = address, 200
        answer.raw, answer.history = io.BytesIO(b"numbers"), history
        return answer

    monkeypatch.setattr(requests, "get", get)
    with pytest.raises(OSError, match="it redirects to http://b.org/f"):
        source._get("https://a.org/f", str(tmp_path / "f"), None, 99)
    del addresses[1]
    source._get("https://a.org/f", str(tmp_path / "f"), None, 99)
    assert (tmp_path / "f").read_bytes() == b"numbers"


@pytest.mark.parametrize(
    ("content", "member", "message"),
    [
        (b"1 2 3 4 5 6 7\n", "yacht_hydrodynamics.data", "differs from the expected content"),
        (b"1 2 3 4 5 6 \xff\n", "yacht_hydrodynamics.data", "cannot be read .*invalid start byte"),
        (
            b"1 2 3 4 5 6 7\n",
            "other.data",
            "cannot be read .it contains .*other.data; it must contain yacht_hydrodynamics.data",
        ),
        (b"no archive", None, "cannot be read .*not a zip file"),
    ],
)
def test_damaged_download(site, content, member, message):
    put(site / "243/yacht+hydrodynamics.zip", content, member)
    with pytest.raises(ValueError, match=f"the download of yacht {message}.*; delete it in .*cache"):
        data.load("yacht")


@pytest.mark.usefixtures("site")
def test_failed_download():
    with pytest.raises(
        InputError, match="cannot download http.*/243/yacht.* .404 .*File not found.*; .*EXPLORE_DATA_DIR"
    ):
        data.load("yacht")


def test_offline_there_is_one_short_error(site, monkeypatch):
    monkeypatch.setattr(source, "UCI", "https://127.0.0.1:9")  # where nobody answers
    with pytest.raises(InputError) as found:
        data.load("yacht")
    assert str(found.value).startswith(
        "cannot download https://127.0.0.1:9/243/yacht+hydrodynamics.zip (ConnectionError)"
    )
    shown = "".join(traceback.format_exception(found.value))
    assert "During handling" not in shown and "direct cause" not in shown


def test_a_set_missing_in_the_folder_is_downloaded(site, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="cannot download"):
        data.load("yacht", tmp_path / "empty")


def test_without_a_reader_of_excel_files(site, monkeypatch):
    put(site / "242/energy+efficiency.zip", excel([A[:10]]), "ENB2012_data.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"pip install 'explore-bnn\[download\]'"):
        data.load("energy")
