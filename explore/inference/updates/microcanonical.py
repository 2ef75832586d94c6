"""Microcanonical Langevin dynamics: parallel chains with momenta of constant length, and the tuning of their steps.

Robnik, De Luca, Silverstein, Seljak: Microcanonical Hamiltonian Monte Carlo (2023), and Robnik and Seljak: Fluctuation
without dissipation: Microcanonical Langevin Monte Carlo (2024). For a position z in d dimensions, a unit vector u, and
g = grad log p(z),

    dz = u dt,    du = (I - u u^T) (g / (d - 1) dt + eta dW)

A step of size h splits these as in McLachlan (1995), with two gradients; then u is partly renewed, so that it forgets
its direction over the length L. There is no acceptance step. The error of the energy, whose variance per dimension
grows with h^6, measures the bias.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from explore.core.rng import Rng

Density = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps positions [R, C, d] to log densities [R, C] and their gradients [R, C, d]."""
KICK = 0.1931833275037836  # McLachlan's lambda
FALL, POWER, WIDTH = 149 / 151, 6, 1.5  # of the weighted average that tunes h
DIVERGED = 1000.0  # an error of the energy, in nats, at which a step is undone


class Chains(NamedTuple):
    """The state of C chains per replica."""

    position: Float[Tensor, "R C d"]
    momentum: Float[Tensor, "R C d"]  # unit vectors
    log_density: Float[Tensor, "R C"]
    gradient: Float[Tensor, "R C d"]


class Tuning(NamedTuple):
    """Step sizes and decoherence lengths of all chains, and the averages from which they are tuned."""

    size: Float[Tensor, "R C 1"]  # h
    length: Float[Tensor, "R C 1"]  # L
    errors: Float[Tensor, "R C 1"]  # weighted sum of squared errors of the energy over h^6 d
    weights: Float[Tensor, "R C 1"]
    visits: Float[Tensor, "R C 1"]  # positions in the sums below
    first: Float[Tensor, "R C d"]
    second: Float[Tensor, "R C d"]
    slopes: Float[Tensor, "R C d"]  # sum of squared gradients
    scale: Float[Tensor, "R C d"]  # p: the dynamics are those of z / p


def direction(like: Float[Tensor, "R C d"], rng: Rng) -> Float[Tensor, "R C d"]:
    """Draw unit vectors."""
    return _unit(rng.normal(*like.shape))


def untuned(like: Float[Tensor, "R C d"], size: float) -> Tuning:
    """Return a tuning with the step size `size` sqrt(d), before any step."""
    one, root = torch.ones_like(like[..., :1]), like.shape[2] ** 0.5
    nothing = torch.zeros_like(like)
    sums = (nothing, nothing, nothing)
    return Tuning(size * root * one, root * one, 0 * one, 0 * one, 0 * one, *sums, torch.ones_like(like))


def begun(density: Density, chains: Chains) -> tuple[Chains, Bool[Tensor, "R C"]]:
    """Evaluate the density at the positions. Chains where it is not finite restart at the best one of their replica."""
    log_density, gradient = density(chains.position)
    lost = ~log_density.isfinite() | ~gradient.isfinite().all(2)
    best = torch.where(lost, -torch.inf, log_density).argmax(1)[:, None, None].expand_as(chains.position[:, :1])
    position, gradient = (torch.where(lost.unsqueeze(2), t.gather(1, best), t) for t in (chains.position, gradient))
    log_density = torch.where(lost, log_density.gather(1, best[..., 0]), log_density)
    return Chains(position, chains.momentum, log_density, gradient), lost


def step(
    density: Density, chains: Chains, tuning: Tuning, rng: Rng
) -> tuple[Chains, Float[Tensor, "R C 1"], Bool[Tensor, "R C 1"]]:
    """Take one step. Return the chains, the error of the energy in nats, and which chains kept their position.

    A chain whose step diverged stays where it is and turns round.
    """
    z, u, g, h, scale = chains.position, chains.momentum, chains.gradient, tuning.size, tuning.scale
    work = torch.zeros_like(h)
    for kick, drift in ((KICK, 0.5), (1 - 2 * KICK, 0.5), (KICK, 0.0)):
        u, gained = _kicked(u, scale * g, kick * h)
        work = work + gained
        if drift:
            z = z + drift * h * scale * u
            log_density, g = density(z)
    error = work - (log_density - chains.log_density).unsqueeze(2)
    failed = ~(error.abs() < DIVERGED) | ~g.isfinite().all(2, keepdim=True)
    share = ((2 * h / tuning.length).expm1() / z.shape[2]).sqrt()
    renewed = _unit(u + share * rng.normal(*u.shape))
    old, new = chains._replace(momentum=-chains.momentum), (z, renewed, log_density, g)
    masks = (failed, failed, failed.squeeze(2), failed)
    return Chains(*map(torch.where, masks, old, new)), error, failed


