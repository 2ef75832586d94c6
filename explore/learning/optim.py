"""Natural-gradient posteriors as torch optimisers, for a loop, a loss and a module of one's own (`explore.optim`).

    optimizer = explore.optim.NoisyKFAC(model, "categorical", n_data=len(data))
    for x, y in loader:
        optimizer.zero_grad()
        with optimizer.sampled():  # the module runs at weights drawn from the posterior
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

The module itself holds the means. Within `sampled`, its forward pass runs with slots in place of layers, as in `Net`,
on weights that are the parameters plus noise. So the loss gives gradients to the parameters, which may be scaled,
clipped or averaged over processes, and also gives the gradients of all examples, of which the curvature is made. The
step is `update` of the posterior with these gradients.
"""

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from explore import registry
from explore.core import tree
from explore.core.errors import Failure, InputError, check_known
from explore.core.rng import Rng
from explore.core.shapes import Batch, LayerTaps, NormTaps, State
from explore.execution import parallel
from explore.inference.updates import steps
from explore.nets.net import Net
from explore.nets.protocols import check_targets
from explore.nets.taps import Record, joined

CONSTANT = {"warm_start": 0.0, "kl_start": 1.0}  # settings without a schedule
ONE_PASS = {"adaptive_damping": False, "sub_batches": 1}  # what a step of one pass allows
LEAST = 1e-30  # learning rate; schedulers may start at 0


