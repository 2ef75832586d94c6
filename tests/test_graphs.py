"""Updates that are recorded and replayed; on the CPU a `Tape` stands for a CUDA graph."""

import warnings
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from explore import registry
from explore.core import tree
from explore.core.context import Turn, executing, execution, numbers
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.execution import graphs
from explore.execution.graphs import AHEAD, Updates
from explore.learning.fit import fit
from explore.nets.likelihoods import Bernoulli, Categorical, Gaussian
from explore.nets.net import Net, mlp
from explore.posteriors.noisy_kfac import NoisyKFAC
from explore.posteriors.vogn import VOGN
from explore.vime.bonuses.kl import KL
from explore.vime.dynamics import DynamicsSettings, Replay
from tests.tape import Tape

NET = Net(mlp(3, [5], 1))


def made(**settings):
    return registry.posterior("noisy-kfac", NET, Gaussian(), **{"epochs": 3, "batch_size": 8} | settings)


def some(n=8, seed=0):
    rng = Rng(seed, dtype=torch.float64)
    return Batch(rng.normal(2, n, 3), rng.normal(2, n, 1))


def fitted(posterior, monkeypatch, recordable):
    """A fit of 45 examples, whose batches are of two sizes; and its updates."""
    rng, every = Rng(3, dtype=torch.float64), []

    def updates(posterior, rng):
        every.append(Updates(posterior, rng, Tape(rng)))
        every[-1].recordable = recordable
        return every[-1]

    monkeypatch.setattr(graphs, "updates", updates)
    data = some(45)
    return list(fit(posterior, data.x, data.y, rng)), every[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"statistics_interval": 2, "factor_interval": 3, "lr_schedule": "linear"},
        {"warm_start": 0.5, "adaptive_damping": False, "decay": 0.5},
    ],
)
def test_fit_has_the_same_epochs_with_replays(settings, monkeypatch):
    posterior = made(epochs=8, **settings)
    ours, recorded = fitted(posterior, monkeypatch, recordable=True)
    theirs, alone = fitted(posterior, monkeypatch, recordable=False)
    assert recorded.replays > 15 and not alone.replays
    # All at the end: an epoch's state is not written by the replays after it.
    for a, b in zip(ours, theirs, strict=True):
        mine, other = dict(tree.leaves((a.state, a.info))), dict(tree.leaves((b.state, b.info)))
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[path], other[path]) for path in mine)


def one_after_another(posterior, recorder, batches, around=lambda i: nullcontext()):
    """The state by path after an update on each batch, what is drawn next, and the updates."""
    rng = Rng(0, dtype=torch.float64)
    updates = Updates(posterior, rng, recorder and recorder(rng))
    state = posterior.init(40, 2, rng)
    for i, batch in enumerate(batches):
        with around(i):
            state, _ = updates(state, batch, 0.0)
    return dict(tree.leaves(state)), rng.normal(3), updates


def test_what_cannot_be_recorded_runs_one_by_one_and_says_so():
    class Failing(Tape):
        def record(self, run, place):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    def around(i):
        message = "one by one: operation not permitted when stream is capturing$"
        return pytest.warns(UserWarning, match=message) if i == AHEAD else nullcontext()

    batches = [some(seed=i) for i in range(6)]
    ours, after, updates = one_after_another(made(), Failing, batches, around)
    theirs, drawn, _ = one_after_another(made(), None, batches)
    assert not updates.replays
    assert torch.equal(after, drawn)
    assert all(torch.allclose(ours[path], theirs[path], rtol=1e-9) for path in ours)


def test_replay_that_differs_is_not_used():
    """What an update reads as a number of the host stays what it was when it was recorded."""

    class Reading(NoisyKFAC):
        def update(self, state, batch, rng, progress=0.0):
            new, info = super().update(state, batch, rng, progress)
            return new, info | {"of a read": torch.full((2,), float(new.mean[0].sum()))}

    posterior = Reading(net=NET, likelihood=Gaussian())
    rng = Rng(0, dtype=torch.float64)
    updates, state = Updates(posterior, rng, Tape(rng)), posterior.init(40, 2, rng)
    with pytest.warns(UserWarning, match="a replay differs from the update"):
        for i in range(6):
            state, info = updates(state, some(seed=i), 0.0)
    assert info["of a read"][0] == float(state.mean[0].sum())


