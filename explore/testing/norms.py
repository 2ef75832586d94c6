"""Requirements on posteriors of nets with batch normalisation, unless refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from explore.core.shapes import Batch, State
from explore.inference import predict
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net
from explore.testing.subject import R, Subject, seeded, start, train
from explore.testing.values import POSTERIORS, expect_fall

CONV = Net(
    nn.Sequential(
        nn.Conv2d(1, 3, 2, stride=2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 2),
        nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2),
    )
)  # fmt: skip
DENSE = Net(nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
N = 16
POLICIES = {"frozen": "frozen", "adam": "adam"}


def takes_norms(subject: Subject) -> bool:
    """Whether nets may have batch normalisations."""
    return subject.takes("norms")


def build(subject: Subject, policy: str = "frozen", noise_std: float | None = None, **settings: Any) -> Any:
    """The lively posterior on a net with batch normalisation."""
    net = CONV if subject.takes("convolutions") else DENSE
    return subject.build(net, Gaussian(noise_std=noise_std), batch_norm=policy, **settings)


@cache
def data() -> Batch:
    """N images for each of R replicas."""
    x = seeded(5).normal(R, N, 1, 4, 4)
    return Batch(x, torch.stack([x.flatten(2).sum(2).sin(), x[:, :, 0, 0].abs().sum(2) - 3], 2))


def _loss(posterior: Any, state: State) -> Tensor:
    """Loss of the net in evaluation mode (running statistics)."""
    out = posterior.net.output(posterior.sample(state, 50, seeded(9)), data().x)
    return (out.mean(1) - data().y).square().mean((1, 2))


@POSTERIORS.check(POLICIES, of=takes_norms)
def training_lowers_the_loss_and_moves_what_the_policy_says(subject: Subject, policy: str) -> None:
    posterior = build(subject, policy, **({"lr": 0.03} if subject.has("lr") else {}))
    before = start(posterior, 1000, R, seeded())
    state = train(posterior, before, data(), seeded(1), 30)
    training = "30 updates of a net with batch normalisation, evaluated with its running statistics,"
    expect_fall(subject, _loss(posterior, before), _loss(posterior, state), training)
    for norm, old, new in zip(posterior.net.norms, before.common.norms.values, state.common.norms.values, strict=True):
        (affine_old, old), (affine_new, new) = ((v[..., :2, :], v[..., 2:, :]) for v in (old, new))
        assert (old != new).all(), f"{subject.name}: running statistics do not move; see `advance`"
        trained = policy == "adam" and norm.affine
        assert torch.equal(affine_old, affine_new) != trained, (
            f"{subject.name}: scale and shift {'do not move' if trained else 'move'} with batch_norm={policy}"
        )


def has_lr(subject: Subject) -> bool:
    """Whether lr can freeze its weights."""
    return takes_norms(subject) and subject.has("lr")


@POSTERIORS.check(of=has_lr)
def scale_and_shift_follow_their_own_gradient(subject: Subject) -> None:
    # Where the weights cannot move, they alone can lower the loss.
    runs = []
    for policy in POLICIES:
        # Of a known noise, the same for both outputs, so that the loss here is what is trained.
        posterior = build(subject, policy, 1.0, lr=1e-12, batch_norm_lr=0.04)
        runs.append(_loss(posterior, train(posterior, start(posterior, 1e6, R, seeded()), data(), seeded(1), 64)))
    assert (runs[1] < 0.97 * runs[0]).all(), f"{subject.name}: scale and shift do not lower the loss; see `advance`"


@POSTERIORS.check(of=takes_norms)
def an_example_is_evaluated_by_itself(subject: Subject) -> None:
    posterior = build(subject, "adam")
    state = train(posterior, start(posterior, N, R, seeded()), data(), seeded(1), 2)
    layers = posterior.sample(state, 4, seeded(2))
    every = posterior.net.output(layers, data().x)
    torch.testing.assert_close(every[:, :, 3:5], posterior.net.output(layers, data().x[:, 3:5]))
    if getattr(posterior, "over_weights", False):
        mean = predict.linearised(posterior, state, data().x).mean
        torch.testing.assert_close(mean, posterior.net.output(posterior.at_mean(state), data().x).squeeze(1))
