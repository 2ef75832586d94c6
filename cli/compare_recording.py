"""What a run folder keeps of a comparison.

metrics.jsonl and TensorBoard: a series a posterior, all with the same tags; a step is an epoch, a value the mean over
splits. results.csv: one line a posterior and split, after the last epoch, with the seconds that the posterior's fit
took on all splits together, and whether it went well on this one (`alive`). Splits count from 1.
"""

from __future__ import annotations

from typing import Any

from explore.cli import figures
from explore.cli.comparison import Comparison, Finished
from explore.cli.start import file_name
from explore.compare import Measured
from explore.record import Run


def begin(run: Run, comparison: Comparison, name: str) -> None:
    """Write the settings of a posterior for TensorBoard."""
    decisive = "test/error" if comparison.dataset.classes else "test/rmse"
    every: dict[str, Any] = {}
    for other in reversed(comparison.posteriors):  # reversed: the columns come in the order of the first posterior
        every = _settings(comparison, other) | every
    tags = [decisive, "test/log_likelihood", "test/calibration_error", "train/elbo"]
    run.hparams(file_name(name), _settings(comparison, name), tags, every)


def write(run: Run, name: str, event: Measured) -> None:
    """Write what was measured at an epoch."""
    means = {tag: float(value.double().mean()) for tag, value in event.scalars.items()}
    run.scalars(file_name(name), event.epoch, means)


def finish(run: Run, comparison: Comparison, name: str, event: Finished) -> None:
    """Write the results of a posterior."""
    epochs = comparison.posteriors[name].epochs
    values = {column(tag): value.tolist() for tag, value in event.scalars.items()}
    rows = [
        {"posterior": name, "split": r + 1, "epochs": epochs}
        | {key: value[r] for key, value in values.items()}
        | {"alive": alive, "seconds": round(event.seconds, 3)}
        for r, alive in enumerate(event.alive.tolist())
    ]
    run.rows("results.csv", rows)
    for picture in figures.PICTURES:
        if (found := figures.draw(picture, {name: event})) is not None:
            run.image(file_name(name), epochs, f"figures/{picture}", figures.pixels(found))


def column(tag: str) -> str:
    """The tag's column in results.csv."""
    return tag.partition("/")[2]


def _settings(comparison: Comparison, name: str) -> dict[str, Any]:
    """What tells this row from others; all that the posteriors of a run share is in config.json."""
    s = comparison.settings
    own = s["posteriors"][name]
    noise = {f"likelihood.{key}": value for key, value in s["likelihood_settings"].items()}
    net = {"dataset": comparison.dataset.name, "hidden": s["hidden"]}
    return {"posterior": name, "preset": own["preset"]} | own["settings"] | net | noise
