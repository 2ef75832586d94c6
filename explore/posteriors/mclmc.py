"""MCLMC: samples from the posterior by microcanonical Langevin dynamics, started at trained networks.

Sommer, Robnik, Nozadze, Seljak, Ruegamer: Microcanonical Langevin Ensembles (2025), for weights w with prior variance
eta and data of N examples,

    log p(w | D) = sum_n log p(y_n | x_n, w) - |w|^2 / (2 eta) + constant

With prior_scales="layers", the weights of layer l are w_l = exp(t_l) v_l with v_l ~ N(0, eta) and t_l ~ N(0, s^2), and
v and t are sampled (Neal 1996, in a form without a funnel); "inputs" also gives each input of the first layer a factor.

A fit has three parts: `start` passes of Adam over the data, from different random weights for each chain; `warmup`
updates that tune the step size h and the decoherence length L of each chain; and updates whose last positions are the
draws. Each update takes `thinning` steps of `explore.inference.updates.microcanonical`, of two gradients each. Steps
are not corrected by acceptance: `energy_variance`, the variance of the energy error per dimension to which h is tuned,
trades bias for speed. During the warm-up its target falls geometrically from 0.5. Half-way, `precondition` divides the
coordinates by estimates of their deviations (`microcanonical.preconditioned`).

Of more than `step_batch` examples, every fourth step draws this number at random (Sommer et al.: Can Microcanonical
Langevin Dynamics Leverage Mini-Batch Gradient Noise?, 2026). Each step follows the scaled log-likelihood of its batch,
so that the energy error is still that of the integration alone; draws are wider than those of full batches.

Unknown precisions of Gaussian noise are integrated out, see `explore.inference.draws`. Other noise parameters, such as
a dispersion, are not sampled: the likelihood updates them with the outputs of all chains, as in Monte Carlo EM (Wei and
Tanner 1990).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, Info, Weights, flatten, unflatten
from explore.inference.base import Common, common
from explore.inference.draws import SampledPosterior, mixture_of_gammas
from explore.inference.updates import adam, microcanonical
from explore.inference.updates.microcanonical import Chains, Tuning
from explore.inference.updates.steps import settle
from explore.nets.dense import output_of

SIZE = 1e-3  # initial step size over sqrt(d)
ADAM, RENEWED = 100, 4  # the largest number of steps of Adam per update, and steps of a chain with the same batch
EXPLORE = 0.5  # target of the energy variance at the start of the warm-up, for long steps
UPDATES = 5  # per update, of noise parameters that are not integrated out
PROBES = 32  # training examples at which the draws of the chains are compared


class MCLMCState(NamedTuple):
    """The state of `MCLMC`; S = draws * chains, with the chain index varying fastest."""

    common: Common
    weights: Weights  # the last draws
    scales: Float[Tensor, "R S M"] | None  # see `SampledPosterior`
    chains: Chains
    tuning: Tuning
    moving: adam.Moving  # of Adam
    agreement: Float[Tensor, "R 2"]  # split R-hat and effective number of draws, of predictions; 0 before the end


@dataclass(frozen=True, kw_only=True)
class MCLMC(SampledPosterior):
    """Samples from the posterior by microcanonical Langevin dynamics, for networks without batch norm."""

    epochs: int = 360
    batch_size: int = 2**31
    start: int = 200  # passes of Adam before the chains move
    warmup: int = 80  # updates that tune h and L
    thinning: int = 20  # steps per update
    chains: int = 8
    lr: float = 0.01  # Adam's initial learning rate; cosine decay to a tenth
    start_batch: int = 32  # examples per step of Adam
    step_batch: int = 4096  # the largest number of examples per step of the chains
    precondition: bool = True  # whether the dynamics are those of coordinates divided by their deviations
    energy_variance: float = 0.01  # target of the tuning at the end of the warm-up, in nats^2 per dimension
    prior_variance: float = 1.0  # eta
    prior_scales: Literal["fixed", "layers", "inputs"] = "fixed"  # factors on the prior's deviations that are sampled
    scale_spread: float = 1.0  # standard deviation of the logarithms of these factors

    mixture_error: ClassVar[str] = "mclmc samples the exact posterior, so mixing fits adds nothing; use more chains"
    partial: ClassVar[bool] = False  # missing targets would need a noise posterior for each count
    ranges: ClassVar[dict[str, str]] = {
        "chains": "[1, 1000]", "start": "[0, inf)", "warmup": "[1, inf)", "energy_variance": "(0, 10]"
    }  # fmt: skip

    def check_supported(self) -> None:
        if self.net.norms or self.net.points:
            advice = 'use bayesian="everything", or a network without them'
            raise InputError(f"mclmc does not support batch norm or point estimates; {advice}")

    @property
    def before(self) -> int:
        return self.start + self.warmup

    def init(self, n_data: float, replicas: int, rng: Rng) -> MCLMCState:
        shared, groups = common(self, n_data, replicas, rng), sum(self._groups)
        first = flatten(self.net.initial(replicas, rng, self.chains))
        position = torch.cat([first, first.new_zeros(replicas, self.chains, groups)], 2)
        normal = rng.normal(replicas, self.chains * self.draws, position.shape[2])
        draws = self._prior_variances(position).sqrt() * normal
        if self.net.trained:
            draws = position.repeat(1, self.draws, 1)
        zero = torch.zeros_like(position)
        chains = Chains(position, microcanonical.direction(position, rng), zero[..., 0], zero)
        tuning, scales = microcanonical.untuned(position, SIZE), self.unknown_scales(draws[..., 0])
        weights, agreement = self._weights(draws), zero[:, 0, :2]
        return MCLMCState(shared, weights, scales, chains, tuning, adam.start((position,)), agreement)

    def update(self, state: MCLMCState, batch: Batch, rng: Rng, progress: float = 0.0) -> tuple[MCLMCState, Info]:
        step, n_data = int(state.common.step), float(state.common.n_data)
        if step < self.start:
            new, info = self._descended(state, batch, rng)
        else:
            new, info = self._moved(state, batch, rng)
        weights = self._weights(new.chains.position)
        out, y = self.net.output(weights, batch.x), batch.y.unsqueeze(1)
        noise, scales = self.likelihood.expected(state.common.noise), state.scales
        shared = state.common._replace(step=state.common.step + 1, taken=state.common.taken + 1)
        if scales is not None:
            rate, shape = self.noise_rate(out, y, n_data / y.shape[2]), self.noise_shape(n_data)
            noise, scales = shape / rate, self.kept(scales, 1 / rate, step - self.before)
            shared = shared._replace(noise=mixture_of_gammas(shape, scales))
        else:
            for _ in range(UPDATES):
                shared = shared._replace(noise=self.likelihood.update(shared.noise, out, y, n_data, 1.0))
        kept = tuple(self.kept(old, w, step - self.before) for old, w in zip(state.weights, weights, strict=True))
        nll = -self.likelihood.log_prob(noise, out, y).mean((1, 2))
        return settle(new._replace(common=shared, weights=kept, scales=scales), state), {"nll": nll} | info

    def carried(self, state: MCLMCState) -> tuple[Chains, Tuning]:
        return state.chains, state.tuning

    def continued(self, state: MCLMCState, carried: tuple[Chains, Tuning]) -> tuple[MCLMCState, int]:
        """Return a new initial state with `carried` chains, and the number of epochs that a fit of these skips."""
        done = self.before - math.ceil(self.warmup / 4)
        shared = state.common._replace(step=torch.full_like(state.common.step, done))
        return state._replace(common=shared, chains=carried[0], tuning=carried[1]), done

    def finish(self, state: MCLMCState, batches: Iterable[Batch], rng: Rng) -> MCLMCState:
        """Compare the predictions of the draws at the first examples, with split R-hat and effective sample sizes."""
        return state._replace(agreement=self.agreement(state, next(iter(batches)).x[:, :PROBES]))

    def learned(self, state: MCLMCState) -> Info:
        """Return R-hat and the effective number of draws, medians over the predictions of some training examples."""
        return {"r_hat": state.agreement[:, 0], "effective_draws": state.agreement[:, 1]}

    def _descended(self, state: MCLMCState, batch: Batch, rng: Rng) -> tuple[MCLMCState, Info]:
        """Take one pass of Adam over the batch."""
        step, count = int(state.common.step), max(1, round(batch.x.shape[1] / self.start_batch))
        position, moving = state.chains.position, state.moving
        lr = self.lr * (0.1 + 0.9 * adam.cosine(step / self.start))
        for i, part in enumerate(islice(_divided(batch, count, rng), ADAM)):
            _, ascent = self.density(state.common, part, position)
            descent, rates = -ascent / float(state.common.n_data), adam.rates(lr, step * min(count, ADAM) + i + 1)
            (position,), moving = adam.descend((position,), (descent,), moving, rates)
        return state._replace(chains=state.chains._replace(position=position), moving=moving), {}

    def _moved(self, state: MCLMCState, batch: Batch, rng: Rng) -> tuple[MCLMCState, Info]:
        """Move the chains by `thinning` steps, and tune these during the warm-up."""
        begun, chains, tuning = int(state.common.step) - self.start, state.chains, state.tuning
        if self.precondition and begun == self.warmup // 2:
            tuning = microcanonical.preconditioned(tuning)
        squares, undone, restarted = torch.zeros(3, *chains.log_density.shape).to(chains.log_density)
        count = math.ceil(batch.x.shape[1] / self.step_batch)
        batches = [batch] if count == 1 else list(_divided(batch, count, rng))
        for i in range(self.thinning):
            if i % RENEWED == 0 and len(batches) > 1 or i == 0:
                density = partial(self.density, state.common, batches[i // RENEWED % len(batches)])
                chains, lost = microcanonical.begun(density, chains)
                restarted = restarted + lost.to(restarted)
            chains, error, failed = microcanonical.step(density, chains, tuning, rng)
            tuning = self._tuned(tuning, chains, error, failed, (begun + i / self.thinning) / self.warmup)
            squares = squares + torch.where(failed, 0, error.square()).squeeze(2)
            undone = undone + failed.squeeze(2).to(undone)
        variance = squares / (self.thinning * chains.position.shape[2])
        info = {"energy_variance": variance, "undone": undone / self.thinning, "step_size": tuning.size.squeeze(2)}
        info["restarted"] = restarted
        return state._replace(chains=chains, tuning=tuning), {name: value.mean(1) for name, value in info.items()}

    def _tuned(self, tuning: Tuning, chains: Chains, error: Tensor, failed: Tensor, progress: float) -> Tuning:
        """Tune after a step, given the completed fraction of the warm-up; after that only shorten steps that failed."""
        if progress >= 1:
            return tuning._replace(size=torch.where(failed, 0.8 * tuning.size, tuning.size))
        target = EXPLORE * (self.energy_variance / EXPLORE) ** progress
        tuning = microcanonical.tuned(tuning, error, failed, target, chains.position.shape[2])
        if progress > (0.1 if self.precondition else 0.5):
            tuning = microcanonical.visited(tuning, chains)
        return microcanonical.spread(tuning) if progress > 0.5 else tuning

    def density(self, common: Common, batch: Batch, position: Float[Tensor, "R C d"]) -> tuple[Tensor, Tensor]:
        """Return log p(D, w) up to a constant, [R, C], and its gradient; the examples of a batch stand for N."""
        with torch.enable_grad():
            free = position.detach().requires_grad_()
            out = output_of(self.net)(self._weights(free), batch.x)
        fit, slope = self._log_likelihood(common, out.detach(), batch.y.unsqueeze(1))
        (gradient,) = torch.autograd.grad(out, free, slope)
        pull = position / self._prior_variances(position)
        return fit - (position * pull).sum(2) / 2, gradient - pull

    def _log_likelihood(self, common: Common, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(D | w) up to a constant with unknown noise integrated out, and its gradient in the outputs."""
        n_data, prior = float(common.n_data), self.likelihood
        copies = n_data / y.shape[2]
        if not self.scales_unknown:
            noise = prior.expected(common.noise)
            return copies * prior.log_prob(noise, out, y).sum(2), copies * prior.score(noise, out, y)
        rate = self.noise_rate(out, y, copies)
        tau = self.noise_shape(n_data) / rate
        # log p(D | w) = log p(D | w, tau) + log p(tau) - log p(tau | w, D) for any tau. At the mean of the last,
        # its derivative in the rate is 0, so that only the first term has a gradient.
        priors = (prior.prior_shape - 1) * tau.log() - prior.prior_rate * tau - rate.log()
        fit = copies * prior.log_prob(tau, out, y).sum(2) + priors.sum(2)
        return fit, copies * prior.score(tau, out, y)

    def _prior_variances(self, like: Tensor) -> Float[Tensor, " d"]:
        """Return the prior variances of the coordinates: of weights eta, of the logarithms of scales s^2."""
        weights = torch.full_like(like[0, 0, : self.net.weights], float(self.prior_variance))
        return torch.cat([weights, torch.full_like(like[0, 0, self.net.weights :], self.scale_spread**2)])

    @property
    def _groups(self) -> tuple[int, int]:
        """The numbers of scales of layers, and of the inputs of the first layer."""
        layers, inputs = len(self.net.shapes), self.net.shapes[0][0]
        return (0, 0) if self.prior_scales == "fixed" else (layers, inputs if self.prior_scales == "inputs" else 0)

    def _weights(self, position: Float[Tensor, "R S d"]) -> Weights:
        """Return the weights at positions: standardised weights times their scales, whose logarithms come last."""
        flat, of_layers, of_inputs = position.split([self.net.weights, *self._groups], 2)
        weights = unflatten(flat, self.net.shapes)
        if self.prior_scales == "fixed":
            return weights
        weights = tuple(w * f[..., None, None] for w, f in zip(weights, of_layers.exp().unbind(2), strict=True))
        if self.prior_scales == "layers":
            return weights
        return (weights[0] * of_inputs.exp().unsqueeze(3), *weights[1:])


def _divided(batch: Batch, count: int, rng: Rng) -> Iterator[Batch]:
    """Divide the examples of each replica at random into `count` batches."""
    replicas, examples = batch.x.shape[:2]
    rows = torch.arange(replicas, device=batch.x.device).unsqueeze(1)
    for part in rng.permutation(replicas, examples).tensor_split(count, 1):
        yield Batch(batch.x[rows, part], batch.y[rows, part])


PRESETS: dict[str, dict[str, object]] = {
    "default": {},
    "small": {"epochs": 200, "start": 60, "warmup": 60, "chains": 4, "start_batch": 10},
    # A fifth of the time of `small`, for many rounds.
    "quick": {"epochs": 150, "start": 60, "warmup": 60, "chains": 4, "start_batch": 10, "thinning": 4},
}
