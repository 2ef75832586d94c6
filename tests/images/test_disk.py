"""Images that stay in their files."""

import threading

import numpy as np
import pytest
import torch
from PIL import Image

from explore import images
from explore.core import machine
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.execution import parallel
from explore.execution.parallel import World
from explore.images import base, reading
from explore.images.base import ImageFiles, Images
from explore.learning.fit import ImageFeed


@pytest.fixture
def folder(tmp_path):
    """Two classes in colour, 9 images of 6 x 5 for training and 2 for testing."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 9), ("val", 2)):
        for i in range(count):
            path = tmp_path / part / ("cat", "dog")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8)).save(path)
    return tmp_path


@pytest.fixture
def names(monkeypatch):
    """The names of the files that are decoded, as they are."""
    names, lock, real = [], threading.Lock(), base.decoded

    def counted(file, sides, grey):
        with lock:
            names.append(file.stem)
        return real(file, sides, grey)

    monkeypatch.setattr(base, "decoded", counted)
    return names


@pytest.mark.parametrize(("size", "grey"), [(None, False), (4, False), (4, True)])
def test_they_are_those_in_memory(folder, size, grey):
    here, there = (images.read(folder, size, grey, stream) for stream in (False, True))
    assert isinstance(there.x, ImageFiles) and there.x.shape == here.x.shape and there.x.nbytes == here.x.nbytes
    np.testing.assert_array_equal(there.x[:], here.x)
    points = np.array([[3, 0], [8, 3]])  # one of them twice
    np.testing.assert_array_equal(there.x[points], here.x[points])
    np.testing.assert_array_equal(there.x.part(np.array([7, 2]))[1:], here.x[[2]])
    np.testing.assert_array_equal(there.test_x.loaded(), here.test_x)
    for mine, theirs in zip(there.moments(), here.moments(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_they_stay_there_where_memory_is_short(folder, monkeypatch):
    size = images.read(folder, stream=True).x.nbytes * 11 / 9
    for times, streamed in ((0.99, True), (1.01, False)):
        monkeypatch.setattr(machine, "memory", lambda share=times: share * size / reading.SHARE)
        assert isinstance(images.read(folder, stream=None).x, ImageFiles) == streamed


def test_moments_of_many_are_those_of_some(folder, monkeypatch):
    monkeypatch.setattr(base, "COUNTED", 4)
    found = images.read(folder, stream=True)
    some = found.x[::3]
    expected = Images("some", some, found.y[:3], some, found.y[:3], found.classes).moments()
    np.testing.assert_array_equal(found.moments(), expected)


@pytest.mark.parametrize("size", [None, 3])
def test_damaged_ones_and_other_sizes_are_found_at_the_start(folder, size, names):
    Image.new("RGB", (5, 6)).save(folder / "train" / "cat" / "turned.jpg", exif=exif(6))  # shown as 6 x 5
    if size is None:
        with pytest.raises(InputError, match="turned.jpg has 6 x 5 pixels, others 5 x 6; pass --size"):
            images.read(folder, stream=True)
    else:
        assert images.read(folder, size, stream=True).x.shape == (10, 3, 3, 3)
    assert len(names) <= 1  # the first one, for its shape
    (folder / "train" / "cat" / "turned.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot read .*turned.jpg as an image"):
        images.read(folder, size, stream=True)


def exif(orientation):
    made = Image.Exif()
    made[base.ORIENTATION] = orientation
    return made


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_is_too_large_is_named_at_the_start(folder, stream):
    Image.new("L", (base.MOST + 1, 1)).save(folder / "train" / "dog" / "long.png")
    with pytest.raises(InputError, match=r"^\S*long.png has 16385 x 1 pixels; use at most 16384 a side$"):
        images.read(folder, 3, stream=stream)


def test_one_that_is_damaged_later_is_named(folder):
    found = images.read(folder, stream=True)
    found.x.files[4].write_bytes(found.x.files[4].read_bytes()[:40])
    with pytest.raises(InputError, match=f"cannot read .*{found.x.files[4].name} as an image"):
        found.x[3:6]
    assert found.x[:3].shape == (3, 3, 6, 5)


def feed(folder, stream, augmentation="crop-flip", replicas=1):
    x = images.read(folder, stream=stream).x
    x = x if stream else torch.as_tensor(x)
    return ImageFeed(x, torch.full((3,), 120.0), torch.full((3,), 60.0), replicas, Rng(0), augmentation)


@pytest.mark.parametrize("augmentation", ["none", "crop-flip", "resized-crop"])
def test_batches_are_those_in_memory(folder, augmentation):
    here, there = (feed(folder, stream, augmentation, 2) for stream in (False, True))
    rows, order = torch.arange(2)[:, None], Rng(1).permutation(2, 9)
    ours, theirs = there[rows, order], here[rows, order]
    for part in (slice(0, 4), slice(4, 9)):
        torch.testing.assert_close(ours[:, part], theirs[:, part], rtol=0, atol=0)
    torch.testing.assert_close(there[:, 2:5], here[:, 2:5], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("world", "asked"), [(World(), [(0, 3), (3, 6), (6, 9)]), (World(3, 1), [(1, 2), (4, 5), (7, 8)])]
)
def test_each_is_decoded_once_and_only_where_it_is_needed(folder, names, world, asked):
    shuffled = feed(folder, True)
    order = torch.tensor([[4, 1, 8, 0, 3, 6, 2, 5, 7]])
    stems = [shuffled._images.files[i].stem for i in order[0]]
    batches = shuffled[torch.zeros(1, 1, dtype=torch.long), order]
    names.clear()
    with parallel.within(world):
        for start, stop in asked:
            batches[:, start:stop]
    assert sorted(names) == sorted(stem for start, stop in asked for stem in stems[start:stop])


def test_a_process_that_predicts_decodes_its_share_and_at_most_one_more(folder, names):
    images = feed(folder, True)
    names.clear()
    with parallel.within(World(3, 1)):
        for i in (3, 4, 5):
            images[:, i : i + 1]
    stems = [file.stem for file in images._images.files]
    assert set(stems[3:6]) <= set(names) <= set(stems[3:7]) and len(names) <= 4


def test_what_comes_next_is_decoded_before_it_is_asked_for(folder, monkeypatch):
    shuffled, begun = feed(folder, True), threading.Event()
    real, last = base.decoded, shuffled._images.files[5]

    def watched(file, sides, grey):
        if file == last:
            begun.set()
        return real(file, sides, grey)

    monkeypatch.setattr(base, "decoded", watched)
    shuffled[torch.zeros(1, 1, dtype=torch.long), torch.arange(9)[None]][:, 0:3]
    assert begun.wait(10)


GREY = np.array([[0, 255, 256], [300, 40000, 65535]], np.uint16)


@pytest.mark.parametrize("kind", ["png", "tif", "ppm"])
@pytest.mark.parametrize("grey", [False, True])
def test_of_sixteen_bits_the_upper_ones_are_kept(kind, grey, tmp_path):
    path = tmp_path / f"deep.{kind}"
    Image.fromarray(GREY).save(path)
    expected = np.broadcast_to(GREY // 256, (1 if grey else 3, 2, 3))
    np.testing.assert_array_equal(base.decoded(path, None, grey), expected)
    np.testing.assert_array_equal(reading.read_inputs(path, expected.shape)[1], expected[None])


def test_deep_images_of_either_byte_order_are_turned_and_scaled(tmp_path):
    Image.frombytes("I;16B", (3, 2), GREY.astype(">u2").tobytes()).save(tmp_path / "deep.tif")
    np.testing.assert_array_equal(base.decoded(tmp_path / "deep.tif", None, True)[0], GREY // 256)
    Image.fromarray(GREY).save(tmp_path / "deep.png", exif=exif(6))
    np.testing.assert_array_equal(base.decoded(tmp_path / "deep.png", None, True)[0], np.rot90(GREY // 256, -1))
    Image.fromarray(np.full((9, 9), 40000, np.uint16)).save(tmp_path / "deep.png")
    assert (base.decoded(tmp_path / "deep.png", (3, 3), True) == 40000 // 256).all()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("values", "tags"),
    [
        (GREY.astype(np.float32) / 65535, {}),
        (GREY.astype(np.int32), {}),
        (GREY, {base.PHOTOMETRIC: 0}),
    ],
)
def test_values_that_would_be_clipped_are_refused(folder, stream, values, tags):
    Image.fromarray(values).save(folder / "train" / "dog" / "deep.tif", tiffinfo=tags)
    with pytest.raises(InputError, match=r"deep.tif has an unsupported pixel format \(TIFF, mode .*\); use 8 bits"):
        images.read(folder, 3, stream=stream)


def test_twelve_bits_are_not_taken_for_sixteen(tmp_path):
    """The reader gives them the same mode."""
    Image.fromarray(np.zeros((2, 4), np.uint16)).save(tmp_path / "deep.tif")
    content = (tmp_path / "deep.tif").read_bytes()
    entry = np.array([base.BITS, 3, 1, 0, 16, 0], "<u2").tobytes()  # a short number, once
    assert content.count(entry) == 1
    (tmp_path / "deep.tif").write_bytes(content.replace(entry, entry[:8] + bytes([12, 0, 0, 0])))
    with Image.open(tmp_path / "deep.tif") as image:
        assert image.mode == "I;16"
    with pytest.raises(InputError, match="unsupported pixel format"):
        base.decoded(tmp_path / "deep.tif", None, True)


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB", "I;16"])
def test_what_is_transparent_is_laid_on_white(mode, grey, tmp_path):
    """Black of it is not black: one pixel transparent, one opaque, and where there is a channel for it, one between."""
    whole = Image.fromarray(np.array([[[0, 0, 0, 0], [40, 40, 40, 255], [0, 0, 0, 102]]], np.uint8))
    path, expected = tmp_path / "clear.png", [255, 40, 153]
    if mode in ("RGBA", "LA"):
        whole.convert(mode).save(path)
    else:
        grey_values = whole.crop((0, 0, 2, 1)).convert("L")
        deep = Image.fromarray(np.asarray(grey_values, np.uint16) << 8)
        plain = deep if mode == "I;16" else grey_values.convert(mode)
        plain.save(path, transparency={"P": plain.getpixel((0, 0)), "RGB": (0, 0, 0)}.get(mode, 0))
        expected = expected[:2]
    found = base.decoded(path, None, grey)
    np.testing.assert_array_equal(found, np.broadcast_to(expected, (1 if grey else 3, 1, len(expected))))


def test_images_without_a_channel_of_opacity_are_as_they_were(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    for mode in ("RGB", "L", "1", "P", "CMYK"):
        image = Image.fromarray(values).convert(mode)
        image.save(tmp_path / "plain.tif")
        for wanted in ("L", "RGB"):
            expected = np.asarray(image.convert(wanted)).reshape(4, 5, -1).transpose(2, 0, 1)
            np.testing.assert_array_equal(base.decoded(tmp_path / "plain.tif", None, wanted == "L"), expected)
