"""Checks for posteriors: pure functions, saved states, replicas, training and settings."""

import contextlib
import dataclasses
import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explore import registry
from explore.core import tree
from explore.core.errors import InputError, check_range
from explore.core.rng import Rng
from explore.core.shapes import Batch, State
from explore.inference import predict
from explore.nets.likelihoods import Gaussian
from explore.nets.net import Net, mlp
from explore.testing import oracles
from explore.testing.subject import KINDS, MLP, NETS, PARTS, N, R, Subject, data, finish, outputs, seeded, start, train
from explore.testing.suite import Suite, assert_close, assert_same_bits

POSTERIORS = Suite()
CACHED = ("sampling", "step_factor")  # matrix factors, which are not unique (eigenvectors of equal eigenvalues)
VARIANTS = ("mlp", "norm-frozen", "norm-adam")  # a network, and batch-norm policy
KNOWN_NOISE = Gaussian(noise_std=0.5)
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@POSTERIORS.check(*(f"{variant}:{device}" for variant in VARIANTS for device in DEVICES))
def functions_are_pure(subject: Subject, case: str) -> None:
    variant, _, device = case.partition(":")
    posterior = subject.build(**subject.variant(variant))
    batch = data(posterior.net, device=device)
    state, reseeded = (start(posterior, N, R, seeded(seed, device)) for seed in (0, 1))
    weights = [next(tree.leaves(posterior.sample(s, 2, seeded(2, device))))[1] for s in (state, reseeded)]
    assert not (posterior.of_weights and torch.equal(*weights)), "the first weights do not depend on the generator"

    def called(name: str, function: Callable[[Rng], Any]) -> Any:
        """Call a function twice and return its result; assert equal results and unchanged arguments."""
        before, torch_generator = tree.save((state, batch, new)), torch.get_rng_state()
        one, two = (function(seeded(3, device)) for _ in range(2))
        assert_same_bits(one, two, f"two equal calls of `{name}` must return the same")
        assert_same_bits(tree.save((state, batch, new)), before, f"`{name}` changed its argument in place")
        assert torch.equal(torch.get_rng_state(), torch_generator), f"`{name}` draws from torch's own generator"
        attached = [path for path, leaf in tree.leaves(one) if leaf.requires_grad]
        assert not attached, f"{attached} of `{name}` require gradients; detach them"
        return one

    new = None
    called("init", lambda rng: posterior.init(N, R, rng))
    new, info = called("update", lambda rng: posterior.update(state, batch, rng))
    assert int(new.common.step) == 1, "an update must count its step, as `advance` does"
    assert bool(new.common.alive.all()), "a replica fails in the first update"
    called("sample", lambda rng: posterior.sample(new, 5, rng))
    end = called("finish", lambda rng: finish(posterior, new, batch))
    paths = [[path for path, _ in tree.leaves(s)] for s in (new, end)]
    assert paths[0] == paths[1], "`finish` must return a state with the same parts"
    numbers = dict(info)
    if subject.informative:
        numbers["gain"] = called("gain", lambda rng: posterior.gain(state, batch, rng))
        numbers["divergence"] = called("divergence", lambda rng: posterior.divergence(new))
    if subject.variational:
        called("sample_coordinates", lambda rng: posterior.sample_coordinates(new, 5, rng))
    for name, value in numbers.items():
        assert value.shape[:1] == (R,) and value.isfinite().all(), f"`{name}` must be finite, with [R] first"
        assert name not in info or value.shape == (R,), f"{subject.name} logs {name}, which must have shape [R]"
        assert value.device == batch.x.device, f"`{name}` is not on the device of the batch"


@POSTERIORS.check(*VARIANTS)
def a_saved_state_continues_bit_for_bit(subject: Subject, variant: str) -> None:
    posterior, state, batch = subject.trained(**subject.variant(variant))
    file = io.BytesIO()
    torch.save(tree.save(state), file)
    file.seek(0)
    loaded = tree.restore(posterior.init(N, R, seeded(8)), torch.load(file, weights_only=True))
    one, two = (train(posterior, s, batch, seeded(4)) for s in (loaded, state))
    assert_same_bits(one, two, "continues differently after its state was saved and loaded")


@POSTERIORS.check("mlp", "norm-adam")
def three_replicas_equal_lone_runs(subject: Subject, net: str) -> None:
    # Kernels round differently with and without a batch, by 1e-15 per operation, which 12 updates amplify.
    posterior = subject.build(**subject.variant(net))
    batch = data(posterior.net)
    together = _run(posterior, batch, R, Rng)
    for r in (0, R - 1):
        part = slice(r, r + 1)
        alone = _run(posterior, tree.part(batch, part), 1, functools.partial(oracles.Lone, r, R))
        expect_equal_states(tree.part(together, part), alone, f"replica {r} differs from a run of this replica alone:")


