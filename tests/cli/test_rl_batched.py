"""`explore rl --algo ppo` with several seeds in the same batches."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from explore.cli.rl.training import Training

CHAIN = [
    "--env", "explore/Chain-v0", "--env-kwargs", "length:5", "--n-envs", "4", "--algo-param", "n_steps=16",
    "--timesteps", "128", "--algo", "ppo", "-p", "vime.minimum=32",
]  # fmt: skip
RUN = Path("runs/rl-explore-Chain-v0-ppo-last-layer")
ORDER = ["seed", "iteration"]


def train(explore, *arguments):
    result = explore("rl", *arguments)
    assert result.exit_code == 0, result.output
    return result


def rows(run):
    return pd.read_csv(run / "results.csv").drop(columns=["seconds", "bonus_share"]).sort_values(ORDER)


def same(found, wanted):
    assert len(found) == len(wanted) > 0
    np.testing.assert_allclose(found.to_numpy(float), wanted.to_numpy(float), rtol=1e-4, atol=1e-6)


def test_seeds_are_trained_together_and_a_run_gets_more_of_them(explore):
    said = train(explore, *CHAIN, "--seeds", 4, "--name", "whole", "--eval-freq", 64).output
    assert "4 seeds together" in said
    train(explore, *CHAIN, "--seeds", 2)
    train(explore, "--resume", RUN, "--seeds", 4)
    whole = rows(Path("runs/rl-whole"))
    same(rows(RUN), whole)
    assert whole.groupby("seed").bonus_mean.max().gt(0).all() and whole.bonus_mean.nunique() > 4
    train(explore, *CHAIN, "--seeds", 4, "--no-batched", "--name", "apart")
    assert not np.allclose(rows(Path("runs/rl-apart")).bonus_mean.fillna(0), whole.bonus_mean.fillna(0))
    for seed in range(4):
        assert (RUN / f"models/last-layer-seed-{seed}/128/model.zip").exists()
    assert explore("rl", "--watch", RUN, "--seed", 3).exit_code == 0


def test_seeds_at_different_places_catch_up(explore, monkeypatch):
    train(explore, *CHAIN, "--seeds", 3, "--name", "whole", "--timesteps", 192)
    record, left = Training._record, [2]

    def interrupted(self, folder, emit, row):
        record(self, folder, emit, row)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_record", interrupted)
        assert explore("rl", *CHAIN, "--seeds", 3, "--timesteps", 192).exit_code != 0
    assert rows(RUN).groupby("seed").timesteps.max().to_dict() == {0: 64, 1: 64}
    train(explore, "--resume", RUN)
    assert rows(RUN).groupby("seed").timesteps.max().to_dict() == {0: 192, 1: 192, 2: 192}
    found, wanted = rows(RUN), rows(Path("runs/rl-whole"))
    same(found[found.seed == 2], wanted[wanted.seed == 2])  # the others began new episodes


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_conditions_share_batches_and_processes_share_seeds(explore, jobs):
    train(explore, *CHAIN[:-2], "--compare", "none,rnd", "--seeds", 2)
    both = rows(Path("runs/rl-explore-Chain-v0-ppo-none-rnd"))
    train(explore, *CHAIN[:-2], "--posterior", "none", "--seeds", 3, "--jobs", jobs, "--name", "none")
    alone = rows(Path("runs/rl-none"))
    same(both[both.condition == "none"].drop(columns="condition"), alone[alone.seed < 2])


def test_what_cannot_be_batched_is_said(explore):
    refused = explore("rl", *CHAIN, "--algo", "trpo", "--batched")
    assert "--batched is for --algo ppo; trpo trains one seed after another" in refused.stderr
    images = ["--env", "explore/Pixels-v0", "--env-kwargs", "task:explore/Chain-v0", "--algo", "ppo"]
    small = ["--algo-param", "n_steps=4", "--algo-param", "batch_size=4", "--timesteps", 4, "--posterior", "none"]
    said = train(explore, *images, *small, "--seeds", 2).output
    assert "Seeds are trained one after another: observations are images or a Dict" in said
