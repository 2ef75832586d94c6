"""Construction of posteriors from recorded settings, for runs and for loading saved models."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from explore import registry
from explore.core.errors import InputError, check_settings, listed
from explore.inference import presets
from explore.inference.base import Predictive
from explore.learning.scaling import resolution
from explore.nets import zoo
from explore.nets.net import Net, mlp
from explore.runs.recorded import Values

MOST_WEIGHTS = 10**8  # limit for a network, checked before a larger one could exhaust the memory


def likelihood_of(data: Any) -> str:
    """Return the name of the likelihood for the number of classes in `data`, a data set or `saved.Names`."""
    return {0: "gaussian", 2: "bernoulli"}.get(len(data.classes), "categorical")


def check_likelihood(name: str | None, data: Any) -> str:
    """Return the likelihood `name` for a data set, or by default `likelihood_of`; raise InputError if it cannot be."""
    if name is None:
        return likelihood_of(data)
    if data.classes:
        raise InputError("the likelihood of classes is fixed. Leave out --likelihood")
    if registry.find("likelihoods", name).discrete:
        raise InputError(f"the likelihood {name} is for classes, but the target is a number. Try heteroscedastic")
    return registry.hyphened(name)


def outputs(likelihood: str, classes: int, targets: int) -> int:
    """Return the number of network outputs, given the numbers of classes (0 for a regression) and targets."""
    each = getattr(registry.find("likelihoods", likelihood), "outputs_per_target", 1)
    return 1 if likelihood == "bernoulli" else classes or targets * each


def check_used(posterior: str, hidden: object, noise: Iterable[str], option: str = "hidden") -> None:
    """Raise InputError for hidden layers, or settings `noise` of the likelihood, that a posterior would ignore."""
    cls = registry.find("posteriors", posterior)  # whatever a user names: if it is no posterior, building it says so
    if hidden and not getattr(cls, "of_weights", True):
        raise InputError(f"{option} applies to networks, but {posterior} has none. Leave it out")
    if ignored := sorted(frozenset(noise).intersection(getattr(cls, "ignores", ()))):
        raise InputError(f"{posterior} ignores the setting {ignored[0]} of the likelihood. Leave it out")


def posterior(
    run: Any, shape: tuple[int, ...], outputs: int, name: str, settings: Values, noise: Mapping[str, Any]
) -> Predictive:
    """Build the posterior `name` for `run`, the settings of a run; `noise` are the settings of the likelihood."""
    if run.net:
        image: Any = shape
        zoo.check_known(run.net, zoo.outputs(run.net, image, outputs, run.net_settings), getattr(run, "outputs", None))
        net = Net(zoo.build(run.net, image, outputs, run.net_settings), getattr(run, "amp", False))
    else:
        widths = [*shape, *run.hidden, outputs]
        if (weights := sum((i + 1) * o for i, o in pairwise(widths))) > MOST_WEIGHTS:
            sizes = f"layers of {listed(widths)} units need {weights} weights"
            raise InputError(f"{sizes}, more than the limit of {MOST_WEIGHTS}. Use fewer units in --hidden")
        net = Net(mlp(widths[0], widths[1:-1], widths[-1]))
    kind, cls = registry.find("likelihoods", run.likelihood), registry.find("posteriors", name)
    check_settings(run.likelihood, registry.settings_of(kind), noise)
    check_settings(name, registry.settings_of(cls), settings)
    return registry.build(cls, net, kind(**noise), settings)


def for_rows(run: Any, rows: int, columns: int, y: Any = None) -> tuple[Values, Values]:
    """Return the posterior's and the likelihood's settings of `run`, given the size of its training data and y."""
    settings, prior = run.posterior_settings, dict[str, Any]()
    kind = run.likelihood or ("gaussian" if run.task == "regression" else "categorical")
    if run.preset == presets.BY_ROWS:
        cls = registry.find("posteriors", run.posterior)
        chosen = presets.recommended_settings(cls, rows, columns, run.task, units=max(run.hidden), likelihood=kind)
        settings, prior = registry.complete(cls, chosen.settings | dict(settings)), chosen.noise
    likelihood = registry.find("likelihoods", kind)
    return settings, registry.complete(likelihood, noise_of(likelihood, prior, y) | dict(run.likelihood_settings))


def noise_of(likelihood: Any, prior: Mapping[str, Any], y: Any = None) -> dict[str, Any]:
    """Return the recommended settings of a likelihood: a prior of the noise, and the resolution of targets y [n, M]."""
    allowed = registry.settings_of(likelihood)
    settings = dict(prior) if "prior_shape" in allowed else {}
    return settings | ({} if y is None or "resolution" not in allowed else {"resolution": resolution(y)})
