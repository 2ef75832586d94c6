"""HMC: samples from the exact posterior by the No-U-Turn Sampler (NUTS), a reference for the other posteriors.

Hoffman and Gelman: The No-U-Turn Sampler (2014), as implemented in NumPyro. For the weights w of a small network,
prior variance eta, and data D of B examples that count as N examples,

    log p(w | D) = (N/B) sum_b log p(y_b | x_b, w) - |w|^2 / (2 eta) + constant

Unknown precisions tau_o ~ Gamma(a0, b0) of a Gaussian likelihood are integrated out in closed form:

    log p(D | w) = -a sum_o log b_o(w) + constant,    a = a0 + N / 2,  b_o(w) = b0 + (N/B) |y_o - f_o(x; w)|^2 / 2
    tau_o | w, D ~ Gamma(a, b_o(w))

Each update runs `thinning` transitions of every chain; the last state is a draw. The first `warmup` updates tune the
sampler. The `epochs - warmup` later draws of each chain are kept. NumPyro uses double precision on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Weights, unflatten
from explore.inference.base import Common, Predictive, common
from explore.inference.updates.steps import settle
from explore.nets.likelihoods.bernoulli import Bernoulli
from explore.nets.likelihoods.categorical import Categorical
from explore.nets.likelihoods.gaussian import Gamma, Gaussian
from explore.nets.likelihoods.heteroscedastic import Heteroscedastic
from explore.nets.protocols import Noise, width


class HMCState(NamedTuple):
    """The state of `HMC`; S = draws * chains, with the chain index varying fastest."""

    common: Common
    weights: Weights  # the last draws
    log_joint: Float[Tensor, "R S"]  # log p(D, w) of each draw, up to a constant
    scales: Float[Tensor, "R S O"] | None  # 1 / b(w) of each draw, 0 before any data; None without unknown noise
    chains: tuple[Tensor, ...]  # NumPyro state of every chain, [R, C, ...]


@dataclass(frozen=True, kw_only=True)
class HMC(Predictive):
    """Samples from the exact posterior by NUTS, for sequential networks of dense layers and activations."""

    epochs: int = 300
    batch_size: int = 2**31
    warmup: int = 100  # updates that tune step size and mass matrix
    thinning: int = 10  # transitions per update
    chains: int = 4  # C
    prior_variance: float | Literal["learned"] = 1.0  # eta; must be a number, as HMC cannot learn it
    target_accept: float = 0.8  # target acceptance probability for tuning the step size
    max_tree_depth: int = 10  # at most 2^depth - 1 leapfrog steps per transition

    ranges: ClassVar[dict[str, str]] = {"target_accept": "(0, 1)", "chains": "[1, 1000]", "max_tree_depth": "[1, 30]"}
    whole: ClassVar[bool] = True
    pretrained_error: ClassVar[str] = "hmc starts its chains from the prior, not from a module's weights"
    partial: ClassVar[bool] = False  # the log-likelihoods for NumPyro do not handle NaN
    mixture_error: ClassVar[str] = "hmc samples the exact posterior, so mixing fits adds nothing; use more chains"

    def __post_init__(self) -> None:
        super().__post_init__()
        _sampler(self)  # raises InputError for unsupported networks and likelihoods first
        if self.draws < 4:
            raise InputError(f"epochs is {self.epochs}; it must be at least warmup + 4 = {self.warmup + 4}")

    @property
    def draws(self) -> int:
        """The number of draws kept per chain."""
        return self.epochs - self.warmup

    def init(self, n_data: float, replicas: int, rng: Rng) -> HMCState:
        """Return an initial state with draws from the prior; each chain starts at a different draw."""
        if self.min_batches > 1:
            raise InputError(f"min_batches is {self.min_batches}; hmc needs all data at once: set it to 1")
        if round(n_data / self.batch_size) > 1:
            raise InputError(f"batch_size is {self.batch_size}; hmc needs all data at once: at least {n_data:g}")
        shared = common(self, n_data, replicas, rng)
        normal = rng.normal(replicas, self.chains * self.draws, self.net.weights)
        vector = math.sqrt(float(self.prior_variance)) * normal
        chains = _sampler(self).start(vector[:, : self.chains])
        log_joint = -vector.square().sum(2) / (2 * float(self.prior_variance))
        unknown = getattr(self.likelihood, "noise_std", 1.0) is None
        targets = width(self.likelihood, self.net.outputs)
        scales = log_joint.new_zeros(*log_joint.shape, targets) if unknown else None
        return HMCState(shared, unflatten(vector, self.net.shapes), log_joint, scales, chains)

    def update(self, state: HMCState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[HMCState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step)
        copies = n_data / batch.x.shape[1]
        chains, (z, potential, acceptance, divergent) = _sampler(self).advance(state.chains, batch, copies, rng)
        drawn = unflatten(z, self.net.shapes)
        out = self.net.output(drawn, batch.x)

        slot = (step - self.warmup) % self.draws  # after `epochs` updates, all draws are in order

        def keep(old: Tensor, new: Tensor) -> Tensor:
            return old.slice_scatter(new, 1, slot * self.chains, (slot + 1) * self.chains)

        weights = tuple(keep(old, new) for old, new in zip(state.weights, drawn, strict=True))
        log_joint = keep(state.log_joint, -potential)
        noise, scales = shared.noise, state.scales
        if scales is not None:
            half = 0.5 * copies * self.likelihood.squares(out, y).sum(2)  # type: ignore[attr-defined]
            scales = keep(scales, 1 / (self.likelihood.prior_rate + half))  # type: ignore[attr-defined]
            noise = _mixture(self._shape(n_data), scales)

        shared = shared._replace(noise=noise, step=shared.step + 1, taken=shared.taken + 1)
        info = {
            "nll": -self.likelihood.log_prob(self.likelihood.expected(noise), out, y).mean((1, 2)),
            "r_hat": split_r_hat(log_joint.unflatten(1, (self.draws, self.chains))),
            "acceptance": acceptance,
            "divergent": divergent,
        }
        new = HMCState(shared, weights, log_joint, scales, chains)
        return settle(new, state), info

    def sample(self, state: HMCState, n: int, rng: Rng) -> Weights:
        """Return n random draws without replacement, or all draws in order if there are at most n."""
        return _some(state.weights, n, rng)

    def joint_sample(self, state: HMCState, n: int, rng: Rng) -> tuple[Weights, Noise]:
        """Return draws as in `sample`, each with a noise precision tau ~ Gamma(a, b(w)) per output.

        The module docstring defines a and b. Before any data, tau is drawn from the prior.
        """
        if state.scales is None:
            layers = self.sample(state, n, rng)
            return layers, self.likelihood.sample_noise(state.common.noise, layers[0].shape[1], rng)
        *weights, scale = _some((*state.weights, state.scales), n, rng)
        prior: Any = self.likelihood
        informed = scale > 0
        shape = torch.where(informed, self._shape(float(state.common.n_data)), prior.prior_shape).to(scale)
        return tuple(weights), rng.gamma(shape) * torch.where(informed, scale, 1 / prior.prior_rate)

    def _shape(self, n_data: float) -> float:
        """Return a = a0 + N / 2, the shape of the Gamma posterior over noise precisions, where N is `n_data`."""
        return self.likelihood.prior_shape + 0.5 * n_data  # type: ignore[attr-defined]


def _some(draws: tuple[Tensor, ...], n: int, rng: Rng) -> tuple[Tensor, ...]:
    """Select n random entries along axis 1, the same in each tensor; return all if there are at most n."""
    replicas, count = draws[0].shape[:2]
    if n >= count:
        return draws
    chosen = rng.permutation(replicas, count)[:, :n]
    return tuple(t.take_along_dim(chosen.view(*chosen.shape, *[1] * (t.dim() - 2)), 1) for t in draws)


def split_r_hat(draws: Float[Tensor, "R D C"]) -> Float[Tensor, " R"]:
    """Return split R-hat of D draws from each of C chains, 1 if the chains agree (Gelman et al. 2013, eq. 11.4)."""
    half = draws.shape[1] // 2
    parts = torch.cat([draws[:, :half], draws[:, -half:]], 2)
    within = parts.var(1).mean(1).clamp_min(torch.finfo(parts.dtype).tiny)
    return ((half - 1) / half + parts.mean(1).var(1) / within).sqrt()


def _mixture(shape: float, scales: Float[Tensor, "R S O"]) -> Gamma:
    """Approximate the mixture of all Gamma(shape, rate 1 / scale_s), scale_s > 0, by one Gamma (moment matching)."""
    positive = (scales > 0).to(scales)
    share = positive / positive.sum(1, keepdim=True)
    scale = (share * scales).sum(1)
    spread = (share * (scales - scale.unsqueeze(1)).square()).sum(1)
    mean, variance = shape * scale, shape * scale.square() + shape * (shape + 1) * spread
    return Gamma(mean.square() / variance, mean / variance)


# NumPyro ---------------------------------------------------------------------------------------------------


def _heteroscedastic(jax: Any, likelihood: Any, out: Any, y: Any, copies: Any) -> Any:
    mean, raw = jax.numpy.split(out, 2, -1)
    s = likelihood.limit * jax.numpy.tanh(raw * (likelihood.spread / likelihood.limit))
    return _gaussian(jax, likelihood, mean / jax.numpy.exp(s), y / jax.numpy.exp(s), copies) - copies * s.sum()


def _gaussian(jax: Any, likelihood: Any, out: Any, y: Any, copies: Any) -> Any:
    half = 0.5 * copies * jax.numpy.sum((y - out) ** 2, 0)
    if likelihood.noise_std is not None:
        return -jax.numpy.sum(half) / likelihood.noise_std**2
    logs = jax.numpy.log(likelihood.prior_rate + half)
    return -(likelihood.prior_shape + 0.5 * copies * len(out)) * jax.numpy.sum(logs)


def _categorical(jax: Any, likelihood: Any, out: Any, y: Any, copies: Any) -> Any:
    return copies * (jax.nn.log_softmax(out) * jax.nn.one_hot(y, out.shape[-1])).sum()


def _bernoulli(jax: Any, likelihood: Any, out: Any, y: Any, copies: Any) -> Any:
    return copies * jax.nn.log_sigmoid(out[:, 0] * (2 * y - 1)).sum()


# JAX counterparts of torch modules, and of likelihoods: log p(D | w) up to a constant, with noise integrated out.
ACTIVATIONS: dict[type, str] = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu", nn.Identity: "identity",
}  # fmt: skip
LOG_LIKELIHOODS: dict[type, Callable[..., Any]] = {
    Gaussian: _gaussian, Heteroscedastic: _heteroscedastic, Categorical: _categorical, Bernoulli: _bernoulli,
}  # fmt: skip


class _Sampler:
    """NUTS for one posterior: runs the chains of all replicas in one call, compiled once per data shape."""

    def __init__(self, posterior: HMC):
        try:
            import jax
            import jax.numpy as jnp
            from numpyro.infer.hmc import hmc
        except ImportError:
            raise InputError("hmc needs the extra 'reference': pip install 'explore-bnn[reference]'") from None
        net, likelihood = posterior.net, posterior.likelihood
        if wrong := [kind.__name__ for kind in net.sequence if kind is not nn.Linear and kind not in ACTIVATIONS]:
            allowed = ", ".join(kind.__name__ for kind in (nn.Linear, *ACTIVATIONS))
            raise InputError(f"hmc supports only an nn.Sequential of {allowed}; this network has a {wrong[-1]}")
        if type(likelihood) not in LOG_LIKELIHOODS:
            allowed = ", ".join(kind.__name__ for kind in LOG_LIKELIHOODS)
            raise InputError(f"hmc does not support the likelihood {type(likelihood).__name__}; allowed: {allowed}")
        self._posterior: HMC = posterior
        self._jax: Any = jax
        self._transition: Any
        begin, self._transition = hmc(potential_fn_gen=self.potential, algo="NUTS")

        def start() -> Any:
            state = begin(
                jnp.zeros(net.weights),
                num_warmup=posterior.warmup * posterior.thinning,
                target_accept_prob=posterior.target_accept,
                max_tree_depth=posterior.max_tree_depth,
                model_args=(jnp.zeros((1, net.shapes[0][0] - net.biases[0])), jnp.zeros(1, int), 0.0),
            )
            return _with_key(state, None)

        with self.numbers():
            self._fresh: Any = jax.tree.map(np.asarray, jax.jit(start)())  # the call also sets up the transition
        self._compiled: Any = jax.jit(self._moves)

    def output(self, z: Any, x: Any) -> Any:
        """Apply the network with weights z [W] to inputs x: [B, features] -> [B, O]."""
        net, start = self._posterior.net, 0
        layers = zip(net.shapes, net.biases, strict=True)
        for kind in net.sequence:
            if kind is not nn.Linear:
                x = getattr(self._jax.nn, ACTIVATIONS[kind])(x)
                continue
            (inputs, outputs), bias = next(layers)
            w = z[start : start + inputs * outputs].reshape(inputs, outputs)
            x = x @ w[: inputs - bias] + (w[-1] if bias else 0)
            start += inputs * outputs
        return x

    def potential(self, x: Any, y: Any, copies: Any) -> Callable[[Any], Any]:
        """Return z [W] -> -log p(y, z | x) for x [B, features], y [B, O] or [B]; examples count `copies` times each."""
        likelihood, variance = self._posterior.likelihood, float(self._posterior.prior_variance)

        def energy(z: Any) -> Any:
            fit = LOG_LIKELIHOODS[type(likelihood)](self._jax, likelihood, self.output(z, x), y, copies)
            return z @ z / (2 * variance) - fit

        return energy

    def _moves(self, state: Any, keys: Any, x: Any, y: Any, copies: Any) -> Any:
        """Run `thinning` transitions of all chains. Return the state, acceptance rates and shares of divergences."""
        lax, random = self._jax.lax, self._jax.random

        def move(state: Any, key: Any, data: Any) -> Any:
            value, gradient = self._jax.value_and_grad(self.potential(*data))(state.z)  # for the current data
            state = state._replace(potential_energy=value, z_grad=gradient)

            def once(state: Any, key: Any) -> Any:
                state = _with_key(self._transition(_with_key(state, key), data), None)
                return state, (state.accept_prob, state.diverging)

            state, logged = lax.scan(once, state, random.split(key, self._posterior.thinning))
            return state, [s.mean() for s in logged]

        def replica(state: Any, keys: Any, x: Any, y: Any) -> Any:
            return lax.map(lambda chain: move(chain[0], chain[1], (x, y, copies)), (state, keys))

        # Run chains sequentially; in parallel, all would wait for the longest trajectory.
        return lax.map(lambda one: replica(*one), (state, keys, x, y))

    def start(self, z: Float[Tensor, "R C W"]) -> tuple[Tensor, ...]:
        """Return the state of chains that start at z, before any data."""
        chains = self._jax.tree.map(lambda leaf: np.broadcast_to(leaf, (*z.shape[:2], *leaf.shape)), self._fresh)
        return self._torch(chains._replace(z=_numpy(z)), z.device, z.dtype)

    def advance(
        self, chains: tuple[Tensor, ...], batch: Batch, copies: float, rng: Rng
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the new chains, and (draws z [R, C, W], potentials [R, C], acceptance rates [R], divergences [R])."""
        lead = chains[0].shape[:2]
        keys = (rng.uniform(*lead, 2).double() * 2**32).cpu().numpy().astype(np.uint32)
        with self.numbers():
            state = self._jax.tree.unflatten(self._jax.tree.structure(self._fresh), map(_numpy, chains))
            keys = self._jax.random.wrap_key_data(keys)
            state, (accepted, divergent) = self._compiled(state, keys, _numpy(batch.x), _numpy(batch.y), copies)
            results = (state.z, state.potential_energy, accepted.mean(1), divergent.mean(1))
            return self._torch(state, rng.device, rng.dtype), self._torch(results, rng.device, rng.dtype)

    @contextmanager
    def numbers(self) -> Iterator[None]:
        """Let JAX compute in double precision on the CPU within this context."""
        with self._jax.enable_x64(True), self._jax.default_device(self._jax.devices("cpu")[0]):
            yield

    def _torch(self, values: Any, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = (torch.tensor(np.asarray(leaf), device=device) for leaf in self._jax.tree.leaves(values))
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in leaves)


_sampler = lru_cache(maxsize=16)(_Sampler)  # compiling takes seconds


def _numpy(t: Tensor) -> np.ndarray:
    return t.double().cpu().numpy() if t.is_floating_point() else t.cpu().numpy()


def _with_key(state: Any, key: Any) -> Any:
    """Return the NumPyro state with this random key (None: without a key); updates draw new keys from their `Rng`."""
    return state._replace(rng_key=key, adapt_state=state.adapt_state._replace(rng_key=None))


PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    "small": {"epochs": 80, "warmup": 40, "thinning": 5, "chains": 2},
}

CONTRACT: dict[str, object] = {
    "lively": {"epochs": 40, "warmup": 20, "thinning": 1, "chains": 2, "max_tree_depth": 5},
    "refuses": ("convolutions", "norms"),
}
