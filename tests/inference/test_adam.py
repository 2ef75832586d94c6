"""Adam against torch's own."""

import pytest
import torch

from explore.inference.updates import adam


def test_steps_equal_torch():
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3), (4,))
    ours = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    theirs = [p.clone().requires_grad_() for p in ours]
    optimiser = torch.optim.Adam(theirs, lr=0.03)
    moving = adam.start(ours)
    for step in range(1, 21):
        # Gradients down to the size of epsilon, where its place in the formula shows.
        size = 10.0 ** -(step / 2)
        gradients = tuple(size * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
        ours, moving = adam.descend(ours, gradients, moving, adam.rates(0.03, float(step)))
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g
        optimiser.step()
        torch.testing.assert_close(ours, tuple(p.detach() for p in theirs), rtol=1e-10, atol=1e-12)


def test_nothing_is_changed_in_place():
    p, g = (torch.ones(2),), (torch.ones(2),)
    moving = adam.start(p)
    adam.descend(p, g, moving, adam.rates(0.1, 1.0))
    assert all((t == value).all() for t, value in ((p[0], 1), (g[0], 1), (moving.first[0], 0), (moving.second[0], 0)))


def test_cosine():
    assert [adam.cosine(p) for p in (0.0, 0.5, 1.0, 1.5)] == pytest.approx([1, 0.5, 0, 0], abs=1e-15)
