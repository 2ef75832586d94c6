# %% [markdown]
# # A new posterior in forty lines
#
# You have an idea for a posterior. Written as one class, it works in every command and is tested by the checks that the
# built-in posteriors pass. The example is SWAG, which `explore` lacks: average the weights that an optimiser passes
# through, and take their variance as uncertainty
# ([Maddox et al. 2019](https://arxiv.org/abs/1902.02476)). It takes about two minutes.

# %%
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

folder = Path(tempfile.mkdtemp())  # in your own work, the folder of your package

# %% [markdown]
# ## The class
#
# A posterior has settings, the fields of a frozen dataclass, and a state, a tuple of tensors. `init` makes the first
# state, `update` takes a step on a batch and returns the next one, and `sample` draws weights. No method changes its
# arguments.
#
# SWAG needs a trained network, so it starts from `PointEstimate`, which trains one by Adam. It adds the mean and the
# variance of the weights. This cell writes the file `swag.py`:

# %%
SWAG = '''
"""SWAG: a factorised Gaussian from the weights that an optimiser passes through (Maddox et al. 2019).

    m <- m + b (w - m)                    moving averages over the weights w after each step: the mean m,
    v <- (1 - b) (v + b (w - m)^2)        and the variance v around it
    q(w) = N(m, v)

Adam at a constant rate takes the place of SGD. The low-rank part of the paper's covariance is left out.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from explore.core.shapes import Weights
from explore.inference.base import Common
from explore.inference.updates.adam import Moving
from explore.inference.updates.points import PointEstimate
from explore.inference.updates.steps import settle


class SwagState(NamedTuple):
    common: Common  # what all posteriors have: noise, step number, failed replicas
    weights: Weights  # w, one tensor [replicas, 1, inputs, outputs] per layer
    moving: Moving  # of Adam
    mean: Weights  # m
    variance: Weights  # v


@dataclass(frozen=True, kw_only=True)
class Swag(PointEstimate):
    average: float = 0.01  # b
    ranges: ClassVar[dict[str, str]] = {"average": "(0, 1)"}
    prior_error: ClassVar[str] = "its variance is that of the optimiser's path"

    def init(self, n_data, replicas, rng):
        start = super().init(n_data, replicas, rng)
        return SwagState(*start, mean=start.weights, variance=tuple(map(torch.zeros_like, start.weights)))

    def turn(self, step, progress):
        return super().turn(step, 0.0)  # the learning rate stays as it is at the start

    def update(self, state, batch, rng, progress=0.0):
        new, info = super().update(state, batch, rng, progress)
        b, apart = self.average, [w - m for w, m in zip(new.weights, state.mean, strict=True)]
        mean = tuple(m + b * d for m, d in zip(state.mean, apart, strict=True))
        variance = tuple((1 - b) * (v + b * d**2) for v, d in zip(state.variance, apart, strict=True))
        return settle(new._replace(mean=mean, variance=variance), state, new.common.alive), info

    def sample(self, state, n, rng):
        pairs = zip(state.mean, state.variance, strict=True)
        return self.layers(state, [m + v.sqrt() * rng.normal(len(m), n, *m.shape[2:]) for m, v in pairs])


CONTRACT = {"lively": {"average": 0.2}}  # for the checks: settings at which a few updates change everything
'''
(folder / "swag.py").write_text(SWAG.lstrip())
print(f"The classes have {len(SWAG[SWAG.index('class SwagState') :].splitlines())} lines.")

# %% [markdown]
# * Weights have two more axes than you may expect. The first one is for replicas: independent fits, trained side by
#   side. The second one is for samples.
# * `settle` freezes a replica that failed, here where the training of `PointEstimate` failed. The others go on.
# * All random numbers come from `rng`.
#
# ## The checks
#
# `check_posterior` makes a test for pytest. It checks that functions are pure, that saved states continue bit for bit,
# that replicas do not affect each other, that training lowers the loss, and more.

# %%
TEST = """
from explore.testing import check_posterior
from swag import Swag

test_swag = check_posterior(Swag)
"""
(folder / "test_swag.py").write_text(TEST.lstrip())


def shell(command):
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    settings = {"cwd": folder, "env": os.environ | {"COLUMNS": "100", "PYTHONPATH": paths}}
    run = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings)
    print(f"$ {command}\n{run.stdout}")


shell("python -m pytest -q test_swag.py")

# %% [markdown]
# If you leave out `new.common.alive`, three of these tests fail: a replica that got a missing value goes on. If a test
# needs to know something about your posterior, its message says what to add to `CONTRACT`.
#
# ## Beside other posteriors
#
# `swag:Swag` names the class, in a module that Python finds. `map` is a single network.

# %%
shell("explore compare --dataset boston --posterior swag:Swag,map,noisy-kfac --splits 5 --name swag")

# %%
results = pd.read_csv(folder / "runs" / "compare-swag" / "results.csv")
figure, axes = plt.subplots(1, 3, figsize=(10, 3.5), layout="constrained")
titles = {"rmse": "test RMSE", "log_likelihood": "test log-likelihood", "coverage_95": "coverage of 95 % intervals"}
for axis, (column, title) in zip(axes, titles.items(), strict=True):
    for place, (_, scores) in enumerate(results.groupby("posterior", sort=False)[column]):
        axis.plot([place] * len(scores), scores, "o", color="tab:blue", alpha=0.4)
        axis.plot(place, scores.mean(), "_", color="black", markersize=30)
    axis.set_xticks(range(3), results.posterior.unique())
    axis.set(title=title, xlim=(-0.5, 2.5))
axes[2].axhline(0.95, color="black", linestyle=":")
plt.show()

# %% [markdown]
# Each dot is a split, and a bar the mean. The averaged network has a lower error than the single one, and its variance
# brings the log-likelihood close to that of noisy K-FAC.
#
# ## A name of its own
#
# For a short name, add an entry point to your package, and install it. Then `--posterior swag` works, and
# `explore list posteriors` shows it:
#
# ```toml
# [project.entry-points."explore.posteriors"]
# swag = "mypackage.swag:Swag"
# ```
#
# A posterior with a density also gets an evidence bound, an information gain and checks against exact linear
# regression, see [CONTRIBUTING](../../CONTRIBUTING.md#a-posterior).
