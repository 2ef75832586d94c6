"""Views as a rule sees them, for tests of rules."""

import torch

from explore import registry
from explore.acquisitions.base import View
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.inference.predict import Predictor
from explore.nets.likelihoods import Gamma, Gaussian
from explore.nets.net import Net, mlp

R, S, P = 2, 9, 10


def view(likelihood=None, outputs=1, sample=None, mask=None, points=P, samples=S):
    rng, likelihood = Rng(0, dtype=torch.float64), likelihood or Gaussian()
    targets = outputs // getattr(likelihood, "outputs_per_target", 1)
    net, x = Net(mlp(2, [6], outputs)), rng.normal(R, points, 2)
    layers = tuple(2 * w for w in net.glorot(R, rng, samples))
    mask = torch.ones(R, points, dtype=torch.bool) if mask is None else mask
    posterior = registry.posterior("bbb", net, likelihood)
    state = posterior.init(points, R, rng)
    tau = torch.tensor([0.7, 3.0], dtype=torch.float64).unsqueeze(1) * torch.tensor([1.0, 20.0, 0.3])[:targets]
    if not likelihood.discrete:
        state = state._replace(common=state.common._replace(noise=Gamma(tau, torch.ones_like(tau))))
    noise = tau.unsqueeze(1)
    labelled = Batch(rng.normal(R, 4, 2), likelihood.sample(noise, rng.normal(R, 1, 4, outputs), rng)[:, 0])
    sample = sample or (lambda: Predictor(net, likelihood, layers, noise.expand(R, samples, targets)))
    return View(posterior, state, labelled, x, mask, sample, rng.uniform(R, points), rng)


def outputs_of(v):
    return v.predictor.net.output(v.predictor.layers, v.x)
