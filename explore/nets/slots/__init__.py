"""Slots: replacements of a module's layers that hold weights only during a pass.

A slot meets inputs whose R, S and B are folded into the batch axis that the user's module knows. It unfolds them,
applies R x S weight matrices, or normalises R x S batches, and folds back.

To the user's forward a slot is the layer it replaces: it is an instance of that class, and has its geometry. It has no
weights to read: those of a sample cannot be told from those of another there.
"""

from explore.nets.slots.base import Lead, LinearSlot, Norm1dSlot, Norm2dSlot, NormSlot, WeightSlot
from explore.nets.slots.convolution import ConvSlot

__all__ = ["ConvSlot", "Lead", "LinearSlot", "Norm1dSlot", "Norm2dSlot", "NormSlot", "WeightSlot"]
