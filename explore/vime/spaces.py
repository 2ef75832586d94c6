"""Conversion of observations and actions to vectors, the inputs of a dynamics model."""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from explore import registry
from explore.core.errors import InputError, listed, one_of, raised, shown

Array = NDArray[Any]
LARGEST = 1024  # numbers in a vector; with this many, an update of the dynamics model takes seconds
Encoder = Callable[[Any], Array]
"""A function from a batch of observations of a vector environment to an array or a tensor [n, D]."""
ENCODER = "pass an encoder (explore rl: -p vime.encoder=module:function) that maps a batch of them to an array [n, D]"

AGREE = "Correct the environment or its declared space (single_observation_space of vector environments)"
FLAT = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


class Vectors:
    """A converter of elements of a Gymnasium space to vectors in single precision; `name` names them in messages.

    Numbers are unchanged; Discrete and MultiDiscrete become one-hot; the parts of Dict and Tuple are concatenated, as
    in `gymnasium.spaces.flatten`. Images and vectors of more than 1024 numbers need an encoder: a function from n
    stacked elements to an array [n, D], the function's name, "module:function", or a torch module for the elements as
    tensors in single precision (pixels from 0 to 255), whose outputs are flattened.
    """

    def __init__(self, space: spaces.Space[Any], name: str, encoder: Encoder | str | None = None):
        self.space, self._name = space, name
        found: Any = registry.load(encoder, "encoder") if isinstance(encoder, str) else encoder
        self._encoder: Encoder | None = _of_module(found) if isinstance(found, nn.Module) else found
        if self._encoder is not None and not callable(self._encoder):
            raise InputError(f"encoder is {shown(self._encoder)}; it must be a function, or module:function")
        if self._encoder is None:
            _check(space, name)
            self.size = int(spaces.flatdim(space))
            if self.size > LARGEST:
                hint = f"; {ENCODER}" if name == "observations" else ""
                size = f"{self.size} numbers (Discrete(n) counts as n)"
                raise InputError(f"{name} have {size}; the dynamics model takes at most {LARGEST}{hint}")
        else:
            try:
                self.size = self.one(deepcopy(space).sample()).shape[1]  # a copy keeps the space's random state
            except InputError:
                raise
            except Exception as error:  # whatever the user's own function raises
                raise InputError(f"the encoder cannot be called with {name}: {raised(error)}") from error
        if not self.size:
            raise InputError(f"{name} are empty; the dynamics model needs at least one number")

    def one(self, element: Any) -> Array:
        """Convert a single element to a vector [1, D]."""
        return self.many(_batched(self.space, element, self._name), 1)

    def many(self, elements: Any, n: int | None = None) -> Array:
        """Convert n elements, stacked as in vector environments or stable-baselines3 buffers, to a new array [n, D]."""
        parts = list(_parts(self.space, elements, self._name))
        counts = [len(values) for _, values, _ in parts]
        n = counts[0] if n is None else n
        for (_, _, part_name), count in zip(parts, counts, strict=True):
            if count != n:
                raise InputError(f"{part_name} are for {count} environments; expected {n}. {AGREE}")
        if self._encoder is None:
            return np.concatenate([_flatten(*part) for part in parts], 1)
        output: Any = self._encoder(elements)
        encoded = np.array(output.numpy(force=True) if isinstance(output, Tensor) else output, np.float32)
        if encoded.ndim != 2 or len(encoded) != n:
            raise InputError(f"the encoder must return shape [{n}, D], one row per element; got {list(encoded.shape)}")
        return encoded


def _of_module(module: nn.Module) -> Encoder:
    """Return an encoder that runs a module on its device, in evaluation mode, on numbers in single precision."""
    tensors = [*module.parameters(), *module.buffers()]

    def tensor(values: Any) -> Any:
        if isinstance(values, Mapping):
            return {key: tensor(value) for key, value in values.items()}
        if isinstance(values, tuple):
            return tuple(map(tensor, values))
        return torch.as_tensor(np.asarray(values), device=tensors[0].device if tensors else "cpu").float()

    def encode(elements: Any) -> Any:
        module.eval()
        with torch.no_grad():
            out: Tensor = module(tensor(elements))
        return out.flatten(1).numpy(force=True)

    return encode


