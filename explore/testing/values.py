"""Requirements on posteriors: values and pure functions, independent replicas, settings, and learning."""

from __future__ import annotations

import functools
import io
from typing import Any

import pytest
import torch
from torch import nn

from explore.core import tree
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference import predict
from explore.inference.updates.steps import settle
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.testing.oracles import Lone
from explore.testing.subject import (
    CONV,
    MLP,
    NORM,
    N,
    R,
    Subject,
    assert_close,
    assert_same_bits,
    data,
    finish,
    seeded,
    start,
    train,
)  # fmt: skip
from explore.testing.suite import Suite

POSTERIORS = Suite()
KNOWN_NOISE = Gaussian(noise_std=0.5)
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
POLICIES = {"mlp": None, "norm-frozen": "frozen", "norm-adam": "adam"}  # of batch normalisations, where there are some

# State ----------------------------------------------------------------------------------------


@POSTERIORS.check({f"{net}-{device}": (device, policy) for net, policy in POLICIES.items() for device in DEVICES})
def functions_are_pure(subject: Subject, case: tuple[str, str | None]) -> None:
    device, policy = case
    posterior = subject.build(**subject.with_norms(policy))
    batch = data(posterior.net, device=device)
    state, same, other = (start(posterior, N, R, seeded(seed, device)) for seed in (0, 0, 1))
    assert_same_bits(state, same, "`init` is called twice with the same numbers")
    one, another = (next(tree.leaves(posterior.sample(s, 2, seeded(2, device))))[1] for s in (state, other))
    assert not torch.equal(one, another), f"{subject.name}: the first weights do not depend on the generator"
    before, x, y = tree.save(state), batch.x.clone(), batch.y.clone()
    global_generator = torch.get_rng_state()

    new, info = posterior.update(state, batch, seeded(1, device))
    again, _ = posterior.update(state, batch, seeded(1, device))
    samples = posterior.sample(new, 5, seeded(2, device))
    numbers = []
    if subject.informative:
        gain, elbo = (of(state, batch, seeded(3, device)) for of in (posterior.gain, posterior.elbo))
        numbers = [gain, elbo, posterior.kl(new, state), posterior.kl_prior(new), posterior.divergence(new)]
    if subject.variational:
        drawn = posterior.sample_coordinates(new, 5, seeded(2, device))
        numbers += [posterior.log_prob(new, drawn), posterior.log_prob(new, (*drawn, *new.common.norms.values))]
        assert_same_bits(numbers[-1], numbers[-2], f"{subject.name}: normalisations count in `log_prob`")
    assert all(t.device == batch.x.device and len(t) == R and t.isfinite().all() for t in numbers)
    if getattr(posterior, "over_weights", False):
        posterior.solve(state, samples[: len(posterior.net.shapes)])
        predict.linearised(posterior, state, batch.x)

    assert_same_bits(new, again, "an update is made twice with the same numbers")
    assert_same_bits(samples, posterior.sample(again, 5, seeded(2, device)), "samples are drawn twice")
    assert_same_bits(tree.save(state), before, "a method changed its argument in place")
    assert torch.equal(batch.x, x) and torch.equal(batch.y, y), f"{subject.name} changes its batch in place"
    assert torch.equal(torch.get_rng_state(), global_generator), f"{subject.name} draws from torch's own generator"
    attached = [path for path, leaf in tree.leaves((new, info, samples)) if leaf.requires_grad]
    assert not attached, f"{subject.name}: {attached} require gradients; detach them"
    for name, value in info.items():
        assert value.shape == (R,) and value.isfinite().all(), f"{subject.name} logs {name}, not a finite [R]"
    assert int(new.common.step) == 1, f"{subject.name}: an update does not count its step; `advance` does"
    assert bool(new.common.alive.all())