def _run(posterior: Any, batch: Batch, replicas: int, kind: Callable[..., Rng]) -> tuple[State, Any]:
    """Return the state after 12 updates with increasing progress, and samples; `kind` makes the random streams."""
    rng = seeded(kind=kind)
    state = start(posterior, N, replicas, rng)
    for i in range(12):
        state, _ = posterior.update(state, batch, rng, i / 12)
    return state, posterior.sample(state, 3, seeded(9, kind=kind))


def expect_equal_states(actual: tuple[State, Any], expected: tuple[State, Any], why: str) -> None:
    """Assert that two pairs (state, samples) agree. Cached matrix factors are compared through the samples only."""
    for (path, a), (_, b) in zip(*map(tree.leaves, (actual[0], expected[0])), strict=True):
        if path.partition(".")[0] not in CACHED:
            assert_close(a, b, f"{why} {path}", rtol=1e-9)
    assert_close(actual[1], expected[1], f"{why} samples", rtol=1e-9)


@POSTERIORS.check("y:nan", "y:inf", "x:nan", "x:1e200", "y:1e200")
def a_failed_replica_is_frozen_and_touches_no_other(subject: Subject, fault: str) -> None:
    part, _, value = fault.partition(":")
    posterior, state, batch = subject.trained()
    broken = Batch(batch.x.clone(), batch.y.clone())
    getattr(broken, part)[1, 0] = float(value)
    hurt, healthy = (train(posterior, state, b, seeded(4)) for b in (broken, batch))
    dead = not hurt.common.alive[1]
    advice = "end `update` with `end_update`, or with `settle(new, state, new.common.alive)`"
    assert dead or value == "1e200", f"{value} in {part} leaves a replica alive; {advice}"  # some survive 1e200
    assert hurt.common.alive.tolist() == [True, not dead, True], "a failed replica must not affect others"
    for (path, a), (_, b), (_, old) in zip(*map(tree.leaves, (hurt, healthy, state)), strict=True):
        if a.dim() and path != "common.alive":
            assert torch.equal(a[[0, 2]], b[[0, 2]]), f"a failed replica changes {path} of others"
            is_frozen = torch.equal(a[1], old[1]) if dead else a[1].isfinite().all()
            assert is_frozen, f"{path} of a failed replica must not change; see `settle`"
    revived = bool(train(posterior, hurt, batch, seeded(5)).common.alive[1])
    assert revived == (not dead), "good data revive a dead replica"


@POSTERIORS.check()
def single_precision_survives_data_without_rank(subject: Subject) -> None:
    # One example at a time, with inputs that are equal, zero or constant: moment matrices of very low rank.
    forgetful = subject.contract.forgetful
    settings = subject.contract.lively if forgetful is None else forgetful
    posterior = subject.make(net=MLP, likelihood=Gaussian(), **settings)
    rng, advice = Rng(0), "if only the settings are wrong, " + subject.add("forgetful", "{...} that survive it")
    x = 100 * rng.normal(R, N, 1)
    pairs = [(x[0], x[0]), (x[1], 0 * x[1]), (0 * x[2] + 1, x[2])]
    x, y = torch.stack([torch.cat(pair, 1) for pair in pairs]), torch.cat([x.sin(), x / 100, x.cos()], 2)
    state = start(posterior, N, R, rng)
    for i in range(2 if posterior.whole else 2 * N):
        example = slice(None) if posterior.whole else slice(i % N, i % N + 1)
        state, _ = posterior.update(state, Batch(x[:, example], y[:, example]), rng)
    assert state.common.alive.all(), f"{subject.name} fails in single precision on data of very low rank; {advice}"
    single = [(path, t) for path, t in tree.leaves(state) if path not in posterior.double]
    wrong = [path for path, t in single if t.dim() and t.is_floating_point() and t.dtype != torch.float32]
    assert not wrong, f"{wrong} of its state must have the generator's precision"
    assert all(w.isfinite().all() for _, w in tree.leaves(posterior.sample(state, 100, rng)))
    if subject.informative:
        assert (posterior.kl_prior(state) > 0).all() and (posterior.gain(state, Batch(x, y), rng) > 0).all()
    if subject.gaussian:
        expect_distances(posterior, state, 100, rng, f"in single precision ({advice})")


