"""BoTorch maximises a function by expected improvement over joint samples of our networks.

    python -m experiments.interop.with_botorch

BoTorch's `EnsembleModel` takes functions that were drawn jointly, which is what sampled weights are: no Gaussian is put
in between, and acquisitions by Monte Carlo have their gradients by autograd. The function has its greatest value, 0, at
one point, and lower hills beside it.
"""

from __future__ import annotations

import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.models.ensemble import EnsembleModel
from botorch.optim import optimize_acqf
from torch import Tensor

import explore
from experiments.interop.problem import QUICK

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
BEST = torch.tensor([0.7, 0.3], dtype=torch.float64)


def objective(x: Tensor) -> Tensor:
    """[..., 2] -> [...]; 0 at BEST and less elsewhere."""
    a, b = (x - BEST).unbind(-1)
    return -(4 * a.square() + 8 * (b + a.square()).square() + 0.3 * (1 - torch.cos(9 * a)))


class Networks(EnsembleModel):
    """A fitted regressor as BoTorch's model: its sampled networks are the ensemble."""

    def __init__(self, regressor: explore.BayesianRegressor):
        super().__init__()
        self._fitted = regressor.model_
        self._nets = self._fitted.predictor()
        self._num_outputs = 1

    def forward(self, X: Tensor) -> Tensor:  # noqa: N803
        """[..., q, D] -> values of the networks [..., S, q, 1], in the target's unit and without noise."""
        scales = self._fitted.scales
        x = scales.x.apply(X.reshape(1, -1, X.shape[-1]), X.dtype)
        out = scales.y.undo(self._nets.net.output(self._nets.layers, x)[0])  # [S, points, 1]
        return out.unflatten(1, X.shape[:-1]).movedim(0, -3)


def suggest(x: Tensor, y: Tensor, k: int, seed: int) -> Tensor:
    """K points [k, 2] to evaluate together."""
    regressor = explore.BayesianRegressor(**QUICK | {"random_state": seed})
    model = Networks(regressor.fit(x.numpy(), y.numpy()))
    gain = qLogExpectedImprovement(model, best_f=float(y.max()))
    points, _ = optimize_acqf(gain, BOUNDS, q=k, num_restarts=4, raw_samples=64, options={"maxiter": 50})
    return points.detach()


def main() -> None:
    torch.manual_seed(0)
    x = torch.rand(8, 2, dtype=torch.float64)
    y = objective(x)
    start = float(y.max())
    for i in range(8):
        new = suggest(x, y, 2, i)
        assert new.shape == (2, 2) and not torch.allclose(new[0], new[1], atol=1e-3)  # a batch, not a point twice
        x, y = torch.cat([x, new]), torch.cat([y, objective(new)])
    random = objective(torch.rand(2000, 16, 2, dtype=torch.float64)).amax(1).clamp_min(start).mean()
    print(f"BoTorch, qLogEI: best value {start:.4f} of 8 points, {y.max():.4f} of 24; 16 at random: {random:.4f}")
    assert float(y.max()) > float(random) / 2  # negative: at most half as far below the greatest value, 0


if __name__ == "__main__":
    main()