@POSTERIORS.check({"mlp": MLP, "conv": CONV, "norm": NORM})
def three_replicas_equal_three_lone_runs(subject: Subject, net: Net) -> None:
    # Batched and lone kernels differ in the last bits, 1e-15 an operation, which 20 updates magnify.
    subject.require(net)
    posterior, batch = subject.build(net, batch_norm="adam"), data(net)
    rng = seeded()
    together = train(posterior, start(posterior, N, R, rng), batch, rng, 20)
    drawn = posterior.sample(together, 3, seeded(9))
    for r in range(R):
        rng = Lone(r, R, 0, dtype=torch.float64)
        lone_batch = Batch(batch.x[r : r + 1], batch.y[r : r + 1])
        alone = train(posterior, start(posterior, N, 1, rng), lone_batch, rng, 20)
        drawn_alone = posterior.sample(alone, 3, Lone(r, R, 9, dtype=torch.float64))
        # Cached factors may hold eigenvectors of equal eigenvalues, which are arbitrary; the samples show them right.
        states = zip(tree.leaves(together), tree.leaves(alone), strict=True)
        pairs = [pair for pair in states if pair[0][0].partition(".")[0] not in ("sampling", "step_factor")]
        for (path, a), (_, b) in [*pairs, *zip(tree.leaves(drawn), tree.leaves(drawn_alone), strict=True)]:
            why = f"{subject.name}: {path} of replica {r} is not what it is in a run of that replica alone"
            assert_close(a[r : r + 1] if a.dim() else a, b, why, rtol=1e-9)


@POSTERIORS.check()
def the_end_of_a_fit_changes_no_argument(subject: Subject) -> None:
    posterior, _, batch = subject.trained()
    state = train(posterior, start(posterior, N, R, seeded()), batch, seeded(1))
    before, x = tree.save(state), batch.x.clone()
    one, two = (finish(posterior, state, batch) for _ in range(2))
    assert_same_bits(one, two, f"{subject.name}: `finish` with the same numbers")
    assert_same_bits(tree.save(state), before, f"{subject.name}: `finish` changed its argument in place")
    assert torch.equal(batch.x, x), f"{subject.name}: `finish` changes the data in place"
    structure = [[path for path, _ in tree.leaves(s)] for s in (state, one)]
    assert structure[0] == structure[1], f"{subject.name}: `finish` gives a state of other parts, which is not restored"


@POSTERIORS.check(POLICIES)
def a_saved_state_continues_bit_for_bit(subject: Subject, policy: str | None) -> None:
    posterior, state, batch = subject.trained(**subject.with_norms(policy))
    file = io.BytesIO()
    torch.save(tree.save(state), file)
    file.seek(0)
    loaded = tree.restore(posterior.init(N, R, seeded(8)), torch.load(file, weights_only=True))
    one, two = (train(posterior, s, batch, seeded(4)) for s in (loaded, state))
    assert_same_bits(one, two, f"{subject.name} goes on otherwise after its state was saved and loaded")


# Failure ---------------------------------------------------------------------------------------------------


@functools.cache
def _healthy(subject: Subject) -> State:
    posterior, state, batch = subject.trained()
    return train(posterior, state, batch, seeded(4))


@POSTERIORS.check(
    {
        f"{part}-{value:g}": (part, value)
        for part, value in (("y", torch.nan), ("y", torch.inf), ("x", torch.nan), ("x", 1e200), ("y", 1e200))
    }
)
def a_failed_replica_is_frozen_and_touches_no_other(subject: Subject, fault: tuple[str, float]) -> None:
    part, value = fault
    posterior, state, batch = subject.trained()
    broken = Batch(batch.x.clone(), batch.y.clone())
    getattr(broken, part)[1, 0] = value
    hurt, healthy = train(posterior, state, broken, seeded(4)), _healthy(subject)
    dead = not hurt.common.alive[1]
    assert dead or value == 1e200, f"{subject.name}: {value} in {part} leaves a replica alive"  # which some survive
    assert hurt.common.alive.tolist() == [True, not dead, True], f"{subject.name}: a replica fails for another one"
    for (path, a), (_, b), (_, old) in zip(*map(tree.leaves, (hurt, healthy, state)), strict=True):
        if a.dim() and path != "common.alive":
            assert torch.equal(a[[0, 2]], b[[0, 2]]), f"{subject.name}: a failed replica changes {path} of others"
            is_frozen = torch.equal(a[1], old[1]) if dead else a[1].isfinite().all()
            assert is_frozen, f"{subject.name}: {path} of a failed replica is not as it was; `settle` keeps it"
    revived = bool(train(posterior, hurt, batch, seeded(5)).common.alive[1])
    assert revived == (not dead), f"{subject.name}: good data revive a dead replica"


