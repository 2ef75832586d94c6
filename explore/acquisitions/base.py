"""The interface of acquisition rules: inputs (`View`), results (`Choice`) and requirements (`Needs`)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import joblib
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from explore.core.errors import InputError, counted
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference import predict
from explore.inference.base import Predictive, Variational
from explore.inference.predict import Inputs, Moments, Predictor, divided, filled
from explore.nets.protocols import Likelihood, Noise, given, width
from explore.registry import hyphened

__all__ = ["Choice", "Needs", "View", "best", "greedy"]

Carry = TypeVar("Carry")
Rule = TypeVar("Rule")
Mask = Bool[Tensor, "R C"]
Scores = Float[Tensor, "R C"]
Score = Callable[[Float[Tensor, "R S b O"]], tuple[Tensor, ...]]  # from outputs

SHORTLIST = 100_000  # of more candidates, a batch is chosen among that many
SHARES = 4  # of the candidates for each job, so that fast workers take more of them
CACHED = 2**26  # outputs are cached up to this many numbers: 256 MiB in single precision


class Choice(NamedTuple):
    """The points to label next, best first, and their scores; indices refer to the candidates of the `View`."""

    indices: Int[Tensor, "R k"]
    scores: Float[Tensor, "R k"]


@dataclass(frozen=True)
class View:
    """The inputs of an acquisition rule, in model units, for the replicas of one arm; test points are excluded."""

    posterior: Predictive  # fitted to the labelled points
    state: State  # the posterior's state for these replicas
    labelled: Batch  # x [R, n, ...] and y [R, n, O], or [R, n] class indices, in the order of labelling
    candidates: Inputs  # [R, C, ...], standardised on demand; `each` iterates over them
    mask: Bool[Tensor, "R C"]  # true for candidates; false for padding in replicas with fewer candidates than others
    sample: Callable[[], Predictor]  # draws nets for these replicas; called at most once, and only if a rule predicts
    uniform: Float[Tensor, "R C"]  # uniform in [0, 1), drawn for all points of the pool, not only for candidates
    rng: Rng  # a random stream for the rule
    pending: Tensor | None = None  # [R, p, ...] points suggested but not labelled yet; they are no candidates
    targets: Tensor | None = None  # [R, T, ...] target inputs; None: the candidates
    cost: Float[Tensor, "R C"] | None = None  # positive label cost of each candidate; None: all cost the same

    @property
    def likelihood(self) -> Likelihood:
        likelihood = self.posterior.likelihood
        return given(likelihood, self.predictor.noise) if likelihood.discrete else likelihood

    @property
    def noise(self) -> Noise:
        """The likelihood's expected noise parameters."""
        return self.posterior.expected_noise(self.state)

    @property
    def taken(self) -> Tensor:
        """The inputs of the labelled and pending points, [R, n + p, ...]."""
        return self.labelled.x if self.pending is None else torch.cat([self.labelled.x, self.pending], 1)

    @property
    def aims(self) -> tuple[Inputs, Bool[Tensor, "R T"]]:
        """The target inputs [R, T, ...], and a mask that is false for padding in replicas with fewer targets."""
        if self.targets is None:
            return self.candidates, self.mask
        return self.targets, torch.ones_like(self.mask[:, :1]).expand(self.targets.shape[:2])

    @cached_property
    def predictor(self) -> Predictor:
        """The sampled nets, drawn on first use; the same nets are used for every point."""
        return self.sample()

    @cached_property
    def x(self) -> Float[Tensor, "R C ..."]:
        """The inputs of all candidates, in memory."""
        return self.candidates if isinstance(self.candidates, Tensor) else self.candidates[:, :]

    def moments(self) -> Moments:
        """Return the mean and variance, over nets, of the prediction for every candidate."""
        return Moments(*self._divided(self.predictor.moments_of))

    def each(self, score: Callable[[Float[Tensor, "R S b O"]], Shaped[Tensor, "R b"]]) -> Shaped[Tensor, "R C"]:
        """Apply `score` to the outputs for all candidates, in chunks. Candidates are divided among processes."""
        return self._divided(lambda out: (score(out),))[0]

    def _divided(self, score: Score) -> tuple[Tensor, ...]:
        count, jobs = self.candidates.shape[1], joblib.Parallel().n_jobs  # 1 outside joblib.parallel_config(n_jobs=...)
        if jobs == 1 or len(self.candidates.shape) > 3 or isinstance(self.candidates, _Selected):
            return divided(self._each, count, lambda _, out: score(out))
        chunk = self.predictor.chunk(self.candidates, predict.CACHE)
        step = chunk * -(-count // (chunk * jobs * SHARES))  # whole chunks: their sizes affect rounding
        shares = [slice(start, min(start + step, count)) for start in range(0, count, step)]
        tasks = (joblib.delayed(_scores)(self.predictor, self.candidates[:, share], score) for share in shares)
        return filled(zip(shares, joblib.Parallel(n_jobs=jobs)(tasks), strict=True), count)

    def _each(self, share: slice) -> Iterator[tuple[slice, Float[Tensor, "R S b O"]]]:
        """Yield (slice, outputs) for chunks of the candidates in `share`; unless there are too many, cache them."""
        if self._cache:
            yield from self._cache
            return
        whole: Tensor | None = None
        cache: list[tuple[slice, Tensor]] = []
        for part, out in self.predictor.outputs(self.candidates, predict.CACHE, share):
            count, begin = share.stop - share.start, part.start - share.start
            if not cache and out[:, :, 0].numel() * count <= CACHED:
                whole = out.new_empty(*out.shape[:2], count, out.shape[3])
            if whole is not None:
                place = whole[:, :, begin : begin + out.shape[2]]
                place[:] = out
                cache.append((part, place))
            yield part, out
        self._cache.extend(cache)

    @cached_property
    def _cache(self) -> list[tuple[slice, Tensor]]:
        return []

    def outputs(self, indices: Int[Tensor, "R k"]) -> Float[Tensor, "R S k O"]:
        """Return the outputs for some of the candidates; the same S nets are used for all."""
        rows = torch.arange(len(indices), device=indices.device).unsqueeze(1)
        return self.outputs_at(self.candidates[rows, indices])

    def outputs_at(self, x: Tensor) -> Float[Tensor, "R S k O"]:
        """Return the outputs for a few inputs [R, k, ...]; the same S nets are used for all."""
        return torch.cat([out for _, out in self.predictor.outputs(x)], 2)


def _scores(predictor: Predictor, x: Float[Tensor, "R n D"], score: Score) -> tuple[Tensor, ...]:
    """Score a share of the candidates, perhaps in another process."""
    return filled(((part, score(out)) for part, out in predictor.outputs(x, predict.CACHE)), x.shape[1])


Acquisition = Callable[[View, int], Choice]
"""A function, or a callable frozen dataclass whose fields are settings."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """A decorator that declares what a rule needs and how it chooses; `check` raises InputError for unmet needs."""

    spread: bool = False  # it uses the variation of predictions over the weights
    density: bool = False  # it uses the posterior's density, see `Variational`
    targets: Literal["any", "numbers", "classes"] = "any"  # the supported type of targets
    alone: bool = False  # it scores points independently, so that a batch may contain near-duplicates
    most: int | None = None  # maximum number of points chosen at once; None: any number
    single: bool = False  # it supports only a single output
    aims: bool = False  # it uses the target inputs
    costs: bool = False  # it divides scores by label costs
    # Scores single candidates, [R, C], at least 0, and 0 if a label is uninformative; for rules such as `power`.
    scores: Callable[[View], Tensor] | None = None

    def __call__(self, rule: Rule) -> Rule:
        rule.needs = self  # type: ignore[attr-defined]
        return rule


def default_rule(discrete: bool) -> str:
    """Return the name of the default rule, for classes or numbers. For numbers: experiments/few_labels."""
    return "epig" if discrete else "variance-reduction"


def needs_of(rule: Acquisition) -> Needs:
    """Return the `Needs` that a rule declares; without a declaration, the rule needs nothing."""
    return getattr(rule, "needs", Needs())


def check(rule: Acquisition, posterior: Predictive, samples: int, k: int = 1) -> None:
    """Raise InputError if a rule cannot choose k points with this posterior and number of samples."""
    try:
        inspect.signature(rule).bind("view", "k")
    except (TypeError, ValueError):  # ValueError: functions without a signature
        raise InputError(f"{rule!r} is not an acquisition; it must be a function of (view, k)") from None
    needs, name, method = needs_of(rule), name_of(rule), type(posterior).__name__
    kind, other = "classes" if posterior.likelihood.discrete else "numbers", "choose another acquisition"
    if needs.spread and (posterior.certain or samples < 2):
        advice = "use a posterior with weight uncertainty and samples of at least 2, or the acquisition random"
        raise InputError(f"{name} needs weight uncertainty, but {method} with samples={samples} has none; {advice}")
    if needs.density and not isinstance(posterior, Variational):
        raise InputError(f"{name} needs a posterior with a density, but {method} has none; {other} or posterior")
    if needs.targets not in ("any", kind):
        raise InputError(f"{name} supports {needs.targets} only, but {method} predicts {kind}; {other}")
    if needs.single and (numbers := width(posterior.likelihood, posterior.net.outputs)) != 1:
        raise InputError(f"{name} supports a single output, but {method} predicts {numbers}; {other}")
    if needs.most is not None and k > needs.most:
        raise InputError(f"{name} chooses at most {counted(needs.most, 'point')} at once, not {k}; use a smaller batch")


def name_of(rule: Acquisition) -> str:
    """Return a rule's name with its non-default settings. The name is "module:name" if the rule is not built in."""
    definition = rule if hasattr(rule, "__qualname__") else type(rule)
    home, _, file = definition.__module__.rpartition(".")
    name = hyphened(file) if home == __package__ else f"{definition.__module__}:{definition.__qualname__}"
    every: tuple[Any, ...] = fields(rule) if is_dataclass(rule) else ()
    settings = [f for f in every if getattr(rule, f.name) != f.default]
    return f"{name}({', '.join(f'{f.name}={getattr(rule, f.name)!r}' for f in settings)})" if settings else name


def best(scores: Scores, mask: Mask, k: int, behind: Mask | None = None, cost: Scores | None = None) -> Choice:
    """Choose the k points with the highest scores, or scores per cost, among those in `mask`.

    Points with non-finite scores rank below those with finite ones, and points in `behind` below both.
    All tensors are [R, C].
    """
    # A high cost must not improve a negative score.
    worth = scores if cost is None else torch.where(scores > 0, scores / cost, scores * cost)
    ranked = worth.masked_fill(~worth.isfinite(), torch.finfo(scores.dtype).min)
    if behind is not None:
        ranked = (ranked.argsort(1).argsort(1) - scores.shape[1] * behind.long()).double()
    indices = ranked.masked_fill_(~mask, -torch.inf).topk(k).indices
    return Choice(indices, scores.gather(1, indices))


def greedy(
    mask: Mask,
    k: int,
    start: Carry,
    scores: Callable[[Carry], Scores],
    update: Callable[[Carry, Int[Tensor, "R 1"]], Carry],
    behind: Callable[[Carry], Mask] | None = None,
    cost: Scores | None = None,
) -> Choice:
    """Choose k points one after another, each the best given the points chosen before.

    `scores` maps a state to scores of all candidates. `update` maps a state and the points chosen next, [R, 1], to the
    new state. `behind` maps a state to the argument `behind` of `best`. `cost` is passed to `best`.
    """
    state, chosen = start, [best(scores(start), mask, 1, behind and behind(start), cost)]
    for _ in range(k - 1):
        mask = mask.scatter(1, chosen[-1].indices, False)
        state = update(state, chosen[-1].indices)
        chosen.append(best(scores(state), mask, 1, behind and behind(state), cost))
    return Choice(*(torch.cat(parts, 1) for parts in zip(*chosen, strict=True)))


class _Selected:
    """The inputs at `places` [R, n], which are read when they are indexed."""

    def __init__(self, inputs: Inputs, places: Int[Tensor, "R n"]):
        self._inputs, self._places = inputs, places
        self.shape = torch.Size([*places.shape, *inputs.shape[2:]])

    def __getitem__(self, key: Any) -> Tensor:
        places = self._places[key]
        return self._inputs[torch.arange(len(places), device=places.device).unsqueeze(1), places]


class Shortlist(NamedTuple):
    """Some of the candidates of a view."""

    view: View  # of these candidates
    places: Int[Tensor, "R n"]  # where they are among all candidates


class ShortlistWarning(UserWarning):
    """A batch is chosen from a shortlist."""


def shortlist(view: View, scores: Scores, n: int, behind: Mask) -> Shortlist:
    """Return the n/2 best candidates, see `best`, and as many others at random, since the best may be near-duplicates.

    Warn that a batch is chosen from these.
    """
    note = f"All but the first point are chosen among the {n // 2:,} best of {view.mask.shape[1]:,} candidates"
    warnings.warn(f"{note} and as many others at random.", ShortlistWarning, stacklevel=3)
    top = best(scores, view.mask, n // 2, behind, view.cost).indices
    remaining = view.mask.scatter(1, top, False)
    drawn = best(view.uniform, remaining, n - n // 2).indices
    places = torch.cat([top, drawn], 1)
    mask = torch.cat([view.mask.gather(1, top), remaining.gather(1, drawn)], 1)  # a padded replica may have fewer
    inputs, nets, uniform = _Selected(view.candidates, places), view.predictor, view.uniform.gather(1, places)
    cost = None if view.cost is None else view.cost.gather(1, places)
    listed = replace(view, candidates=inputs, mask=mask, uniform=uniform, cost=cost, sample=lambda: nets)
    return Shortlist(listed, places)


class RedundancyWarning(UserWarning):
    """Points labelled in one batch may be near-duplicates."""


def redundancy(rule: Acquisition, k: int, pending: int = 0) -> str:
    """Return a warning if a rule that scores points independently may choose near-duplicates; else ""."""
    if k + pending == 1 or not needs_of(rule).alone:
        return ""
    together = ["each other"] if k > 1 else []
    beside = [f"the {counted(pending, 'pending point')}"] if pending else []
    near = f"they may be near-duplicates of {' or '.join(together + beside)}"
    return f"{name_of(rule)} scores points independently; {near}. Use epig to avoid this."


def checked(answer: Any, rule: Acquisition, mask: Mask, k: int) -> Choice:
    """Convert a rule's answer to a `Choice`; raise InputError unless it has k different candidates per replica."""
    who = f"the acquisition {name_of(rule)}"
    try:
        indices, scores = answer
        shapes = {tuple(indices.shape), tuple(scores.shape)}
    except (TypeError, ValueError, AttributeError):
        raise InputError(f"{who} must return (indices, scores)") from None
    if shapes != {(len(mask), k)} or indices.dtype != torch.int64:
        raise InputError(f"{who} must return int64 indices and scores, each of shape [{len(mask)}, {k}]")
    for row, present in zip(indices.tolist(), mask.cpu().numpy(), strict=True):
        if len(set(row)) < k:
            raise InputError(f"{who} returned a point twice: {row}; it must return {k} different points")
        if not all(0 <= i < len(present) and present[i] for i in row):
            raise InputError(f"{who} returned {row}; candidates are numbered 0 to {int(present.sum()) - 1}")
    return Choice(indices, scores)
