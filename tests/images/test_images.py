"""Sets of images, by name and of the user's."""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from explore import images
from explore.core.errors import InputError
from explore.images import source

RNG = np.random.default_rng(0)


def idx(values):
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    return header + values.tobytes()


def written(folder, contents):
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


PARTS = [RNG.integers(0, 256, shape, np.uint8) for shape in ((7, 5, 4), (7,), (3, 5, 4), (3,))]


def test_the_format_of_mnist(tmp_path):
    sums = written(tmp_path / "own", dict(zip("abcd", map(idx, PARTS), strict=True)))
    known = source.Idx("own", "", tuple(map(str, range(256))), "", sums)
    found = known(tmp_path)
    assert found.x.shape == (7, 1, 5, 4) and found.test_x.shape == (3, 1, 5, 4) and found.shape == (1, 5, 4)
    for ours, theirs in zip(found[1:5], PARTS, strict=True):
        np.testing.assert_array_equal(ours.squeeze(), theirs)
    with pytest.raises(InputError, match="own/b.gz has the wrong content"):
        known._replace(sha256=sums | {"b": "0"})(tmp_path)
    whole = (tmp_path / "own" / "a.gz").read_bytes()
    (tmp_path / "own" / "a.gz").write_bytes(whole[:-20])
    with pytest.raises(InputError, match="own/a.gz is damaged or truncated"):
        known(tmp_path)


def test_the_format_of_cifar(monkeypatch, tmp_path):
    rows = {name: RNG.integers(0, 100, (count, 3074), np.uint8) for name, count in (("one", 3), ("two", 2), ("t", 2))}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, values in rows.items():
            member = tarfile.TarInfo(f"folder/{name}.bin")
            member.size = values.nbytes
            tar.addfile(member, io.BytesIO(values.tobytes()))
    content = archive.getvalue()
    (tmp_path / "c.tar.gz").write_bytes(content)
    monkeypatch.setattr(source, "download", lambda *_: tmp_path / "c.tar.gz")
    sha = hashlib.sha256(content).hexdigest()
    known = source.Cifar("c", "", "a b", "c.tar.gz", sha, 2, ("one.bin", "two.bin", "t.bin"))
    _, x, y, test_x, test_y, *_ = known()
    both = np.concatenate([rows["one"], rows["two"]])
    np.testing.assert_array_equal(x, both[:, 2:].reshape(5, 3, 32, 32))
    np.testing.assert_array_equal(y, both[:, 1])
    np.testing.assert_array_equal(test_x.reshape(2, -1), rows["t"][:, 2:])
    np.testing.assert_array_equal(test_y, rows["t"][:, 1])
    with pytest.raises(InputError, match="wrong content"):
        known._replace(sha256="0")()


def test_what_is_neither_there_nor_to_be_had(monkeypatch, tmp_path):
    def fail(*_):
        raise OSError("cannot download it")

    monkeypatch.setattr(source, "download", fail)
    monkeypatch.setenv("EXPLORE_DATA_DIR", str(tmp_path))
    for name in ("mnist", "cifar10", "cifar100"):
        with pytest.raises(InputError, match="cannot download it"):
            images.load(name)
    monkeypatch.setenv("EXPLORE_DATA_DIR", str(tmp_path / "gone"))
    with pytest.raises(InputError, match="does not exist"):
        images.load("mnist")


def test_digits_and_their_moments():
    found = images.load("digits")
    mean, deviation = found.moments()
    np.testing.assert_allclose(mean, found.x.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(deviation, found.x.astype(float).std((0, 2, 3)), rtol=1e-12)
    assert len(found.x) == 1437 and len(found.test_x) == 360


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path):
    """Two classes in colour, 6 x 6."""
    for part, count in (("train", 3), ("val", 1)):
        for name in ("cat", "dog"):
            for i in range(count):
                save(tmp_path / "pets" / part / name / f"{i}.png", RNG.integers(0, 256, (6, 6, 3), np.uint8))
    return tmp_path / "pets"


