"""Posteriors under test: the facts that each declares, and functions to build and train one."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from explore.core import tree
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference.base import Variational
from explore.inference.gaussian import GaussianPosterior
from explore.inference.members import mixture
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic
from explore.nets.net import Net, mlp
from explore.testing.suite import expect_defaults

R, N = 3, 12  # replicas and examples

# Three outputs: with two, squared rotations are symmetric, which would hide a missing transpose.
MLP = Net(mlp(2, [4], 3).double())
CONV = Net(nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)))
NETS = {
    "mlp": MLP,
    "linear": Net(nn.Linear(2, 3)),
    "no-bias": Net(nn.Sequential(nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False))),
    "conv": CONV,
    "conv-no-bias": Net(
        nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3, bias=False))
    ),
    "norm": Net(
        nn.Sequential(
            nn.Conv2d(1, 3, 2, stride=2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 2),
            nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3),
        )
    ),
    "dense-norm": Net(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))),
}  # fmt: skip
PARTS = {"convolutions": "conv", "norms": "dense-norm"}  # layer types that a posterior may reject, each with a network
KINDS = {"Categorical": Categorical(), "Bernoulli": Bernoulli(), "Heteroscedastic": Heteroscedastic()}  # of likelihoods


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract:
    """Facts about a posterior that checks need, declared in the dictionary `CONTRACT` of the posterior's file.

    CONTRIBUTING.md, section "A posterior", explains each key. `refuses` may contain the names in `PARTS` and `KINDS`.
    """

    lively: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    forgetful: Mapping[str, Any] | None = None
    refuses: Sequence[str] = ()
    linear: Sequence[tuple[str, Mapping[str, Any]]] | None = None
    average: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Subject:
    """A posterior class under test, or mixtures of `members` fits of it; `name` is for messages.

    `contract` is the contract as a dictionary; None: `CONTRACT` in the file of the class.
    """

    def __init__(self, name: str, cls: Any, contract: Mapping[str, Any] | None = None, members: int = 1):
        self.name, self.cls, self.members, self._declared = name, cls, members, contract
        self.informative = isinstance(cls, type) and issubclass(cls, Variational)  # whether it has `gain`
        # Whether it has a density, and a Gaussian one. A mixture only has the densities of its members.
        self.variational = self.informative and members == 1
        self.gaussian = self.variational and issubclass(cls, GaussianPosterior)
        self._trained = functools.cache(self._train)

    @functools.cached_property
    def contract(self) -> Contract:
        module = sys.modules[self.cls.__module__]
        declared = getattr(module, "CONTRACT", {}) if self._declared is None else self._declared
        contract = Contract(**declared)
        refusable = [*PARTS, *KINDS]
        assert {*contract.refuses} <= {*refusable}, f'{self.name}: "refuses" in CONTRACT may contain {refusable}'
        return contract

    def add(self, key: str, value: str) -> str:
        """Return a hint for an error message that asks the reader to add `key` with this value to `CONTRACT`."""
        return f'add "{key}": {value} to CONTRACT in {sys.modules[self.cls.__module__].__file__}'

    def build(self, net: Net = MLP, likelihood: Any = None, **settings: Any) -> Any:
        """Build the posterior with the contract's `lively` settings; `settings` override them."""
        return self.make(net=net, likelihood=likelihood or Gaussian(), **{**self.contract.lively, **settings})

    def make(self, **arguments: Any) -> Any:
        """Build the posterior from these arguments; assert that its class has a setting for each argument."""
        cls = self.cls
        assert "__dataclass_params__" in vars(cls) and cls.__dataclass_params__.frozen, (
            f"{self.name}: add @dataclass(frozen=True, kw_only=True) above class {cls.__name__}"
        )
        unknown = [name for name in arguments if not self.has(name)]
        assert not unknown, (
            f"{self.name} has no setting {', '.join(unknown)}, which CONTRACT, PRESETS or a check sets; "
            f"add {unknown[0]} to the fields of {cls.__name__}, or remove it from CONTRACT and PRESETS"
        )
        expect_defaults(cls, required=("net", "likelihood"))
        cls(net=MLP, likelihood=Gaussian())  # refuses wrong defaults, also where a check expects a refusal
        posterior = cls(**arguments)
        return mixture(posterior, self.members) if self.members > 1 else posterior

    def has(self, setting: str) -> bool:
        """Return whether the class has this setting."""
        return any(f.name == setting for f in dataclasses.fields(self.cls))

    def variant(self, name: str) -> dict[str, Any]:
        """Return the arguments of `build` for a variant; skip the test if the posterior does not support the variant.

        `name` is in `NETS`, "norm-frozen" or "norm-adam" (which also set `batch_norm`).
        """
        net, _, policy = name.partition("-") if name.startswith("norm") else (name, "", "")
        if net == "norm" and "convolutions" in self.contract.refuses:
            net = "dense-norm"
        present = {"convolutions": any(NETS[net].convolutions), "norms": bool(NETS[net].norms)}
        if any(present.get(part) for part in self.contract.refuses):
            pytest.skip("it refuses such nets")
        return {"net": NETS[net], **({"batch_norm": policy} if policy else {})}

    def trained(self, net: Net = MLP, likelihood: Any = None, steps: int = 3, **settings: Any) -> Any:
        """Return (posterior, state, batch) after updates; assert that outputs changed and vary between samples."""
        posterior, state, batch = self._trained(net, likelihood, steps, tuple(settings.items()))
        return posterior, *tree.map_tensors(torch.clone, (state, batch))

    def _train(self, net: Net, likelihood: Any, steps: int, settings: Any) -> tuple[Any, State, Batch]:
        posterior, rng = self.build(net, likelihood, **dict(settings)), seeded()
        batch, before = data(net), start(posterior, N, R, rng)
        state = finish(posterior, train(posterior, before, batch, rng, steps), batch)
        out, start_out = (outputs(posterior, s, 100, batch.x) for s in (state, before))
        size = out.abs().amax((1, 2, 3))
        wild = (~state.common.alive | ~(size < 1e4 * batch.y.abs().amax())).nonzero().flatten().tolist()
        assert not wild, (
            f"{self.name}: of replicas 0 to {R - 1} {wild} diverged within {steps} updates, with outputs up to "
            f"{out.max():.1g}; if only the steps are too large, " + self.add("lively", "{...} with smaller ones")
        )
        samples = min(out.shape[1], start_out.shape[1])
        moved = (out[:, :samples] - start_out[:, :samples]).abs().amax((1, 2, 3)) > 1e-6 * start_out.abs().amax()
        assert moved.all(), (
            f"{self.name}: updates at progress 0 do not change the networks of `sample`, so no check has any "
            "power; if three updates are only too few, " + self.add("lively", "{...} with larger steps")
        )
        self.expect_uncertain(posterior, out)
        return posterior, state, batch

    def expect_uncertain(self, posterior: Any, out: Tensor) -> None:
        """Assert that outputs vary between weight samples, unless the posterior is `certain`."""
        varies = (out - out[:, :1]).abs().amax((1, 2, 3)) > 1e-6 * out.abs().amax((1, 2, 3))
        assert posterior.certain or varies.all(), (
            f"{self.name}: after updates at progress 0 all networks of `sample` are the same. Updates must "
            "take effect from the first step, as progress stays 0 in VIME. Put final steps into `finish`, and set "
            "`certain` for a point estimate"
        )


