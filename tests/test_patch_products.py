"""Second moments of patches without patches, against the patches written out."""

import random

import pytest
import torch
import torch.nn.functional as F

from explore.core.rng import Rng
from explore.nets.net import Net
from explore.nets.slots.patches import patch_products as products


@pytest.mark.parametrize("seed", range(200))
def test_they_are_those_of_the_patches(seed):
    rng = random.Random(seed)
    size, kernel = ((rng.randint(1, 7), rng.randint(1, 7)) for _ in range(2))
    pad = tuple(rng.randint(max(0, (k - n + 1) // 2), 5) for k, n in zip(kernel, size, strict=True))  # one position
    one, draw = rng.random() < 0.5, torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 2, *size, dtype=torch.float64, generator=draw)
    a = F.unfold(x.flatten(0, 1), kernel, padding=pad).unflatten(0, (2, 3)).transpose(2, 3).flatten(1, 2)
    a = F.pad(a, (0, 1), value=1.0) if one else a
    torch.testing.assert_close(products(x, kernel, pad, one), a.mT @ a)


@pytest.mark.parametrize(
    ("settings", "quick"),
    [({}, True), ({"stride": 2}, False), ({"dilation": 2}, False), ({"bias": False, "padding": 1}, True)],
)
def test_an_average_is_that_of_the_inputs(settings, quick):
    net = Net(torch.nn.Sequential(torch.nn.Conv2d(8, 4, 3, **settings), torch.nn.ReLU(), torch.nn.Flatten()))
    rng = Rng(0, dtype=torch.float64)
    weights = tuple(rng.normal(2, 3, i, o) for i, o in net.shapes)
    out, pullback = net.forward(weights, rng.normal(2, 40, 8, 6, 6))
    (taps,) = pullback(torch.ones_like(out))
    old = rng.normal(2, *[taps.shape[0]] * 2)
    a = taps.inputs
    expected = 0.7 * old + 0.3 * torch.einsum("rsbti,rsbtj->rij", a, a) / (a.shape[1] * a.shape[2])
    assert (taps.second_moment is not None) == quick
    torch.testing.assert_close(taps.average_inputs(old, 0.3), expected)