class PosteriorOptimizer(torch.optim.Optimizer):
    """The base class of `VOGN`, `NoisyAdam`, `NoisyKFAC`, `NoisyEKFAC` and `SLANG`.

    Args:
        model: the module, which is the mean of the posterior from now on; also within a wrapper, such as DDP.
        likelihood: a name or an instance; the loss is its negative log-likelihood, up to a constant. Noise that is
            learnt needs the loss of `loss`.
        n_data: number of training examples.
        reduction: what the loss does with the examples of a batch: "mean" or "sum".
        samples: forward passes per step and examples, each at other weights; the optimizer averages them. With more
            passes than these, the examples of a step are given in parts (gradient accumulation).
        preset: of the posterior; "image" is for networks that start anywhere.
        steps: number of all steps, for the posterior's own schedules; None: its settings stay as they are, and
            torch's schedulers may change `lr`.
        bayesian: which layers get a distribution, see `Net`. All other parameters are point estimates.
        output: which part of what the module returns is the output, see `Net`.
        every_pass: whether each forward pass in training mode is at sampled weights, without `sampled()`; for trainers
            that have the loop.
        scaler: the GradScaler that scales the loss.
        groups: parameter groups with learning rates of their own, dicts of "params" and "lr".
        seed: root of all random numbers.
        **settings: of the posterior.

    Attributes:
        posterior: with its settings.
        posterior_state: its state, of one replica; for predictions.
    """

    name: ClassVar[str]  # of the posterior

    def __init_subclass__(cls, name: str | None = None) -> None:
        cls.name = name or cls.name

    def __init__(
        self, model: nn.Module, likelihood: Any, n_data: float, *, reduction: str = "mean", samples: int = 1,
        preset: str = "image", steps: int | None = None, bayesian: Any = "all", output: Any = None,
        every_pass: bool = False, scaler: Any = None, groups: Iterable[Mapping[str, Any]] = (), seed: int = 0,
        **settings: Any,
    ):  # fmt: skip
        check_known("reduction", [reduction], ("mean", "sum"))
        net = Net(model, trained=True, bayesian=bayesian, output=output)
        if wrong := [key for key, value in ONE_PASS.items() if settings.get(key, value) != value]:
            raise InputError(f"{wrong[0]} of an optimizer must be {ONE_PASS[wrong[0]]}; its steps have one pass")
        posterior = registry.posterior(self.name, net, likelihood, preset, samples=samples, **settings)
        fixed = {"batch_norm": "adam"} | ONE_PASS | (CONSTANT if steps is None else {})
        fixed = {key: v for key, v in fixed.items() if hasattr(posterior, key) and key not in settings}
        self.posterior = posterior.with_settings(**fixed)
        if hasattr(self.posterior.likelihood, "training_weights"):
            kind = type(self.posterior.likelihood).__name__
            raise InputError(f"optimisers do not weigh the gradients of {kind}; fit it by explore.fit")
        first = next(model.parameters())
        self._model, self._net, self._steps, self._scaler, self._mean = model, net, steps, scaler, reduction == "mean"
        rng = Rng(seed, first.device, first.dtype)
        with parallel.within_group():
            self.posterior_state = self.posterior.init(n_data, 1, rng.stream("init"))
        self._stream = rng.stream("fit")
        mean = self.posterior.at_mean(self.posterior_state)
        names, every = net.tensors(mean[: len(net.shapes)]), net.tensors(mean)
        self._named = {key: p for key, p in model.named_parameters(remove_duplicate=False) if key in every}
        self._bayesian = {id(p) for key, p in self._named.items() if key in names}
        self._each = getattr(self.posterior, "fisher", "empirical") == "empirical"  # steps need gradients of examples
        self._records: list[Record] = []
        self._drawn: tuple[tuple[Tensor, ...], Any] | None = None  # noise of weights and of targets, of this step
        super().__init__(self._groups(groups), {"lr": self.posterior.lr})
        if every_pass:
            _OWNERS[model] = self
            model.__class__ = _recording(type(model))

    def _groups(self, own: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        groups = [{**group, "params": list(group["params"])} for group in own]
        taken = {id(p) for group in groups for p in group["params"]}
        rest = [p for p in self._model.parameters() if p.requires_grad and id(p) not in taken]
        for bayesian, lr in ((True, self.posterior.lr), (False, self.posterior.points_lr)):
            if params := [p for p in rest if (id(p) in self._bayesian) == bayesian]:
                groups.append({"params": params, "lr": lr})
        return groups

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Let the module run at sampled weights within the block; the backward pass may come later."""
        vars(self._model)["forward"] = self._recorded
        try:
            yield
        finally:
            vars(self._model).pop("forward", None)

    def _recorded(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            raise InputError("a pass at sampled weights needs gradients; predict outside of sampled()")
        if args and kwargs:
            names = [name for name in inspect.signature(type(self._model).forward).parameters if name != "self"]
            args, kwargs = (), dict(zip(names, args, strict=False)) | kwargs
        state, step = self.posterior_state, int(self.posterior_state.common.step)
        if self._drawn is None:
            with parallel.within_group():
                weights, noise = self.posterior.noisy_weights(state, self._progress, self._stream)
            means = [m.unsqueeze(1) for m in self.posterior.gaussian(state)[0]]
            apart = tuple(w - m for w, m in zip(weights, means, strict=True))
            self._drawn, self._after = (apart, noise), self._stream.generator.get_state()
        (apart, noise), i = self._drawn, len(self._records)
        s = i % self.posterior.samples
        values = [v[None, None] for v in self._net.values(self._tensors())]
        layers = (*(v + _of(d, s) for v, d in zip(values, apart, strict=False)), *values[len(apart) :])
        batch: Any = self._net.inputs.examples(kwargs) if kwargs else args[0] if len(args) == 1 else args
        record = Record(self._net, layers, self._net.packed(batch).unsqueeze(0), s, step + (i << 32))
        self._draw_targets(record, _of(noise, s), step, i)
        scaler = self._scaler
        record.listen((lambda: 1 / scaler.get_scale()) if scaler else None, self._each)
        self._records.append(record)
        return record.returned

    def _draw_targets(self, record: Record, noise: Any, step: int, i: int) -> None:
        """Run the backward passes of targets drawn from the model, for the Fisher matrix."""
        if self._each or (step + 1) % getattr(self.posterior, "statistics_interval", 1):
            return
        norms_only: Any = LayerTaps()  # of the other taps, the Fisher matrix needs none
        norms_only.norms = (None,) * len(self._net.norms)
        done: Any = steps.Pass(noise, record.out, None, None, norms_only, record.pullback)  # type: ignore[arg-type]
        with parallel.within_group():
            rng = parallel.apart(self._stream, step + 1, 2) if i == 0 else self._stream.shard(step, i)
            steps.fisher_taps(self.posterior.fisher, self.posterior.likelihood, done, rng)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the negative log-likelihood of targets, with the noise of the latest forward pass, and learn of y."""
        if not self._records or self._drawn is None:
            raise InputError("loss() needs a forward pass within sampled()")
        record, noise, likelihood = self._records[-1], self._drawn[1], self.posterior.likelihood
        check_targets(likelihood, y)
        record.y = (y if likelihood.discrete or y.dim() > 1 else y.unsqueeze(1))[None, None]
        each = -likelihood.log_prob(_of(noise, record.sample), output[None, None], record.y)
        return each.mean() if self._mean else each.sum()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the posterior from the passes since the last step; `closure` runs them, and returns the loss."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if self._drawn is None or not (records := [r for r in self._records if r.heard]):
            raise InputError("no backward pass since the last step was at sampled weights; run it within sampled()")
        old = self._moved(self.posterior_state, self._net.values(self._tensors()))
        (apart, noise), (lr, points_lr) = self._drawn, self._rates()
        weights = tuple(m.unsqueeze(1) + d for m, d in zip(old.mean, apart, strict=True))
        joint_pass = self._joint_pass(records, noise)
        posterior = copy.copy(self.posterior)  # `with_settings` would check all settings in every step
        vars(posterior).update(
            lr=lr, points_lr=points_lr, batch_norm_lr=points_lr, noisy_pass=lambda *_: (weights, joint_pass)
        )
        self._stream.generator.set_state(self._after)
        batch = Batch(joint_pass.out[:, 0], joint_pass.y[:, 0])
        with parallel.within_group():
            new, _ = posterior.update(old, batch, self._stream, self._progress)
        if not bool(new.common.alive.all()):
            raise Failure("the step gave numbers that are not finite. Lower the learning rate (lr)")
        self.posterior_state = self._slowed(old, new, lr, points_lr)
        own = self._tensors()
        for key, value in self._net.tensors(self.posterior.at_mean(self.posterior_state)).items():
            own[key].copy_(value)
        self._records, self._drawn = [], None
        return loss

    def _joint_pass(self, records: list[Record], noise: Any) -> steps.Pass:
        """Return the passes as one of all samples and examples."""
        samples, parts = self.posterior.samples, len(records) // self.posterior.samples
        if [record.sample for record in records] != list(range(samples)) * parts:
            raise InputError(f"{len(records)} passes before a step; run {samples} (samples) for each batch")
        taps = joined([r.taps(-float(parts * r.out.shape[2] if self._mean else 1)) for r in records], samples)
        rows = (torch.cat([r.out for r in records[i : i + samples]], 1) for i in range(0, len(records), samples))
        out = torch.cat(list(rows), 2)
        factor = -float(out.shape[2] if self._mean else 1)
        grads = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in self._tensors().items()}
        sums = [factor * g.to(self._stream.dtype).unsqueeze(0) for g in self._net.values(grads)]  # of all examples
        for of_layer, g in zip(taps, sums, strict=False):
            of_layer.known_gradient = g
        statistics = [torch.cat(of_norm).unflatten(0, (parts, samples)).mean(0, keepdim=True).squeeze(2)
                      for of_norm in zip(*(record.statistics for record in records), strict=True)]  # fmt: skip
        rest = sums[len(taps) :]
        taps.norms = tuple(NormTaps(s, g[:, None, :2]) for s, g in zip(statistics, rest, strict=False))
        taps.points = tuple(g.unsqueeze(1) for g in rest[len(statistics) :])
        drawn = iter([joined(taps, samples) for taps in zip(*(r.fisher for r in records), strict=True)])
        y, likelihood = self._targets(records, noise, out), self.posterior.likelihood
        return steps.Pass(noise, out, y, -likelihood.log_prob(noise, out, y).mean((1, 2)), taps, lambda _: next(drawn))

    def _targets(self, records: list[Record], noise: Any, out: Tensor) -> Tensor:
        """Return the targets of `loss`. Where steps do not need them, as the noise is known, drawn ones do, too."""
        likelihood, targets = self.posterior.likelihood, [r.y for r in records[:: self.posterior.samples]]
        if all(y is not None for y in targets):
            return torch.cat([y for y in targets if y is not None], 2)
        if noise is not None and getattr(likelihood, "noise_std", None) is None:
            kind = type(likelihood).__name__
            raise InputError(f"{kind} learns its noise from targets; compute the loss by optimizer.loss(output, y)")
        return likelihood.sample(noise, out, Rng(0, out.device, self._stream.dtype))[:, :1]

    def _tensors(self) -> dict[str, Tensor]:
        """Return the parameters that are not frozen and, if the state has any of them, the buffers."""
        return {**self._named, **dict(self._model.named_buffers())} if self._net.norms else dict(self._named)

    def _moved(self, state: State, values: Sequence[Tensor]) -> State:
        """Return the state with these means, normalisations and point estimates."""
        shared, count = state.common, len(self._net.shapes)
        copies = [v.detach().clone(memory_format=torch.contiguous_format).unsqueeze(0) for v in values]
        more = tuple(v.unsqueeze(0) for v in copies[count:])
        norms = shared.norms._replace(values=more[: len(self._net.norms)])
        points = shared.points._replace(values=more[len(self._net.norms) :])
        return state._replace(mean=tuple(copies[:count]), common=shared._replace(norms=norms, points=points))

    def _rates(self) -> tuple[float, float]:
        """Return the largest learning rates of means and of point estimates."""
        held = [(g["lr"], {id(p) in self._bayesian for p in g["params"]}) for g in self.param_groups]
        lr, points_lr = (max([LEAST, *(float(lr) for lr, kinds in held if fate in kinds)]) for fate in (True, False))
        return lr, points_lr

    def _slowed(self, old: State, new: State, lr: float, points_lr: float) -> State:
        """Return the state with smaller steps where a group has a smaller learning rate."""
        rates = {id(p): float(group["lr"]) for group in self.param_groups for p in group["params"]}
        largest = {True: lr, False: points_lr}
        shares = {key: rates.get(id(p), 0.0) / largest[id(p) in self._bayesian] for key, p in self._named.items()}
        if all(share == 1.0 for share in shares.values()):
            return new
        tensors = {key: torch.full_like(p, shares[key]) for key, p in self._named.items()}
        tensors |= {key: torch.ones_like(t) for key, t in self._model.named_buffers()}
        pairs = zip(self.posterior.at_mean(old), self.posterior.at_mean(new), self._net.values(tensors), strict=True)
        return self._moved(new, [torch.lerp(a[0, 0], b[0, 0], share) for a, b, share in pairs])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and forget passes whose gradients they were."""
        super().zero_grad(set_to_none)
        self._records = [record for record in self._records if not record.heard]

    @property
    def _progress(self) -> float:
        return min(1.0, int(self.posterior_state.common.step) / self._steps) if self._steps else 0.0

    def sample_modules(self, n: int) -> list[nn.Module]:
        """Return n modules with weights drawn from the posterior; repeated calls return the same ones."""
        drawn = self.posterior.sample_modules(self.posterior_state, n, self._stream.stream("test"))
        return [module.train(self._model.training) for module in drawn]

    def state_dict(self) -> dict[str, Any]:
        """Return the groups, the posterior's state and the random state, from which training resumes exactly."""
        saved = {"state": tree.save(self.posterior_state), "random": self._stream.generator.get_state()}
        return super().state_dict() | {"posterior": saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore `state_dict`. The module's own state has the means."""
        saved = state_dict["posterior"]
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.posterior_state = tree.restore(self.posterior_state, saved["state"])
        self._stream.generator.set_state(saved["random"].cpu())
        self._records, self._drawn = [], None


_OWNERS: WeakKeyDictionary[nn.Module, PosteriorOptimizer] = WeakKeyDictionary()  # of modules, but not of copies of them


def _recording(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of the type of a module, whose passes in training mode are at sampled weights."""

    @wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        owner = _OWNERS.get(self) if self.training and torch.is_grad_enabled() else None
        return owner._recorded(*args, **kwargs) if owner else kind.forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _of(values: Any, sample: int) -> Any:
    """Return a sample of tensors [1, S, ...], or what all samples share, with the axis of samples."""
    return tree.map_tensors(lambda t: t[:, sample : sample + 1] if t.shape[1] > 1 else t, values)


class VOGN(PosteriorOptimizer, name="vogn"):
    """VOGN, see `explore.posteriors.vogn`."""


class NoisyAdam(PosteriorOptimizer, name="noisy-adam"):
    """Noisy Adam, see `explore.posteriors.noisy_adam`."""


class NoisyKFAC(PosteriorOptimizer, name="noisy-kfac"):
    """Noisy K-FAC, see `explore.posteriors.noisy_kfac`."""


class NoisyEKFAC(PosteriorOptimizer, name="noisy-ekfac"):
    """Noisy EK-FAC, see `explore.posteriors.noisy_ekfac`."""


class SLANG(PosteriorOptimizer, name="slang"):
    """SLANG, see `explore.posteriors.slang`."""
