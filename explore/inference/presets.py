"""Recommended settings of posteriors and of the noise prior."""

import math
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from explore import registry

BY_ROWS = "by-rows"
"""The preset name recorded if settings depend on the number of rows."""
NOISE = {20: {"prior_shape": 3.0, "prior_rate": 1.0}, 250: {"prior_shape": 1.0, "prior_rate": 0.01}}
"""The prior of the noise precision by number of rows. With 20 rows it prevents overconfidence of a flexible network;
with 120 rows, a noise as small as 1/30 of the targets' standard deviation can still be estimated."""
FEW_ROWS = {"regression": 64, "classification": 100}  # fewer rows take the preset `small`, without `BY_ROWS`

FEW_LABELS = 512  # most rows for which `recommended` is a Gaussian process: experiments/few_labels
MANY_ROWS = 1000  # fewest rows for two hidden layers: experiments/large_tables
NUMBERS = ("gaussian", "heteroscedastic")  # likelihoods of a process

PREFERRED = {"images": "image", "pool of images": "small", "vime": "vime"}  # presets, if the posterior has them
Consumer = Literal["table", "images", "pool of images", "vime"]


def recommended_widths(rows: int) -> tuple[int, ...]:
    """Return the recommended hidden layers of a network for a table with this number of labelled rows."""
    return (100, 100) if rows >= MANY_ROWS else (50,)


class Recommended(NamedTuple):
    """Recommended settings for a fit."""

    preset: str
    settings: dict[str, Any]  # of the posterior
    noise: dict[str, float]  # of `Gaussian`


def recommended(rows: int, columns: int = 0, likelihood: str = "heteroscedastic") -> tuple[str, Recommended]:
    """Return the recommended posterior for a table, and its settings; `rows` is the number of labelled rows."""
    numbers = likelihood in NUMBERS
    name = "gp" if numbers and rows <= FEW_LABELS else "noisy-kfac"
    classes = not likelihood or registry.find("likelihoods", likelihood).discrete  # "": of classes not known yet
    task = "classification" if classes else "regression"
    return name, recommended_settings(registry.find("posteriors", name), rows, columns, task, likelihood=likelihood)


def chosen(posterior: str | None, likelihood: str | None, default: str, rows: int, of_net: bool) -> tuple[str, str]:
    """Return the names of a posterior and a likelihood for a table; what is None is chosen.

    `default` is the likelihood of the data. `of_net` is whether there are settings of a network, which ask for noisy
    K-FAC.
    """
    if posterior is not None or of_net:
        return posterior or "noisy-kfac", likelihood or default
    likelihood = likelihood or ("heteroscedastic" if default in NUMBERS else default)
    return recommended(rows, likelihood=likelihood)[0], likelihood


def recommended_settings(
    posterior: Any,
    rows: int = 0,
    columns: int = 0,
    task: str = "regression",
    consumer: Consumer = "table",
    units: int = 50,
    likelihood: str = "gaussian",
) -> Recommended:
    """Return the recommended settings of a posterior class, for use if no preset is given.

    Images and VIME use the preset in `PREFERRED`. If the posterior's module has `BY_ROWS`, regression on tables
    interpolates `BY_ROWS` by rows and units, and the noise prior by rows. With input-dependent noise, `INPUT_NOISE`
    replaces some of these settings. `BY_COLUMNS` has factors on them, by columns. Other tables use `small` below
    `FEW_ROWS` rows. With more rows, classification uses `classes`, and regression uses `hundreds` below 250 rows. If
    this preset is missing, tables use the first of `default`, `uci` and `paper` that exists. The last resort is the
    first preset.
    """
    presets, classes = registry.presets(posterior), task == "classification"
    anchors, noisy, wide = (
        getattr(sys.modules[posterior.__module__], name, {}) for name in ("BY_ROWS", "INPUT_NOISE", "BY_COLUMNS")
    )
    if anchors and consumer == "table" and not classes:
        settings = between({width: between(at_rows, rows) for width, at_rows in anchors.items()}, units)
        if likelihood == "heteroscedastic" and noisy:
            settings |= between(noisy, rows)
        for key, factor in between(wide, columns).items() if wide else ():
            settings[key] *= factor
        preset = "default" if settings == presets.get("default") else BY_ROWS
        return Recommended(preset, settings, between(NOISE, rows))
    if consumer == "table":
        many = ["classes"] if classes else ["hundreds"] * (rows < 250)
        preferred = [*(["small"] if rows < FEW_ROWS[task] else many), "default", "uci", "paper"]
    else:
        preferred = [PREFERRED[consumer]]
    preset = next((name for name in preferred if name in presets), next(iter(presets)))
    return Recommended(preset, dict(presets[preset]), noise_for(preset))


def noise_for(preset: str | None) -> dict[str, float]:
    """Return the noise-prior settings of `Gaussian` for a preset: a weak prior, or {} for the papers' default."""
    return {"prior_shape": 1.0, "prior_rate": 0.01} if preset in (None, "default", "hundreds") else {}


def between(anchors: Mapping[int, Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Interpolate settings geometrically between the anchors (numbers of rows or units) nearest to `rows`."""
    counts = sorted(anchors)
    rows = min(max(rows, counts[0]), counts[-1])
    if rows in anchors:
        return dict(anchors[rows])
    low, high = next((a, b) for a, b in pairwise(counts) if a < rows < b)
    share = math.log(rows / low) / math.log(high / low)
    settings = dict(anchors[low])
    for key, first in anchors[low].items():
        if first != (last := anchors[high][key]):
            value = first ** (1 - share) * last**share
            settings[key] = round(value) if isinstance(first, int) else value
    return settings
