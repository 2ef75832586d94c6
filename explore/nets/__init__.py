"""Networks that take their weights as arguments, likelihoods for their outputs, and a zoo of architectures."""

from explore.core.moved import attributes

__getattr__ = attributes("explore.nets", "explore.nets.net")
