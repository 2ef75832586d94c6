"""Networks that take their weights as arguments, the likelihoods of their outputs, and a zoo of them."""

from explore.core.moved import attributes

__getattr__ = attributes("explore.nets", "explore.nets.net")
