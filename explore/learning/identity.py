"""What a posterior is, in texts and numbers, so that what was fitted with it is not taken for another one's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError, listed
from explore.core.rng import Rng
from explore.nets.net import Net

SCALES = (0.3, 1.0, 3.0, 10.0, 30.0)  # of the inputs by whose outputs a network is known again
KEPT = 8  # outputs at each scale
CLOSE, CLOSE_AMP = 1e-3, 0.05  # relative to the largest: other processors round otherwise, bfloat16 most of all


def outputs(net: Net, shape: Sequence[int], rng: Rng) -> Float[Tensor, "5 8"]:
    """What a net makes of fixed inputs of a shape with fixed weights, the same on every device of `rng`.

    Modules that print alike and compute something else differ in it.
    """
    fixed = Rng(0)
    layers = [t.unsqueeze(1).to(rng.device, rng.dtype) for t in net.glorot(1, fixed)] + [*net.unit_norms(1, rng)]
    x = fixed.normal(1, KEPT, *shape).to(rng.device, rng.dtype)
    with torch.no_grad():
        found = [net.output(layers, scale * x).flatten()[:KEPT] for scale in SCALES]
    return torch.stack(found).float().cpu()


def alike(net: Net, ours: Float[Tensor, "5 8"], theirs: Tensor) -> bool:
    """Whether such outputs are the same at every scale, but for rounding."""
    if ours.shape != theirs.shape:
        return False
    close = CLOSE_AMP if getattr(net, "amp", False) else CLOSE
    apart = (ours - theirs).abs().amax(1) <= close * theirs.abs().amax(1)
    return bool((apart | (ours.isnan() & theirs.isnan()).all(1)).all())


def described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """(name, text) of a value and of all that it is made of: texts that another process would write too."""
    if is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for f in fields(value):
            inner = f.name if name == "posterior" else f"{name}.{f.name}"  # a mixture's posterior takes its place
            if f.init and inner != "epochs":  # how long it was fitted, which may depend on the number of labels
                yield from described(inner, getattr(value, f.name))
    else:
        yield name, _text(value)


def _text(value: Any) -> str:
    """A setting; equal ones have the same text, whether they are 1 or 1.0, and a tuple or a list."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, Real) and not isinstance(value, bool):
        return repr(float(value)).removesuffix(".0")
    text = value if isinstance(value, str) else value.text if isinstance(value, Net) else repr(value)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)  # an address, as a function's text has it


def check_same(theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Refuse another posterior by the first difference; what only one version of explore has is none."""
    for name in ours:
        if theirs.get(name, ours[name]) != ours[name]:
            lines = zip_longest(*(text.splitlines() for text in (theirs[name], ours[name])), fillvalue="")
            there, here = next((listed([a.strip()]), listed([b.strip()])) for a, b in lines if a != b)
            raise InputError(
                f"the saved model does not belong here: its {name} is {there or 'shorter'}, and {here or 'less'} was "
                "given; give the posterior that was fitted"
            )
