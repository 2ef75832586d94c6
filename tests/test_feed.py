"""Images as batches."""

import pytest
import torch
import torch.nn.functional as F

from explore.feed import PADDING, ImageFeed, cropped
from explore.rng import Rng

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
