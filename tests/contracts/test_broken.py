"""The suite itself: a sound posterior of another kind passes it, and each fault is named by the check that meets it."""

import contextlib
import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.execution import parallel
from explore.inference.base import Common, Variational
from explore.inference.updates.steps import end_update, settle
from explore.posteriors.ensemble import Ensemble
from explore.posteriors.last_layer import LastLayer
from explore.posteriors.noisy_adam import NoisyAdam, NoisyAdamState
from explore.testing.subject import Subject
from explore.testing.values import POSTERIORS
from tests.contracts.test_execution import EXECUTION

settings: Any = dataclass(frozen=True, kw_only=True)


def meet(cls, check, contract=None):
    """Runs one check of a class, in all its cases."""
    subject = Subject(cls.__name__, cls, contract)
    every: list[Any] = [p for suite in (POSTERIORS, EXECUTION) for p in suite.parameters([subject])]
    runs = [p.values[0] for p in every if p.id.startswith(f"{cls.__name__}-{check}")]
    assert runs
    for run in runs:
        with contextlib.suppress(pytest.skip.Exception):  # where there is no GPU
            run()


# Densities that are not Gaussian ---------------------------------------------------------------------------


@settings
class LaplaceAdam(Variational):
    """Noisy Adam's mean and variance of every weight, as a Laplace density."""

    lr: float = 0.01

    @property
    def adam(self):
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return NoisyAdam(**own, beta=0.1, gain_samples=100)

    @property
    def coordinates(self):
        return self.net.shapes

    def init(self, n_data, replicas, rng):
        return self.adam.init(n_data, replicas, rng)

    def update(self, state, batch, rng, progress=0.0):
        return self.adam.update(state, batch, rng, progress)

    def gain(self, state, batch, rng):
        return self.adam.gain(state, batch, rng)

    def laplace(self, state):
        mean, precision, scale = self.adam.gaussian(state)
        pairs = [(m, (scale * v / 2).sqrt()) for m, v in zip(mean, precision.variance(), strict=True)]
        return [torch.distributions.Laplace(*(t.unsqueeze(1) for t in pair)) for pair in pairs]

    def sample(self, state, n, rng):
        return self.layers(state, self.sample_coordinates(state, n, rng))

    def sample_coordinates(self, state, n, rng):
        u = [rng.uniform(len(q.loc), n, *q.loc.shape[2:]) - 0.5 for q in self.laplace(state)]
        return tuple(
            q.loc - q.scale * x.sign() * torch.log1p(-2 * x.abs()) for q, x in zip(self.laplace(state), u, strict=True)
        )

    def log_prob(self, state, coordinates):
        return sum(q.log_prob(w).sum((2, 3)) for q, w in zip(self.laplace(state), coordinates, strict=True))

    def kl_prior(self, state):
        eta = self.prior_variance
        squares = sum((q.loc.square() + 2 * q.scale.square()).sum((1, 2, 3)) for q in self.laplace(state))
        count = self.net.weights
        entropy = sum(q.entropy().sum((1, 2, 3)) for q in self.laplace(state))
        return 0.5 * (squares / eta + count * math.log(2 * math.pi * eta)) - entropy


@pytest.mark.slow
def test_another_density_passes():
    for check in ("functions", "a_saved", "single", "samples", "divergences", "a_linear_model", "gain_is"):
        meet(LaplaceAdam, check)


@settings
class RoughHessian(NoisyAdam):
    """The Hessian's diagonal from one sample of the weights, g (w - mu) / variance (Shen et al. 2024, IVON)."""

    local: ClassVar[str] = ""  # what is not averaged over processes
    pull: ClassVar[float] = 1.0  # factor of the prior's
    sign: ClassVar[float] = 1.0  # of the Hessian

    def update(self, state, batch, rng, progress=0.0):
        weights, seen = replace(self, samples=1).noisy_pass(state, batch, 1.0, rng)
        gamma: Any = self.gamma(state.common)
        values = []
        for mu, m, h, w, taps in zip(state.mean, state.momentum, state.squares, weights, seen.taps, strict=True):
            gradients = -taps.gradients() / taps.grads.shape[2]
            gradient, hessian = gradients.mean(1), (gradients * (w - mu.unsqueeze(1))).mean(1)
            gradient = gradient if self.local == "gradient" else parallel.mean(gradient)
            hessian = hessian if self.local == "hessian" else parallel.mean(hessian)
            error = self.sign * hessian * (h + gamma) / self.gaussian(state)[2] - h
            h = h + self.beta * error + 0.5 * self.beta**2 * error**2 / (h + gamma)
            m = self.momentum * m + (1 - self.momentum) * gradient
            average = m / (1 - self.momentum ** (int(state.common.step) + 1))
            values.append((mu - self.lr * (average + self.pull * gamma * mu) / (h + gamma), m, h))
        new = NoisyAdamState(state.common, *map(tuple, zip(*values, strict=True)))
        return end_update(self, seen, new, state, self.kl_weight)