def _check(space: spaces.Space[Any], name: str) -> None:
    """Raise InputError for images and other spaces that are not vectors."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            _check(part, name)
    elif isinstance(space, spaces.Box) and len(space.shape) > 1 and space.dtype == np.uint8:
        hint = f"; {ENCODER}" if name == "observations" else ""
        raise InputError(f"{name} are images {list(space.shape)}, but the dynamics model takes vectors{hint}")
    elif not isinstance(space, FLAT):
        raise one_of(f"space of {name}", type(space).__name__, ("Dict", "Tuple", *(kind.__name__ for kind in FLAT)))


def _children(space: Any, elements: Any, name: str) -> list[tuple[Any, spaces.Space[Any], str]]:
    """Return the elements, the space and the name of each part of a Dict or Tuple space."""
    parts: dict[Any, Any] = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    try:
        if isinstance(space, spaces.Dict) or len(elements) == len(parts):
            return [(elements[key], part, f"{name}[{key!r}]") for key, part in parts.items()]
    except (LookupError, TypeError):
        pass
    raise InputError(f"{name} are {shown(elements)}; expected the parts {listed(map(repr, parts))}. {AGREE}")


def _parts(space: spaces.Space[Any], elements: Any, name: str) -> Iterator[tuple[spaces.Space[Any], Array, str]]:
    """Yield the space, the array [n, ...] and the name of each innermost part of n stacked elements."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for values, part, inner in _children(space, elements, name):
            yield from _parts(part, values, inner)
    else:
        values = _array(elements, name)
        if not values.ndim:
            raise InputError(f"{name} are {shown(elements)}; expected an array with one entry per environment. {AGREE}")
        yield space, values, name


def _array(elements: Any, name: str) -> Array:
    try:
        return np.asarray(elements)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{name} cannot be converted to an array ({error}). {AGREE}") from error


def _batched(space: spaces.Space[Any], element: Any, name: str) -> Any:
    """Return a single element as a stack of n = 1 elements."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _array(element, name)[None]
    parts = tuple(_batched(part, value, inner) for value, part, inner in _children(space, element, name))
    return dict(zip(space.spaces, parts, strict=True)) if isinstance(space, spaces.Dict) else parts


def _flatten(space: spaces.Space[Any], values: Array, name: str) -> Array:
    """Return n elements as vectors [n, D], for a space that is not a Dict or Tuple."""
    n, shape, size = len(values), space.shape or (), math.prod(space.shape or ())
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name} are of type {values.dtype}; expected numbers. {AGREE}")
    # In buffers, stable-baselines3 adds an axis to single numbers and flattens arrays with several axes.
    if values.shape[1:] not in (shape, (size,)):
        expected = ", ".join(map(str, ("n", *shape)))
        raise InputError(f"{name} have shape {list(values.shape)}; expected [{expected}]. {AGREE}")
    values = values.reshape(n, size)
    if isinstance(space, spaces.Box):
        return values.astype(np.float32)
    if isinstance(space, spaces.MultiBinary):
        return _one_hot(values, 0, 2, name)[..., 1]
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    columns = zip(values.T, np.ravel(space.start), np.ravel(counts), strict=True)
    return np.concatenate([_one_hot(*column, name) for column in columns], 1)


def _one_hot(values: Array, first: int, count: int, name: str) -> Array:
    """Return the numbers [...] as vectors [..., count]. Raise InputError unless they are among `count` from `first`."""
    one_hot = values[..., None] == np.arange(first, first + count)
    if not (valid := one_hot.any(-1)).all():
        numbers = f"{first} to {first + count - 1}"
        raise InputError(f"{name} hold {values[~valid][0]}; expected whole numbers from {numbers}. {AGREE}")
    return one_hot.astype(np.float32)