@POSTERIORS.check()
def a_replica_has_failed_wherever_in_its_state_a_number_is_not_finite(subject: Subject) -> None:
    _, state, _ = subject.trained()
    floats = [path for path, leaf in tree.leaves(state) if leaf.dim() and leaf.is_floating_point()]
    assert floats, f"{subject.name}: its state has no numbers"
    for broken in floats:
        paths = iter([path for path, _ in tree.leaves(state)])

        def spoil(leaf: torch.Tensor, broken: str = broken, paths: Any = paths) -> torch.Tensor:
            if next(paths) != broken:
                return leaf
            leaf = leaf.clone()
            leaf[(1, *[-1] * (leaf.dim() - 1))] = torch.nan
            return leaf

        settled = settle(tree.map_tensors(spoil, state), state)
        assert settled.common.alive.tolist() == [True, False, True], broken
        assert all(leaf.isfinite().all() for _, leaf in tree.leaves(settled)), broken


@POSTERIORS.check()
def begins_at_the_weights_of_a_trained_module_or_says_why_not(subject: Subject) -> None:
    module = nn.Linear(2, 3)
    for p in module.parameters():
        nn.init.normal_(p, std=30.0)  # a start of one's own would be far off
    net = Net(module, trained=True)
    try:
        posterior = subject.build(net)
    except InputError as error:
        assert "leave trained=True out of Net" in str(error), f"{subject.name}: {error} does not name trained=True"
        return
    x, rng = data().x, seeded()
    state = start(posterior, 20, R, rng)
    out = net.output(posterior.sample(state, 400, seeded(9)), x)
    apart = (out.mean(1) - module.double()(x)).abs()
    assert (apart <= 5 * out.std(1, correction=0) / out.shape[1] ** 0.5 + 1e-9).all(), (
        f"{subject.name}: with Net(module, trained=True) its first state is not at the module's weights; begin at "
        "`net.initial`, or say in `only_anew` why that cannot be"
    )


# Learning --------------------------------------------------------------------------------------------------


def step_size(subject: Subject) -> dict[str, Any]:
    """A larger step, if there is such a setting."""
    return {"lr": 0.02} if subject.has("lr") else {}


@POSTERIORS.check({"Categorical": (Categorical(), 3), "Bernoulli": (Bernoulli(), 1), "Gaussian": (KNOWN_NOISE, 3)})
def fits_under_every_likelihood(subject: Subject, case: tuple[Any, int]) -> None:
    likelihood, outputs = case
    net = Net(mlp(2, [8], outputs))
    posterior, batch = subject.build(net, likelihood, **step_size(subject)), data()
    if likelihood is not KNOWN_NOISE:
        batch = Batch(batch.x, (batch.x[..., : outputs - 1 or 1] > 0).sum(2))
    rng = seeded()
    state = start(posterior, 1000, R, rng)  # as many as make the prior harmless

    def loss(state: State) -> torch.Tensor:
        layers, noise = posterior.joint_sample(state, 100, seeded(9))
        out = net.output(layers, batch.x)
        return -likelihood.log_prob(noise, out, batch.y.unsqueeze(1)).mean((1, 2))

    trained = finish(posterior, train(posterior, state, batch, rng, 60), batch)
    failed = (~trained.common.alive).nonzero().flatten().tolist()
    assert not failed, (
        f"{subject.name}: of replicas 0 to {R - 1} {failed} diverged within 60 updates with "
        f"{ {**subject.contract.lively, **step_size(subject)} }: a number of their state was not finite any more"
    )
    expect_fall(subject, loss(state), loss(trained), "60 updates")
    subject.expect_uncertain(posterior, trained, batch.x)