@pytest.mark.parametrize("beta", [0.1, pytest.param(0.01, marks=pytest.mark.slow)])
def test_a_rough_natural_gradient_passes(beta):
    for check in ("gain_is", "gain_falls", "two_processes", "a_linear_model"):
        meet(RoughHessian, check, {"lively": {"beta": beta}, "linear": []})


@settings
class LocalGradient(RoughHessian):
    local: ClassVar[str] = "gradient"


@settings
class LocalHessian(RoughHessian):
    local: ClassVar[str] = "hessian"


@settings
class LocalNumbers(NoisyAdam):
    """Draws the same weights in all processes, and other ones in one process with all parts."""

    def update(self, state, batch, rng, progress=0.0):
        step = 1.0 + 1e-3 * rng.uniform(len(state.mean[0]), 1 + parallel.world().held)[:, -1, None, None]
        new, info = super().update(state, batch, rng, progress)
        return new._replace(mean=tuple(step * m for m in new.mean)), info


@settings
class WrongPull(RoughHessian):
    pull: ClassVar[float] = 2.0


@settings
class NoPull(RoughHessian):
    pull: ClassVar[float] = 0.0


@settings
class WrongHessian(RoughHessian):
    sign: ClassVar[float] = -1.0


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        (LocalGradient, "two_processes", "two processes have different states; .*parallel.mean"),
        (LocalHessian, "two_processes", "two processes have different states; .*parallel.mean"),
        (LocalNumbers, "two_processes", "two processes with half of a batch each .*parallel.apart"),
        (WrongPull, "a_linear_model", "the mean of a weight is .* deviations from .*add .average."),
        (NoPull, "a_linear_model", "the mean of a weight is .* deviations from"),
        (WrongHessian, "a_linear_model", "the variance of a weight is .* times too large or small|the mean"),
    ],
)
def test_a_noisy_method_with_a_fault_is_named(cls, check, message):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        meet(cls, check, {"lively": {"beta": 0.1}, "linear": []})


@settings
class TooWide(LaplaceAdam):
    def sample_coordinates(self, state, n, rng):
        pairs = zip(self.laplace(state), super().sample_coordinates(state, n, rng), strict=True)
        return tuple(q.loc + 1.05 * (w - q.loc) for q, w in pairs)


@settings
class WideGaussian(NoisyAdam):
    def sample_coordinates(self, state, n, rng):
        pairs = zip(state.mean, super().sample_coordinates(state, n, rng), strict=True)
        return tuple(m.unsqueeze(1) + 1.05 * (w - m.unsqueeze(1)) for m, w in pairs)


@settings
class OffCentre(LaplaceAdam):
    def sample_coordinates(self, state, n, rng):
        return tuple(w + 0.01 for w in super().sample_coordinates(state, n, rng))


@settings
class OtherPrior(LaplaceAdam):
    def kl_prior(self, state):
        return super().kl_prior(state) + 1


@settings
class GainOfTheStart(NoisyAdam):
    def gain(self, state, batch, rng):
        fresh = self.init(float(state.common.n_data), len(state.common.alive), Rng(0, dtype=torch.float64))
        return super().gain(fresh, batch, rng)


