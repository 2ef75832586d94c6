"""Slots: replacements of a module's layers that hold weights only during a pass.

A slot unfolds the batch axis that the user's module knows to R, S and B, applies R x S weight matrices, or normalises R
x S batches, and folds back. To the user's forward it is an instance of the layer's class, without readable weights.
"""