def expect_fall(subject: Subject, before: torch.Tensor, after: torch.Tensor, training: str) -> None:
    """Assert that a training lowers the loss [R] of every replica."""
    advice = (
        "it follows the gradient downwards: `likelihood.score` is the gradient of the log-likelihood, which has to rise"
        if (after > before).all()
        else "at progress 0, where all of this is done, it hardly learns; where it is only slow, "
        + subject.add("lively", "{...}, settings that make it faster")
    )
    assert (after < 0.9 * before).all(), (
        f"{subject.name}: {training} take the loss of three replicas from {_shown(before)} to {_shown(after)}; {advice}"
    )


def _shown(values: torch.Tensor) -> str:
    return ", ".join(f"{v:.3g}" for v in values.tolist())


@POSTERIORS.check()
def less_certain_where_no_data_were_seen(subject: Subject) -> None:
    net = Net(mlp(1, [20], 1))
    posterior = subject.build(net, Gaussian(noise_std=0.1), **step_size(subject))
    if posterior.certain:
        pytest.skip("nothing of it is uncertain")
    rng = seeded()
    x = (2 * rng.uniform(R, 20, 1) - 1).sort(1).values
    batch = Batch(x, (3 * x).sin())
    state = train(posterior, start(posterior, 20, R, rng), batch, rng, 300, ends=True)
    state = finish(posterior, state, batch)
    on, off = (
        predict.Predictor.sample(posterior, state, 200, seeded(1)).moments(points).variance.mean((1, 2))
        for points in (x, torch.cat([x - 4, x + 4], 1))
    )
    assert (off > 2 * on).all(), (
        f"{subject.name}: the variance of its predictions is {_shown(off)} far from the data and {_shown(on)} on them"
    )


@POSTERIORS.check()
def single_precision_survives_data_without_rank(subject: Subject) -> None:
    # One example at a time, with inputs that are equal, zero or constant: moments of next to no rank.
    settings = subject.contract.forgetful
    settings = subject.contract.lively if settings is None else settings
    posterior = subject.make(net=Net(mlp(4, [20], 2)), likelihood=Gaussian(), **settings)
    rng = Rng(0)
    x = 100 * rng.normal(R, N, 1)
    x, y = torch.cat([x, x, 0 * x, 0 * x + 1], 2), torch.cat([x.sin(), x / 100], 2)
    state = start(posterior, N, R, rng)
    for i in range(2 * N):
        example = slice(i % N, i % N + 1)
        state, _ = posterior.update(state, Batch(x[:, example], y[:, example]), rng)
    advice = "where nothing but the settings is wrong, " + subject.add("forgetful", "{...}, settings that survive it")
    assert state.common.alive.all(), f"{subject.name} fails in single precision on data of next to no rank; {advice}"
    wrong = [path for path, t in tree.leaves(state) if t.dim() and t.is_floating_point() and t.dtype != torch.float32]
    assert not wrong, f"{subject.name}: {wrong} of its state are not of the generator's precision"
    assert all(w.isfinite().all() for _, w in tree.leaves(posterior.sample(state, 100, rng)))
    if subject.informative:
        assert (posterior.kl_prior(state) > 0).all() and (posterior.gain(state, Batch(x, y), rng) > 0).all()
    if subject.variational:
        samples = posterior.sample_coordinates(state, 100, rng)
        # -E log q = H, as in double precision.
        error = posterior.log_prob(state, samples).mean(1) + posterior.entropy(state)
        assert error.abs().max() < 5 * deviation(subject, posterior, state, samples) / 10, (
            f"{subject.name}: in single precision `entropy` is not -E log q; {advice}"
        )


def deviation(subject: Subject, posterior: Any, state: State, samples: Any) -> float:
    """The standard deviation of log q: of d Gaussian coordinates it is sqrt(d / 2)."""
    if subject.gaussian:
        return (sum(i * o for i, o in posterior.coordinates) / 2) ** 0.5
    return float(posterior.log_prob(state, samples).std(1).max())