@pytest.mark.parametrize("n_eff", [50.0, "replay"])
def test_a_dynamics_model_learns_the_same_by_replays(n_eff, monkeypatch):
    """In several trainings, each with random numbers of its own, and N that may grow."""
    ends = []
    for recordable in (True, False):
        every: list[Updates] = []

        def updates(posterior, rng, recordable=recordable, every=every):
            every.append(Updates(posterior, rng, Tape(rng)))
            every[-1].recordable = recordable
            return every[-1]

        monkeypatch.setattr(graphs, "updates", updates)
        root, replay = Rng(0, dtype=torch.float64), Replay(100, 5, 3)
        settings = DynamicsSettings(posterior="noisy-kfac", n_eff=n_eff, updates=9, minimum=10, hidden=(4,))
        model = KL(settings, 5, 3, root.stream("init"))
        states = []
        for i in range(3):
            data = Rng(i, dtype=torch.float64)
            replay.add(data.normal(20, 5).float(), data.normal(20, 3).float())
            model.train(replay, root.stream("fit", i))
            states.append(dict(tree.leaves(model.state)))
        ends.append(states)
        assert len(every) == 1 and (every[0].replays >= 15) == recordable
    for ours, theirs in zip(*ends, strict=True):
        assert all(torch.equal(ours[path], theirs[path]) for path in ours)


@pytest.mark.parametrize(
    ("posterior", "settings", "steps"),
    [
        ("noisy-kfac", {}, {1, 2, 3, 4, 5, 6}),
        ("noisy-kfac", {"damping": "exact"}, {1, 2, 4, 5}),
        ("noisy-kfac", {"damping": "exact", "adaptive_damping": True}, {2, 5}),
        ("block-tridiagonal", {}, {1, 2, 4, 5}),
        ("noisy-ekfac", {"basis_interval": 2}, {1, 3, 5}),
        ("slang", {}, set()),
    ],
)
def test_what_waits_for_a_decomposition_is_not_recorded(posterior, settings, steps):
    own = {} if posterior == "slang" else {"factor_interval": 3, "adaptive_damping": False}
    made = registry.posterior(posterior, NET, Gaussian(), preset="plain", **own | settings)
    assert {step for step in range(1, 7) if made.turn(step, 0.1).kind is not None} == steps


def test_numbers_of_a_turn_are_plain_but_where_they_are_read_from():
    turn = Turn((), (0.5, 2.0))
    assert numbers(turn) == (0.5, 2.0)
    with executing(dials=torch.tensor([1.0, 3.0, 7.0])):
        assert [float(n) for n in numbers(turn)] == [1.0, 3.0]
    assert numbers(turn) == (0.5, 2.0)


def test_on_a_cpu_nothing_is_recorded():
    with graphs.use(True):
        assert graphs.updates(made(), Rng(0)).recorder is None and execution().record
    assert execution().record is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_cuda_graphs_have_the_numbers_of_updates_one_by_one():
    posterior, ends = made(epochs=8), []
    data = some(45)
    for asked in (True, False):
        rng = Rng(3, "cuda", torch.float64)
        with graphs.use(asked):
            ends.append(list(fit(posterior, data.x.cuda(), data.y.cuda(), rng))[-1].state)
    for (_, a), (_, b) in zip(*map(tree.leaves, ends), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", ["noisy-kfac", "noisy-ekfac", "vogn", "bbb", "mc-dropout", "map"])
def test_cuda_graphs_of_convolutions_with_batch_normalisation(name):
    cls = registry.find("posteriors", name)
    settings = registry.settings_in(cls, "image") if "image" in registry.presets(cls) else {"batch_size": 16}
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.Flatten(),
        nn.Linear(392, 4),
    )  # fmt: skip
    settings |= {"epochs": 8, "batch_norm": "adam"}
    posterior = registry.posterior(name, Net(module), Categorical(), **settings)
    rng = Rng(0, "cuda", torch.float64)
    x, y, ends = rng.normal(1, 200, 3, 16, 16), (4 * rng.uniform(1, 200)).long(), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of updates that cannot be recorded
        for asked in (True, False):
            with graphs.use(asked):
                ends.append(list(fit(posterior, x, y, Rng(3, "cuda", torch.float64)))[-1].state)
    for (_, a), (_, b) in zip(*map(tree.leaves, ends), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_replay_is_the_update_but_for_rounding():
    x = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0))
    for other, same in ((x + 1e-6, True), (x * (1 + 1e-5) + 1e-5, True), (x * 1.01, False), (x * torch.nan, False)):
        assert graphs._same((x,), (other,)) == same
    assert graphs._same((x * torch.nan,), (x * torch.nan,))
    assert not graphs._same((torch.tensor([1e4, 1.0]),), (torch.tensor([1e4, 1.9]),))


