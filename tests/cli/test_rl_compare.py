"""`explore rl --compare`: several bonuses on the same seeds."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from explore.cli.rl import report

CHAIN = [
    "--env", "explore/Chain-v0", "--env-kwargs", "length:5", "--n-envs", "4", "--algo-param", "n_steps=16",
    "--timesteps", "128",
]  # fmt: skip
COMPARE = [*CHAIN, "--compare", "none,count,kl", "--seeds", "2"]
RUN = Path("runs/rl-explore-Chain-v0-trpo-none-count-kl")


def train(explore, *arguments):
    result = explore("rl", *arguments)
    assert result.exit_code == 0, result.output
    return result


def rows(run):
    return pd.read_csv(run / "results.csv").drop(columns=["seconds", "bonus_share"])


def test_a_comparison_is_made_of_the_runs_that_it_names(explore, drawn_in_full):
    result = train(explore, *COMPARE, "--json")
    both, summary = rows(RUN), json.loads(result.stdout)
    for name, arguments in {"none": ["--posterior", "none"], "count": ["--bonus", "count"], "kl": []}.items():
        train(explore, *CHAIN, *arguments, "--seeds", 2, "--name", name)
        mine = both[both.condition == name].drop(columns="condition")
        pd.testing.assert_frame_equal(mine.reset_index(drop=True), rows(Path(f"runs/rl-{name}")))
        means = mine.groupby("seed").ep_extrinsic_mean.mean()
        assert [seed["return"] for seed in summary["conditions"][name]["seeds"]] == pytest.approx(means.tolist())
        assert (RUN / f"models/{name}-seed-1/128/model.pt").exists()
    assert both.groupby("seed", sort=False).condition.unique().map(list).tolist() == [["none", "count", "kl"]] * 2
    assert summary["gains"].keys() == {"count", "kl"} and summary["gains"]["kl"]["beside"] == "none"
    assert (RUN / "curves.png").stat().st_size > 5000
    assert explore("report", RUN).exit_code == 0
    assert all(f">{name}<" in Path("report.html").read_text() for name in ("none", "count", "kl"))


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_comparison_is_trained_further_with_more_seeds(explore, jobs):
    train(explore, *COMPARE, "--seeds", 1)
    train(explore, "--resume", RUN, "--seeds", 2, "--timesteps", 192)
    wanted = rows(RUN).sort_values(["condition", "seed", "iteration"], ignore_index=True)
    printed = train(explore, *COMPARE, "--timesteps", 192, "--jobs", jobs, "--name", "jobs").output
    assert "paid" in printed and "restarts" not in printed  # a column without means
    found = rows(Path("runs/rl-jobs")).sort_values(["condition", "seed", "iteration"], ignore_index=True)
    new = wanted.seed == 1  # the others were resumed, in fresh episodes
    pd.testing.assert_frame_equal(found[new], wanted[new])
    assert found.groupby(["condition", "seed"]).timesteps.max().tolist() == [192] * 6
    shown = explore("rl", "--watch", RUN, "--bonus", "count")
    assert Path(shown.stdout.strip()).name == "count-seed-0.gif"
    refused = explore("rl", "--watch", RUN, "--bonus", "rnd")
    assert "unknown condition of this run 'rnd'; allowed: count, kl, none" in refused.stderr


@pytest.mark.parametrize(
    ("gain", "seeds", "answer"),
    [(0.5, 8, "yes."), (-0.5, 8, "no, it does harm."), (0.0, 8, "not settled."), (0.5, 4, "pass --seeds 5 or more")],
)
def test_the_answer_is_that_of_the_interval(gain, seeds, answer):
    draw = np.random.default_rng(1)
    base = draw.normal(size=seeds)
    mine = base + gain + 0.2 * draw.normal(size=seeds)
    every = {name: [{"return": v} for v in values] for name, values in (("none", base), ("rnd", mine))}
    said, gains = report.helps(every)
    middle = np.sort(mine - base)[seeds // 4 : -(seeds // 4)].mean()
    assert gains["rnd"]["mean"] == pytest.approx(middle) and gains["rnd"]["low"] < middle < gains["rnd"]["high"]
    assert said.startswith(f"Does rnd help? Its return is {middle:+.3g} beside none") and answer in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "none,kl,kl"], "--compare names 'kl' twice. Name it once"),
        (["--compare", "none,kl", "--bonus", "kl"], "--compare names the bonuses. Leave out --bonus"),
        (["--compare", "rnd,kl", "-p", "units=3"], "-p needs a single bonus"),
        (
            ["--compare", "none,rnd", "--posterior", "bbb"],
            "no bonus in --compare has a posterior. Leave --posterior out",
        ),
        (["--compare", "none,tedium"], "unknown bonus 'tedium'"),
    ],
)
def test_wrong_comparisons(explore, arguments, message):
    result = explore("rl", *CHAIN, *arguments)
    assert result.exit_code == 2 and message in result.stderr
    assert not Path("runs").exists()
