"""Every command that fits or predicts says, once, where most of a posterior's curvature is still its start."""

import json

import pandas as pd
import pytest

from explore.core.errors import curvature_note

SAID = curvature_note([1.0]).partition(" % ")[2].partition(",")[0]
TABLE = ["--target", "y", "--drop-columns", "id,kind,sign,z"]


@pytest.mark.parametrize(("beta", "times"), [(0.001, 1), (0.9, 0)])
def test_commands_say_once_that_curvature_is_mostly_its_start(explore, csv, beta, times):
    frame = pd.read_csv(csv)[["a", "b", "y"]]
    frame.loc[40:, "y"] = None
    frame.to_csv("pool.csv", index=False)
    own = ["--posterior", "noisy-kfac", "-p", f"beta={beta}", "--samples", 5, "--json", "--quiet"]
    few = ["--epochs", 3, "--data", csv, *TABLE]
    chain = ["--env", "explore/Chain-v0", "--n-envs", 4, "--timesteps", 64, "--algo-param", "n_steps=16"]
    rates = ["-p", f"beta={min(beta, 0.2)}", "-p", "statistics_interval=1"]
    model = ["--posterior", "noisy-kfac", *rates, "-p", "vime.minimum=20", "-p", "vime.updates=20"]
    commands = {
        "active": [*own, *few, "--trials", 2, "--rounds", 2, "--test-size", 20, "--name", "run"],
        "compare": [*own, *few, "--splits", 2, "--hidden", 4],
        "suggest": ["pool.csv", *own, "--epochs", 3, "--target", "y"],
        "rl": [*chain, *model, "--json"],
        "predict": ["runs/active-run", csv, "--json"],
    }
    for command, options in commands.items():
        result = explore(command, *options)
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        sentences = [*found.get("warnings", ()), *found.get("notes", ())]
        assert sum(SAID in sentence for sentence in sentences) == times, (command, sentences)
