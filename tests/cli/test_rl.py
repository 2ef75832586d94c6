"""`explore rl` from start to end, interrupted and continued, and its GIF."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from joblib.externals.loky import get_reusable_executor
from PIL import Image
from sb3_contrib import TRPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from explore import registry
from explore.cli import rl
from explore.cli.report import session
from explore.cli.rl import report as rl_report
from explore.cli.rl.settings import Settings, resolve
from explore.cli.rl.training import Training
from explore.posteriors.noisy_kfac import NoisyKFAC
from explore.runs import record
from explore.runs.recorded import read, run_id
from explore.vime import DynamicsSettings, RewardSettings, Transitions

RUN = Path("runs/rl-explore-Chain-v0-trpo-last-layer")
CHAIN = ["--env", "explore/Chain-v0", "--env-kwargs", "length:5", "--n-envs", "4"]
LEARN = ["-p", "vime.minimum=60"]
TINY = [*CHAIN, "--algo-param", "n_steps=16", "--timesteps", "192"]  # three iterations of 64 steps
PENDULUM = [
    "--env", "Pendulum-v1", "--algo", "sac", "--timesteps", "64", "--posterior", "bbb", "-p", "vime.interval=32",
    "-p", "vime.minimum=20", "-p", "vime.updates=5", "--algo-param", "learning_starts=50",
    "--algo-param", "batch_size=8", "--algo-param", "net_arch=8",
]  # fmt: skip


@pytest.fixture
def train(explore):
    """Runs `explore rl` with these arguments, which succeeds."""

    def succeed(*arguments):
        result = explore("rl", *arguments)
        assert result.exit_code == 0, result.output
        return result

    return succeed


def settings_of(*arguments):
    return resolve(rl.command.make_context("rl", [str(a) for a in arguments]).params)


def metrics(run=RUN):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def results(run=RUN):
    return pd.read_csv(run / "results.csv")


def returned(model):
    """What a policy for the chain of five states earns in an episode without noise, counted by hand."""
    policy, state, total = TRPO.load(model), 1, 0.0
    for _ in range(5 + 9):
        action = int(policy.predict(np.eye(5, dtype=np.float32)[state], deterministic=True)[0])
        state = min(max(state + 2 * action - 1, 0), 4)
        total += {0: 0.001, 4: 1.0}.get(state, 0.0)
    return total


def test_json_is_all_of_stdout_and_agrees_with_results_csv(train):
    result = train(*TINY, *LEARN, "--seeds", 2, "--seed", 3, "--json")
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert {k: found[k] for k in ("env", "algo", "posterior", "bonus", "eta", "run")} == {
        "env": "explore/Chain-v0", "algo": "trpo", "posterior": "last-layer", "bonus": "expected-gain",
        "eta": RewardSettings().eta, "run": str(RUN),
    }  # fmt: skip
    table = results()
    assert table.groupby("seed").iteration.apply(list).to_dict() == {3: [1, 2, 3], 4: [1, 2, 3]}
    assert table.timesteps.tolist() == [64, 128, 192] * 2
    for row in found["seeds"]:
        mine = table[table.seed == row["seed"]]
        assert row["return"] == pytest.approx(mine.ep_extrinsic_mean.mean())
        assert row["paid"] == (mine.extrinsic_total > 0).mean()
        assert row["first_paid"] == mine[mine.extrinsic_total > 0].iteration.min()
    returns = [row["return"] for row in found["seeds"]]
    assert found["overall"]["return"]["mean"] == pytest.approx(np.mean(returns))
    assert found["overall"]["return"]["se"] == pytest.approx(np.std(returns, ddof=1) / math.sqrt(2))
    assert found["overall"]["solved"] == sum(row["paid"] == 1 for row in found["seeds"])


def test_report_and_run_folder(train):
    result = train(*TINY, *LEARN)
    lines = result.stdout.splitlines()
    assert f"run          {RUN}" in lines
    table = results()
    share = (table.bonus_share * table.seconds).sum() / table.seconds.sum()
    assert f"time         {share:.0%} for the bonus and the dynamics model" in lines
    assert f"tensorboard  tensorboard --logdir {RUN}/tensorboard" in lines
    assert (
        "with expected-gain of last-layer on cpu" in result.stderr and "throughout" not in result.stderr + result.stdout
    )
    assert sorted(str(p.relative_to(RUN / "models")) for p in (RUN / "models").rglob("*.*")) == [
        "last-layer-seed-0/192/bonus.pt", "last-layer-seed-0/192/model.pt", "last-layer-seed-0/192/model.zip",
        "last-layer-seed-0/first-64/model.pt", "last-layer-seed-0/first-64/model.zip",
    ]  # fmt: skip
    policy = TRPO.load(RUN / "models/last-layer-seed-0/192/model.zip")
    assert policy.num_timesteps == 192 and policy.predict(np.eye(5, dtype=np.float32)[1])[0] in (0, 1)
    recorded = json.loads((RUN / "config.json").read_text())["settings"]
    # TRPO as in the paper.
    assert recorded["algo_settings"].items() >= {
        "n_steps": 16, "batch_size": 64, "gamma": 0.99, "gae_lambda": 1.0, "target_kl": 0.01, "cg_max_steps": 10,
        "line_search_max_iter": 15, "net_arch": [32], "activation": "tanh", "log_std_init": 0.0,
    }.items()  # fmt: skip
    assert recorded["vime"].items() >= {"eta": "auto", "minimum": 60, "n_eff": "replay", "hidden": None}.items()
    assert recorded["vime"]["posterior_settings"]["forgetting"] == 1


def test_defaults_are_those_of_the_library():
    shown = {p.name: p.help for p in rl.command.params if p.name in ("eta", "normalise", "bonus")}
    for name, text in shown.items():
        default = getattr(RewardSettings(), name, None) or getattr(DynamicsSettings().resolved(1), name)
        assert text is not None and f"[default: {default}".removesuffix(".0") in text
    assert settings_of("--env", "explore/Chain-v0").algo_settings["n_steps"] == 500


def test_an_iteration_by_hand(train):
    """Rewards of the first iteration, in which no bonus is paid, against the policy's own steps."""
    train(*TINY, "--posterior", "none", "--seed", 7)
    settings = settings_of(*TINY, "--posterior", "none", "--seed", 7)
    training: Any = Training(settings, 7, "cpu")
    model, env = training.model, training.model.get_env()
    observations, rewards, dones = env.reset(), np.zeros((16, 4)), np.zeros((16, 4), bool)
    for i in range(16):
        with torch.no_grad():
            actions = model.policy(torch.as_tensor(observations))[0].numpy()
        observations, rewards[i], dones[i], _ = env.step(actions)
    first = results(Path("runs/rl-explore-Chain-v0-trpo-none")).iloc[0]
    assert first.extrinsic_total == pytest.approx(rewards.sum(), rel=1e-6)
    assert (first.episodes, dones[13].tolist()) == (4, [True] * 4)
    assert first.ep_extrinsic_mean == pytest.approx(rewards[:14].sum(0).mean(), rel=1e-6)
    assert first.success == (rewards[:14] > 0).any(0).mean()


