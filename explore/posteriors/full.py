"""NNG-full: one Gaussian with dense covariance over all weights of a small network, fitted by natural gradient.

Zhang, Sun, Duvenaud, Grosse: Noisy Natural Gradient as Variational Inference (2017), equations 6 to 9. With all weights
of all layers in one vector w and g = d log p(y|x,w) / dw of one example,

    q(w) = N(mu, (lambda/N) (F + gamma I)^-1)                                gamma = lambda / (N eta)
    F <- (1 - beta) F + beta E[g g^T]                                        targets drawn from the model
    V  = E[g] - gamma w                                                      w ~ q, averaged over S samples
    mu <- mu + alpha (F + gamma' I)^-1 V~                                    gamma' = gamma + extrinsic damping

V~ is the bias-corrected moving average of V; eta is the prior variance, lambda the weight of the KL, N the number of
examples. F starts as the identity, since estimates from few batches have very low rank. The time of a step is cubic in
the number of weights.
"""

from dataclasses import dataclass

from explore.core.errors import InputError
from explore.inference.structures.dense import MAX_WEIGHTS, Dense
from explore.inference.updates.natural import SMALL, TABLE, NaturalGradient


@dataclass(frozen=True, kw_only=True)
class Full(NaturalGradient):
    """Natural-gradient inference with a dense Fisher matrix and covariance; the defaults are those of noisy K-FAC."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.net.weights > MAX_WEIGHTS:
            counts = f"the network has {self.net.weights:,} weights; full supports at most {MAX_WEIGHTS:,}"
            raise InputError(f"{counts}; use slang or noisy-kfac")

    @property
    def structure(self) -> Dense:
        return Dense(self.net.shapes, self.beta)


PRESETS: dict[str, dict[str, object]] = {
    # As in noisy K-FAC; experiments/table_defaults/others.py. Uses the exact expectation over targets of every batch,
    # since F is rank-deficient with fewer gradients than weights.
    "default": TABLE | {"fisher": "exact", "beta": 0.02, "statistics_interval": 1, "prior_variance": 0.3},
    "small": SMALL,
    # As in noisy K-FAC. Batches of 10 say little about a dense F: faster averages or fewer batches are worse.
    "vime": {"prior_variance": 0.25, "samples": 5, "lr": 0.05, "beta": 0.02, "adaptive_damping": True},
}  # fmt: skip
