"""A posterior under test: its declarations, how it is built, and how it is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference.base import Variational
from explore.inference.gaussian import GaussianPosterior
from explore.inference.members import mixture
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.testing.suite import expect_defaults

R, N = 3, 12  # replicas and examples

# Three outputs: of two, rotations are symmetric where they are squared, and would hide a transpose.
MODULE = mlp(2, [4], 3).double()
MLP = Net(MODULE)
LINEAR = Net(nn.Linear(2, 3))
NO_BIAS = Net(nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)))
CONV_NO_BIAS = Net(nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3, bias=False)))
CONV = Net(nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)))
NORM = Net(nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)))
DENSE_NORM = Net(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)))
INTERVAL = re.compile(r"[\[(]-?(inf|[\d.e+-]+), ?-?(inf|[\d.e+-]+)[\])]")
PARTS = {  # parts that a posterior may refuse: a net with only this one unusual part
    "convolutions": CONV,
    "norms": DENSE_NORM,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract:
    """Facts that checks need about a posterior: `CONTRACT`, a dictionary with these keys, beside `PRESETS`.

    Args:
        lively: settings at which three updates leave a mark on all that the posterior learns; by default its defaults.
        forgetful: settings at which little is left of all but the last batches; by default the lively ones.
        refuses: of "convolutions" and "norms" (batch normalisations) what it does not take, by an `InputError`.
        linear: of a Gaussian posterior: what of Bayesian linear regression 600 updates reach to six digits, and the
            settings for it, e.g. `[("covariance", {"lr": 0.2})]`. "covariance": the mean and the covariance;
            "diagonal": the mean, and the covariance where that is diagonal; "mean": the mean. Several are all checked.
    """

    lively: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    forgetful: Mapping[str, Any] | None = None
    refuses: Sequence[str] = ()
    linear: Sequence[tuple[str, Mapping[str, Any]]] | None = None


class Trained(NamedTuple):
    """A posterior at the end of a fit of some updates, and the data it has seen."""

    posterior: Any
    state: State
    batch: Batch


class Subject:
    """A posterior class under test.

    Args:
        name: of the class in messages.
        cls: the class.
        contract: `CONTRACT`; None: the one that its file declares.
        members: more than 1: mixtures of that size replace it.

    Attributes:
        informative: whether it has a `gain`.
        variational: whether it has a density.
        gaussian: whether that is Gaussian.
    """

    def __init__(self, name: str, cls: Any, contract: Mapping[str, Any] | None = None, members: int = 1):
        self.name, self.cls, self._declared, self._members = name, cls, contract, members
        self.informative = isinstance(cls, type) and issubclass(cls, Variational)
        self.variational = self.informative and members == 1  # a mixture knows no more than its members' densities
        self.gaussian = self.variational and issubclass(cls, GaussianPosterior)
        self._trained = functools.cache(self._train)

    @property
    def file(self) -> str:
        """The file of the class."""
        return sys.modules[self.cls.__module__].__file__ or self.cls.__module__

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract."""
        declared = self._declared
        if declared is None:
            declared = getattr(sys.modules[self.cls.__module__], "CONTRACT", {})
        allowed = [f.name for f in dataclasses.fields(Contract)]
        unknown = sorted(set(declared) - set(allowed))
        assert not unknown, f"{self.name}: CONTRACT in {self.file} has {unknown}; allowed: {', '.join(allowed)}"
        return Contract(**declared)

    def add(self, key: str, value: str) -> str:
        """Advice to add a declaration."""
        return f'add "{key}": {value} to CONTRACT in {self.file}'

    def build(self, net: Net = MLP, likelihood: Any = None, **settings: Any) -> Any:
        """The posterior with its lively settings."""
        return self.make(net=net, likelihood=likelihood or Gaussian(), **{**self.contract.lively, **settings})

    def make(self, **arguments: Any) -> Any:
        """The posterior; a setting that its class lacks is named."""
        fields = {f.name: f for f in dataclasses.fields(self.cls)} if dataclasses.is_dataclass(self.cls) else {}
        assert "__dataclass_params__" in vars(self.cls) and self.cls.__dataclass_params__.frozen, (
            f"{self.name}: add @dataclass(frozen=True, kw_only=True) above class {self.cls.__name__} in {self.file}"
        )
        unknown = sorted(set(arguments) - set(fields))
        assert not unknown, (
            f"{self.name}: it has no setting {', '.join(unknown)}, which CONTRACT, PRESETS or a check gives it; "
            f"add {unknown[0]} to the fields of {self.cls.__name__} in {self.file}, or leave it out there"
        )
        self._expect_defaults()
        posterior = self.cls(**arguments)
        return mixture(posterior, self._members) if self._members > 1 else posterior

    def _expect_defaults(self) -> None:
        """Assert that the defaults work on a plain net, so that refusals concern other nets and settings."""
        expect_defaults(self.cls, required=("net", "likelihood"))
        for key, interval in getattr(self.cls, "ranges", {}).items():
            assert INTERVAL.fullmatch(interval), (
                f'{self.name}: `ranges` has "{key}": "{interval}", which is no interval such as "(0, 1]" or "[0, inf)"'
            )
        try:
            self.cls(net=MLP, likelihood=Gaussian())
        except InputError as error:
            name = str(error).partition(" ")[0]
            raise AssertionError(
                f"{self.name} refuses its own defaults ({error}): give {name} another one, or, where that number is "
                f'right, add "{name}": "[0, inf)" or the like to `ranges` of {self.cls.__name__} in {self.file}'
            ) from None

    def has(self, setting: str) -> bool:
        """Whether there is a setting of this name."""
        return any(f.name == setting for f in dataclasses.fields(self.cls))

    @functools.cached_property
    def learns_prior(self) -> bool:
        """Whether `prior_variance` may be "learned"; a refusal must be one sentence."""
        if not self.has("prior_variance"):
            return False
        try:
            self.build(prior_variance="learned")
        except InputError as error:
            assert "prior_variance" in str(error), f"{self.name}: {error} does not name prior_variance"
            return False
        return True

    def takes(self, part: str) -> bool:
        """Whether nets may have this part, see `Contract`."""
        assert set(self.contract.refuses) <= set(PARTS), f'{self.name}: "refuses" in CONTRACT may name {list(PARTS)}'
        return part not in self.contract.refuses

    def require(self, net: Net) -> None:
        """Skip the check where the posterior refuses a part of the net."""
        parts = {"convolutions": any(net.convolutions), "norms": bool(net.norms)}
        if not all(self.takes(part) for part, is_present in parts.items() if is_present):
            pytest.skip("it refuses such nets")

    def with_norms(self, policy: str | None) -> dict[str, Any]:
        """Arguments of `build` for a net with batch normalisations under a policy; None: for a plain net."""
        if policy is None:
            return {}
        self.require(DENSE_NORM)
        return {"net": NORM if self.takes("convolutions") else DENSE_NORM, "batch_norm": policy}

    def trained(self, net: Net = MLP, likelihood: Any = None, steps: int = 3, **settings: Any) -> Trained:
        """The lively posterior after some updates, which changed it and left it uncertain."""
        posterior, state, batch = self._trained(net, likelihood, steps, tuple(settings.items()))
        return Trained(posterior, *tree.map_tensors(torch.clone, (state, batch)))

    def _train(self, net: Net, likelihood: Any, steps: int, settings: Any) -> Trained:
        posterior, rng = self.build(net, likelihood, **dict(settings)), seeded()
        batch, before = data(net), start(posterior, N, R, rng)
        state = finish(posterior, train(posterior, before, batch, rng, steps), batch)
        self.expect_tame(posterior, state, batch, steps)
        self.expect_moved(posterior, before, state, batch.x)
        self.expect_uncertain(posterior, state, batch.x)
        return Trained(posterior, state, batch)

    def expect_tame(self, posterior: Any, state: State, batch: Batch, steps: int) -> None:
        """Assert that ordinary updates do not diverge."""
        out = posterior.net.output(posterior.sample(state, 8, seeded(9)), batch.x).abs().amax((1, 2, 3))
        wild = (~state.common.alive | ~(out < 1e4 * batch.y.abs().amax())).nonzero().flatten().tolist()
        assert not wild, (
            f"{self.name}: of replicas 0 to {R - 1} {wild} diverged within {steps} updates, with outputs up to "
            f"{out.max():.1g}; where nothing but the size of the steps is wrong, "
            + self.add("lively", "{...}, settings that take smaller ones")
        )

    def expect_moved(self, posterior: Any, before: State, state: State, x: Tensor) -> None:
        """Assert that updates changed it."""
        one, two = (posterior.net.output(posterior.sample(s, 100, seeded(9)), x) for s in (before, state))
        n = min(one.shape[1], two.shape[1])
        assert ((one[:, :n] - two[:, :n]).abs().amax((1, 2, 3)) > 1e-6 * one.abs().amax()).all(), (
            f"{self.name}: updates at progress 0 leave the nets that `sample` gives as they are, so that no check "
            "would say anything; where its settings are too slow for three updates, "
            + self.add("lively", "{...}, settings at which three updates leave a mark")
        )

    def expect_uncertain(self, posterior: Any, state: State, x: Tensor) -> None:
        """Assert that samples differ, unless the posterior is `certain`."""
        out = posterior.net.output(posterior.sample(state, 8, seeded(9)), x)
        varies = (out - out[:, :1]).abs().amax((1, 2, 3)) > 1e-6 * out.abs().amax((1, 2, 3))
        assert posterior.certain or varies.all(), (
            f"{self.name}: after updates at progress 0 all nets that `sample` draws are the same: nothing is "
            "uncertain. An update has to count from the first step on: progress stays 0 where training has no end "
            "(VIME). What is made of a trained net belongs into `finish`; a posterior that is one net says `certain`"
        )