def test_tensorboard_seeds_and_posteriors_share_their_tags(train):
    train(*TINY, *LEARN, "--seeds", 2)
    train(*TINY, *LEARN, "--posterior", "bbb")
    read = {}
    for series in Path("runs").glob("*/tensorboard/*"):
        events = EventAccumulator(str(series)).Reload()
        read[series.name] = set(events.Tags()["scalars"])
        rows = [row for row in metrics(series.parents[1]) if row["series"] == series.name]
        assert [row["step"] for row in rows] == [64, 128, 192]
        for row in rows:
            for tag in row.keys() - {"series", "step"}:
                values = {e.step: e.value for e in events.Scalars(tag)}
                assert values[row["step"]] == pytest.approx(row[tag], rel=1e-6)
        content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        assert b"vime.eta" in content and b"algo.gamma" in content and b"posterior.prior_variance" in content
    assert set(read) == {"last-layer-seed-0", "last-layer-seed-1", "bbb-seed-0"}
    assert read["last-layer-seed-0"] == read["last-layer-seed-1"] == read["bbb-seed-0"]
    assert read["bbb-seed-0"] >= {
        "rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/ep_extrinsic_mean", "rollout/ep_intrinsic_mean",
        "rollout/extrinsic_total", "rollout/success", "vime/bonus_mean", "vime/bonus_median", "vime/bonus_max",
        "vime/eta", "vime/kl_divisor", "vime/dyn_nll_before", "vime/dyn_rmse_after", "time/bonus_share", "time/fps",
        "train/policy_objective", "train/kl_divergence_loss",
    }  # fmt: skip
    last = metrics()[-1]
    assert 0 < last["time/bonus_share"] < 1
    # What the policy learnt in an iteration stands in its own line.
    assert "train/policy_objective" in metrics()[0]


def test_seeds_are_independent_and_reproducible(train):
    train(*TINY, *LEARN, "--seeds", 2)
    train(*TINY, *LEARN, "--seed", 1, "--name", "alone")
    shown = ["iteration", "extrinsic_total", "ep_intrinsic_mean", "bonus_mean", "dyn_nll_before"]
    both, alone = results(), results(Path("runs/rl-alone"))
    pd.testing.assert_frame_equal(both[both.seed == 1][shown].reset_index(drop=True), alone[shown])
    assert (both[both.seed == 0].bonus_mean.to_numpy()[1:] != alone.bonus_mean.to_numpy()[1:]).all()


def test_a_critic_from_zero_moves_nothing_before_there_is_a_reward():
    env = ["--env", "explore/SparseMountainCar-v0", "--timesteps", "64", "--n-envs", "2", "--posterior", "none"]
    start, moved = {}, {}
    for init in ("zero", "orthogonal"):
        training = Training(
            settings_of(*env, "--algo-param", "n_steps=32", "--algo-param", f"value_init={init}"), 0, "cpu"
        )
        policy: Any = training.model.policy
        start[init] = {k: v.clone() for k, v in policy.state_dict().items()}
        training.model.learn(64)
        moved[init] = sorted(k for k, v in policy.state_dict().items() if not torch.equal(v, start[init][k]))
    assert moved["zero"] == [] and "action_net.weight" in moved["orthogonal"]
    assert all(torch.equal(start["zero"][k], v) for k, v in start["orthogonal"].items() if k != "value_net.weight")


def test_copies_of_neighbouring_seeds_begin_differently():
    settings = settings_of("--env", "Pendulum-v1", "--n-envs", 4, "--posterior", "none")
    trainings: list[Any] = [Training(settings, seed, "cpu") for seed in (0, 1)]
    starts = np.concatenate([training.model.get_env().reset() for training in trainings])
    assert len(np.unique(starts[:, 2])) == 8


@pytest.mark.parametrize("more", [[], ["--vec-normalize"]])
def test_ppo_on_environments_of_gymnasium(train, more):
    train(
        "--env", "CartPole-v1", "--algo", "ppo", "--timesteps", 128, "--algo-param", "n_steps=64", *LEARN, *more,
        "--algo-param", "net_arch=8,8", "--algo-param", "activation=relu", "--bonus", "variance", "-p",
        "vime.n_eff=replay", "--normalise", "rms", "--posterior", "ensemble", "-p", "members=2", "--eta", 0.5,
        "--eval-freq", 64,
    )  # fmt: skip
    run = Path("runs/rl-CartPole-v1-ppo-ensemble")
    settings = json.loads((run / "config.json").read_text())["settings"]
    assert (settings["n_envs"], settings["algo_settings"]["clip_range"]) == (1, 0.2)
    assert settings["vime"].items() >= {"n_eff": "replay", "normalise": "rms", "bonus": "variance", "eta": 0.5}.items()
    assert settings["vime"]["posterior_settings"]["members"] == 2
    table = results(run)
    assert table.bonus_mean[1] > 0
    assert table.iteration.tolist() == [1, 2]
    last = run / "models/ensemble-seed-0/128"
    assert (last / "vecnormalize.pkl").exists() == bool(more)
    # A pole's return is the length of its episode.
    assert all(row["eval/mean_reward"] == row["eval/mean_ep_length"] for row in metrics(run))
    recorded = read(Settings, settings, "config.json")
    assert metrics(run)[1]["eval/mean_reward"] == Training(recorded, 0, "cpu", last, run_id(run)).evaluate()[0]


