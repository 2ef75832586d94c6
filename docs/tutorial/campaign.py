# %% [markdown]
# # A chemist's campaign
#
# You can run 36 reactions, and 600 are possible. Which ones do you run, to find a high yield?
#
# This page plays a campaign with `explore suggest`: six rounds of six reactions. At the end it shows what random
# choice would have found. It takes about two minutes.

# %%
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

folder = Path(tempfile.mkdtemp())  # in your own work, the folder of your table

# %% [markdown]
# ## The table
#
# One row is one possible reaction. The columns may be text, numbers or yes and no. `yield` is empty, since nothing has
# been measured.

# %%
rng = np.random.default_rng(0)
n = 600
reactions = pd.DataFrame(
    {
        "reaction": [f"R{i:03d}" for i in range(n)],
        "ligand": rng.choice(["PPh3", "PCy3", "dppf", "XPhos", "SPhos", "RuPhos"], n),
        "solvent": rng.choice(["toluene", "dioxane", "THF", "DMF", "ethanol"], n),
        "base": rng.choice(["K2CO3", "K3PO4", "Cs2CO3", "Et3N"], n),
        "temperature": rng.integers(5, 27, n) * 5,  # in degrees Celsius
        "catalyst": rng.choice([0.5, 1, 2, 5], n),  # in mol %
        "dry": rng.choice(["yes", "no"], n),
        "yield": np.nan,
    }
)
reactions.to_csv(folder / "reactions.csv", index=False)
reactions.head()

# %% [markdown]
# ## The laboratory
#
# A formula takes the place of the laboratory. Each ligand has its own best temperature, inorganic bases need some
# water, and repeated measurements differ by two per cent. The command never sees this cell.

# %%
LIGANDS = {
    "PPh3": (-0.5, 95),
    "PCy3": (0.5, 80),
    "dppf": (0.3, 100),
    "XPhos": (1.5, 75),
    "SPhos": (2, 65),
    "RuPhos": (1, 70),
}
SOLVENTS = {"toluene": 0.5, "dioxane": 1.0, "THF": 0.3, "DMF": -0.5, "ethanol": 0.0}
BASES = {"K2CO3": 0.2, "K3PO4": 1.0, "Cs2CO3": 0.6, "Et3N": -1.0}

activity, best_temperature = (reactions.ligand.map(lambda name, i=i: LIGANDS[name][i]) for i in (0, 1))
score = activity + reactions.solvent.map(SOLVENTS) + reactions.base.map(BASES) - 2.5
score += 0.5 * np.log2(reactions.catalyst) - ((reactions.temperature - best_temperature) / 25) ** 2
score -= 1.2 * ((reactions.base != "Et3N") & (reactions.dry == "yes"))
true_yield = pd.Series(100 / (1 + np.exp(-score)).to_numpy(), index=reactions.reaction)


def measure(names):
    return (true_yield[names] + rng.normal(0, 2, len(names))).clip(0, 100).round(1).to_numpy()


# %% [markdown]
# ## The first suggestions
#
# `--goal maximise` looks for the highest yield. Without measurements, the first six reactions are spread over the
# table. In a notebook of your own, `!explore suggest ...` does the same as this function.


# %%
def shell(command):
    settings = {"cwd": folder, "env": os.environ | {"COLUMNS": "100"}}
    run = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings)
    assert run.returncode == 0, run.stdout
    return f"$ {command}\n{run.stdout}"


print(shell("explore suggest reactions.csv --target yield --id reaction --goal maximise --batch 6"))

# %% [markdown]
# ## Measure, and ask again
#
# The suggestions are in `next.csv`. You fill in the column `yield` and pass the file to the command, which then
# suggests six more. The settings are remembered.

# %%
rounds = []
for number in range(6):
    batch = pd.read_csv(folder / "next.csv")
    batch["yield"] = measure(batch.reaction)
    batch.to_csv(folder / "next.csv", index=False)
    rounds.append(batch)
    if number < 5:
        shown = shell("explore suggest reactions.csv --labels next.csv")
    if number == 0:
        print(shown)

rounds[-1]

# %% [markdown]
# After the first measurements a Gaussian process is fitted, which predicts a mean and a 90 % interval for each
# reaction. The suggestions are those with the largest expected improvement on the best yield so far: a high prediction,
# or an uncertain one.
#
# ## Beside random choice
#
# Was it worth it? Random choice costs nothing to simulate, so here are a thousand campaigns of 36 random reactions.

# %%
suggested = pd.concat(rounds, ignore_index=True)
found = np.maximum.accumulate(true_yield[suggested.reaction].to_numpy())
random = np.array([rng.permutation(true_yield.to_numpy())[:36] for _ in range(1000)])
random = np.maximum.accumulate(random, axis=1)
low, median, high = np.quantile(random, [0.05, 0.5, 0.95], axis=0)
print(f"Best yield after 36 reactions: {found[-1]:.0f} %, by random choice {median[-1]:.0f} % (median).")
print(f"The best of all 600 reactions: {true_yield.max():.0f} %.")
print(f"Random campaigns that found as much: {(random[:, -1] >= found[-1]).mean():.0%}.")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
count = np.arange(1, 37)
left.fill_between(count, low, high, alpha=0.2, color="tab:grey", label="random, 90 % of campaigns")
left.plot(count, median, color="tab:grey", label="random, median")
left.step(count, found, where="post", color="tab:blue", label="explore suggest")
left.axhline(true_yield.max(), color="black", linestyle=":", label="best possible")
left.set(xlabel="reactions", ylabel="best yield so far (%)", ylim=(0, 100))
left.legend(loc="lower right")

predicted = suggested.dropna(subset="_mean")
interval = (predicted._mean - predicted._low, predicted._high - predicted._mean)
right.errorbar(predicted["yield"], predicted._mean, interval, fmt="o", color="tab:blue", ecolor="lightblue")
right.plot([0, 100], [0, 100], color="black", linestyle=":")
right.set(xlabel="measured yield (%)", ylabel="predicted yield (%), 90 % interval")
plt.show()

# %% [markdown]
# The intervals are wide while there are few measurements, and do not know that yields lie between 0 and 100 %.
#
# This is one campaign, so luck plays a part. In three trials on other tables, 7 to 22 % of the random campaigns found
# as much.
#
# Next: [all options of the command](../suggest.md), such as costs, stopping rules and failed experiments, or
# [`explore active`](../active.md), which repeats a campaign on your old data.