# Data ------------------------------------------------------------------------------------------------------


def seeded(seed: int = 0, device: str = "cpu", kind: Callable[..., Any] = Rng) -> Any:
    """A stream of double precision."""
    return kind(seed, device, torch.float64)


def data(net: Net = MLP, seed: int = 5, device: str = "cpu") -> Batch:
    """N examples for each of R replicas."""
    rng = seeded(seed, device).stream("toy")
    x = rng.normal(R, N, *((1, 4, 4) if net in (CONV, CONV_NO_BIAS, NORM) else (2,)))
    flat = x.flatten(2)
    return Batch(x, torch.stack([flat.sum(2).sin(), flat.prod(2), flat[:, :, 0].cos()], 2))


def start(posterior: Any, n_data: float, replicas: int, rng: Rng) -> State:
    """The initial state, checked."""
    state = posterior.init(n_data, replicas, rng)
    _expect_tensors(posterior, state, replicas)
    return state


def _expect_tensors(posterior: Any, state: Any, replicas: int, path: str = "state") -> None:
    """Assert that a state consists of tensors whose first axis, if any, is R."""
    where = f"{type(posterior).__name__}: {path}"
    if isinstance(state, Tensor):
        shape = list(state.shape)
        assert shape[:1] in ([], [replicas]), f"{where} is {shape}; its first axis must be the {replicas} replicas"
    elif isinstance(state, dict | tuple | list):
        keys = state if isinstance(state, dict) else getattr(state, "_fields", range(len(state)))
        for key, child in zip(keys, state.values() if isinstance(state, dict) else state, strict=True):
            _expect_tensors(posterior, child, replicas, f"{path}.{key}")
    else:
        kind = type(state).__name__
        assert state is None, f"{where} is {state!r}, of type {kind}; a state holds tensors only, e.g. torch.tensor(0)"


