"""Posteriors as torch optimisers: steps equal updates, and what training loops do with optimisers works."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explore import registry
from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.learning import optim
from explore.nets.net import Net

OPTIMISERS = [optim.VOGN, optim.NoisyAdam, optim.NoisyKFAC, optim.NoisyEKFAC, optim.SLANG]
LR: dict[str, Any] = {"lr": 0.01}


class Small(nn.Module):
    """A convolution, batch norm, a layer norm and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.ln = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.LayerNorm(5)
        self.a, self.b = nn.Linear(48, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = self.bn(self.conv(x)).relu().flatten(1)
        return self.b(self.ln(self.a(h)).tanh())


def problem(seed=0, count=16):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        model = Small().double()
        x, y = torch.randn(count, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (count,))
    return model, x, y


def trained(optimizer, model, x, y, steps=3, reduction="mean"):
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.sampled():
            loss = F.cross_entropy(model(x), y, reduction=reduction)
        loss.backward()
        optimizer.step()
    return optimizer


def close(a, b, tolerance=1e-9):
    for s, t in zip(tree.tensors(a), tree.tensors(b), strict=True):
        torch.testing.assert_close(s, t, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("cls", OPTIMISERS)
def test_steps_are_updates(cls, reduction):
    model, x, y = problem()
    net = Net(model, trained=True)
    optimizer = cls(model, "categorical", n_data=100, reduction=reduction, **LR)
    posterior = registry.posterior(cls.name, net, "categorical", "image").with_settings(
        **{key: value for key, value in vars(optimizer.posterior).items() if key not in ("net", "likelihood")}
    )
    rng = Rng(0, dtype=torch.float64)
    state, stream = posterior.init(100, 1, rng.stream("init")), rng.stream("fit")
    for _ in range(3):
        state, _ = posterior.update(state, Batch(x[None], y[None]), stream)
    trained(optimizer, model, x, y, reduction=reduction)
    close(optimizer.posterior_state, state)
    expected = posterior.write_back(state)
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    torch.testing.assert_close(model.bn.running_var, expected.bn.running_var)


def plain(seed=0):
    """Two layers without batch norm, and data."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).double()
        return model, torch.randn(12, 4, dtype=torch.float64), torch.randint(0, 3, (12,))


def updates(optimizer, net, x, y, steps, total=None):
    """The state after updates by the posterior of an optimizer."""
    posterior = registry.posterior(optimizer.name, net, optimizer.posterior.likelihood, "image").with_settings(
        **{key: v for key, v in vars(optimizer.posterior).items() if key not in ("net", "likelihood")}
    )
    rng = Rng(0, dtype=torch.float64)
    state, stream = posterior.init(100, 1, rng.stream("init")), rng.stream("fit")
    for step in range(steps):
        state, _ = posterior.update(state, Batch(x[None], y[None]), stream, step / total if total else 0.0)
    return state


def exact(cls):
    return LR | ({"fisher": "exact"} if hasattr(registry.find("posteriors", cls.name), "fisher") else {})


@pytest.mark.parametrize("cls", OPTIMISERS)
def test_samples_and_parts_of_a_batch_are_one_step(cls):
    model, x, y = plain()
    net, optimizer = Net(model, trained=True), cls(model, "categorical", 100, samples=2, **exact(cls))
    for _ in range(2):
        optimizer.zero_grad()
        for part in (slice(5), slice(5, 10)):
            for _ in range(2):
                with optimizer.sampled():
                    loss = F.cross_entropy(model(x[part]), y[part]) / 2
                loss.backward()
        optimizer.step()
    close(optimizer.posterior_state, updates(optimizer, net, x[:10], y[:10], 2))


def test_a_missing_sample_is_an_error():
    model, x, y = plain()
    optimizer = optim.VOGN(model, "categorical", 100, samples=2)
    with pytest.raises(InputError, match=r"1 passes before a step; run 2 \(samples\) for each batch"):
        trained(optimizer, model, x, y)
    with pytest.raises(InputError, match="no backward pass since the last step"):
        optim.VOGN(model, "categorical", 100).step()


@pytest.mark.parametrize("cls", OPTIMISERS)
def test_training_resumes_exactly(cls):
    model, x, y = problem()
    optimizer = trained(cls(model, "categorical", 100, **LR), model, x, y, 2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    trained(optimizer, model, x, y, 2)
    again = problem(1)[0]
    resumed = cls(again, "categorical", 100, **LR)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    trained(resumed, again, x, y, 2)
    close(resumed.posterior_state, optimizer.posterior_state, 0.0)
    for p, q in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_schedules_and_groups_scale_the_steps_of_their_parameters():
    (model, x, y), (other, _, _) = plain(), plain()
    optimizer = optim.NoisyKFAC(model, "categorical", 100, kl_clip=None, lr=0.01)
    last = [{"params": other[3].parameters(), "lr": 0.001}]
    apart = optim.NoisyKFAC(other, "categorical", 100, kl_clip=None, lr=0.01, groups=last)
    before = copy.deepcopy(model)
    for each, net in ((optimizer, model), (apart, other)):
        trained(each, net, x, y, 1)
    steps = [p - q for p, q in zip(model.parameters(), before.parameters(), strict=True)]
    slower = [p - q for p, q in zip(other.parameters(), before.parameters(), strict=True)]
    for i, (a, b) in enumerate(zip(steps, slower, strict=True)):
        torch.testing.assert_close(b, a if i < 4 else 0.1 * a)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step)
    trained(optimizer, model, x, y, 1)
    scheduler.step()
    now = copy.deepcopy(model)
    trained(optimizer, model, x, y, 1)
    for p, q in zip(model.parameters(), now.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_group_of_means_and_point_estimates_has_its_own_rate():
    """Also if its rate is the largest of one of both."""
    (model, x, y), (other, _, _) = plain(), plain()
    before = copy.deepcopy(model)
    mixed = [{"params": [*other[1].parameters(), *other[3].parameters()], "lr": 0.001}]
    optimizer = optim.NoisyKFAC(model, "categorical", 100, kl_clip=None, lr=0.01, points_lr=0.001)
    apart = optim.NoisyKFAC(other, "categorical", 100, kl_clip=None, lr=0.01, groups=mixed)
    for each, net in ((optimizer, model), (apart, other)):
        trained(each, net, x, y, 1)
    for i, factor in ((0, 1.0), (1, 1.0), (3, 0.1)):
        torch.testing.assert_close(other[i].weight - before[i].weight, factor * (model[i].weight - before[i].weight))


def test_a_given_number_of_steps_follows_the_schedules_of_the_posterior():
    model, x, y = plain()
    net = Net(model, trained=True)
    optimizer = optim.VOGN(model, "categorical", 100, steps=4, warm_start=0.5, lr_decay_at=0.5, **LR)
    trained(optimizer, model, x, y, 4)
    close(optimizer.posterior_state, updates(optimizer, net, x, y, 4, 4))


@pytest.mark.parametrize("cls", [optim.VOGN, optim.NoisyKFAC])
def test_scaled_losses_give_the_same_step_and_clipped_gradients_a_smaller_one(cls):
    settings = {"prior_variance": 1e6, "momentum": 0.0} | LR
    steps = []
    for scale, clip in ((None, None), (1024.0, None), (None, 0.5)):
        model, x, y = plain()
        before = copy.deepcopy(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0)
        optimizer = cls(model, "categorical", 100, scaler=scaler if scale else None, fisher="empirical", **settings)
        with optimizer.sampled():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clip:
            torch._foreach_mul_([p.grad for p in model.parameters()], clip)
        scaler.step(optimizer)
        steps.append(model[0].weight - before[0].weight)
    torch.testing.assert_close(steps[1], steps[0])
    torch.testing.assert_close(steps[2], 0.5 * steps[0], rtol=1e-4, atol=1e-9)


def test_learnt_noise_needs_the_loss_with_it():
    model, x, _ = plain()
    y = x[:, :3]
    net, optimizer = Net(model, trained=True), optim.NoisyKFAC(model, "gaussian", 100, **LR)
    with optimizer.sampled():
        loss = F.mse_loss(model(x), y)
    loss.backward()
    with pytest.raises(
        InputError, match=r"Gaussian learns its noise from targets; compute the loss by optimizer\.loss"
    ):
        optimizer.step()
    optimizer.zero_grad()
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.sampled():
            loss = optimizer.loss(model(x), y)
        loss.backward()
        optimizer.step()
    close(optimizer.posterior_state.common, updates(optimizer, net, x, y, 2).common)


def test_passes_in_training_mode_and_closures():
    (model, x, y), (other, _, _) = plain(), plain()
    by_hand = trained(optim.VOGN(model, "categorical", 100, **LR), model, x, y, 2)
    optimizer = optim.VOGN(other, "categorical", 100, every_pass=True, **LR)

    losses: list[torch.Tensor] = []

    def closure():
        loss = F.cross_entropy(other(x), y)
        optimizer.zero_grad()  # some trainers do so between the two passes
        loss.backward()
        losses.append(loss)
        return loss

    for _ in range(2):
        assert optimizer.step(closure) is losses[-1] and losses[-1] > 0
    close(optimizer.posterior_state, by_hand.posterior_state)
    with torch.no_grad():
        torch.testing.assert_close(other(x), model(x))
    net = optimizer.posterior.net
    assert len(optimizer.posterior.sample_modules(optimizer.posterior_state, 2, Rng(0, dtype=torch.float64))) == 2
    again = net.module(optimizer.posterior.at_mean(optimizer.posterior_state))
    torch.testing.assert_close(again.train()(x), model(x))  # copies have passes of their own
    assert not optimizer._records


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction": "none"}, "reduction"),
        ({"adaptive_damping": True}, "adaptive_damping of an optimizer must be False"),
        ({"likelihood": "heteroscedastic"}, "do not weigh the gradients of Heteroscedastic"),
    ],
)
def test_what_steps_cannot_do_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        optim.NoisyKFAC(plain()[0], **{"likelihood": "categorical", "n_data": 10} | settings)


def test_an_error_within_the_block_leaves_the_module_as_it_was():
    model, x, _ = plain()
    optimizer, expected = optim.NoisyKFAC(model, "categorical", 100), model(x)
    with pytest.raises(ZeroDivisionError), optimizer.sampled():
        raise ZeroDivisionError
    assert torch.equal(model(x), expected)


class Two(nn.Module):
    """A module of two inputs and a number that all examples share."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, a, b, scale=1.0, count=None):
        return {"logits": scale * self.one(a) + self.two(b) * (1 if count is None else count / count)}


def test_inputs_by_position_and_by_name_and_what_examples_share():
    _, x, y = plain()
    states = []
    for args, more in (
        ((x[:, :2], x[:, 2:]), {}),
        ((x[:, :2],), {"b": x[:, 2:], "scale": 1.0, "count": torch.tensor(12.0)}),
    ):
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            model = Two().double()
        optimizer = optim.VOGN(model, "categorical", 100, output="logits", **LR)
        for _ in range(2):
            optimizer.zero_grad()
            with optimizer.sampled():
                loss = F.cross_entropy(model(*args, **more)["logits"], y)
            loss.backward()
            optimizer.step()
        states.append(optimizer.posterior_state)
        assert len(optimizer.sample_modules(3)) == 3
    close(*states)


@pytest.mark.parametrize("cls", [optim.VOGN, optim.NoisyKFAC])
def test_a_step_frees_its_passes_without_the_garbage_collector(cls):
    model, x, y = problem()
    optimizer = cls(model, "categorical", len(x), **LR)
    gc.disable()
    try:
        with optimizer.sampled():
            loss = F.cross_entropy(model(x), y)
        record = optimizer._records[0]
        seen = [weakref.ref(record), *map(weakref.ref, record.calls.taps)]
        loss.backward()
        optimizer.step()
        del loss, record
        assert not [each() for each in seen if each() is not None]
    finally:
        gc.enable()


def test_a_step_takes_no_gradients_of_frozen_parameters():
    model, x, y = problem()
    model.conv.requires_grad_(False)
    optimizer = trained(optim.NoisyKFAC(model, "categorical", len(x), bayesian=["b"], **LR), model, x, y)
    assert not [key for key in optimizer._tensors() if key.startswith("conv.")]
    assert model.conv.weight.grad is None