def tuned(tuning: Tuning, error: Tensor, failed: Tensor, target: float, dimensions: int) -> Tuning:
    """Adapt step sizes towards a variance of the error per dimension of `target`, in nats^2.

    Errors are averaged with weights that fall off for steps far from the target, as in blackjax.
    """
    ratio = torch.where(failed, 1e8, error.square() / (dimensions * target)) + 1e-8
    weight = (-0.5 * (ratio.log() / (POWER * WIDTH)).square()).exp()
    errors = FALL * tuning.errors + weight * ratio / tuning.size**POWER
    weights = FALL * tuning.weights + weight
    size = torch.where(failed, 0.8 * tuning.size, (weights / errors) ** (1 / POWER))
    return tuning._replace(size=size, errors=errors, weights=weights)


def visited(tuning: Tuning, chains: Chains) -> Tuning:
    """Add positions and gradients to the sums."""
    position, gradient = chains.position, chains.gradient
    return tuning._replace(
        visits=tuning.visits + 1, first=tuning.first + position, second=tuning.second + position.square(),
        slopes=tuning.slopes + gradient.square(),
    )  # fmt: skip


def spread(tuning: Tuning) -> Tuning:
    """Set the length L to the root of the summed variances of the coordinates z / p."""
    variance = (_variance(tuning) / tuning.scale.square()).sum(2, keepdim=True)
    length = torch.where(tuning.visits > 1, variance.sqrt(), tuning.length)
    return tuning._replace(length=torch.maximum(length, tuning.size))


def preconditioned(tuning: Tuning) -> Tuning:
    """Set p^4 to the ratio of the variances of positions and gradients, and start the sums again.

    For independent Gaussian coordinates, p is proportional to their deviations. Its geometric mean is 1. The ratio is
    that of nutpie (Seyboldt, Carlson and Carpenter: Preconditioning Hamiltonian Monte Carlo by Minimizing Fisher
    Divergence, 2026).
    """
    tiny = torch.finfo(tuning.first.dtype).tiny
    ratio = _variance(tuning).clamp_min(tiny).log() - (tuning.slopes / tuning.visits.clamp_min(1)).clamp_min(tiny).log()
    log = (ratio / 4).nan_to_num()
    zero, nothing = torch.zeros_like(tuning.visits), torch.zeros_like(tuning.first)
    return tuning._replace(
        scale=(log - log.mean(2, keepdim=True)).exp(), visits=zero, first=nothing, second=nothing, slopes=nothing,
        errors=zero, weights=zero,
    )  # fmt: skip


def _variance(tuning: Tuning) -> Tensor:
    visits = tuning.visits.clamp_min(1)
    return (tuning.second / visits - (tuning.first / visits).square()).clamp_min(0)


def _kicked(u: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the momenta towards the gradients for a time h. Return them, and the kinetic energy that they gained."""
    norm = g.norm(dim=2, keepdim=True)
    towards = g / norm.clamp_min(torch.finfo(g.dtype).tiny)
    delta = h * norm / (u.shape[2] - 1)
    along = (towards * u).sum(2, keepdim=True)
    # cosh and sinh times exp(-delta), which cannot overflow
    fall, twice = (-delta).exp(), (-2 * delta).exp()
    cosh, sinh = (1 + twice) / 2, (1 - twice) / 2
    total = cosh + along * sinh
    turned = _unit(fall * u + towards * (sinh + along * (cosh - fall)))
    return turned, (u.shape[2] - 1) * (delta + total.clamp_min(torch.finfo(g.dtype).tiny).log())


def _unit(v: Tensor) -> Tensor:
    return v / v.norm(dim=2, keepdim=True)