def train(posterior: Any, state: State, batch: Batch, rng: Rng, steps: int = 3, ends: bool = False) -> State:
    """The state after updates with one batch; `ends`: with a progress, which is 0 in endless training."""
    for i in range(steps):
        with _shapes_checked(i < 3 or i % 50 == 0):
            state, _ = posterior.update(state, batch, rng, i / steps if ends else 0.0)
    _expect_tensors(posterior, state, len(state.common.alive))
    return state


@contextlib.contextmanager
def _shapes_checked(check: bool) -> Iterator[None]:
    """Set whether calls check annotated types, which would take most of a long training."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", before or not check)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def finish(posterior: Any, state: State, batch: Batch) -> State:
    """The state at the end of a fit."""
    state = posterior.finish(state, iter([batch]), seeded(10))
    _expect_tensors(posterior, state, len(state.common.alive))
    return state


def refused(subject: Subject, net: Net) -> bool:
    """Whether the posterior refuses a net, although it accepts a plain one."""
    subject.build()
    try:
        posterior = subject.build(net)
        train(posterior, start(posterior, N, R, seeded()), data(net), seeded(), 1)
    except InputError:
        return True
    return False


# Comparisons -----------------------------------------------------------------------------------------------


def assert_same_bits(one: Any, two: Any, why: str = "") -> None:
    """Compare trees."""
    for (path, a), (_, b) in zip(tree.leaves(one), tree.leaves(two), strict=True):
        assert torch.equal(a, b), f"{path} differs{why and ': '}{why}"


def assert_close(actual: Tensor, expected: Tensor, why: str, rtol: float = 1e-8, atol: float = 1e-10) -> None:
    """Compare tensors; the message begins with their name."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, msg=lambda text: f"{why}: {text}")