def test_a_folder_of_classes(folder):
    found = images.read(folder)
    assert found.classes == ("cat", "dog") and found.name == "pets"
    assert found.y.tolist() == [0, 0, 0, 1, 1, 1] and found.test_y.tolist() == [0, 1]
    first = np.asarray(Image.open(folder / "train" / "cat" / "0.png"))
    np.testing.assert_array_equal(found.x[0], first.transpose(2, 0, 1))
    assert images.read(folder, size=4, grey=True).shape == (1, 4, 4)


def test_a_folder_without_images_for_testing(folder):
    """Only train, or the classes themselves; a part by another name is no class."""
    both = images.read(folder)
    shutil.rmtree(folder / "val")
    for path in (folder, folder / "train"):
        found = images.read(path)
        assert found.classes == both.classes and (found.x == both.x).all() and (found.y == both.y).all()
        assert found.test_x.shape == (0, 3, 6, 6) and found.test_y.shape == (0,) and not found.note
        assert images.read(path, stream=True).test_x.shape == (0, 3, 6, 6)
    (folder / "Test").mkdir()
    assert images.read(folder).note == f"Ignored folders of {folder}: Test."
    (folder / "Test").rmdir()
    (folder / "train").rename(folder / "Train")
    with pytest.raises(InputError, match="or one per class; it has Train"):
        images.read(folder)


def test_links_and_folders_within_a_class(folder, tmp_path):
    """Both count to it; a link in a circle is walked once, a broken one is named."""
    (tmp_path / "elsewhere").mkdir()
    for i in range(2):
        save(tmp_path / "elsewhere" / f"{i}.png", np.full((6, 6, 3), i, np.uint8))
    (folder / "train" / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "train" / "cat" / "circle").symlink_to(folder / "train" / "cat")
    found = images.read(folder)
    assert found.y.tolist() == [0] * 5 + [1] * 3
    assert not found.note
    (folder / "train" / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match="gone.png"):
        images.read(folder)


def test_what_is_left_out_of_a_prediction_is_said(folder):
    (folder / "val" / "dog" / "x.heic").write_text("")
    Image.fromarray(np.zeros((6, 6, 4), np.uint8), "RGBA").save(folder / "val" / "dog" / "clear.png")
    note = images.read_inputs(folder / "val", (3, 6, 6)).note
    assert note.startswith("Ignored 1 file of ") and note.endswith("Placed 1 image with transparency on white.")


def test_images_to_predict(folder, tmp_path):
    names, x, _ = images.read_inputs(folder / "val", (3, 6, 6))
    assert names == ["cat/0.png", "dog/0.png"]
    np.testing.assert_array_equal(x, images.read(folder).test_x)
    names, x, _ = images.read_inputs(folder / "val" / "dog" / "0.png", (1, 3, 3))
    assert names == ["0.png"] and x.shape == (1, 1, 3, 3)
    np.savez(tmp_path / "some.npz", x=PARTS[0])
    names, x, _ = images.read_inputs(tmp_path / "some.npz", (1, 5, 4))
    assert names == [*"0123456"] and np.array_equal(x[:, 0], PARTS[0])
    with pytest.raises(InputError, match=r"x of \S* has 7 images of shape \[1, 5, 4\]; the model expects \[1, 4, 5\]"):
        images.read_inputs(tmp_path / "some.npz", (1, 4, 5))


def test_folders_that_are_refused(folder):
    save(folder / "val" / "dog" / "1.png", np.zeros((5, 6, 3), np.uint8))
    with pytest.raises(InputError, match="1.png has 6 x 5 pixels, others 6 x 6; pass --size"):
        images.read(folder)
    assert images.read(folder, size=6).test_y.tolist() == [0, 1, 1]
    (folder / "val" / "dog" / "1.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot read .*1.png as an image"):
        images.read(folder, size=6)
    (folder / "val" / "dog").rename(folder / "val" / "bird")
    with pytest.raises(InputError, match="bird"):
        images.read(folder)
    (folder / "val" / "bird").rename(folder / "val" / "dog")
    shutil.copytree(folder / "train", folder / "test")
    both = images.read(folder, size=6)  # val, with its damaged image, is not looked at
    assert (both.x == both.test_x).all() and f"Ignored folders of {folder}: val" in both.note
    (folder / "train").rename(folder / "else")
    with pytest.raises(InputError, match="needs the folders train and test"):
        images.read(folder)


