"""Slots: stand-ins for the layers of a module. A slot has weights only during a forward pass.

The user's module has one batch axis. A slot unfolds it to R, S and B, applies R x S weight matrices or normalises R x S
batches, and folds the result back. The user's forward() sees an instance of the layer's class with unreadable weights.
"""
