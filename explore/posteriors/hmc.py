"""HMC: samples from the exact posterior by the No-U-Turn Sampler (NUTS), a reference for the other posteriors.

Hoffman and Gelman: The No-U-Turn Sampler (2014), as implemented in NumPyro. For the weights w of a small network,
prior variance eta, and data D of B examples that count as N examples,

    log p(w | D) = (N/B) sum_b log p(y_b | x_b, w) - |w|^2 / (2 eta) + constant

Unknown precisions of a Gaussian likelihood are integrated out, see `explore.inference.draws`.

Each update runs `thinning` transitions of every chain; the last state is a draw. The first `warmup` updates tune the
sampler. The `epochs - warmup` later draws of each chain are kept. NumPyro uses double precision on the CPU.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Weights, unflatten
from explore.inference.base import Common, common
from explore.inference.draws import SampledPosterior, mixture_of_gammas, split_r_hat
from explore.inference.updates.steps import settle
from explore.nets.likelihoods.bernoulli import Bernoulli
from explore.nets.likelihoods.categorical import Categorical
from explore.nets.likelihoods.gaussian import Gaussian
from explore.nets.likelihoods.heteroscedastic import Heteroscedastic


class HMCState(NamedTuple):
    """The state of `HMC`; S = draws * chains, with the chain index varying fastest."""

    common: Common
    weights: Weights  # the last draws
    log_joint: Float[Tensor, "R S"]  # log p(D, w) of each draw, up to a constant
    scales: Float[Tensor, "R S O"] | None  # 1 / b(w) of each draw, 0 before any data; None without unknown noise
    chains: tuple[Tensor, ...]  # NumPyro state of every chain, [R, C, ...]


@dataclass(frozen=True, kw_only=True)
class HMC(SampledPosterior):
    """Samples from the exact posterior by NUTS, for sequential networks of dense layers and activations."""

    epochs: int = 300
    batch_size: int = 2**31
    thinning: int = 10  # transitions per update
    prior_variance: float = 1.0  # eta
    target_accept: float = 0.8  # target acceptance probability for tuning the step size
    max_tree_depth: int = 10  # at most 2^depth - 1 leapfrog steps per transition

    ranges: ClassVar[dict[str, str]] = {"target_accept": "(0, 1)", "chains": "[1, 1000]", "max_tree_depth": "[1, 30]"}
    pretrained_error: ClassVar[str] = "hmc starts its chains from the prior, not from a module's weights"
    partial: ClassVar[bool] = False  # the log-likelihoods for NumPyro do not handle NaN
    mixture_error: ClassVar[str] = "hmc samples the exact posterior, so mixing fits adds nothing; use more chains"

    def check_supported(self) -> None:
        _sampler(self)

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
        weights = unflatten(vector, self.net.shapes)
        return HMCState(shared, weights, log_joint, self.unknown_scales(log_joint), chains)

    def update(self, state: HMCState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[HMCState, Info]:
        shared, y = state.common, batch.y.unsqueeze(1)
        n_data, step = float(shared.n_data), int(shared.step)
        copies = n_data / batch.x.shape[1]
        chains, (z, potential, acceptance, divergent) = _sampler(self).advance(state.chains, batch, copies, rng)
        drawn = unflatten(z, self.net.shapes)
        out = self.net.output(drawn, batch.x)

        keep = partial(self.kept, draw=step - self.warmup)  # after `epochs` updates, all draws are in order
        weights = tuple(keep(old, new) for old, new in zip(state.weights, drawn, strict=True))
        log_joint = keep(state.log_joint, -potential)
        noise, scales = shared.noise, state.scales
        if scales is not None:
            scales = keep(scales, 1 / self.noise_rate(out, y, copies))
            noise = mixture_of_gammas(self.noise_shape(n_data), scales)

        shared = shared._replace(noise=noise, step=shared.step + 1, taken=shared.taken + 1)
        info = {
            "nll": -self.likelihood.log_prob(self.likelihood.expected(noise), out, y).mean((1, 2)),
            "r_hat": split_r_hat(log_joint.unflatten(1, (self.draws, self.chains))),
            "acceptance": acceptance,
            "divergent": divergent,
        }
        new = HMCState(shared, weights, log_joint, scales, chains)
        return settle(new, state), info


# NumPyro ---------------------------------------------------------------------------------------------------


def _heteroscedastic(jax: Any, likelihood: Any, out: Any, y: Any, copies: Any) -> Any:
    mean, raw = jax.numpy.split(out, 2, -1)
    s = jax.numpy.clip(likelihood.spread * raw, -likelihood.limit, likelihood.limit)
    cells = jax.numpy.array(likelihood.resolution or (0.0,)) ** 2 / 12
    squares = ((y - mean) ** 2 + cells) * jax.numpy.exp(-2 * s)
    return _noise_integrated(jax, likelihood, squares, copies) - copies * s.sum()


def _gaussian(jax: Any, likelihood: Any, out: Any, y: Any, copies: Any) -> Any:
    return _noise_integrated(jax, likelihood, (y - out) ** 2, copies)


def _noise_integrated(jax: Any, likelihood: Any, squares: Any, copies: Any) -> Any:
    half = 0.5 * copies * jax.numpy.sum(squares, 0)
    if likelihood.noise_std is not None:
        return -jax.numpy.sum(half) / likelihood.noise_std**2
    logs = jax.numpy.log(likelihood.prior_rate + half)
    return -(likelihood.prior_shape + 0.5 * copies * len(squares)) * jax.numpy.sum(logs)


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
        keys = (rng.uniform(*chains[0].shape[:2], 2).double() * 2**32).cpu().numpy().astype(np.uint32)
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