def test_a_replay_is_the_update_of_each_replica():
    x = torch.randn(2, 50, 50, generator=torch.Generator().manual_seed(0))
    x[1] *= 1e-5
    assert graphs._same((x,), (x + 1e-5 * x.abs().amax((1, 2), keepdim=True),))
    assert not graphs._same((x,), (torch.stack([x[0], x[1].T]),))


@pytest.mark.parametrize("fails", ["clone", "second record"])
def test_where_memory_does_not_suffice_for_recordings_they_are_let_go(fails, monkeypatch):
    class Full(Tape):
        recorded = 0

        def record(self, run, place):
            self.recorded += 1
            if fails == "second record" and self.recorded == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().record(run, place)

    def clone(t):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    larger = 7  # from here on batches are; of the same kind are updates 7, 10 and 11
    when = 11 if fails == "second record" else AHEAD

    @contextmanager
    def around(i):
        if i != when:
            yield
            return
        with pytest.warns(UserWarning, match="run one by one: CUDA out of memory.$"), monkeypatch.context() as patch:
            if fails == "clone":
                patch.setattr(torch, "clone", clone)
            yield

    batches = [some(7 if i < larger else 8, seed=i) for i in range(14)]
    ours, after, updates = one_after_another(made(), Full, batches, around)
    theirs, drawn, _ = one_after_another(made(), None, batches)
    assert not updates.recordable and not updates._graphs and updates._place is None
    assert updates.copied(ours) is ours
    assert bool(updates.replays) == (fails == "second record")
    assert torch.equal(after, drawn)
    assert all(torch.allclose(ours[path], theirs[path], rtol=1e-9) for path in ours)


def expect_equal_replays(posterior, y, progress):
    """Updates on one batch have the same end with and without recordings, which is returned with the replays."""
    ends, batch = [], Batch(some().x, y)
    for recorder in (None, Tape):
        rng = Rng(0, dtype=torch.float64)
        updates, state = Updates(posterior, rng, recorder and recorder(rng)), posterior.init(40, 2, rng)
        for done in progress:
            state, _ = updates(state, batch, done)
        ends.append(state)
    assert updates.recordable
    for (path, mine), (_, other) in zip(*map(tree.leaves, ends), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12, msg=path)
    return state, updates.replays


STEADY = [i / 12 for i in range(12)]


@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1)])
def test_updates_on_classes_are_recorded(likelihood, outputs):
    posterior = NoisyKFAC(net=Net(mlp(3, [5], outputs)), likelihood=likelihood, samples=2, batch_size=8)
    y = torch.arange(16).view(2, 8) % max(2, outputs)
    assert expect_equal_replays(posterior, y, STEADY)[1] == len(STEADY) - AHEAD


@pytest.mark.parametrize("progress", [STEADY, [0.0, 0.0, *[0.9] * 7]], ids=["steady", "at once"])
def test_what_rises_with_the_progress_does_so_in_a_recording(progress):
    posterior = VOGN(net=NET, likelihood=Gaussian(), samples=2, kl_start=0.2, kl_warmup=0.45)
    end, replays = expect_equal_replays(posterior, some().y, progress)
    assert replays >= 5 and set(end.tempering.tolist()) == {posterior.kl_weight}


def test_updates_with_an_extrinsic_damping_are_recorded():
    """It is there from the start, of every replica."""
    posterior = made(extrinsic_damping=1e-3, adaptive_damping=False)
    assert expect_equal_replays(posterior, some().y, STEADY)[1] >= 4


def test_that_nothing_can_be_recorded_is_said_where_it_was_asked_for(monkeypatch, recwarn):
    posterior, on_a_gpu = registry.posterior("slang", NET, Gaussian()), SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(graphs, "Updates", lambda posterior, rng, recorder: recorder)
    updates: Any = graphs.updates
    with graphs.use(True), pytest.warns(UserWarning, match="no update of SLANG with these settings can be recorded"):
        assert updates(posterior, on_a_gpu) is None
    assert updates(posterior, on_a_gpu) is None and not recwarn.list
