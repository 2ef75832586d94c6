"""Identification of posteriors and points, to check that saved results belong to them."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from numbers import Real
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from explore.core.errors import InputError, listed
from explore.core.rng import Rng
from explore.learning.items import Items
from explore.nets.net import Net
from explore.nets.protocols import Network

SCALES = (0.3, 1.0, 3.0, 10.0, 30.0)  # of the inputs whose outputs identify a network
OUTPUTS = 8  # at each scale
CLOSE, CLOSE_AMP = 1e-3, 0.05  # relative to the largest; rounding depends on the processor, above all in bfloat16
OF_LABELS = ("epochs", "likelihood.resolution")  # settings that may depend on the labels


def outputs(net: Network, shape: Sequence[int], rng: Rng) -> Float[Tensor, "5 8"]:
    """Return 8 outputs of a network at each of 5 input scales, for fixed weights and fixed inputs of this shape.

    The outputs are the same on every device. Modules with equal repr() but different forward() have different outputs.
    All values that a state has are fixed; only frozen parameters are the module's.
    """
    fixed, others = Rng(0), Rng(1)
    drawn = zip(net.glorot(1, fixed), net.entries, strict=True)
    weights = [(others.normal(*w.shape) if entries else w).unsqueeze(1) for w, entries in drawn]
    points = [others.normal(*value.shape) for value in net.initial_points(1, fixed)]
    layers = [t.to(rng.device, rng.dtype) for t in (*weights, *net.unit_norms(1, fixed), *points)]
    x = fixed.normal(1, OUTPUTS, *shape).to(rng.device, rng.dtype)
    x = torch.zeros_like(x) if net.inputs.whole else x  # which may look up rows of a table
    with torch.no_grad():
        rows = [net.output(layers, scale * x).flatten()[:OUTPUTS] for scale in SCALES]
    return torch.stack(rows).float().cpu()


def alike(net: Network, one: Float[Tensor, "5 8"], other: Tensor) -> bool:
    """Return whether two results of `outputs` are equal up to rounding, relative to the largest output per scale."""
    if one.shape != other.shape:
        return False
    close = CLOSE_AMP if getattr(net, "amp", False) else CLOSE
    near = (one - other).abs().amax(1) <= close * other.abs().amax(1)
    return bool((near | (one.isnan() & other.isnan()).all(1)).all())


def described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield pairs (name, text) that describe a posterior, one for each part and each setting not in `OF_LABELS`."""
    if is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for f in fields(value):
            inner = f.name if name == "posterior" else f"{name}.{f.name}"  # also for a mixture's posterior
            if f.init and inner not in OF_LABELS:
                yield from described(inner, getattr(value, f.name))
    else:
        yield name, _text(value)


def _text(value: Any) -> str:
    """Return a setting as text. Equal settings have the same text, such as 1 and 1.0, or (1, 2) and [1, 2]."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, Real) and not isinstance(value, bool):
        return repr(float(value)).removesuffix(".0")
    text = value if isinstance(value, str) else value.text if isinstance(value, Net) else repr(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)  # the memory address in a function's repr


def check_same(saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise InputError if two descriptions of a posterior differ. Settings that only one of them has are ignored."""
    for name, text in current.items():
        if saved.get(name, text) != text:
            lines = zip_longest(saved[name].splitlines(), text.splitlines(), fillvalue="")
            before, now = next((listed([a.strip()]), listed([b.strip()])) for a, b in lines if a != b)
            raise InputError(
                f"the saved model was fitted with another posterior: its {name} is {before or 'shorter'}, "
                f"got {now or 'a shorter one'}. Pass the posterior that was fitted"
            )


def digest(x: Tensor | Items, allowed: Bool[Tensor, "T P"]) -> UInt8[Tensor, " 32"]:
    """Return a hash of the points of a pool, from their float64 values, and of those allowed in each trial."""
    found = hashlib.sha256(str(tuple(x.shape)).encode() + allowed.cpu().numpy().tobytes())
    for part in x.split(1024):
        found.update((part.to("cpu", torch.float64).numpy() + 0.0).tobytes())  # + 0.0 replaces -0.0, its equal
    return torch.frombuffer(bytearray(found.digest()), dtype=torch.uint8)