def expect_distances(posterior: Any, state: State, samples: int, rng: Rng, where: str) -> None:
    """Assert that samples of a Gaussian density are as far from its mean as it says; `where` is for the message.

    In standard deviations, squared distances have mean d and variance 2 d for d coordinates.
    """
    mean, covariance = oracles.implied_gaussian(posterior, state)
    change, d = oracles.flat(posterior.sample_coordinates(state, samples, rng)) - mean.unsqueeze(1), posterior.dimension
    squares = (torch.linalg.solve(covariance, change.mT).mT * change).sum(2)
    assert (squares.mean(1) - d).abs().max() < 5 * (2 * d / samples) ** 0.5, (
        f"samples are wider or narrower than the density {where}"
    )


@POSTERIORS.check()
def begins_at_the_weights_of_a_trained_module_or_says_why_not(subject: Subject) -> None:
    module = nn.Linear(2, 3)
    for p in module.parameters():
        nn.init.normal_(p, std=30.0)  # far from usual initial weights
    net = Net(module, trained=True)
    try:
        posterior = subject.build(net)
    except InputError as error:
        assert "leave trained=True out of Net" in str(error), f"{error} does not name trained=True"
        return
    x, rng = data().x, seeded()
    state = start(posterior, 20, R, rng)
    out = net.output(posterior.sample(state, 400, seeded(9)), x)
    apart = (out.mean(1) - module.double()(x)).abs()
    assert (apart <= 5 * out.std(1, correction=0) / out.shape[1] ** 0.5 + 1e-9).all(), (
        "with Net(module, trained=True) its first state must be at the module's weights: start from `net.initial`, or "
        "explain in `pretrained_error` why this is impossible"
    )


def step_size(subject: Subject, lr: float = 0.02) -> dict[str, Any]:
    """Return {"lr": lr} if the posterior has the setting `lr`, else {}."""
    return {"lr": lr} if subject.has("lr") else {}


def loss(posterior: Any, state: State, batch: Batch) -> Tensor:
    """Return the loss [R], averaged over weight samples, in evaluation mode: squared error or cross-entropy (nats)."""
    joint = posterior.joint_sample if posterior.of_weights else posterior.functions
    *net, layers, noise = joint(state, 30, seeded(9))
    out = (net or [posterior.net])[0].output(layers, batch.x)
    if not posterior.likelihood.discrete:
        return (posterior.likelihood.mean(out) - batch.y.unsqueeze(1)).square().mean((1, 2, 3))
    return -posterior.likelihood.log_prob(noise, out, batch.y.unsqueeze(1)).mean((1, 2))


@POSTERIORS.check("Categorical", "Bernoulli", "Heteroscedastic", "Gaussian", "norm-frozen", "norm-adam")
def training_lowers_the_loss(subject: Subject, case: str) -> None:
    settings: dict[str, Any] = {"likelihood": KINDS.get(case)}
    if case.startswith("norm"):
        settings |= subject.variant(case)
    elif case != "Gaussian":
        settings["net"] = Net(mlp(2, [8], {"Bernoulli": 1, "Heteroscedastic": 6}.get(case, 3)))
    if _refuses(subject, case, settings):
        return
    steps = step_size(subject, 0.03)
    posterior = subject.build(**settings, **steps)
    batch, rng = data(posterior.net), seeded()
    if posterior.likelihood.discrete:
        batch = Batch(batch.x, (batch.x[..., : posterior.net.outputs - 1 or 1] > 0).sum(2))
    # Large n_data, so that the prior of weights matters little.
    before = start(posterior, 1000 if posterior.of_weights else N, R, rng)
    state = finish(posterior, train(posterior, before, batch, rng, 40), batch)
    failed = (~state.common.alive).nonzero().flatten().tolist()
    assert not failed, (
        f"of replicas 0 to {R - 1} {failed} diverged within 40 updates with "
        f"{ {**subject.contract.lively, **steps} }: their state is not finite"
    )
    training = f"40 updates ({', '.join([case, *(f'lr={lr}, set by this check' for lr in steps.values())])})"
    one, two = (loss(posterior, s, batch) for s in (before, state))
    assert (two < 0.9 * one).all(), (
        f"{training} change the loss of three replicas from {one.tolist()} to {two.tolist()}; it must follow the "
        "gradient of the log-likelihood upwards; if steps are only too large or too small, "
        + subject.add("lively", "{...} with other ones")
    )
    subject.expect_uncertain(posterior, outputs(posterior, state, 8, batch.x))
    if case.startswith("norm"):
        _expect_normalised(posterior, before, state)
    elif case == "Gaussian" and not posterior.certain:
        variance = predict.Predictor.sample(posterior, state, 200, seeded(1)).moments
        near, far = (variance(x).variance.mean((1, 2)) for x in (batch.x, 4 * batch.x))
        both = f"{far.tolist()} far from the data and {near.tolist()} on them"
        assert (far > 2 * near).all(), f"the variance of its predictions is {both}"


