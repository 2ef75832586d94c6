"""A comparison: from settings that JSON can hold to posteriors on splits, and from their fits to results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from explore import compare, registry, toys
from explore.cli import problem
from explore.cli.problem import Settings
from explore.compare import Measured
from explore.errors import InputError, one_of, shown
from explore.fit import Epoch
from explore.likelihoods import LIKELIHOODS, Gaussian
from explore.posteriors.base import Predictive
from explore.rng import Rng
from explore.shapes import State

PLAIN = ("splits", "seed", "samples", "figures")  # options that are settings as they stand


class Finished(NamedTuple):
    """What is left of a posterior that was fitted."""

    scalars: dict[str, Tensor]  # tag -> [R], after the last epoch
    alive: Tensor  # [R] whether the fit of a split went well
    seconds: float  # of the fit alone
    reliability: compare.Reliability
    bands: toys.Bands | None
    boundary: toys.Boundary | None


PICTURES = {"reliability": compare.Reliability, "bands": toys.Bands, "boundary": toys.Boundary}


def resolve(options: Mapping[str, Any]) -> Settings:
    """The settings that command-line options ask for; `Comparison` completes them.

    Raises:
        InputError: for options that contradict each other, an unknown name or a value of the wrong type.
    """
    names = [name.strip() for name in options["posterior"].split(",")]
    if "" in names:
        raise InputError(f"--posterior is {shown(options['posterior'])}; it must be names with single commas between")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"--posterior names {', '.join(twice)} twice; name each once")
    classes = {name: registry.find("posteriors", name) for name in names}
    settings = {"command": "compare"} | {name: options[name] for name in PLAIN} | problem.resolve(options)
    return settings | _parameters(options, classes, LIKELIHOODS[settings["likelihood"]])


def _parameters(options: Mapping[str, Any], classes: Mapping[str, type], likelihood: type) -> Settings:
    """Presets, and what `-p` and `--epochs` change of them: first for all, then for one."""
    own: dict[str, dict[str, str]] = {name: {} for name in classes}
    noise: dict[str, str] = {}
    shared: dict[str, str] = {}
    places = {"": shared, "likelihood": noise, **own}
    for text, value in problem.parameters(options["parameters"]):
        owner, _, key = text.rpartition(".")
        if owner not in places:
            raise one_of("name before a setting", owner, places.keys() - {""})
        places[owner][key] = value
    if options["epochs"] is not None:
        if "epochs" in shared:
            raise InputError("give --epochs or -p epochs=..., not both")
        shared["epochs"] = str(options["epochs"])
    fields = {name: registry.settings_of(cls) for name, cls in classes.items()}
    if unknown := shared.keys() - {key for some in fields.values() for key in some}:
        raise one_of("setting", min(unknown), {key for some in fields.values() for key in some})
    posteriors = {}
    for name, cls in classes.items():
        presets = registry.presets(cls)
        preset = options["preset"] or next(
            (p for p in ("uci", "default", "paper") if p in presets), next(iter(presets))
        )
        if preset not in presets:
            raise one_of(f"preset of {name}", preset, presets)
        mine = {key: value for key, value in shared.items() if key in fields[name]} | own[name]
        posteriors[name] = {"preset": preset, "settings": presets[preset] | registry.parse(cls, mine)}
    return {"posteriors": posteriors, "likelihood_settings": registry.parse(likelihood, noise)}


class Comparison:
    """Posteriors with their splits, and what is known of them so far.

    Args:
        settings: from `resolve`, or those that a run recorded.
        device: where to compute.

    Attributes:
        settings: complete, every default filled in.
        finished: the posteriors that are done, in their order.
    """

    def __init__(self, settings: Settings, device: str):
        self.dataset = problem.load(settings)
        self.rng = Rng(settings["seed"], device)
        self.splits = compare.split(self.dataset, settings["splits"], self.rng)
        self.posteriors: dict[str, Predictive] = {}
        complete = {}
        for name, entry in settings["posteriors"].items():
            self.posteriors[name] = made = problem.posterior(settings, self.dataset, name, entry["settings"])
            problem.check_memory(made, settings["splits"], settings["samples"])
            complete[name] = entry | {"settings": problem.fields(made)}
        noise = problem.fields(next(iter(self.posteriors.values())).likelihood)
        self.settings = settings | {"posteriors": complete, "likelihood_settings": noise}
        self.finished: dict[str, Finished] = {}
        self._saved: dict[str, Any] | None = None  # of the posterior that is being fitted
        self._seconds = 0.0

    @property
    def current(self) -> str | None:
        """The posterior that comes next, or goes on."""
        return next((name for name in self.posteriors if name not in self.finished), None)

    @property
    def epochs(self) -> int:
        """How many epochs of all posteriors together are done."""
        return sum(self.posteriors[name].epochs for name in self.finished) + (self._saved or {}).get("epoch", 0)

    def events(self) -> Iterator[tuple[str, Epoch | Measured | Finished]]:
        """The rest of the comparison, each event with its posterior; `finished` grows."""
        while name := self.current:
            posterior, last = self.posteriors[name], None
            begin = time.perf_counter()
            for event in compare.follow(posterior, self.splits, self.rng, self.settings["samples"], self._saved):
                if isinstance(event, Epoch):
                    self._seconds += time.perf_counter() - begin
                else:
                    last = event
                    # A checkpoint after the last epoch would skip what comes below.
                    self._saved = event.saved if event.epoch < posterior.epochs else self._saved
                yield name, event
                begin = time.perf_counter()
            assert last is not None and last.epoch == posterior.epochs
            self.finished[name] = self._finish(posterior, last.scalars, last.state)
            self._saved, self._seconds = None, 0.0
            yield name, self.finished[name]

    def _finish(self, posterior: Predictive, scalars: dict[str, Tensor], state: State) -> Finished:
        s, rng = self.settings, self.rng.stream("test", posterior.epochs)  # the samples that the metrics were taken on
        layers, noise = posterior.joint_sample(state, s["samples"], rng)
        net, likelihood = posterior.net, posterior.likelihood
        reliability = compare.reliability(net, likelihood, layers, noise, self.splits.test_x, self.splits.test_y)
        bands = boundary = None
        if s["figures"]:
            gaussian = Gaussian() if self.dataset.classes else likelihood
            bands = toys.bands(posterior, gaussian, s["hidden"], self.rng, s["samples"])
            boundary = toys.boundary(posterior, s["hidden"], self.rng, s["samples"])
        kept = {tag: value.cpu() for tag, value in scalars.items()}
        cpu = compare.Reliability(*(t.cpu() for t in reliability))
        return Finished(kept, state.common.alive.cpu(), self._seconds, cpu, bands, boundary)

    def state_dict(self) -> dict[str, Any]:
        """What continues the comparison after the last measurement."""
        finished = {
            name: {key: part._asdict() if key in PICTURES and part else part for key, part in f._asdict().items()}
            for name, f in self.finished.items()
        }
        return {"finished": finished, "saved": self._saved, "seconds": self._seconds}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.finished = {}
        for name, entry in saved["finished"].items():
            pictures = {key: kind(**entry[key]) if entry[key] else None for key, kind in PICTURES.items()}
            self.finished[name] = Finished(**(entry | pictures))
        self._saved, self._seconds = saved["saved"], saved["seconds"]