@pytest.mark.parametrize("seed", range(20))
def test_arrays_of_any_kind_come_back_as_they_were(seed, tmp_path):
    rng = np.random.default_rng(seed)
    height, width, channels = *rng.integers(1, 6, 2), rng.choice([0, 1, 3])
    shape = (height, width, channels) if channels else (height, width)
    x, test_x = (rng.integers(0, 256, (n, *shape), np.uint8) for n in (6, 4))
    names = rng.choice(np.array(["b", "a", "ü"]) if seed % 2 else np.array([7, 3, -1]), 6)
    names[:2] = np.unique(["b", "a"] if seed % 2 else [7, 3])
    test_y = rng.choice(names, 4)
    np.savez(tmp_path / "own.npz", x=x, y=names, test_x=test_x, test_y=test_y)
    found = images.read(tmp_path / "own.npz")
    last = x[..., None] if x.ndim == 3 else x
    np.testing.assert_array_equal(found.x.transpose(0, 2, 3, 1), last)
    assert [found.classes[i] for i in found.y] == list(map(str, names.tolist()))
    assert [found.classes[i] for i in found.test_y] == list(map(str, test_y.tolist()))


ARRAYS: dict[str, Any] = {
    "x": PARTS[0],
    "y": np.array([0, 1, 0, 1, 0, 1, 0]),
    "test_x": PARTS[2],
    "test_y": np.array([0, 1, 1]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_y": np.array([0, 1, 2])}, "classes that y lacks: 2"),
        ({"y": np.array([0, 1])}, "7 training images but 2 labels"),
        ({"y": np.zeros((7, 1))}, r"y of \S* is float64 \[7, 1\]; it must be \[images\]"),
        ({"x": PARTS[0].astype(float)}, "must be uint8"),
        ({"x": PARTS[1]}, "channels last"),
        ({"y": np.zeros(7, int), "test_y": np.zeros(3, int)}, "has 1 class"),
        (
            {"test_x": np.zeros((3, 3, 8, 9), np.uint8)},
            r"test_x of \S* is uint8 \[3, 3, 8, 9\]; it must be uint8 \[images",
        ),
        ({"test_x": PARTS[2][:, :4]}, r"images of \S* have shape \[1, 5, 4\], the test images \[1, 4, 4\]"),
        ({"y": np.array([0, 1, 0, np.nan, 0, np.inf, 0])}, "y of .* has labels that are missing, infinite or rounded"),
        ({"test_y": np.array([0.0, 1.0, 2.0])}, "classes that y lacks: 2$"),
        ({"test_y": np.array(["0", "1", "1"])}, "classes that y lacks: .*0"),
        (
            {"y": np.array([*"abababa"], object)},
            "own.npz: not an .npz archive of .*Save text with y.astype",
        ),
        (
            {"y": np.arange(7).astype(complex)},
            r"y of \S* is complex128 \[7\]; it must be \[images\] of numbers",
        ),
        ({"y": np.array([2.0**60, 1] * 3 + [1])}, "y of .* has labels that are .* rounded .2.53 or more."),
    ],
)
def test_arrays_that_are_refused(change, message, tmp_path):
    given: dict[str, Any] = ARRAYS | change
    np.savez(tmp_path / "own.npz", **given)
    with pytest.raises(InputError, match=message):
        images.read(tmp_path / "own.npz")


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array([0.0, 1.0]), ("0", "1")),
        (np.array([-1.0, 0.5], np.float32), ("-1", "0.5")),
        (np.array([False, True]), ("False", "True")),
        (np.array(["ä".encode(), b"b"]), ("b", "ä")),
    ],
)
def test_names_of_classes(values, names, tmp_path):
    given: dict[str, Any] = ARRAYS | {"y": values[ARRAYS["y"]], "test_y": values[ARRAYS["test_y"]]}
    np.savez(tmp_path / "own.npz", **given)
    found = images.read(tmp_path / "own.npz")
    assert found.classes == names
    order = [names.index(name) for name in (("ä", "b") if "ä" in names else names)]
    np.testing.assert_array_equal(found.y, np.array(order)[ARRAYS["y"]])
    np.testing.assert_array_equal(found.test_y, np.array(order)[ARRAYS["test_y"]])


