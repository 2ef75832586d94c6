"""Pool-based active learning: `ask` which points to label, then `tell` their labels.

`ActiveLearner` runs R replicas of an experiment in parallel: `trials` random starts for each acquisition (arm), in
arm-major order on the replica axis. `active_loop` answers queries with known labels and measures the test error.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from explore import registry
from explore.acquisitions import base
from explore.acquisitions.base import Acquisition, Choice, View, default_rule, name_of, needs_of
from explore.core import tree
from explore.core.errors import FailedFitWarning, InputError, check_count, counted
from explore.core.rng import Rng
from explore.core.shapes import Info, State
from explore.execution import parallel
from explore.inference.base import Predictive
from explore.inference.predict import Predictor
from explore.learning import identity
from explore.learning.fit import Epoch, sharded_fit, stops, streams
from explore.learning.model import FittedModel, Prediction, check_made
from explore.learning.pool import Pool, first
from explore.learning.scaling import RawInputs, Standardiser, numbers

STOPS = 10  # progress reports of a fit in several processes
FORMAT = 3  # of a state_dict


class ActiveLearner(Pool):
    """An active learner: it fits a posterior to the labels so far, and chooses the next points of a pool to label.

    Args:
        posterior: the posterior, fitted after every `tell`: from scratch or, with `mclmc`, from the chains of the last
            fit.
        x: [P, ...] inputs of all points, labelled or not.
        acquisitions: one rule (or its name) per arm; None: the default for numbers or classes. The arms share
            everything else, including random numbers.
        trials: independent repetitions; R = trials * len(acquisitions).
        allowed: [trials, P] mask of the points that may ever be chosen (not test points); default: all.
        seed: root of all random streams; the seed and the labels determine all results.
        samples: number of weight samples for predictions.
        cost: [P] positive costs of the points' labels; rules then choose by score per cost.
        targets: [T, ...] inputs whose labels are of interest, for rules that use them; default: the candidates.
        standardise: scales of the inputs. "labelled": mean and standard deviation of the labelled points; "pool": those
            of all allowed points; "none": unchanged; or a `Standardiser` that broadcasts to one input. Images are only
            standardised by a `Standardiser`, such as one of shape [C, 1, 1]. Regression targets are always standardised
            by the labelled points, except for a pretrained network (`trained`), which needs "none".
        device, dtype: device and floating-point type to compute with.
        jobs: processes that share the trials of each fit, see `explore.learning.fit.sharded_fit`.
        posterior_for: a function from the number of labels to the posterior; None: always `posterior`.

    Attributes:
        labelled: [R, n] indices of the labelled points, in the order in which they were labelled.
        mask: [R, P] mask of the points that `ask` can still choose.
        round: number of `tell` calls so far.
    """

    def __init__(
        self,
        posterior: Predictive,
        x: Any,
        acquisitions: Sequence[Acquisition | str] | None = None,
        *,
        trials: int = 1,
        allowed: np.ndarray | Tensor | None = None,
        seed: int = 0,
        samples: int = 100,
        cost: Any = None,
        targets: Any = None,
        standardise: str | Standardiser = "labelled",
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        jobs: int = 1,
        posterior_for: Callable[[int], Predictive] | None = None,
    ):
        check_made(posterior)
        for name, value in (("trials", trials), ("samples", samples), ("jobs", jobs)):
            check_count(name, value)
        self.posterior, self.samples = posterior, samples
        self.jobs, self._posterior_for = min(jobs, trials), posterior_for or (lambda _: posterior)
        rules = [default_rule(posterior.likelihood.discrete)] if acquisitions is None else acquisitions
        self.acquisitions = tuple(_rules(rules))
        for rule in self.acquisitions:
            base.check(rule, posterior, samples)
        arms, rng = tuple(map(name_of, self.acquisitions)), Rng(seed, device, dtype, arms=len(self.acquisitions))
        super().__init__(posterior, x, allowed, trials, len(arms), standardise, rng)
        if targets is not None and not any(needs_of(rule).aims for rule in self.acquisitions):
            raise InputError(
                f"targets has no effect with {', '.join(arms)}. Leave it out, or add a rule such as variance-reduction"
            )
        self._aims = None if targets is None else RawInputs(targets, rng, posterior.net.inputs.packed)
        if self._aims is not None:
            self._aims.check_shape(tuple(self.x.shape[1:]), "the pool")
        self._cost = None if cost is None else self._prices(cost)
        self.info: Info = {}  # of the last training batch
        self._fitted: FittedModel | None = None
        self._carried: Any = None  # from the last fit to fewer labels, see `Predictive.carried`

    def tell(self, indices: Any, y: Any) -> None:
        """Add labels y to the points with these integer indices, [R, k] ([k] if R = 1).

        Targets are [R, k, O] ([R, k] if O = 1), class indices [R, k]. With the likelihood `PartialGaussian`, NaN marks
        outputs of a point that were not measured. Raise InputError for points that are not allowed or already labelled,
        and for invalid labels.
        """
        super().tell(indices, y)
        if self._fitted is not None:
            self._carried = self.posterior.carried(self._fitted.state)
        self._renew()

    def fit(self) -> Iterator[Epoch]:
        """Fit to all labels so far, unless already done; yield all epochs or, with several `jobs`, up to ten epochs."""
        if parallel.world().processes > 1:
            raise InputError("ActiveLearner runs in one process. Start it without torchrun; jobs divides the trials")
        if self._fitted is not None:
            return
        scales = self.scales()
        shards = streams(self.rng.stream("fit", self.round), self.jobs)
        at = stops(self.posterior.epochs, STOPS)
        posterior: Any = self.posterior
        state, done = (None, 0) if self._carried is None else posterior.continued(self._initial, self._carried)
        for epoch in sharded_fit(self.posterior, *self.training(scales), shards, at, done, state):
            yield epoch
        if failed := int((~epoch.state.common.alive).sum()):
            note = f"the fit of {failed} of {self.replicas} replicas diverged; ignore their predictions and suggestions"
            warnings.warn(note, FailedFitWarning, stacklevel=2)
        shape, seed, arms = tuple(self.x.shape[1:]), self.rng.seed, self.rng.arms
        self._fitted = FittedModel(self.posterior, epoch.state, scales, shape, self.samples, seed, self.round, arms)
        self.info = epoch.info

    @property
    def fitted(self) -> FittedModel:
        """The fit to all labels so far, computed at the first access: a model that predicts and can be saved."""
        for _ in self.fit():
            pass
        assert self._fitted is not None
        return self._fitted

    model = fitted

    def check(self, k: int, times: int = 1, pending: int = 0) -> None:
        """Raise InputError if fewer than `times` * k candidates remain after `pending`, or a rule cannot choose k."""
        available = int(self.mask.sum(1).min()) - pending
        check_count("k", k)
        if k * times > available:
            asked = f"{k} points" if times == 1 else f"{times} times {k} points"
            raise InputError(f"cannot suggest {asked}: only {counted(available, 'candidate')} left")
        for rule in self.acquisitions:
            base.check(rule, self.posterior, self.samples, k)

    def ask(self, k: int = 1, pending: Any = None) -> Choice:
        """Choose the next k points of every replica, [R, k]. Each arm uses its own rule.

        `pending` are points [R, p] ([p] if R = 1) that were suggested but have no labels yet. They are not chosen
        again, and the rules take them into account without knowing their labels. Warn if a rule scores points
        independently, so that its batch may contain near-duplicates.
        """
        waiting = None if pending is None else self.free(pending)
        p = 0 if waiting is None else waiting.shape[1]
        self.check(k, pending=p)
        for rule in self.acquisitions:
            if message := base.redundancy(rule, k, p):
                warnings.warn(message, base.RedundancyWarning, stacklevel=2)
        choices = [self._choose(i, k, waiting if p else None) for i in range(len(self.acquisitions))]
        return Choice(*(torch.cat(parts) for parts in zip(*choices, strict=True)))

    def predict(self, x: Any) -> Prediction:
        """Return the predictive means and standard deviations of a regression at new inputs x [P, ...]."""
        return self.fitted.predict(x)

    def probabilities(self, x: Any) -> Float[Tensor, "R P C"]:
        """Return class probabilities at new inputs x [P, ...], averaged over the weights."""
        return self.fitted.probabilities(x)

    def evaluate(self, indices: Any, y: Any) -> dict[str, Float[Tensor, " R"]]:
        """Return test metrics in original units at points `indices` [R, m]; y [P, O] or [P] has all points' labels."""
        scales = self.fitted.scales
        unit = scales.y.scale.squeeze(1) if scales.y.scale.dim() else None
        return self.fitted.predictor().evaluate(*self.test(indices, y, scales), unit)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the labels so far, and the chains of a sampler. The constructor's arguments determine the rest."""
        saved = {
            "format": torch.tensor(FORMAT),
            "labelled": self.labelled.cpu().clone(),
            "y": torch.zeros(self.replicas, 0) if self.y is None else self.y.cpu().clone(),
            "round": torch.tensor(self.round),
            "meaning": tree.from_plain(self._meaning()),
            "pool": self._digest,
        }
        return saved | ({} if self._carried is None else tree.save({"carried": self._carried}))

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Resume from the `state_dict` of a learner with the same points and the same arguments."""
        if "format" not in saved or int(saved["format"]) != FORMAT:
            advice = "Create a new one and tell() it the labels"
            raise InputError(f"the saved learner was written by another version. {advice}")
        before, now = tree.to_plain(saved["meaning"]), self._meaning()
        if before != now:
            a, b = ({k: v for k, v in one.items() if before.get(k) != now.get(k)} for one in (before, now))
            raise InputError(f"the saved learner has different settings: {a}, this one {b}")
        if not torch.equal(saved["pool"].cpu(), self._digest):
            raise InputError("the saved learner has a different pool. Pass the same points, in the same order")
        self.labelled = saved["labelled"].to(self.rng.device)
        self.mask = self.allowed.scatter(1, self.labelled, False)
        self.round = int(saved["round"])
        self.y = saved["y"].to(self.rng.device) if self.labelled.shape[1] else None
        self._renew()
        self._carried = None
        if chains := {name: t.to(self.rng.device) for name, t in saved.items() if name.startswith("carried.")}:
            self._carried = tree.restore({"carried": self.posterior.carried(self._initial)}, chains)["carried"]

    def _meaning(self) -> dict[str, Any]:
        """Return the settings that must be the same when a `state_dict` is loaded."""
        return {
            "seed": self.rng.seed,
            "points": len(self.x),
            "acquisitions": list(map(name_of, self.acquisitions)),
            "outputs": self._outputs,
            "classes": self._classes,
            "trials": self.trials,
            "replicas": self.replicas,
        }

    @cached_property
    def _digest(self) -> UInt8[Tensor, " 32"]:
        return identity.digest(self.x, self.allowed[: self.trials])

    def _renew(self) -> None:
        old, self._fitted, self.posterior = self.posterior, None, self._posterior_for(self.labelled.shape[1])
        if self._carried is None or self.posterior is old:
            return
        new: Any = self.posterior
        if new.net.shapes != old.net.shapes or dataclasses.replace(new, net=old.net) != old:
            self._carried = None  # chains with other settings may differ in number and tuning

    @property
    def _initial(self) -> State:
        """The initial state of a fit to all labels so far."""
        return self.posterior.init(self.labelled.shape[1], self.replicas, self.rng.stream("fit", self.round))

    def _prices(self, cost: Any) -> Float[Tensor, " P"]:
        """Check the costs of labels, and that every rule uses costs; return them as a tensor."""
        prices = self.rng.tensor(numbers(cost, "cost")).to(self.rng.dtype)
        if prices.shape != self.x.shape[:1] or not (prices > 0).all() or not prices.isfinite().all():
            raise InputError(f"cost must have one positive number for each of the {len(self.x)} points")
        for rule in self.acquisitions:
            if not needs_of(rule).costs:
                raise InputError(f"{name_of(rule)} ignores costs. Use variance-reduction or epig")
        return prices

    def _choose(self, i: int, k: int, pending: Tensor | None) -> Choice:
        """Choose the next k points in every trial of arm i."""
        rule, arm = self.acquisitions[i], slice(i * self.trials, (i + 1) * self.trials)
        state, scales = self.fitted.state, self.fitted.scales

        def sample() -> Predictor:  # for all arms at once, so that they share random numbers
            nets = Predictor.sample(self.posterior, state, self.samples, self.rng.stream("acquire", self.round))
            base.check(rule, self.posterior, nets.samples)
            return dataclasses.replace(nets, layers=tree.part(nets.layers, arm), noise=tree.part(nets.noise, arm))

        mask = (self.mask if pending is None else self.mask.scatter(1, pending, False))[arm]
        points = first(mask)[:, : int(mask.sum(1).max())]
        present = mask.gather(1, points)
        points = torch.where(present, points, points[:, :1])  # where trials have fewer candidates, copies of the first
        rng = Rng(self.rng.seed, self.rng.device, self.rng.dtype)  # all arms share its numbers
        view = View(
            posterior=self.posterior,
            state=tree.part(state, arm),
            labelled=tree.part(self.training(scales), arm),
            candidates=self.standardised(points, tree.part(scales, arm)),
            mask=present,
            sample=sample,
            uniform=rng.stream("acquire", self.round, 1).uniform(*mask.shape).gather(1, points),
            rng=rng.stream("acquire", self.round, 2),
            pending=None if pending is None else self.standardised(pending, scales)[:][arm],
            targets=None if self._aims is None else self.new(self._aims, scales)[arm],
            cost=None if self._cost is None else self._cost[points],
        )
        answer = base.checked(rule(view, k), rule, present, k)
        return Choice(points.gather(1, answer.indices), answer.scores)


def _rules(acquisitions: Sequence[Acquisition | str]) -> Iterator[Acquisition]:
    """Yield the acquisition rule of each arm, looking up names. Raise InputError for a rule that is not a function."""
    if isinstance(acquisitions, str) or not isinstance(acquisitions, Sequence) or not acquisitions:
        raise InputError(f"acquisitions is {acquisitions!r:.100}; it must be a list of rules, such as ['random']")
    for rule in (registry.acquisition(rule) if isinstance(rule, str) else rule for rule in acquisitions):
        if not callable(rule) or isinstance(rule, type):
            raise InputError(f"an acquisition is {rule!r:.100}; it must be a name, or a function of (view, k)")
        yield rule


class Round(NamedTuple):
    """A finished active-learning round."""

    round: int  # from 1
    labels: int  # number of labels of the fit
    metrics: dict[str, Float[Tensor, " R"]]
    info: Info  # of the last training batch
    choice: Choice | None  # the points labelled next; None in the last round
    state: State


def active_loop(learner: ActiveLearner, y: np.ndarray, test: Any, rounds: int, k: int = 1) -> Iterator[Epoch | Round]:
    """Run rounds of fit, test and acquisition from `learner.round` on. Yield every `Epoch` and finished `Round`.

    Args:
        learner: a learner that has labels. With its initial labels only, the learner is in round 1.
        y: [P, O] or [P] labels of all points, used as the oracle.
        test: [R, m] indices of the held-out points in every replica.
        rounds: total number of rounds; the last round acquires no points.
        k: number of points to acquire after each fit.
    """
    labels = np.asarray(y)
    if learner.round < rounds:
        learner.check(k, rounds - learner.round)
    while (this := learner.round) <= rounds:
        n = learner.labelled.shape[1]
        yield from learner.fit()
        state, metrics = learner.fitted.state, learner.evaluate(test, labels)
        choice = learner.ask(k) if this < rounds else None
        if choice is not None:
            learner.tell(choice.indices, labels[choice.indices.cpu().numpy()])
        yield Round(this, n, metrics, learner.info, choice, state)
        if choice is None:
            return