def test_sac_with_and_without_a_bonus(train):
    result = train(*PENDULUM, "--json")
    found = json.loads(result.stdout)
    assert found["seeds"][0]["paid"] == 0 and "throughout" not in result.stderr
    assert found["seeds"][0]["first_paid"] is None
    assert found["seeds"][0]["bonus_share"] is None
    run = Path(found["run"])
    assert results(run).timesteps.tolist() == [32, 64]
    assert metrics(run)[1]["vime/dyn_nll_before"] == results(run).dyn_nll_before[1]
    assert {p.name for p in run.glob("models/*/64/*")} == {"bonus.pt", "model.pt", "model.zip", "replay_buffer.pt"}
    assert json.loads(train("--watch", run, "--json").stdout)["steps"] == 200
    more = ["--algo-param", "learning_starts=50", "--algo-param", "n_steps=3"]
    train(*PENDULUM[:6], "--posterior", "none", *more)
    assert results(Path("runs/rl-Pendulum-v1-sac-none")).iteration.tolist() == [1]


def trained(settings, folder) -> Any:
    training = Training(settings, 5, "cpu")
    training.train(folder, lambda event: None)
    return training


def test_a_checkpoint_restores_bonus_and_policy_to_the_bit(tmp_path):
    settings = settings_of(*TINY, *LEARN, "--vec-normalize")
    ours = trained(settings, tmp_path)
    ours.save(tmp_path)
    theirs: Any = Training(settings, 5, "cpu", tmp_path)
    rng = np.random.default_rng(0)
    new = Transitions(*(rng.normal(size=(50, n)).astype(np.float32) for n in (5, 2, 5)))
    scored = ours.bonus.score(new)
    assert (scored > 0).all()
    assert np.array_equal(scored, theirs.bonus.score(new))
    assert np.array_equal(ours.bonus.batch(new).scaled, theirs.bonus.batch(new).scaled)
    for name, value in ours.model.policy.state_dict().items():
        assert torch.equal(value, theirs.model.policy.state_dict()[name])
    means = [t.model.get_vec_normalize_env().obs_rms.mean for t in (ours, theirs)]
    assert np.array_equal(*means) and means[0].any()
    # Not the episodes and the noise of the beginning again.
    beginning: Any = Training(settings, 5, "cpu").model.get_env()
    assert theirs.model.get_env().unwrapped._seeds != beginning.unwrapped._seeds


def test_a_checkpoint_restores_the_replay_buffer(tmp_path):
    settings = settings_of(*PENDULUM, "--algo-param", "buffer_size=60")
    ours = trained(settings, tmp_path)
    ours.save(tmp_path)
    theirs: Any = Training(settings, 5, "cpu", tmp_path)
    buffers = [t.model.replay_buffer for t in (ours, theirs)]
    assert [(b.pos, b.full) for b in buffers] == [(4, True)] * 2
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        assert np.array_equal(*(getattr(b, name) for b in buffers))
    samples = []
    for buffer in buffers:
        np.random.seed(0)
        samples.append(buffer.sample(16))
    for name in ("observations", "actions", "next_observations", "dones", "rewards"):
        assert torch.equal(*(getattr(sample, name) for sample in samples))


