"""Posteriors around the weights of a trained module: Laplace's approximation, and its refinement by noisy K-FAC."""

from dataclasses import fields, replace
from typing import Any, Literal, cast

import torch
from torch import nn

from explore import registry
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference.presets import noise_for
from explore.inference.structures.curvature import StructureName, kronecker_moments
from explore.inference.structures.kronecker import KroneckerRule
from explore.learning import build
from explore.learning.fit import batches, last_epoch
from explore.learning.model import FittedModel
from explore.learning.pool import Pool
from explore.learning.scaling import examples
from explore.nets.net import Net

BATCH = 256  # examples per batch of the pass
UPDATES = 30  # of the noise at most; Gaussian noise is fitted by one


def laplace(
    module: nn.Module,
    x: Any,
    y: Any = None,
    likelihood: Any = None,
    *,
    structure: StructureName = "kfac",
    layers: Literal["last", "all"] = "last",
    prior_variance: float | None = None,
    samples: int = 100,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> FittedModel:
    """Return a Laplace approximation around a trained module, from one pass over the data.

    Args:
        module: the trained module, for inputs x as they are; it returns logits for classes.
        x: [P, ...] inputs, or a DataLoader or Dataset of pairs (x, y), which is read once.
        y: [P, O] or [P] targets, or [P] class indices; None if `x` has pairs.
        likelihood: a likelihood or its name; None: "categorical" for integers ("bernoulli" if the module has one
            output), else "gaussian", whose noise is estimated from the residuals.
        structure: of the curvature. "full" takes at most 4096 weights.
        layers: the layers with a distribution over their weights: the last one, or all.
        prior_variance: of the weights; None: the maximum of the evidence, for each layer or, if the structure is
            "full" or "low-rank", for all.
        samples: number of weight samples for predictions.
        seed: root of all random numbers.
        device: device to compute on.
        dtype: floating-point type to compute in.
        **settings: further settings of the posterior `laplace`, such as fisher="true".

    Raises:
        InputError: for a module that `Net` does not support, or data that do not fit it.
    """
    x, y = examples(x) if y is None else (x, y)
    net = Net(module, trained=True)
    chosen = {"structure": structure, "subset": layers, "evidence": prior_variance is None}
    settings = chosen | ({} if prior_variance is None else {"prior_variance": float(prior_variance)}) | settings
    posterior = registry.posterior("laplace", net, _likelihood(likelihood, y, net), "plain", **settings)
    rng = Rng(seed, device, dtype)
    pool = Pool(posterior, x, None, 1, 1, "none", rng)
    pool.tell(torch.arange(len(pool.x)), y)
    data, stream = pool.training(pool.scales()), rng.stream("fit", pool.round)
    state = _with_noise(posterior, posterior.init(len(pool.x), 1, stream), data)
    state = posterior.finish(state, _parts(data), stream)
    return FittedModel(posterior, state, pool.scales(), tuple(pool.x.shape[1:]), samples, seed)


def refined(model: FittedModel, x: Any, y: Any = None, epochs: int = 5, **settings: Any) -> FittedModel:
    """Return a model whose posterior is noisy K-FAC, trained further from `model`, the result of `laplace`.

    x and y are the training data, as in `laplace`; `epochs` are passes over them. `settings` are those of noisy K-FAC,
    such as lr=0.1, by default those of its preset `default`, or for images `image`, without tempering, and the prior
    variance of `model`, averaged over layers.
    """
    if not hasattr(model.posterior, "curvature_taps"):
        raise InputError(f"refined() starts from laplace(); got {type(model.posterior).__name__}")
    x, y = examples(x) if y is None else (x, y)
    old, rng = cast(Any, model.posterior), model.rng.stream("fit", 2)
    preset, eta = "default" if len(model.shape) == 1 else "image", float(model.state.eta.mean())
    undamped = {"kl_weight": 1.0, "warm_start": 0.0, "predictive": "auto", "damped_density": False}
    settings = {"prior_variance": eta, "epochs": epochs} | undamped | settings
    new = registry.posterior("noisy-kfac", old.net, old.likelihood, preset, **settings)
    pool = Pool(new, x, None, 1, 1, "none", model.rng)
    pool.tell(torch.arange(len(pool.x)), y)
    data = pool.training(model.scales)
    whole = old.with_settings(subset="all")
    rule = KroneckerRule(1.0, "exact", new.weight_sharing)
    moments = kronecker_moments(rule, lambda: whole.curvature_taps(model.state, _parts(data), rng), rng)
    start = new.init(len(pool.x), 1, rng)
    start = start._replace(common=start.common._replace(noise=model.state.common.noise))
    state = new.started(start, tuple(w.squeeze(1) for w in model.state.weights), moments)
    state = last_epoch(new, *data, rng, state=state).state
    return replace(model, posterior=new, state=state)


def _likelihood(likelihood: Any, y: Any, net: Net) -> Any:
    """Return the likelihood for targets y, with a weak prior of its noise unless it is an instance."""
    if likelihood is None:
        classes = "bernoulli" if net.outputs == 1 else "categorical"
        likelihood = "gaussian" if torch.as_tensor(y).dtype.is_floating_point else classes
    if not isinstance(likelihood, str):
        return likelihood
    kind = registry.find("likelihoods", likelihood)
    return kind(**build.noise_of(kind, noise_for("default")))


def _parts(data: Batch) -> list[Batch]:
    return [Batch(data.x[:, part], data.y[:, part]) for part in batches(data.x.shape[1], BATCH)]


def _with_noise(posterior: Any, state: State, data: Batch) -> State:
    """Fit the noise of the likelihood, if it has any, to the residuals of the trained network."""
    likelihood: Any = posterior.likelihood
    if not any(f.name == "rate" for f in fields(likelihood)):
        return state
    layers = posterior.at_mean(state)
    out = torch.cat([posterior.net.output(layers, part.x) for part in _parts(data)], 2)
    at_once = replace(likelihood, rate=1.0)
    noise = state.common.noise
    for _ in range(UPDATES):
        before = noise
        noise = at_once.update(noise, out, data.y.unsqueeze(1), float(state.common.n_data), 1.0)
        if all(map(torch.equal, tree.tensors(noise), tree.tensors(before))):
            break
    return state._replace(common=state.common._replace(noise=noise))
