"""Images that stay bytes until a batch of them is standardised, and augmented, on the device of the fit."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from explore.core.rng import Rng
from explore.execution import parallel
from explore.images.base import ImageFiles

Augmentation = Literal["none", "crop", "crop-flip", "resized-crop"]
PADDING = 4  # pixels added at each side before a random crop
AREA, RATIO = (0.08, 1.0), 4 / 3  # of the part of an image that is resized; of its width to its height, or inverse


class ImageFeed:
    """Images as a tensor [R, n, C, H, W] for `fit` and `predict`, made when it is indexed; replicas share the images.

    Args:
        images: uint8 [n, C, H, W], on the device to compute on, or in files.
        mean: [C] of the channels, in [0, 255].
        scale: [C] their deviations.
        replicas: R.
        rng: of the fit: augmentations are drawn from it, and batches are of its dtype.
        augmentation: of batches in random order, for training; slices are not augmented.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "n C H W"] | ImageFiles,
        mean: Float[Tensor, " C"],
        scale: Float[Tensor, " C"],
        replicas: int,
        rng: Rng,
        augmentation: Augmentation = "none",
    ):
        self.device, self.shape = rng.device, torch.Size([replicas, *images.shape])
        self._images, self.rng, self._augmentation = images, rng, augmentation
        self._mean, self._scale = (t.to(rng.device, rng.dtype)[:, None, None] for t in (mean, scale))

    def __getitem__(self, key: Any) -> Any:
        """`[:, part]` is a tensor [R, b, C, H, W]; `[rows, order]` all images in another order."""
        _, points = key
        if isinstance(points, slice):
            self.ahead(None, points, points.indices(self.shape[1])[1])
            return self._standardised(self._at(points).unsqueeze(0)).expand(len(self), -1, -1, -1, -1)
        return _Shuffled(self, points)

    def __len__(self) -> int:
        return self.shape[0]

    def training(
        self, points: Int[Tensor, "R b"], places: Float[Tensor, "R b _k"] | None
    ) -> Float[Tensor, "R b C H W"]:
        """A training batch; `places` in [0, 1) determine the augmentation of each image."""
        if places is None:
            return self._standardised(self._at(points))
        images, flat = self._at(points.flatten()), places.flatten(0, 1)
        if self._augmentation == "resized-crop":
            augmented = resized(images.to(self.rng.dtype), flat)
        else:
            augmented = cropped(images, flat, self._augmentation == "crop-flip")
        return self._standardised(augmented.unflatten(0, points.shape))

    def places(self) -> Float[Tensor, "R n _k"] | None:
        """Random places of all images, in the order of a pass; None: they are not augmented."""
        if self._augmentation == "none":
            return None
        return self.rng.uniform(*self.shape[:2], 5 if self._augmentation == "resized-crop" else 3)

    def ahead(self, order: Int[Tensor, "... n"] | None, part: slice, then: int) -> None:
        """Start to decode images in files: a part of an order (None: their own), and as many from `then` on."""
        if not isinstance(self._images, ImageFiles):
            return
        order = torch.arange(self.shape[1]) if order is None else order
        start, stop, _ = part.indices(order.shape[-1])
        soon = torch.cat([order[..., start:stop], order[..., then : then + stop - start]], -1)
        self._images.ahead(soon.cpu().numpy())

    def _at(self, points: slice | Int[Tensor, "..."]) -> UInt8[Tensor, "... C H W"]:
        if not isinstance(self._images, ImageFiles):
            return self._images[points]
        images = self._images[points if isinstance(points, slice) else points.cpu().numpy()]
        return torch.from_numpy(images).to(self.device)

    def _standardised(self, images: Shaped[Tensor, "... C H W"]) -> Float[Tensor, "... C H W"]:
        return (images.to(self.rng.dtype) - self._mean) / self._scale


class _Shuffled:
    """The images of a feed in random order, one for each replica."""

    def __init__(self, feed: ImageFeed, order: Int[Tensor, "R n"]):
        self._feed, self._order, self._places = feed, order, feed.places()

    def __getitem__(self, key: Any) -> Float[Tensor, "R b C H W"]:
        world, (start, stop, _) = parallel.world(), key[1].indices(self._order.shape[1])
        # The other processes' parts of a batch lie between.
        self._feed.ahead(self._order, slice(start, stop), start + (stop - start) * world.parts // world.held)
        return self._feed.training(self._order[key], None if self._places is None else self._places[key])


def cropped(images: UInt8[Tensor, "N C H W"], places: Float[Tensor, "N 3"], flip: bool) -> UInt8[Tensor, "N C H W"]:
    """Pad each image by four black pixels, cut it to its size at a place in [0, 1)^2, and perhaps mirror it."""
    count, _, height, width = images.shape
    padded = F.pad(images, (PADDING,) * 4)
    down, right, turn = places.unbind(1)
    rows = (down * (2 * PADDING + 1)).long()[:, None] + torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device).expand(count, -1)
    if flip:
        across = torch.where(turn[:, None] < 0.5, width - 1 - across, across)
    columns = (right * (2 * PADDING + 1)).long()[:, None] + across
    which = torch.arange(count, device=images.device)[:, None, None]
    # Channels last, so that one index gathers whole pixels.
    return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def resized(images: Float[Tensor, "N C H W"], places: Float[Tensor, "N 5"]) -> Float[Tensor, "N C H W"]:
    """Scale a random part of each image to its size, and mirror half of them (Szegedy et al. 2015, Section 6)."""
    area, ratio, down, right, turn = places.unbind(1)
    area, ratio = AREA[0] + (AREA[1] - AREA[0]) * area, RATIO ** (2 * ratio - 1)
    width, height = ((area * r).sqrt().clamp_max(1.0) for r in (ratio, 1 / ratio))  # of the image's
    mirror = torch.where(turn < 0.5, -1.0, 1.0)
    nothing = torch.zeros_like(width)
    # Maps coordinates in [-1, 1] of the result to those of the image.
    across = torch.stack([mirror * width, nothing, (2 * right - 1) * (1 - width)], 1)
    upright = torch.stack([nothing, height, (2 * down - 1) * (1 - height)], 1)
    grid = F.affine_grid(torch.stack([across, upright], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