@settings
class Sleepy(NoisyAdam):
    """Learns for some updates only."""

    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        return (new if int(state.common.step) < 30 else state._replace(common=new.common)), info


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        (
            GainOfTheStart,
            "gain_falls",
            "its .gain. is 1.00 times the gain .* at most 0.2 is allowed.*add .lively.",
        ),
        (Sleepy, "gain_falls", "its `gain` is 1.00 times the gain"),
        (TooWide, "samples_follow", "wider or narrower than the density"),
        (WideGaussian, "samples_follow", "wider or narrower than the density"),
        (OffCentre, "samples_follow", "samples and density have different means"),
        (OtherPrior, "divergences", "`kl_prior` is not E"),
    ],
)
def test_a_wrong_density_is_named(cls, check, message):
    with pytest.raises(AssertionError, match=message):
        meet(cls, check)


# Faults ----------------------------------------------------------------------------------------------------


@settings
class WrongSign(Ensemble):
    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        weights = tuple(2 * old - w for w, old in zip(new.weights, state.weights, strict=True))
        return new._replace(weights=weights), info


@settings
class Waiting(Ensemble):
    """Collects from half of the training on."""

    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        return (new if progress >= 0.5 else state._replace(common=new.common)), info


@settings
class OneNet(Ensemble):
    """Draws the same net again and again, without saying that it is certain."""

    def sample(self, state, n, rng):
        return self.layers(state, [w[:, :1].expand(-1, self.members, -1, -1) for w in state.weights])


class Counted(NamedTuple):
    common: Common
    weights: Any
    moving: Any
    tally: Any


@settings
class IntInState(Ensemble):
    def init(self, n_data, replicas, rng):
        first: Any = super().init(n_data, replicas, rng)
        return Counted(first.common, first.weights, first.moving, 0)


@settings
class OneForAll(Ensemble):
    """One number for all replicas, on an axis of its own."""

    def init(self, n_data, replicas, rng):
        first: Any = super().init(n_data, replicas, rng)
        return Counted(first.common, first.weights, first.moving, torch.zeros(1))


@settings
class InPlace(Ensemble):
    def update(self, state, batch, rng, progress=0.0):
        state.weights[0].mul_(0.9)
        return super().update(state, batch, rng, progress)


@settings
class GlobalNoise(Ensemble):
    def update(self, state, batch, rng, progress=0.0):
        torch.rand(1)
        return super().update(state, batch, rng, progress)


@settings
class Immortal(Ensemble):
    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        return new._replace(common=new.common._replace(alive=torch.ones_like(new.common.alive))), info


@settings
class Meeting(Ensemble):
    """Replicas that pull each other."""

    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        return new._replace(weights=tuple(w.lerp(w.mean(0, keepdim=True), 1e-3) for w in new.weights)), info


@settings
class Lasting(Ensemble):
    """Ends a fit in place."""

    def finish(self, state, batches, rng):
        state.weights[0].mul_(0.9)
        return state


@settings
class Misspelt(Ensemble):
    momentum: float = 0.9
    ranges: ClassVar[dict[str, str]] = {"momentun": "[0, 1)"}


@settings
class ZeroDefault(Ensemble):
    decay: float = 0.0


@settings
class NoStep(Ensemble):
    lr: float = 0.0


@settings
class Diverging(Ensemble):
    """Its second replica grows."""

    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        growth = torch.tensor([1.0, 1e20, 1.0], dtype=torch.float64).view(3, 1, 1, 1)
        return settle(new._replace(weights=tuple(growth * w for w in new.weights)), state), info


@settings
class Worsening(Ensemble):
    """The weights of its second replica grow, but stay finite."""

    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        growth = torch.tensor([1.0, 1.3, 1.0], dtype=torch.float64).view(3, 1, 1, 1)
        return new._replace(weights=tuple(growth * w for w in new.weights)), info


@settings
class Intervals(Ensemble):
    momentum: float = 0.9
    ranges: ClassVar[dict[str, str]] = {"momentum": "0..1"}


@settings
class NoDefault(Ensemble):
    rank: int


@settings
class Unchecked(Ensemble):
    def __post_init__(self):
        pass


@settings
class Nameless(Ensemble):
    """Refuses what is wrong without saying which setting."""

    def __post_init__(self):
        try:
            super().__post_init__()
        except InputError:
            raise InputError("something is wrong") from None


