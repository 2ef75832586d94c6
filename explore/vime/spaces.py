"""Observations and actions as vectors: what a dynamics model takes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from explore import registry
from explore.errors import InputError, raised, shown

Array = NDArray[Any]
LARGEST = 1024  # numbers in a vector; with as many an update of the dynamics model takes seconds
Encoder = Callable[[Any], Array]
"""Maps a batch of observations, as a vector environment gives them, to an array or a tensor [n, D]."""
ENCODER = "give an encoder (explore rl: -p vime.encoder=module:function) that maps a batch of them to an array [n, D]"


class Vectors:
    """Turns the elements of a Gymnasium space into vectors of single precision.

    Numbers stay as they are; Discrete and MultiDiscrete become one-hot; Dict and Tuple are laid end to end in their own
    order, as `gymnasium.spaces.flatten` does it.

    Args:
        space: of one element.
        what: its name in messages.
        encoder: for elements that are no vectors of numbers, such as images; or "module:function".

    Raises:
        InputError: for images and vectors of more than 1024 numbers without an encoder, an encoder that is not there or
            gives no row for each, vectors of no number, and spaces of no fixed size.
    """

    def __init__(self, space: spaces.Space[Any], what: str, encoder: Encoder | str | None = None):
        self.space = space
        self._encoder: Encoder | None = registry.load(encoder, "encoder") if isinstance(encoder, str) else encoder
        if self._encoder is not None and not callable(self._encoder):
            raise InputError(f"encoder is {shown(self._encoder)}; it must be a function, or module:function")
        if self._encoder is None:
            _check(space, what)
            self.size = int(spaces.flatdim(space))
            if self.size > LARGEST:
                hint = f"; {ENCODER}" if what == "observations" else ""
                raise InputError(
                    f"{what} are vectors of {self.size} numbers (a choice of n has n), and the dynamics model takes at "
                    f"most {LARGEST}{hint}"
                )
        else:
            try:
                self.size = self.one(space.sample()).shape[1]
            except InputError:
                raise
            except Exception as error:  # whatever the user's own function raises
                raise InputError(f"the encoder cannot be called with {what}: {raised(error)}") from error
        if not self.size:
            raise InputError(f"{what} are vectors of no number; the dynamics model takes at least one")

    def one(self, element: Any) -> Array:
        """A single element as [1, D]."""
        return self.many(_batched(self.space, element))

    def many(self, elements: Any) -> Array:
        """N elements, stacked as vector environments and stable-baselines3 do, as [n, D]; always a copy."""
        if self._encoder is None:
            return _flatten(self.space, elements)
        given: Any = self._encoder(elements)
        if isinstance(given, Tensor):  # as a network of PyTorch gives them
            given = given.detach().cpu().numpy()
        encoded, n = np.array(given, np.float32), _count(self.space, elements)
        if encoded.ndim != 2 or len(encoded) != n:
            raise InputError(
                f"the encoder must give an array [n, D], a row for each element; of {n} it gave one of shape "
                f"{list(encoded.shape)}"
            )
        return encoded


def _check(space: spaces.Space[Any], what: str) -> None:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            _check(part, what)
    elif isinstance(space, spaces.Box) and len(space.shape) > 1 and space.dtype == np.uint8:
        raise InputError(
            f"{what} are images of shape {list(space.shape)}, and the dynamics model takes vectors"
            f"{f'; {ENCODER}' if what == 'observations' else ''}"
        )
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise InputError(
            f"{what} of type {type(space).__name__} are not supported; "
            "allowed: Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple"
        )


def _count(space: spaces.Space[Any], elements: Any) -> int:
    """How many elements are stacked."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        name, part = next(iter(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)))
        return _count(part, elements[name])
    return len(elements)


def _batched(space: spaces.Space[Any], element: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _batched(part, element[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_batched(part, e) for part, e in zip(space.spaces, element, strict=True))
    return np.asarray(element)[None]


def _flatten(space: spaces.Space[Any], elements: Any) -> Array:
    if isinstance(space, spaces.Dict):
        return np.concatenate([_flatten(part, elements[name]) for name, part in space.spaces.items()], 1)
    if isinstance(space, spaces.Tuple):
        return np.concatenate([_flatten(part, e) for part, e in zip(space.spaces, elements, strict=True)], 1)
    values = np.asarray(elements)
    if isinstance(space, spaces.Discrete):
        # SB3 adds an axis to discrete actions in its buffers.
        return _one_hot(values.reshape(len(values)).astype(int) - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        values = (values - space.start).reshape(len(values), -1).astype(int)
        columns = zip(values.T, np.ravel(space.nvec), strict=True)
        return np.concatenate([_one_hot(column, int(n)) for column, n in columns], 1)
    return values.reshape(len(values), -1).astype(np.float32)


def _one_hot(choices: Array, n: int) -> Array:
    one_hot = np.zeros((len(choices), n), np.float32)
    one_hot[np.arange(len(choices)), choices] = 1
    return one_hot