def test_killed_and_resumed(explore):
    command = [sys.executable, "-m", "explore.cli", "rl", *TINY[:-1], "320", *LEARN, "--seeds", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        path = RUN / "results.csv"
        deadline = time.monotonic() + 120
        while not (path.exists() and "\n1,3," in path.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
    before = results()
    result = explore("rl", "--resume", RUN, "--json")
    assert result.exit_code == 0, result.stderr
    done = int(result.stderr.split(f"{RUN}: ")[1].split(" of 640 steps are done.")[0]) // 64 - 5
    assert 2 <= done < 5
    after = results()
    pd.testing.assert_frame_equal(after[: 5 + done], before[: 5 + done])
    assert after.iteration.tolist() == [1, 2, 3, 4, 5] * 2
    assert after.timesteps.tolist() == [64, 128, 192, 256, 320] * 2
    assert len(json.loads((RUN / "config.json").read_text())["sessions"]) == 2
    for seed in (0, 1):
        events = EventAccumulator(str(RUN / f"tensorboard/last-layer-seed-{seed}")).Reload()
        assert [e.step for e in events.Scalars("rollout/ep_rew_mean")] == [64, 128, 192, 256, 320]
    assert sorted(p.name for p in RUN.glob("models/*/*")) == ["320", "320", "first-64", "first-64"]


class PowerCut(Exception):
    pass


@pytest.mark.parametrize(
    ("where", "what", "calls"),
    [
        (record.Run, "scalars", 1), (record.Run, "rows", 2), (record.Run, "checkpoint", 2), (os, "replace", 6),
        (Training, "save_policy", 0), (Training, "save_policy", 3), (shutil, "rmtree", 4),
    ],
)  # fmt: skip
def test_a_crash_at_any_write_loses_no_iteration(train, monkeypatch, where, what, calls):
    """It happens after so many calls of one of the writing functions."""
    function, left = getattr(where, what), iter(range(calls))

    def cut(*arguments, **keywords):
        if next(left, None) is None:
            raise PowerCut
        return function(*arguments, **keywords)

    short = [*TINY[:-1], "128", "--seeds", 2, "--posterior", "none", "--name", "x"]
    with monkeypatch.context() as patch:
        patch.setattr(where, what, cut)
        with pytest.raises(PowerCut):
            train(*short)
    run = Path("runs/rl-x")
    train("--resume", run)
    assert results(run).iteration.tolist() == [1, 2] * 2
    assert [row["step"] for row in metrics(run)] == [64, 128] * 2
    assert all((run / f"models/none-seed-{seed}/128/model.zip").exists() for seed in (0, 1))


@pytest.mark.parametrize("more", [[], ["-p", "members=2"]])
def test_interrupted_and_continued_twice(train, explore, monkeypatch, more):
    more = [*more, "--posterior", "noisy-kfac", "--name", RUN.name.removeprefix("rl-")]
    keep, left = Training._record, iter(range(2))

    def interrupt(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        keep(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_record", interrupt)
        result = explore("rl", *TINY, *LEARN, *more)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "Interrupted after 128 of 192 steps." in result.stderr
    assert f"Continue: explore rl --resume {RUN}\n" in result.stderr
    shutil.copytree(RUN, "copy")
    for name, share in itertools.product(("model.pt", "bonus.pt"), (0, 0.5)):
        damaged = Path(shutil.copytree(RUN, f"{name}-{share}")) / "models/noisy-kfac-seed-0/128"
        whole = (damaged / name).read_bytes()
        (damaged / name).write_bytes(whole[: int(len(whole) * share)])
        result = explore("rl", "--resume", f"{name}-{share}")
        assert f"Error: {damaged / name} is damaged: " in result.stderr and result.exit_code == 2
    train("--resume", RUN)
    train("--resume", "copy")
    pd.testing.assert_frame_equal(results().iloc[:, :-2], results(Path("copy")).iloc[:, :-2])  # but for the seconds
    recorded = json.loads((RUN / "config.json").read_text())["settings"]["vime"]["posterior_settings"]
    assert recorded.items() >= registry.settings_in(NoisyKFAC, "vime").items() and recorded["lr"] == NoisyKFAC.lr
    assert recorded.get("members", 1) == 1 + ("members=2" in more)


@pytest.mark.slow
def test_several_processes_train_the_same_seeds_and_continue_them(train, explore, monkeypatch):
    with monkeypatch.context() as patch:  # processes are at hand that began in another folder
        patch.chdir("/")
        joblib.Parallel(n_jobs=2)(joblib.delayed(os.getcwd)() for _ in range(2))
    three = [*TINY, *LEARN, "--seeds", 3]
    train(*three, "--name", "alone")
    checkpoint, left = record.Run.checkpoint, iter(range(5))

    def interrupt(*arguments, **keywords):
        if next(left, None) is None:
            raise KeyboardInterrupt
        checkpoint(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(record.Run, "checkpoint", interrupt)
        result = explore("rl", *three, "--name", "two", "--jobs", 2)
    assert result.exit_code == 130 and " on cpu in 2 processes\n" in result.stderr
    assert "Interrupted after 256 of 576 steps." in result.stderr
    run, order = Path("runs/rl-two"), ["seed", "iteration"]
    whole = results(Path("runs/rl-alone")).iloc[:, :-2]  # but for the seconds
    early = whole.merge(results(run)[:4][order]).sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(results(run)[:4].iloc[:, :-2].sort_values(order, ignore_index=True), early)
    train("--resume", run)
    assert results(run).sort_values(order)[order].values.tolist() == whole[order].values.tolist()
    for seed in range(3):
        events = EventAccumulator(str(run / f"tensorboard/last-layer-seed-{seed}")).Reload()
        assert [e.step for e in events.Scalars("rollout/ep_rew_mean")] == [64, 128, 192]
    assert "576 of 576 steps are done" in train("--resume", run).stderr


def test_a_finished_run_goes_on_for_longer(train, explore):
    """With more steps, or more seeds, which are those of a run that had as many from the beginning."""
    train(*TINY, *LEARN, "--name", "x")
    run, first = Path("runs/rl-x"), results(Path("runs/rl-x"))
    said = train("--resume", run, "--timesteps", 320)
    assert "192 of 320 steps are done" in said.stderr
    longer = results(run)
    pd.testing.assert_frame_equal(longer[:3], first)
    assert longer.timesteps.tolist() == [64, 128, 192, 256, 320] and longer.bonus_mean[3:].gt(0).all()
    train("--resume", run, "--seeds", 2)
    train(*TINY[:-1], 320, *LEARN, "--seeds", 2, "--name", "y")
    seconds = ["seconds", "bonus_share"]
    both, own = (results(Path(f"runs/rl-{name}")).query("seed == 1").drop(columns=seconds) for name in "xy")
    pd.testing.assert_frame_equal(both, own)
    config = json.loads((run / "config.json").read_text())
    assert [config["settings"][name] for name in ("timesteps", "seeds")] == [320, 2] and len(config["former"]) == 2
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for option, fewer in (("--timesteps", 192), ("--seeds", 1)):
        result = explore("rl", "--resume", run, option, fewer)
        assert result.exit_code == 2 and f"{option} is {fewer}, but the run already has" in " ".join(
            result.stderr.split()
        )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_finished_run_is_reported_again(train):
    first = train(*TINY, "--posterior", "none", "--json")
    folder = json.loads(first.stdout)["run"]
    again = train("--resume", folder, "--json")
    assert again.stdout == first.stdout
    assert "192 of 192 steps are done" in again.stderr
    assert len(json.loads(Path(folder, "config.json").read_text())["sessions"]) == 1


def test_rare_checkpoints_and_the_best_policy(train, monkeypatch):
    returns = iter([(1.0, 9.0), (3.0, 9.0), (2.0, 9.0)])
    monkeypatch.setattr(Training, "evaluate", lambda self: next(returns))
    saved: list[str] = []
    save = Training.save

    def note(self, folder, run):
        saved.append(folder.name)
        save(self, folder, run)

    monkeypatch.setattr(Training, "save", note)
    train(*TINY, *LEARN, "--checkpoint-freq", 2, "--eval-freq", 64)
    assert saved == ["128", "192"]
    assert {p.name for p in RUN.glob("models/*/*")} == {"192", "best-128", "first-64"}
    assert [row["eval/mean_reward"] for row in metrics()] == [1.0, 3.0, 2.0]


def test_evaluation_neither_pays_a_bonus_nor_disturbs_training(train):
    train(*TINY, *LEARN, "--eta", 100)
    train(*TINY, *LEARN, "--eta", 100, "--eval-freq", 128, "--name", "evaluated")
    shown = ["extrinsic_total", "bonus_mean", "ep_intrinsic_mean"]
    pd.testing.assert_frame_equal(results()[shown], results(Path("runs/rl-evaluated"))[shown])
    (value,) = [row["eval/mean_reward"] for row in metrics(Path("runs/rl-evaluated")) if "eval/mean_reward" in row]
    (policy,) = Path("runs/rl-evaluated").glob("models/*/best-128")
    assert value == pytest.approx(returned(policy / "model.zip"))


@pytest.mark.parametrize("more", [[], ["--vec-normalize", "--eval-freq", "64"]])
def test_watch(train, explore, more):
    train(*TINY, "--posterior", "none", "--seeds", 2, *more)
    run = Path("runs/rl-explore-Chain-v0-trpo-none")
    shown = train("--watch", run)
    gif = run / "none-seed-0.gif"
    assert shown.stdout == f"{gif}\n"
    with Image.open(gif) as image:
        assert (image.format, image.size) == ("GIF", (480, 320))
        image.seek(1)  # there is more than one picture
    found = json.loads(train("--watch", run, "--seed", 1, "--json").stdout)
    assert (found["gif"], found["steps"]) == (str(run / "none-seed-1.gif"), 14)
    assert Path(found["policy"]).name.startswith("best-" if more else "192")
    if more:  # with normalised observations; the chain has one episode only
        evaluated = [row["eval/mean_reward"] for row in metrics(run) if row["series"] == "none-seed-1"]
        assert found["return"] == pytest.approx(max(evaluated), rel=1e-6)
    else:
        assert found["return"] == pytest.approx(returned(Path(found["policy"]) / "model.zip"))
    assert "has no seed 2; allowed: 0, 1" in explore("rl", "--watch", run, "--seed", 2).stderr


def test_watch_the_first_success(train, explore):
    train(*TINY, "--posterior", "none", "--seeds", 2)
    run = Path("runs/rl-explore-Chain-v0-trpo-none")
    (policy,) = run.glob("models/none-seed-1/first-*")
    rows = results(run).query("seed == 1 and success > 0")
    assert policy.name == f"first-{rows.timesteps.iloc[0]}"
    found = [json.loads(train("--watch", run, "--seed", 1, "--first", "--json").stdout) for _ in range(2)]
    assert found[0] == found[1] and found[0]["success"] and found[0]["policy"] == str(policy)
    assert Path(found[0]["gif"]) == run / "none-seed-1-first.gif" and Path(found[0]["gif"]).exists()
    train("--posterior", "none", "--timesteps", 64, "--env", "explore/SparseMountainCar-v0", "--name", "lost")
    assert "has no policy with a success of seed 0 yet" in explore("rl", "--watch", "runs/rl-lost", "--first").stderr


def test_watch_where_actions_are_looked_up(train):
    lake = ["--env", "FrozenLake-v1", "--algo", "ppo", "--algo-param", "n_steps=64", "--timesteps", "64"]
    train(*lake, "--posterior", "none")
    assert train("--watch", "runs/rl-FrozenLake-v1-ppo-none").stdout.endswith(".gif\n")


WORLDS = """
import gymnasium as gym
import numpy as np

SPACES = {
    "Pictures": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "Parts": gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (2,)), "n": gym.spaces.Discrete(3)}),
}


class World(gym.Env):
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, name):
        self.observation_space = SPACES[name]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


def encode(pictures):
    return pictures.mean((2, 3)) / 255


for name in SPACES:
    gym.register(f"worlds/{name}-v0", World, max_episode_steps=5, kwargs={"name": name})
"""


@pytest.mark.parametrize("name", ["Parts", "Pictures"])
def test_dictionaries_images_and_environments_of_a_module(train, monkeypatch, name):
    Path("worlds.py").write_text(WORLDS)
    monkeypatch.syspath_prepend(".")
    encoder = ["-p", "vime.encoder=worlds:encode"] if name == "Pictures" else []
    train(
        "--env", f"worlds:worlds/{name}-v0", "--n-envs", 2, "--algo-param", "n_steps=10", "--timesteps", 40,
        "--posterior", "bbb", "-p", "vime.minimum=20", "-p", "vime.updates=2", "--eval-freq", 40, *encoder,
    )  # fmt: skip
    run = Path(f"runs/rl-worlds-worlds-{name}-v0-trpo-bbb")
    assert results(run).ep_extrinsic_mean.tolist() == [5, 5]
    assert results(run).bonus_mean[1] > 0
    policy = {"Parts": "MultiInputActorCriticPolicy", "Pictures": "ActorCriticCnnPolicy"}[name]
    model = TRPO.load(run / "models/bbb-seed-0/40/model.zip")
    assert type(model.policy).__name__ == policy


BROKEN = """
import gymnasium as gym
import numpy as np


class Broken(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)

    def __init__(self, where, value, space=None, continuous=False, render_mode=None):
        if continuous:
            self.action_space = gym.spaces.Box(-1, 1)
        self.where, self.value, self.render_mode = where, float(value), render_mode
        if space:
            self.observation_space = {
                "Sequence": gym.spaces.Sequence(self.observation_space),
                "Graph": gym.spaces.Graph(self.observation_space, None),
                "Text": gym.spaces.Text(3),
                "OneOf": gym.spaces.OneOf([self.observation_space, self.action_space]),
                "Tuple": gym.spaces.Tuple([self.observation_space]),
                "Dict": gym.spaces.Dict({"a": gym.spaces.Dict({"b": self.action_space})}),
            }[space]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.full(2, self.value if self.where == "first" else 0, np.float32), {}

    def step(self, action):
        self.time += 1
        broken, place = self.time == 7, self.np_random.normal(size=2).astype(np.float32)
        place[0] = self.value if broken and self.where in ("observation", "end", "cut") else place[0]
        reward = self.value if broken and self.where == "reward" else 0.0
        return place, reward, broken and self.where == "end", self.time == (7 if self.where == "cut" else 10), {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


gym.register("broken/Broken-v0", Broken)
"""
GOALS = """
import gymnasium as gym


class Goal(gym.Env):
    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)
    episodes = 0

    def __init__(self, told):
        self.told = told

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes, self.time = self.episodes + 1, 0
        return self.np_random.normal(size=2).astype("f4"), {}

    def step(self, action):
        self.time += 1
        won = self.time == 4 and self.episodes % 4 == 0
        info = {"is_success": won} if self.told else {}
        return self.np_random.normal(size=2).astype("f4"), 0.0 if won else -1.0, False, self.time == 4, info


gym.register("goals/Goal-v0", Goal)
"""


@pytest.mark.parametrize("told", [True, False])
def test_success_is_what_the_environment_says(train, monkeypatch, told):
    """Of rewards that are never positive one of four episodes is one."""
    Path("goals.py").write_text(GOALS)
    monkeypatch.syspath_prepend(".")
    train(
        "--env", "goals:goals/Goal-v0", "--env-kwargs", f"told:{str(told).lower()}", "--n-envs", 2, "--timesteps", 64,
        "--algo-param", "n_steps=32", "--posterior", "none", "--name", "x",
    )  # fmt: skip
    assert results(Path("runs/rl-x")).success.tolist() == [0.25 if told else 0.0]


SINGLE = """
import gymnasium as gym
import numpy as np


class Plain(gym.Env):
    observation_space = gym.spaces.Box(-9, 9, (2,))

    def __init__(self, first=0, level=""):
        self.action_space, self.level = gym.spaces.Discrete(3, start=first), level

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=2).astype("f4"), {}

    def step(self, action):
        if self.level:
            open(self.level)
        return self.np_random.normal(size=2).astype("f4"), 1.0, False, False, {}


class NextStep(gym.vector.VectorEnv):
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs, autoreset_mode):
        pass


gym.register("single/Plain-v0", Plain, max_episode_steps=5)
gym.register("single/Both-v0", Plain, vector_entry_point=NextStep, max_episode_steps=5)
"""


@pytest.fixture
def single(monkeypatch):
    """Environments whose module lies in the working directory; what follows its name, and a short training."""
    Path("single.py").write_text(SINGLE)
    monkeypatch.syspath_prepend(".")
    short = ["--n-envs", 2, "--timesteps", 40, "--algo-param", "n_steps=20", "--posterior", "none", "--name", "x"]
    return lambda env, *more: ["--env", f"single:single/{env}", *more, *short]


def test_choices_that_do_not_begin_at_0_are_refused(single, explore):
    result = explore("rl", *single("Plain-v0", "--env-kwargs", "first:1"))
    assert result.exit_code == 2 and "has a discrete space that starts at [1], but" in result.stderr


def test_what_an_environment_cannot_read_is_not_blamed_on_the_run_folder(single, explore):
    with pytest.raises(RuntimeError, match="Plain-v0 failed: FileNotFoundError.*nowhere"):
        explore("rl", *single("Plain-v0", "--env-kwargs", "level:nowhere/level.dat"))


def test_an_environment_that_resets_in_a_step_of_its_own_runs_in_single_copies(train, single):
    train(*single("Both-v0"))
    assert len(results(Path("runs/rl-x"))) == 1


BREAK = ["--env", "broken:broken/Broken-v0", "--n-envs", 2, "--algo-param", "n_steps=20", "--timesteps", 120]


@pytest.fixture
def broken(monkeypatch):
    """The options of an environment whose module lies in the working directory."""
    Path("broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(".")
    return lambda where, value: [*BREAK, "--env-kwargs", f"where:{where}", "--env-kwargs", f"value:{value}"]


@pytest.mark.filterwarnings("ignore:.*is not within the observation space")  # Gymnasium's, about the first one
@pytest.mark.parametrize("where", ["first", "observation", "reward", "cut"])
@pytest.mark.parametrize("value", ["NaN", "Infinity"])
def test_a_policy_meets_no_number_that_is_not_finite(explore, broken, where, value):
    what = "a reward" if where == "reward" else "an observation"
    result = explore("rl", *broken(where, value), "--posterior", "none")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        f"Error: broken:broken/Broken-v0 returned {what} with a number that is not finite. Correct the environment"
    )


def test_sac_refuses_a_last_observation_that_is_not_finite(explore, broken):
    more = ["--algo", "sac", "--n-envs", 1, "--env-kwargs", "continuous:true", "--posterior", "none"]
    result = explore(
        "rl", *[each for each in broken("end", "NaN") if "n_steps" not in str(each) and each != "--algo-param"], *more
    )
    assert (result.exit_code, result.stdout) == (
        2,
        "",
    ) and "an observation with a number that is not finite" in result.stderr


@pytest.mark.slow
def test_what_goes_wrong_in_a_process_is_a_sentence(explore, broken, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    get_reusable_executor(reuse=True).shutdown()  # processes of other tests have another path
    result = explore("rl", *broken("reward", "NaN"), "--posterior", "none", "--seeds", 2, "--jobs", 2)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        "Error: broken:broken/Broken-v0 returned a reward with a number that is not finite. Correct the environment"
    )


@pytest.mark.filterwarnings("ignore:.*is not within the observation space", "ignore:.*contains NaN")
def test_a_policy_that_is_watched_meets_none_either(train, explore, broken, monkeypatch):
    train(*broken("observation", 0), "--posterior", "none", "--name", "x")
    monkeypatch.setattr(
        sys.modules["broken"].Broken, "step", lambda *_: (np.full(2, np.nan, "f4"), 0.0, False, False, {})
    )
    result = explore("rl", "--watch", "runs/rl-x", "--trust", "broken")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        "Error: broken/Broken-v0 returned an observation with a number that is not finite. Correct the environment"
    )


@pytest.mark.filterwarnings("ignore:.*rendering should return a numpy array")
def test_what_cannot_be_drawn_is_a_sentence(train, explore, broken, monkeypatch):
    train(*broken("observation", 0), "--posterior", "none", "--name", "x")

    def render(self):
        raise NotImplementedError("no screen")

    def nothing(self):
        return []

    said = {
        render: "cannot render broken/Broken-v0: NotImplementedError",
        nothing: "broken/Broken-v0 does not render images. It must",
    }
    for change, message in said.items():
        monkeypatch.setattr(sys.modules["broken"].Broken, "render", change)
        result = explore("rl", "--watch", "runs/rl-x", "--trust", "broken")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.splitlines()[-1].startswith(f"Error: {message}")


@pytest.mark.filterwarnings("ignore:ignored a transition with NaN")
def test_dropped_transitions_are_counted(train, broken):
    arguments = [*broken("end", "NaN"), "-p", "vime.minimum=10"]
    found = json.loads(train(*arguments, "--json", "--name", "x").stdout)["seeds"][0]
    table = results(Path("runs/rl-x"))
    # Copies of 60 steps each, whose every seventh step is the last of an episode.
    assert (found["dropped"], found["restarts"], found["bonus_paid"]) == (16, 0, True)
    assert table.dropped.tolist() == [4, 10, 16] and table.restarts.tolist() == [0, 0, 0]
    shown = train(*arguments).stdout
    assert re.search(r"dropped . restarts", shown) and re.search(r" 16 .  +0 ", shown)


@pytest.mark.parametrize("space", ["Sequence", "Graph", "Text", "OneOf", "Tuple", "Dict"])
def test_spaces_that_no_policy_takes_are_refused_by_name(explore, broken, space):
    result = explore("rl", *broken("end", "NaN"), "--env-kwargs", f"space:{space}", "--posterior", "none")
    assert result.exit_code == 2 and not Path("runs").exists()
    assert result.stderr.endswith(
        f": spaces of type {space} are not supported; allowed: Box, Discrete, MultiDiscrete, MultiBinary, and a Dict "
        "of these as observation space\n"
    )


def test_a_model_that_fails_again_ends_the_run(explore):
    with pytest.warns(UserWarning, match="restarted on 64 stored transitions"):
        result = explore(
            "rl", *TINY, *LEARN, "--posterior", "noisy-kfac", "-p", "lr=1e30", "-p", "adaptive_damping=false", "--quiet"
        )
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: the dynamics model diverged again after a restart; change lr")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            [*TINY, "-p", "vime.minimum=130"],
            "192 steps, but --timesteps is 192; raise it or lower --algo-param n_steps and -p",
        ),
        ([*TINY[:-1], "64", *LEARN], "64 steps, but --timesteps is 64; raise it or lower --algo-param n_steps"),
        ([*PENDULUM, "-p", "vime.interval=70"], "70 steps, but --timesteps is 64; raise it or lower -p vime.interval"),
    ],
)
def test_a_bonus_that_will_not_be_paid_is_said_at_the_start_and_at_the_end(train, arguments, why):
    result = train(*arguments, "--quiet")
    assert f"Warning: the bonus will always be 0: the dynamics model starts training after {why}" in result.stderr
    assert f"bonus        always 0: the dynamics model starts training after {why}" in result.stdout


def test_curves_with_and_without_a_bonus_share_tags(train):
    train(*TINY, *LEARN)
    train(*TINY, "--posterior", "none")
    runs = [session._open(run, ()) for run in (RUN, Path("runs/rl-explore-Chain-v0-trpo-none"))]
    learnt, plain = (next(iter(run.curves().values())) for run in runs)
    assert learnt["rollout/success"].tolist() == [row["rollout/success"] for row in metrics()]
    assert {"rollout/ep_extrinsic_mean", "rollout/ep_rew_mean", "train/value_loss"} <= {*learnt} & {*plain}


def test_report_of_rewards_that_came_late():
    rows = pd.DataFrame({
        "seed": 0, "iteration": range(1, 13), "extrinsic_total": [0.0] * 4 + [1.0] * 8, "seconds": 2.0,
        "ep_extrinsic_mean": [0.0] * 4 + [math.nan] + [1.0] * 7, "success": [0.0] * 4 + [0.5] * 8, "bonus_share": 0.25,
        "bonus_mean": [0.0] * 11 + [1.0], "dropped": [0.0] * 6 + [3.0] * 6, "restarts": [0.0] * 11 + [1.0],
    })  # fmt: skip
    (found,) = rl_report.results(rows)
    assert found == {
        "seed": 0, "return": 7 / 9, "success": 0.4, "paid": 0.8, "first_paid": 5, "seconds": 24.0, "bonus_share": 0.25,
        "dropped": 3, "restarts": 1, "bonus_paid": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPole-v7"], "unknown environment 'CartPole-v7'"),
        (["--env", "explore/Rope-v0"], "allowed: names of `explore list envs`"),
        (
            ["--env", "nowhere.at.all:Rope-v0"],
            "No module named 'nowhere'; install it, or add its folder",
        ),
        (["--env-kwargs", "size:3"], "unknown setting 'size'; allowed: length"),
        (["--env-kwargs", "length=3"], "--env-kwargs must be KEY:VALUE; got 'length=3'"),
        (["--env", "CartPole-v1", "--env-kwargs", "size:3"], "cannot make CartPole-v1: "),
        (["--algo", "reinforce"], "'trpo', 'ppo', 'ppo_lstm', 'a2c'"),
        (["--algo", "sac"], "sac refuses explore/Chain-v0 or these settings: The algorithm only supports"),
        (["--algo-param", "speed=3"], "unknown setting 'speed'; allowed: activation, batch_size, cg_damping,"),
        (["--algo-param", "gamma=high"], "gamma='high' is not valid; allowed: a number"),
        (["--algo-param", "activation=sine"], "allowed: tanh | relu | elu"),
        (["--algo-param", "gamma=nan"], "--algo-param gamma is nan; it must be in [0, 1]"),
        (["--algo-param", "gamma=7"], "--algo-param gamma is 7.0; it must be in [0, 1]"),
        (["--algo-param", "learning_rate=inf"], "--algo-param learning_rate is inf; it must be in [0, 1e10]"),
        (["--algo", "ppo", "--algo-param", "n_epochs=0"], "--algo-param n_epochs is 0; it must be in [1, 1e10]"),
        (["--algo-param", "net_arch=32,1000000000"], "net_arch is 1000000000; it must be in [1, 100000]"),
        (["--algo-param", "batch_size=" + "1" * 4000], "(4000 characters); it must be in [1, 1e10]"),
        (["--n-envs", "100000000"], "100000000 is not in the range 1<=x<=100000"),
        (["--timesteps", str(10**30)], "1000000000000000000000000000000 is not in the range 1<=x<=1000000000"),
        (["--seed", str(2**63)], "9223372036854775808 is not in the range 0<=x<=4294967295"),
        (["-p", "vime.hidden=1000000000"], "every layer must have 1 to 100000 units"),
        (["-p", "vime.capacity=10000000000"], "capacity is 10000000000; it must be in [1, 1e7]"),
        (
            ["--algo", "sac", "--env", "Pendulum-v1", "--algo-param", "train_freq=0"],
            "train_freq is 0; it must be in [1, 1e10]",
        ),
        (
            ["--algo", "sac", "--env", "Pendulum-v1", "--algo-param", "n_steps=3"],
            "--algo-param n_steps is not supported with a bonus. Leave it out, or pass --posterior none",
        ),
        (["--algo-param", "net_arch=-3"], "--algo-param net_arch is -3; it must be in [1, 100000]"),
        (
            ["--env", "FrozenLake-v1", "--vec-normalize"],
            "--vec-normalize needs vector observations, but these are of type Discrete. Leave",
        ),
        (["--env", "FrozenLake-v1", "--env-kwargs", "map_name:9x9"], "cannot make FrozenLake-v1: KeyError: '9x9'"),
        (["--env", "Blackjack-v1"], "trpo refuses Blackjack-v1: "),
        (["--posterior", "explore.nets.net:Net"], "Net must be a dataclass to have settings"),
        (
            ["--posterior", "map", "--bonus", "variance"],
            "map is a point estimate; choose a posterior with weight uncertainty",
        ),
        (["-p", "vime.hidden=0"], "hidden is (0,); every layer must have 1 to 100000 units"),
        (["-p", "vime.interval=9"], "-p vime.interval has no effect with trpo"),
        (["--algo-param", "gamma"], "--algo-param must be KEY=VALUE; got 'gamma'"),
        (["--algo-param", "n_steps=0"], "--algo-param n_steps is 0; it must be in [1, 1e10]"),
        (["--posterior", "kfac"], "unknown posterior 'kfac'; allowed: bbb,"),
        (["--posterior", "ensemble", "--bonus", "kl"], "with ensemble use 'expected-gain' or 'variance'"),
        (["--posterior", "none", "--eta", "9"], "--eta needs a bonus, which --posterior none turns off"),
        (["--posterior", "none", "-p", "lr=9"], "-p needs a bonus, which --posterior none turns off. Leave -p out"),
        (["-p", "vime.n_eff=all"], "n_eff='all' is not valid; allowed: a number or replay"),
        (["--eta", "-1"], "eta is -1.0; it must be in [0, inf)"),
        (["-p", "vime.eta=1"], "unknown setting 'eta'; allowed: batch_size, capacity,"),
        (["-p", "vime.target=last"], "target='last' is not valid; allowed: next | difference"),
        (["-p", "rate=1"], "unknown setting 'rate'; allowed: "),
        (["-p", "vime.preset=tiny"], "unknown preset 'tiny'; allowed: "),
        (
            ["-p", "vime.encoder=nowhere:f"],
            "cannot load the encoder 'nowhere:f': No module named 'nowhere'; install it, or add its folder",
        ),
        (["--bonus", "surprise"], "unknown bonus 'surprise'; allowed: count, disagreement, e3b, expected-gain"),
        (["--bonus", "builtins:dict"], "its class must be a subclass of explore.vime.Bonus"),
        (["--bonus", "rnd", "--posterior", "bbb"], "--bonus rnd has no posterior. Leave --posterior out"),
        (["--bonus", "icm", "-p", "vime.n_eff=9"], "unknown setting 'n_eff'"),
        (
            ["--env", "Pendulum-v1", "--bonus", "e3b", "--algo", "sac"],
            "e3b needs the episode so far, which sampled transitions do not have",
        ),
        (["--bonus", "count", "-p", "units=3"], "unknown setting 'units'; allowed: bits, capacity, minimum"),
        (["--timesteps", "0"], "Invalid value for '--timesteps'"),
        (["--device", "abacus"], "device 'abacus' is not available; allowed"),
        (["--name", "../x"], "--name is '../x'"),
        (["--resume", "absent", "--eta", "1"], "Leave out --env, --eta"),
        (["--first"], "--first chooses the policy for --watch"),
        (["--watch", "absent"], "--watch uses the settings of the run. Leave out --env"),
    ],
)
def test_wrong_options(explore, arguments, message):
    env = [] if "--env" in arguments else ["--env", "explore/Chain-v0"]
    result = explore("rl", *env, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.stdout == ""
    assert not Path("runs").exists()


def test_no_environment(explore):
    assert "--env is missing. Pass a name from `explore list" in explore("rl").stderr


def test_runs_that_cannot_be_continued_or_watched(train, explore, active):
    active("--rounds", 1, "--name", "x")
    for option in ("--resume", "--watch"):
        assert "was written by explore active. Use a run of explore rl" in explore("rl", option, "runs/active-x").stderr
    assert "is not a run folder: it has no config.json" in explore("rl", "--watch", "absent").stderr
    train(*TINY, "--posterior", "none", "--name", "y")
    run = Path("runs/rl-y")
    shutil.rmtree(run / "models/none-seed-0/192")
    result = explore("rl", "--watch", run)
    assert (result.exit_code, "has no policy of seed 0 yet" in result.stderr) == (2, True)