@settings
class Choosy(Ensemble):
    def __post_init__(self):
        if self.net.norms:
            raise InputError("no normalisations")
        super().__post_init__()


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        (WrongSign, "training_lowers", "it must follow the gradient of the log-likelihood upwards"),
        (
            Waiting,
            "training_lowers",
            "it must follow the gradient .* add .lively.",
        ),
        (Waiting, "a_saved_state", "updates at progress 0 do not change the .* add .lively."),
        (OneNet, "a_saved_state", "all networks of `sample` are the same"),
        (IntInState, "functions_are_pure", "IntInState: state.tally is 0, of type int; a state holds tensors only"),
        (OneForAll, "functions_are_pure", r"OneForAll: state.tally is \[1\]; its first axis must be the 3 replicas"),
        (
            InPlace,
            "functions_are_pure",
            "two equal calls of `update` must return the same|changed its argument in place",
        ),
        (GlobalNoise, "functions_are_pure", "draws from torch's own generator"),
        (Immortal, "a_failed_replica", "leaves a replica alive"),
        (Meeting, "three_replicas", "replica 0 differs from a run of this replica alone:"),
        (Lasting, "functions_are", "`finish` changed its argument in place|`finish` with the same numbers"),
        (Diverging, "training_lowers", r"of replicas 0 to 2 \[1\] diverged within 40 updates with"),
        (Worsening, "training_lowers", "lr=0.03, set by this check.* if steps are only too large .* add .lively.: "),
        (Diverging, "a_saved_state", r"of replicas 0 to 2 \[1\] diverged within 3 updates.*add .lively.: .*smaller"),
        (
            Waiting,
            "training_lowers",
            "40 updates .*it must follow the gradient .* too small, add",
        ),
        (Misspelt, "settings_are", "`ranges` of Misspelt contains momentun, which is not one of its settings"),
        (NoDefault, "functions_are_pure", "add a default to rank of NoDefault: every"),
        (Unchecked, "settings_are", r"accepts epochs=-1; call super\(\).__post_init__"),
        (Nameless, "settings_are", "does not name epochs"),
        (
            Choosy,
            "parts_of_nets",
            "refuses a network with norms; if that is .* add .refuses.: .* to CONTRACT in .*test_broken.py",
        ),
    ],
)
def test_a_fault_is_named(cls, check, message):
    with pytest.raises((AssertionError, pytest.fail.Exception), match=f"(?s){message}"):
        meet(cls, check)


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        (ZeroDefault, "settings_are", "decay is 0.0; it must be in"),
        *(
            (NoStep, check, "lr is 0.0; it must be in")
            for check in ("settings_are", "parts_of_nets", "training_lowers", "functions_are")
        ),
        (Intervals, "functions_are", "could not convert string to float"),
    ],
)
def test_a_wrong_default_or_range_is_an_error(cls, check, message):
    with pytest.raises((ValueError, AssertionError), match=message):
        meet(cls, check)


def test_an_unknown_declaration_is_an_error():
    with pytest.raises(TypeError, match="livly"):
        meet(Ensemble, "functions_are_pure", {"livly": {}})


class Undecorated(Ensemble):
    members: int = 3


@pytest.mark.parametrize(
    ("cls", "check", "contract", "message"),
    [
        (Undecorated, "functions_are_pure", {}, "add @dataclass.* above class Undecorated"),
        (
            Ensemble,
            "functions_are_pure",
            {"lively": {"beta": 0.1}},
            "no setting beta.*; add beta to the fields of Ensemble",
        ),
        (Ensemble, "parts_of_nets", {"refuses": ("norms",)}, "Ensemble accepts norms: drop them from .refuses."),
        (Ensemble, "training_lowers", {"refuses": ("Bernoulli",)}, "accepts Bernoulli: raise InputError .* or drop it"),
        (LastLayer, "training_lowers", {}, "LastLayer refuses Categorical .*; if that is intended, add .refuses.: "),
        (NoisyAdam, "a_linear_model", {}, "add .linear.: .* to CONTRACT in .*noisy_adam.py"),
        (
            NoisyAdam,
            "a_linear_model",
            {"linear": [("all", {})]},
            "\"linear\" may be covariance, diagonal, mean; got 'all'",
        ),
        (NoisyAdam, "a_linear_model", {"linear": [("mean", {"lr": 1e-3})]}, "600 updates do not reach the mean"),
    ],
)
def test_a_wrong_declaration_is_named(cls, check, contract, message):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        meet(cls, check, contract)
