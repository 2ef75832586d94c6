"""The squared-exponential kernel with a length scale for each input, and its random features.

    k(x, x') = v exp(-1/2 |(x - x') / l|^2)  =  E[phi(x)^T phi(x')]
    phi(x) = sqrt(2 v / n) [cos(Omega^T (x / l)); sin(Omega^T (x / l))],   Omega [D, n / 2] of standard normal entries

Rahimi and Recht: Random Features for Large-Scale Kernel Machines (2007). With w ~ N(0, I), phi(x)^T w is a Gaussian
process with about that kernel, and the regression is linear in its n weights.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from sklearn.gaussian_process import GaussianProcessRegressor
from torch import Tensor

from experiments.active_learning import gp


class Kernel(NamedTuple):
    """Hyperparameters."""

    variance: float  # v
    scales: tuple[float, ...]  # l
    noise: float  # variance of the targets about the function

    def features(self, x: Float[Tensor, "R P D"], omega: Float[Tensor, "R D half"]) -> Float[Tensor, "R P n"]:
        """The n random features of points."""
        angle = (x / torch.tensor(self.scales, dtype=x.dtype)) @ omega
        return math.sqrt(self.variance / omega.shape[2]) * torch.cat([angle.cos(), angle.sin()], 2)


def learn(x: np.ndarray, y: np.ndarray) -> Kernel:
    """The hyperparameters of greatest marginal likelihood of points [n, D] with targets [n]."""
    form = gp.fit(x, y, ard=True).kernel_
    return Kernel(form.k1.k1.constant_value, tuple(form.k1.k2.length_scale), form.k2.noise_level)


def exact(kernel: Kernel, x: np.ndarray, y: np.ndarray, test_x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the targets at test points, by the exact Gaussian process."""
    form = gp.ConstantKernel(kernel.variance) * gp.RBF(kernel.scales) + gp.WhiteKernel(kernel.noise)
    mean, std = GaussianProcessRegressor(form, optimizer=None).fit(x, y).predict(test_x, return_std=True)
    return mean, std
