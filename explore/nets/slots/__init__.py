"""Slots: stand-ins for the layers of a module, which have weights only during a forward pass.

The user's module has one batch axis. A slot unfolds it to R, S and B, applies R x S weight matrices or normalises R x S
batches, and folds the result back. In the user's forward() it is an instance of the layer's class with hidden weights.
"""
