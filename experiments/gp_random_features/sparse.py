"""A sparse variational Gaussian process (Hensman, Matthews, Ghahramani 2015) by GPyTorch, replicas side by side."""

from __future__ import annotations

import math
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.gp_random_features.kernel import Kernel
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.inference.updates import adam
from explore.learning.fit import batches

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's, about how linear_operator compiles
        import gpytorch
except ImportError as error:
    raise InputError("the sparse Gaussian process needs GPyTorch: pip install 'explore-bnn[gp]'") from error


class Sparse(gpytorch.models.ApproximateGP):
    """Whitened inducing values at points [R, m, D] that are learnt; the kernel is not."""

    def __init__(self, points: Float[Tensor, "R m D"], kernel: Kernel, full: bool):
        lead, (m, inputs) = points.shape[:1], points.shape[1:]
        variational = gpytorch.variational
        form = variational.CholeskyVariationalDistribution if full else variational.MeanFieldVariationalDistribution
        # Nothing random is added to the first mean, which would come from torch's global generator.
        q = form(m, batch_shape=lead, mean_init_std=0.0)
        super().__init__(variational.VariationalStrategy(self, points, q, learn_inducing_locations=True))
        self.mean = gpytorch.means.ZeroMean(batch_shape=lead)
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inputs))
        self.kernel.outputscale, self.kernel.base_kernel.lengthscale = kernel.variance, torch.tensor(kernel.scales)
        self.kernel.requires_grad_(False)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior at points [R, P, D]."""
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def count(points: int, inputs: int, full: bool) -> int:
    """Parameters of m inducing points: where they are, and mean and covariance there."""
    return points * (inputs + 1) + (points * (points + 1) // 2 if full else points)


def inducing(parameters: int, inputs: int, full: bool) -> int:
    """The least number of points with so many parameters."""
    return next(m for m in range(1, parameters + 1) if count(m, inputs, full) >= parameters)


def predict(
    kernel: Kernel, full: bool, points: int, x: Tensor, y: Tensor, test_x: Tensor,
    batch_size: int, steps: int, lr: float, rng: Rng,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and standard deviation of the targets at test points, [R, P], after Adam on the bound.

    In double precision: the inducing points' covariance is nearly singular.
    """
    x, y, test_x = x.double(), y.double(), test_x.double()
    replicas, n = y.shape
    rows = torch.arange(replicas).unsqueeze(1)
    model = Sparse(x[rows, rng.permutation(replicas, n)[:, :points]], kernel, full).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=y.shape[:1]).double()
    likelihood.noise = kernel.noise
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=n)
    learnt = [p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad]
    optimizer = torch.optim.Adam(learnt, lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: adam.cosine(step / steps))
    slices = batches(n, batch_size)
    for _ in range(math.ceil(steps / len(slices))):
        order = rng.permutation(replicas, n)
        for part in slices:
            chosen = order[:, part]
            optimizer.zero_grad()
            (-bound(model(x[rows, chosen]), y[rows, chosen]).sum()).backward()  # replicas do not meet
            optimizer.step()
            schedule.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        found = likelihood(model(test_x))
        return found.mean, found.stddev
