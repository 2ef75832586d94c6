"""Settings of `explore active`."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from explore import data, registry
from explore.acquisitions.base import default_rule
from explore.cli import problem
from explore.core.errors import InputError
from explore.data.columns import Matrix, Schema
from explore.inference import presets
from explore.learning import build
from explore.nets import zoo
from explore.runs.recorded import Values, check_unchanged


@dataclass(frozen=True, kw_only=True)
class Settings(problem.Problem):
    """Settings of an experiment, with defaults resolved."""

    command: Literal["active"] = "active"
    posterior: str
    preset: str
    posterior_settings: Values
    likelihood_settings: Values
    acquisition: str
    acquisition_settings: Values
    trials: int
    rounds: int
    initial: int
    acquire: int
    test_size: int
    control: bool
    pool: int | None = None  # number of random candidates; None: all
    jobs: int = 1  # number of processes that share the trials
    standardise: Literal["labelled", "pool", "none"] = "labelled"  # older versions had an option
    targets: str | None = None  # file with target inputs
    targets_digest: str | None = None  # hash of the target inputs

    def split(self, count: int) -> data.PoolSplit:
        """Return the initial points, test points and pool of each trial, as indices into `count` examples."""
        return data.pool_splits(count, self.trials, self.initial, self.test_size, self.seed)

    def aims(self, schema: Schema | None) -> Matrix | None:
        """Return the inputs in the --targets file, if any. Raise InputError if these changed since the run began."""
        if self.targets is None:
            return None
        if schema is None:
            raise InputError("--targets applies to --data only. Leave it out for a built-in data set")
        matrix = schema.apply(self.cells(self.targets, strict=False))
        check_unchanged(f"the inputs in {self.targets}", self.targets_digest, _digest(matrix))
        return matrix


def _digest(matrix: Matrix) -> str:
    return hashlib.sha256(matrix.x.tobytes()).hexdigest()


# Options that become settings unchanged.
PLAIN = ("trials", "rounds", "initial", "acquire", "control", "pool", "targets")


def resolve(options: Mapping[str, Any]) -> Settings:
    """Return the settings for command-line options."""
    common, data = problem.resolve({**options, "hidden": options["hidden"] or "10"})
    prefixes = ("", "likelihood", "acquisition", *(["net"] if common.net else []))
    texts = problem.split(options["parameters"], prefixes, epochs=options["epochs"])
    if common.net:
        if options["hidden"]:
            raise InputError("--hidden applies to tables only. For images use --net and -p net.KEY=VALUE")
        common = replace(common, net_settings=zoo.settings(common.net, texts["net"]))
    most = options["initial"] + options["rounds"] * options["acquire"]
    name, likelihood = problem.recommended({**options, "net": common.net}, texts[""], common.likelihood, most)
    build.check_used(name, options["hidden"], texts["likelihood"], "--hidden")
    common = replace(common, likelihood=likelihood)
    posterior = problem.configured(name, texts[""], options["preset"], "pool of images" if common.net else "table")
    by_rows = posterior.preset == presets.BY_ROWS  # defaults depend on the number of labels in each round
    name = options["acquisition"] or default_rule(common.task == "classification")
    rule = registry.configured("acquisitions", name, texts["acquisition"])
    noise = registry.find("likelihoods", common.likelihood)
    scatter = registry.parse(noise, texts["likelihood"])
    own_noise = build.noise_of(noise, {} if by_rows else presets.noise_for(posterior.preset), data.y)
    settings = Settings(
        **vars(common), **{name: options[name] for name in PLAIN}, acquisition=rule.name,
        posterior=posterior.name, preset=posterior.preset,
        posterior_settings=posterior.settings if by_rows else registry.complete(posterior.make, posterior.settings),
        acquisition_settings=registry.complete(rule.make, rule.settings) if isinstance(rule.make, type) else {},
        likelihood_settings=own_noise | scatter if by_rows else registry.complete(noise, own_noise | scatter),
        test_size=options["test_size"] or (1000 if common.net else 100),
        jobs=min(options["jobs"], options["trials"]),
    )  # fmt: skip
    aims = settings.aims(settings.table()[1]) if settings.targets else None
    return replace(settings, targets_digest=_digest(aims)) if aims else settings
