"""An active-learning experiment: from settings that JSON can hold to a learner, and from its rounds to results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from explore import data, registry
from explore.acquisitions.base import redundancy
from explore.active import ActiveLearner, Round, active_loop
from explore.cli import problem
from explore.cli.problem import Settings
from explore.errors import InputError
from explore.fit import Epoch
from explore.likelihoods import LIKELIHOODS

# Options that are settings as they stand; the others need the data or the posterior to be resolved.
PLAIN = (
    "posterior", "trials", "rounds", "initial", "acquire", "test_size", "control", "seed", "samples",
    "standardise",
)  # fmt: skip


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings that command-line options ask for; `Experiment` completes them.

    Raises:
        InputError: for options that contradict each other, an unknown name or a value of the wrong type.
    """
    settings = {"command": "active"} | {name: options[name] for name in PLAIN} | problem.resolve(options)
    # Of points that are labelled together max-variance would take near-duplicates.
    together = settings["task"] == "regression" and settings["acquire"] > 1
    settings["acquisition"] = options["acquisition"] or ("information-gain" if together else "max-variance")
    return settings | _parameters(options, LIKELIHOODS[settings["likelihood"]])


def _parameters(options: Mapping[str, Any], likelihood: type) -> Settings:
    """The preset and what `-p` and `--epochs` change of it."""
    cls, prefix = registry.find("posteriors", options["posterior"]), "likelihood."
    presets = registry.presets(cls)
    preset = options["preset"] or ("small" if "small" in presets else next(iter(presets)))
    own: dict[str, str] = {}
    noise: dict[str, str] = {}
    for key, value in problem.parameters(options["parameters"]):
        (noise if key.startswith(prefix) else own)[key.removeprefix(prefix)] = value
    if options["epochs"] is not None:
        if "epochs" in own:
            raise InputError("give --epochs or -p epochs=..., not both")
        own["epochs"] = str(options["epochs"])
    return {
        "preset": preset,
        "posterior_settings": registry.preset(cls, preset) | registry.parse(cls, own),
        "likelihood_settings": registry.parse(likelihood, noise),
    }


class Experiment:
    """A learner with its data, its arms and the rounds done so far.

    Args:
        settings: from `resolve`, or those that a run recorded.
        device: where to compute.

    Attributes:
        settings: complete, every default filled in.
        arms: names of the acquisitions, the chosen one first.
        history: what happened, name -> [rounds, R], and `labels` [rounds].
    """

    def __init__(self, settings: Settings, device: str):
        self.dataset = problem.load(settings)
        n, trials = len(self.dataset.x), settings["trials"]
        split = data.pool_splits(n, trials, settings["initial"], settings["test_size"], settings["seed"])
        wanted = settings["acquire"] * (settings["rounds"] - 1)
        if wanted > split.pool.shape[1]:
            raise InputError(
                f"{settings['rounds']} rounds label {wanted} points, but the pool of {self.dataset.name} has "
                f"{split.pool.shape[1]}; take fewer rounds, or fewer points a round"
            )
        self.arms = [settings["acquisition"]]
        if settings["control"] and settings["acquisition"] != "random":
            self.arms.append("random")

        own = settings["posterior_settings"]
        self.posterior = problem.posterior(settings, self.dataset, settings["posterior"], own)
        problem.check_memory(self.posterior, trials * len(self.arms), settings["samples"])
        allowed = np.ones((trials, n), bool)
        np.put_along_axis(allowed, split.test, False, axis=1)
        scale = {} if settings["standardise"] is None else {"standardise": settings["standardise"]}
        self.learner = ActiveLearner(
            self.posterior, self.dataset.x, self.arms, trials=trials, allowed=allowed, seed=settings["seed"],
            samples=settings["samples"], device=device, **scale,
        )  # fmt: skip
        labelled = np.tile(split.labelled, (len(self.arms), 1))
        self.learner.tell(labelled, self.dataset.y[labelled])
        self.test = np.tile(split.test, (len(self.arms), 1))
        self.history: dict[str, Tensor] = {}
        self.settings = settings | {
            "standardise": self.learner.standardise,
            "posterior_settings": problem.fields(self.posterior),
            "likelihood_settings": problem.fields(self.posterior.likelihood),
        }

    def warnings(self) -> Iterator[str]:
        """What to say before a round is done."""
        for rule in self.learner.acquisitions if self.settings["rounds"] > 1 else ():
            if said := redundancy(rule, self.posterior.likelihood, self.settings["acquire"]):
                yield said

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return len(self.history["labels"]) if self.history else 0

    def events(self) -> Iterator[Epoch | Round]:
        """The rest of the experiment; `history` grows with every round."""
        if self.rounds == self.settings["rounds"]:
            return
        s = self.settings
        for event in active_loop(self.learner, self.dataset.y, self.test, s["rounds"], s["acquire"]):
            if isinstance(event, Round):
                new = event.metrics | {"alive": event.state.common.alive, "labels": torch.tensor(event.labels)}
                for name, value in new.items():
                    past = [self.history[name]] if name in self.history else []
                    self.history[name] = torch.cat([*past, value.cpu().unsqueeze(0)])
            yield event

    def state_dict(self) -> dict[str, Any]:
        """What continues the experiment after the last round."""
        learner = {name: value.cpu() for name, value in self.learner.state_dict().items()}
        return {"learner": learner, "history": dict(self.history)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.learner.load_state_dict(saved["learner"])
        self.history = dict(saved["history"])
