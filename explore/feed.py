"""Images that stay bytes until a batch needs them, which is standardised, and augmented, on the device of the fit.

An `ImageFeed` stands for a tensor [R, n, C, H, W], as `explore.fit` and `explore.predict` take it. What they index is
made when it is asked for; the augmentation of a whole batch is one indexing of the padded bytes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from explore.rng import Rng

Augmentation = Literal["none", "crop", "crop-flip"]
PADDING = 4  # pixels at each side, of which a random crop takes as many away


class ImageFeed:
    """Images of one replica, or of several that see the same ones.

    Args:
        images: uint8 [n, C, H, W], on the device to compute on.
        mean: [C] of the channels, in [0, 255].
        scale: [C] their deviations.
        replicas: R.
        rng: of the fit: augmentations are drawn from it, and batches are of its dtype.
        augmentation: of batches in random order, which training takes; what is sliced is as it is.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "n C H W"],
        mean: Float[Tensor, " C"],
        scale: Float[Tensor, " C"],
        replicas: int,
        rng: Rng,
        augmentation: Augmentation = "none",
    ):
        self.device, self.shape = images.device, torch.Size([replicas, *images.shape])
        self._images, self.rng, self._augmentation = images, rng, augmentation
        self._mean, self._scale = (t.to(rng.device, rng.dtype)[:, None, None] for t in (mean, scale))

    def __getitem__(self, key: Any) -> Any:
        """`[:, part]` of all in their order, a tensor [R, b, C, H, W]; `[rows, order]` of all in another one."""
        _, points = key
        if isinstance(points, slice):
            return self._standardised(self._images[points].unsqueeze(0)).expand(len(self), -1, -1, -1, -1)
        return _Shuffled(self, points)

    def __len__(self) -> int:
        return self.shape[0]

    def training(self, points: Int[Tensor, "R b"], places: Float[Tensor, "R b 3"] | None) -> Float[Tensor, "R b C H W"]:
        """A batch to train on; `places` in [0, 1) say how each image is augmented."""
        if places is None:
            return self._standardised(self._images[points])
        images = cropped(self._images[points.flatten()], places.flatten(0, 1), self._augmentation == "crop-flip")
        return self._standardised(images.unflatten(0, points.shape))

    def places(self) -> Float[Tensor, "R n 3"] | None:
        """Of all images, in the order of a pass over them; None: they are not augmented."""
        return None if self._augmentation == "none" else self.rng.uniform(*self.shape[:2], 3)

    def _standardised(self, images: UInt8[Tensor, "... C H W"]) -> Float[Tensor, "... C H W"]:
        return (images.to(self.rng.dtype) - self._mean) / self._scale


class _Shuffled:
    """The images of a feed in random order, one for each replica."""

    def __init__(self, feed: ImageFeed, order: Int[Tensor, "R n"]):
        self._feed, self._order, self._places = feed, order, feed.places()

    def __getitem__(self, key: Any) -> Float[Tensor, "R b C H W"]:
        return self._feed.training(self._order[key], None if self._places is None else self._places[key])


def cropped(images: UInt8[Tensor, "N C H W"], places: Float[Tensor, "N 3"], flip: bool) -> UInt8[Tensor, "N C H W"]:
    """Each image padded by four black pixels and cut to its size at a place in [0, 1)^2, and, by a third, mirrored."""
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
