"""Which settings a posterior is recommended with, and presets that posteriors by natural gradient share."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from explore import registry

BY_ROWS = "by-rows"
"""The preset that is recorded where settings depend on the number of rows."""
NOISE = {20: {"prior_shape": 3.0, "prior_rate": 1.0}, 250: {"prior_shape": 1.0, "prior_rate": 0.01}}
"""The prior of the noise's precision by rows: with 20 it keeps a flexible net from being sure of them, and with 120 a
noise of a thirtieth of the targets' deviation is still learnt."""
FEW_ROWS = {"regression": 64, "classification": 100}  # below which a posterior without `BY_ROWS` has its preset `small`

PREFERRED = {"images": "image", "pool of images": "small", "vime": "vime"}  # presets, where a posterior has them
Consumer = Literal["table", "images", "pool of images", "vime"]


class Recommended(NamedTuple):
    """What a posterior is fitted with."""

    preset: str
    settings: dict[str, Any]  # of the posterior
    noise: dict[str, float]  # of `Gaussian`


def recommended_settings(
    posterior: Any,
    rows: int = 0,
    columns: int = 0,
    task: str = "regression",
    consumer: Consumer = "table",
    units: int = 50,
) -> Recommended:
    """The settings of a posterior where none are asked for: all rules in one place.

    For images and for VIME it is the preset that is `PREFERRED`, else the posterior's first. For a table, where its
    file has `BY_ROWS`, settings by units and rows, they move continuously between these, and so does the prior of the
    noise. Else it is a preset: `small` below `FEW_ROWS`, then, below 250 rows, `hundreds`; for classes `classes`.

    Args:
        posterior: the class.
        rows: to learn from.
        columns: of a row; no rule depends on it yet.
        task: "regression" or "classification".
        consumer: of the fit.
        units: of the widest hidden layer: the more, the narrower is the prior of a weight where rows are few.
    """
    presets, classes = registry.presets(posterior), task == "classification"
    anchors = getattr(sys.modules[posterior.__module__], "BY_ROWS", None)
    if anchors and consumer == "table" and not classes:
        settings = between({width: between(at_rows, rows) for width, at_rows in anchors.items()}, units)
        preset = "default" if settings == presets.get("default") else BY_ROWS
        return Recommended(preset, settings, between(NOISE, rows))
    if consumer == "table":
        many = ["classes"] if classes else ["hundreds"] * (rows < 250)
        preferred = [*(["small"] if rows < FEW_ROWS[task] else many), "default", "uci", "paper"]
    else:
        preferred = [PREFERRED[consumer]]
    preset = next((name for name in preferred if name in presets), next(iter(presets)))
    return Recommended(preset, dict(presets[preset]), registry.noise_for(preset))


def between(anchors: Mapping[int, Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Settings of which those that differ between two anchors move geometrically with the number of rows.

    Whole numbers stay whole. Below the first anchor and above the last one settings stay what they are there.

    Args:
        anchors: rows (or units) -> settings, of the same names; those that differ are positive numbers.
        rows: how many there are.
    """
    counts = sorted(anchors)
    rows = min(max(rows, counts[0]), counts[-1])
    if rows in anchors:
        return dict(anchors[rows])
    low, high = next((a, b) for a, b in pairwise(counts) if a < rows < b)
    share = math.log(rows / low) / math.log(high / low)
    return {key: _between(value, anchors[high][key], share) for key, value in anchors[low].items()}


def _between(first: Any, last: Any, share: float) -> Any:
    if first == last:
        return first
    value = first ** (1 - share) * last**share
    return round(value) if isinstance(first, int) else value


TABLE: dict[str, object] = {
    "epochs": 120, "batch_size": 64, "min_batches": 16, "samples": 2, "lr": 1.0, "lr_schedule": "linear",
    "lr_decay": 0.0, "lr_decay_at": 0.7, "beta": 0.1, "statistics_interval": 5, "factor_interval": 5,
    "adaptive_damping": False, "trust_region": 0.25, "warm_start": 0.5, "prior_variance": 2.0,
    "kl_weight": 1.0,
}  # fmt: skip
"""The preset `default` of posteriors with Kronecker factors, for a table of one's own, from some hundred rows on.

First at the mean, then at samples, in steps that stay within a fraction of the posterior's own deviation. Chosen for
noisy K-FAC on validation parts of splits that no table reports: experiments/table_defaults. A prior twice as wide as
the papers' predicts as well, and is less sure where there are no data. With most of the training at the mean it is a
little ahead on tables of little noise, and far behind on small ones of much.
"""

_FEW: dict[str, object] = TABLE | {"epochs": 300, "min_batches": 8, "prior_variance": 1.0}
TABLE_BY_ROWS: dict[int, dict[int, dict[str, object]]] = {
    10: {20: _FEW | {"prior_variance": 0.5, "kl_weight": 0.6}, 60: _FEW, 250: TABLE},
    50: {
        20: _FEW | {"prior_variance": 0.1, "kl_weight": 0.5},
        60: _FEW | {"prior_variance": 0.2, "kl_weight": 0.6},
        250: TABLE,
    },
}
"""The same for a table of few rows, by units and rows, see `recommended_settings`.

Five times the units under a prior as wide make functions that few rows cannot hold: everything is then given up as
noise. Chosen on Boston, Concrete, Yacht and Power.
"""

HUNDREDS = TABLE | {"prior_variance": 0.3}
"""The preset `hundreds`, which was taken for 64 to 250 rows before settings moved with their number."""

CLASSES = TABLE | {"lr_decay_at": 0.8, "warm_start": 0.7, "prior_variance": 1.0}
"""The same for classes, preset `classes`: ahead in the mean over eleven validation sets, and less sure of errors."""

IMAGE: dict[str, object] = {
    "epochs": 150, "batch_size": 128, "samples": 1, "lr": 0.3, "lr_schedule": "linear", "lr_decay": 0.0,
    "lr_decay_at": 0.0, "beta": 0.2, "statistics_interval": 5, "adaptive_damping": False,
    "extrinsic_damping": 0.03, "kl_clip": 0.01, "prior_variance": 0.0025, "kl_weight": 0.1, "weight_sharing": "expand",
}  # fmt: skip
"""The preset `image` of posteriors with Kronecker factors, for image networks, from one epoch on.

Averages forget their start, the identity, within some hundred steps: next to gradients as small as those of the later
layers' outputs it stands in the Fisher matrix's place for thousands of steps with the paper's rate (`paper-image`).
Steps and noise are smaller than there. Chosen on validation parts of MNIST (LeNet-5) and of 5,000 images of CIFAR-10
(LeNet-5, VGG16s of quarter and half width). The noise that is best depends on the net: under a prior twice as wide the
VGG16s are a little better, and the LeNet-5 is far too sure, which with twice the KL weight, too, is better calibrated.
So narrow a prior keeps the noise small where the likelihood says nothing.
"""
