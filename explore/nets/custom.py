"""Networks, mainly the user's functions: their arguments, and checks that they are unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from explore import registry
from explore.core.errors import InputError, check_settings, raised
from explore.nets import modules, zoo
from explore.nets.likelihoods import Categorical, check_logits
from explore.nets.net import Net
from explore.runs.recorded import Values

KEPT = 8  # outputs that identify a network
CLOSE = 1e-3, 1e-4  # relative, absolute: other processors round otherwise


def settings(name: str, texts: Mapping[str, str]) -> Values:
    """Arguments of a network, from the texts of `-p net.KEY=VALUE`.

    Raises:
        InputError: for one that it has not, that no text can stand for, or that is of another type.
    """
    make = zoo.network(name)
    if not texts:
        return {}
    known = zoo.settings_of(make)
    for key in texts:
        if key not in known and key in zoo.arguments(make):
            options = "int, float, bool, str, or a tuple or choice of these"
            raise InputError(f"{key} of {name} cannot be set; annotate it as {options}")
    return registry.parse(known, texts)


def outputs(name: str, shape: tuple[int, int, int], wanted: int, settings: Mapping[str, Any]) -> tuple[float, ...]:
    """A network's outputs for fixed weights and images; empty for built-in networks.

    One that normalises batches has a second part: the outputs after a training pass over the images.

    Raises:
        InputError: for settings that it does not have, and where it does not take such images, gives another number of
            outputs than is wanted, or probabilities, computes something else each time that it is made, or is none
            that the library can take.
    """
    check_settings(name, zoo.settings_of(zoo.network(name)), settings)
    if ":" not in name:
        return ()
    made = [zoo.build(name, shape, wanted, settings) for _ in range(2)]
    found, again = (_outputs(name, module, shape) for module in made)
    one = found[0]
    if one.shape != (2, wanted):
        raise InputError(f"{name} gives {list(one.shape)} for two images; expected logits, [2, {wanted}]")
    check_logits(Categorical(), one[None, None])
    if not torch.allclose(torch.cat(found), torch.cat(again), *CLOSE):
        raise InputError(f"{name} computes something else at each call; draw random numbers by a seeded generator")
    images = torch.randn(1, 2, *shape, generator=torch.Generator().manual_seed(0))
    Net(made[0]).check(images)
    return tuple(value for given in found for value in given.flatten()[:KEPT].tolist())


def check_known(name: str, found: Sequence[float], recorded: Sequence[float] | None) -> None:
    """Refuse to continue or predict with another network than the run's; older runs record less about it."""
    if recorded is None:
        return
    same = found[: len(recorded)]
    if len(same) < len(recorded) or not torch.allclose(torch.tensor(same), torch.tensor(recorded), *CLOSE):
        raise InputError(f"{name} is not the network that the run began with; restore that function to continue")


def _outputs(name: str, module: nn.Module, shape: tuple[int, int, int]) -> list[Tensor]:
    modules.check(module)  # refuse an unsupported layer before it runs
    rng = torch.Generator().manual_seed(0)
    normalises = any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in module.modules())
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=rng) / p[:1].numel() ** 0.5)
        images = torch.randn(2, *shape, generator=rng)
        try:
            found = [module.eval()(images)]
            if normalises:
                module.train()(images)
                found.append(module.eval()(images))
        except Exception as error:
            shown = ", ".join(map(str, shape))
            raise InputError(f"{name} does not take images [N, {shown}]: {raised(error)}") from error
    if not isinstance(found[0], Tensor):
        raise InputError(f"{name} returns a {type(found[0]).__name__}; it must return one tensor, of logits")
    return found