def _refuses(subject: Subject, case: str, settings: dict[str, Any]) -> bool:
    """Return whether it refuses this case, a likelihood; assert that `CONTRACT` and the error message say so."""
    is_declared, refused = case in subject.contract.refuses, ""
    try:
        subject.build(**settings)
    except InputError as error:
        refused = str(error)
    advice = subject.add("refuses", f'("{case}",)')
    assert is_declared or not refused, f"{subject.name} refuses {case} ({refused}); if that is intended, {advice}"
    assert refused or not is_declared, (
        f'{subject.name} accepts {case}: raise InputError in `__post_init__`, or drop it from "refuses" in CONTRACT'
    )
    assert case in refused or not refused, f"the message {refused!r} of {subject.name} must name {case}"
    return is_declared


def _expect_normalised(posterior: Any, before: State, state: State) -> None:
    """Assert that batch-norm statistics changed, and that scale and shift changed only with batch_norm="adam"."""
    for norm, old, new in zip(posterior.net.norms, before.common.norms.values, state.common.norms.values, strict=True):
        assert (old[..., 2:, :] != new[..., 2:, :]).all(), "running statistics do not move; see `advance`"
        is_trained = posterior.batch_norm == "adam" and norm.affine
        assert torch.equal(old[..., :2, :], new[..., :2, :]) != is_trained, (
            f"scale and shift {'do not move' if is_trained else 'move'} with batch_norm={posterior.batch_norm}"
        )


@POSTERIORS.check(of=lambda subject: subject.has("lr"))
def scale_and_shift_follow_their_own_gradient(subject: Subject) -> None:
    # The weights cannot move here, so only scale and shift can lower the loss. All outputs have the same noise.
    variant = subject.variant("norm-adam")
    posterior = subject.build(**variant, likelihood=Gaussian(noise_std=1.0), lr=1e-12, batch_norm_lr=0.08)
    batch = data(posterior.net)
    before = start(posterior, 1e6, R, seeded())
    after = train(posterior, before, batch, seeded(1), 24)
    ends = (finish(posterior, state, batch) for state in (before, after))
    layers = (posterior.sample(state, 20, seeded(9)) for state in ends)
    errors = (posterior.net.train_output(each, batch.x)[0] - batch.y.unsqueeze(1) for each in layers)
    one, two = (error.square().mean((1, 2, 3)) for error in errors)
    assert (two < 0.97 * one).all(), "scale and shift do not lower the loss; see `advance`"


@POSTERIORS.check()
def settings_are_checked(subject: Subject) -> None:
    subject.build()
    for preset in registry.presets(subject.cls):
        subject.build(**registry.settings_in(subject.cls, preset))
    fields = dataclasses.fields(subject.cls)
    unknown = sorted(vars(subject.cls).get("ranges", {}).keys() - {field.name for field in fields})
    assert not unknown, f"`ranges` of {subject.cls.__name__} contains {unknown[0]}, which is not one of its settings"
    ranges = {k: v for cls in reversed(subject.cls.__mro__) for k, v in getattr(cls, "ranges", {}).items()}
    for field in fields:
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            for wrong in (-1, float("nan")) if isinstance(field.default, float) else (-1,):
                with contextlib.suppress(InputError):
                    check_range(field.name, wrong, ranges.get(field.name, "(0, inf)"))
                    continue
                with pytest.raises(InputError) as error:
                    subject.build(**dict[str, Any]({field.name: wrong}))
                    pytest.fail(f"{subject.name} accepts {field.name}={wrong}; call super().__post_init__()")
                assert field.name in str(error.value), f"{error.value!r} does not name {field.name}"


@POSTERIORS.check(*PARTS)
def parts_of_nets_are_taken_or_refused_as_declared(subject: Subject, part: str) -> None:
    net, is_declared = NETS[PARTS[part]], part in subject.contract.refuses
    subject.build()
    try:
        posterior = subject.build(net)
        train(posterior, start(posterior, N, R, seeded()), data(net), seeded(), 1)
    except InputError:
        advice = subject.add("refuses", f'("{part}",)')
        assert is_declared, f"{subject.name} refuses a network with {part}; if that is intended, {advice}"
    else:
        assert not is_declared, f'{subject.name} accepts {part}: drop them from "refuses" in CONTRACT'
