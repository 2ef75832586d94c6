"""Networks that take their weights as arguments, the likelihoods of their outputs, and a zoo of them.

`net.Net` wraps a module; `slots` take the place of its layers; `protocols` is the interface to inference. May
import `core` and `registry`.
"""

from explore.core.moved import attributes

__getattr__ = attributes("explore.nets", "explore.nets.net")