def test_what_other_programs_leave_in_a_folder(folder):
    expected = images.read(folder)
    assert not expected.note
    for hidden in ("train/.ipynb_checkpoints", "train/cat/.cache", "val/.hidden"):
        save(folder / hidden / "0.png", np.zeros((6, 6, 3), np.uint8))
    for hidden in ("train/cat/._1.png", "val/dog/.DS_Store", "train/.DS_Store"):
        (folder / hidden).write_bytes(b"no image")
    found = images.read(folder)
    assert found.classes == ("cat", "dog") and not found.note
    np.testing.assert_array_equal(found.x, expected.x)
    (folder / "train" / "cat" / "._1.png").rename(folder / "val" / "cat" / "._1.png")
    assert images.read_inputs(folder / "val", (3, 6, 6))[0] == ["cat/0.png", "dog/0.png"]


def test_how_many_files_are_left_out_is_said(folder):
    for other in ("train/cat/labels.txt", "val/dog/0.heic", "val/loose.png"):
        (folder / other).write_bytes(b"")
    assert images.read(folder).note.startswith(f"Ignored 3 files of {folder}: endings other than .bmp")


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_converted_is_said(folder, stream):
    save(folder / "val" / "dog" / "0.png", np.full((6, 6, 4), 9, np.uint8))
    for name in ("0", "1"):
        save(folder / "train" / "cat" / f"{name}.png", np.full((6, 6), 40000, np.uint16))
    assert images.read(folder, stream=stream).note == (
        "Reduced 2 images from 16 to 8 bits by their upper 8; rescale them first if they use a smaller range. "
        "Placed 1 image with transparency on white."
    )


@pytest.mark.parametrize(
    "types", [(np.int64, np.uint64), (np.uint64, np.int64), (np.int64, np.int64), (np.int32, np.uint8)]
)
def test_labels_of_different_types_are_the_same_numbers(tmp_path, types):
    y, test_y = np.arange(4) % 3, np.array([2, 0, 1])
    large = 2**60 if types[0](0).nbytes == 8 else 7
    given = [labels.astype(kind) + kind(large) for labels, kind in zip((y, test_y), types, strict=True)]
    np.savez(
        tmp_path / "a.npz",
        x=np.zeros((4, 6, 6), np.uint8),
        y=given[0],
        test_x=np.zeros((3, 6, 6), np.uint8),
        test_y=given[1],
    )
    found = images.read(tmp_path / "a.npz")
    assert found.y.tolist() == y.tolist() and found.test_y.tolist() == test_y.tolist()
    assert found.classes == tuple(str(large + i) for i in range(3))


def test_a_class_without_an_image_is_refused(folder):
    (folder / "train" / "bird").mkdir()
    with pytest.raises(InputError, match=r"no images \(.*\) in .*train/bird; every folder of train is a class"):
        images.read(folder)
    save(folder / "train" / "bird" / "0.png", np.zeros((6, 6, 3), np.uint8))
    assert images.read(folder).test_y.tolist() == [1, 2]  # a class that is not tested is none that is wrong


def test_files_that_are_refused(tmp_path):
    np.savez(tmp_path / "half.npz", x=PARTS[0])
    with pytest.raises(InputError, match="has x; it must have x and y"):
        images.read(tmp_path / "half.npz")
    (tmp_path / "no.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="not an .npz archive of arrays"):
        images.read(tmp_path / "no.npz")
    np.savez(tmp_path / "own.npz", **ARRAYS)
    with pytest.raises(InputError, match="--size, --grey and --stream apply to folders of images only"):
        images.read(tmp_path / "own.npz", size=3)


@pytest.mark.parametrize(("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32)), ("digits", (1, 8, 8))])
def test_benchmark_sets(name, shape):
    folder = os.environ.get("EXPLORE_DATA_DIR")
    if name != "digits" and not (folder and Path(folder, name).is_dir()):
        pytest.skip("EXPLORE_DATA_DIR has no such images")
    found = images.load(name)
    assert found.name == name and found.shape == shape and len(found.classes) == 10
    assert np.bincount(found.test_y).min() > 30
