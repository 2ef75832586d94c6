"""A layer that is applied at several positions, which are averaged: what tests of shared weights have in common."""

from torch import nn


class Pooled(nn.Module):
    """The mean over positions of a layer's outputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).flatten(2).mean(2) if x.dim() == 4 else self.layer(x).mean(1)