def seeded(seed: int = 0, device: str = "cpu", kind: Callable[..., Any] = Rng) -> Any:
    """Return a random stream in double precision."""
    return kind(seed, device, torch.float64)


def data(net: Net = MLP, seed: int = 5, device: str = "cpu") -> Batch:
    """Return N = 12 examples for each of R = 3 replicas, with inputs of the shape that `net` takes."""
    x = seeded(seed, device).stream("toy").normal(R, N, *((1, 4, 4) if any(net.convolutions) else (2,)))
    flat = x.flatten(2)
    return Batch(x, torch.stack([flat.sum(2).sin(), flat.prod(2), flat[:, :, 0].cos()], 2))


def outputs(posterior: Any, state: State, n: int, x: Tensor) -> Tensor:
    """Return the outputs of n weight samples at x, [R, S, B, O]; of n functions, if the posterior is not of weights."""
    if posterior.of_weights:
        net, layers = posterior.net, posterior.sample(state, n, seeded(9))
    else:
        net, layers, _ = posterior.functions(state, n, seeded(9))
    return net.output(layers, x)


def start(posterior: Any, n_data: float, replicas: int, rng: Rng) -> State:
    """Return the initial state, after checking its structure."""
    return _checked(posterior, posterior.init(n_data, replicas, rng), replicas)


def train(posterior: Any, state: State, batch: Batch, rng: Rng, steps: int = 3, ends: bool = False) -> State:
    """Return the state after updates on one batch. Progress increases if `ends`, else it stays 0 (online training)."""
    for i in range(steps):
        state, _ = posterior.update(state, batch, rng, i / steps if ends else 0.0)
    return _checked(posterior, state, len(state.common.alive))


def finish(posterior: Any, state: State, batch: Batch) -> State:
    """Return the result of `posterior.finish` for a state that was trained on one batch."""
    return _checked(posterior, posterior.finish(state, iter([batch]), seeded(10)), len(state.common.alive))


def _checked(posterior: Any, state: State, replicas: int) -> State:
    """Assert that a state has only tensors, and that their first axis (if any) is `replicas` long; return the state."""
    for path, leaf in _pytree.tree_leaves_with_path(state):
        where = f"{type(posterior).__name__}: state{_pytree.keystr(path)}"
        assert leaf is None or isinstance(leaf, Tensor), (
            f"{where} is {leaf!r}, of type {type(leaf).__name__}; a state holds tensors only, e.g. torch.tensor(0)"
        )
        assert leaf is None or list(leaf.shape[:1]) in ([], [replicas]), (
            f"{where} is {list(leaf.shape)}; its first axis must be the {replicas} replicas"
        )
    return state
