"""What a run folder keeps of a comparison.

metrics.jsonl and TensorBoard: a series a posterior, all with the same tags but for the variances of a prior that is
learned; a step is an epoch, a value the mean over splits. results.csv: one line a posterior and split, after the last
epoch, without those variances, with the seconds that the posterior's fit took on all splits together, and whether it
went well on this one (`alive`). Posteriors stand in the order in which they were done, splits count from 1. model.pt:
all posteriors that are done, of all splits.
"""

from __future__ import annotations

from typing import Any

from explore.cli import saved
from explore.cli.compare import figures
from explore.cli.compare.experiment import Event, Experiment, Finished
from explore.cli.start import file_name
from explore.learning.compare import OWN, Measured
from explore.runs.record import Run


def write(run: Run, comparison: Experiment, event: Event) -> int | None:
    """Write what a posterior's fit came to. The step of a checkpoint is an epoch, and 0 before those of the next."""
    match event:
        case name, None:
            _begin(run, comparison, name)
        case name, Measured() as measured:
            means = {tag: float(value.double().mean()) for tag, value in measured.scalars.items()}
            run.scalars(file_name(name), measured.epoch, means)
            last = measured.epoch == comparison.posteriors[name].epochs
            return measured.epoch if comparison.ends_group(name) and not last else None
        case name, Finished() as finished:
            finish(run, comparison, name, finished)
            assert comparison.saved is not None
            saved.add(run.folder, comparison.saved, comparison.settings)
            return 0 if comparison.ends_group(name) else None
    return None


def _begin(run: Run, comparison: Experiment, name: str) -> None:
    """Write the settings of a posterior for TensorBoard."""
    decisive = "test/error" if comparison.dataset.classes else "test/rmse"
    every: dict[str, Any] = {}
    for other in reversed(comparison.posteriors):  # reversed: the columns come in the order of the first posterior
        every = _settings(comparison, other) | every
    tags = [decisive, "test/log_likelihood", "test/calibration_error", "train/elbo"]
    run.hparams(file_name(name), _settings(comparison, name), tags, every)


def finish(run: Run, comparison: Experiment, name: str, fitted: Finished) -> None:
    """Write the results of a posterior."""
    epochs = comparison.posteriors[name].epochs
    shared = {tag: value for tag, value in fitted.scalars.items() if not tag.startswith(OWN)}
    values = {column(tag): value.tolist() for tag, value in shared.items()}
    rows = [
        {"posterior": name, "split": r + 1, "epochs": epochs}
        | {key: value[r] for key, value in values.items()}
        | {"alive": alive, "seconds": round(fitted.seconds, 3)}
        for r, alive in enumerate(fitted.alive.tolist())
    ]
    run.rows("results.csv", rows)
    for picture in figures.PICTURES:
        if (figure := figures.plot(picture, {name: fitted})) is not None:
            run.image(file_name(name), epochs, f"figures/{picture}", figures.pixels(figure))


def column(tag: str) -> str:
    """The tag's column in results.csv."""
    return tag.partition("/")[2]


def _settings(comparison: Experiment, name: str) -> dict[str, Any]:
    """What tells this row from others; all that the posteriors of a run share is in config.json."""
    s = comparison.settings
    own = s.posteriors[name]
    noise = {f"likelihood.{key}": value for key, value in s.noise(name).items()}
    net = {"dataset": comparison.dataset.name, "hidden": list(s.hidden)}
    return {"posterior": own.name, "preset": own.preset} | dict(own.settings) | net | noise
