"""Images as batches."""

import math

import pytest
import torch
import torch.nn.functional as F

from explore.core.rng import Rng
from explore.learning.fit import AREA, PADDING, RATIO, ImageFeed, cropped, resized

G = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (9, 3, 6, 5), dtype=torch.uint8, generator=G)
MEAN, SCALE = torch.tensor([100.0, 120.0, 90.0]), torch.tensor([50.0, 60.0, 70.0])


def feed(augmentation="none", replicas=1, seed=0):
    return ImageFeed(IMAGES, MEAN, SCALE, replicas, Rng(seed, dtype=torch.float64), augmentation)


@pytest.mark.parametrize("augmentation", ["none", "crop", "crop-flip"])
def test_slices_are_standard_scores(augmentation):
    own = feed(augmentation, 2)
    assert own.shape == (2, 9, 3, 6, 5) and len(own) == 2
    expected = (IMAGES[2:5].double() - MEAN.double()[:, None, None]) / SCALE.double()[:, None, None]
    torch.testing.assert_close(own[:, 2:5], expected.expand(2, -1, -1, -1, -1))


def test_batches_in_another_order():
    order = torch.stack([torch.arange(9).flip(0), torch.arange(9)])
    own = feed(replicas=2)
    batch = own[torch.arange(2)[:, None], order][:, 2:4]
    torch.testing.assert_close(batch, torch.stack([own[:, 5:7][0].flip(0), own[:, 2:4][1]]))


def test_crops_are_windows_of_the_padded_images():
    """Every one is found among all windows, mirrored or not; in the long run all of them come."""
    padded = F.pad(IMAGES, (PADDING,) * 4)
    side = 2 * PADDING + 1
    windows = padded.unfold(2, 6, 1).unfold(3, 5, 1)  # [N, C, side, side, H, W]
    seen: set[tuple[int, int, bool]] = set()
    rng = Rng(0)
    for _ in range(60):
        for i, image in enumerate(cropped(IMAGES, rng.uniform(9, 3), True)):
            for turned in (False, True):
                wanted = image.flip(-1) if turned else image
                places = (windows[i] == wanted[:, None, None]).all(-1).all(-1).all(0).nonzero()
                if len(places) == 1:
                    seen.add((*places[0].tolist(), turned))
                    break
            else:
                # Windows of nothing but padding, or nearly so, may be alike.
                raise AssertionError("no window, or several")
    assert len(seen) > 0.9 * 2 * side**2


def test_without_mirrors_none_is_mirrored():
    wide = torch.arange(60, dtype=torch.uint8).reshape(1, 1, 6, 10).repeat(50, 1, 1, 1) + 1
    for image in cropped(wide, Rng(0).uniform(50, 3), False):
        row = image[0, 3]
        kept = row[row > 0].long()
        assert (kept.diff() == 1).all()


def test_augmented_batches_are_of_the_stream():
    order = torch.arange(9)[None]
    first, again, other = (feed("crop-flip", seed=seed)[torch.zeros(1, 1).long(), order][:, :4] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == (1, 4, 3, 6, 5) and first.dtype == torch.float64


def part(area, ratio, down, right, turn):
    """Places of parts with this share of the image, and this ratio of width to height."""
    first = (area - AREA[0]) / (AREA[1] - AREA[0])
    second = (math.log(ratio) / math.log(RATIO) + 1) / 2
    return torch.tensor([[first, second, down, right, turn]], dtype=torch.float64)


def test_all_of_an_image_resized_is_the_image():
    image = IMAGES[:1].double()
    torch.testing.assert_close(resized(image, part(1.0, 1.0, 0.3, 0.6, 0.9)), image)
    torch.testing.assert_close(resized(image, part(1.0, 1.0, 0.3, 0.6, 0.1)), image.flip(-1))
    torch.testing.assert_close(
        resized(image, part(1.0, 4 / 3, 0.0, 0.0, 0.9))[..., -1],
        resized(image.flip(-1), part(1.0, 4 / 3, 0.0, 0.0, 0.9))[..., 0],
    )  # its width is that of the image


@pytest.mark.parametrize(("area", "ratio", "down", "right"), [(0.25, 1.0, 0.0, 1.0), (0.3, 1.2, 0.4, 0.7)])
def test_resized_parts_lie_where_they_should(area, ratio, down, right):
    """Of images whose pixels are their own places, what a linear function of places must come to."""
    rows, columns = 40, 60
    grid = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")).double()[None]
    made = resized(grid, part(area, ratio, down, right, 0.9))
    height, width = (side * math.sqrt(area * r) for side, r in ((rows, 1 / ratio), (columns, ratio)))
    top, left = down * (rows - height), right * (columns - width)
    inner = (torch.arange(2, rows - 2), torch.arange(2, columns - 2))  # at the border a pixel is as its neighbour
    expected = (
        top + (inner[0] + 0.5) * height / rows - 0.5, left + (inner[1] + 0.5) * width / columns - 0.5
    )  # fmt: skip
    torch.testing.assert_close(made[0, 0, 2:-2, 5], expected[0].double())
    torch.testing.assert_close(made[0, 1, 5, 2:-2], expected[1].double())


def test_resized_parts_are_random_and_half_of_them_mirrored():
    wide = torch.arange(60.0).reshape(1, 1, 6, 10).expand(400, 1, 6, 10)
    made = resized(wide, Rng(0).uniform(400, 5))
    turned = (made[:, 0, 3].diff() < 0).all(1)
    assert 0.4 < turned.float().mean() < 0.6 and ((made[:, 0, 3].diff() > 0).all(1) | turned).all()
    spans = made[:, 0, 3].amax(1) - made[:, 0, 3].amin(1)
    assert spans.min() < 4 and spans.max() > 8
