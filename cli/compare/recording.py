"""The files of a comparison.

metrics.jsonl and TensorBoard: a series a posterior, all with the same tags but for the variances of a prior that is
learned; a step is an epoch, a value the mean over splits. results.csv: a row a posterior and split, after the last
epoch, without those variances, with the seconds of the posterior's fit on all splits together, and whether the fit on
this split succeeded (`alive`). Posteriors stand in the order in which they finished, splits count from 1. model.pt:
all finished posteriors, of all splits.
"""

from __future__ import annotations

from typing import Any

from explore.cli.compare import report
from explore.cli.compare.experiment import Event, Experiment, Finished
from explore.cli.start import file_name
from explore.learning import saved
from explore.learning.compare import OWN, Measured
from explore.runs.record import Run


def write(run: Run, comparison: Experiment, event: Event) -> int | None:
    """Write an event. The step of a checkpoint is an epoch, and 0 before those of the next posterior."""
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
            saved.write(run.folder, comparison.saved, more=True)
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
    values = {tag.partition("/")[2]: v.tolist() for tag, v in fitted.scalars.items() if not tag.startswith(OWN)}
    rows = [
        {"posterior": name, "split": r + 1, "epochs": epochs}
        | {key: value[r] for key, value in values.items()}
        | {"alive": alive, "seconds": round(fitted.seconds, 3)}
        for r, alive in enumerate(fitted.alive.tolist())
    ]
    run.rows("results.csv", rows)
    for picture in report.PICTURES:
        if (figure := report.plot(picture, {name: fitted})) is not None:
            run.image(file_name(name), epochs, f"figures/{picture}", figure)


def _settings(comparison: Experiment, name: str) -> dict[str, Any]:
    """Return the settings of a posterior; those that all posteriors share are in config.json."""
    s = comparison.settings
    candidate = s.posteriors[name]
    noise = {f"likelihood.{key}": value for key, value in s.noise(name).items()}
    net = {"dataset": comparison.dataset.name, "hidden": list(s.hidden)}
    return {"posterior": candidate.name, "preset": candidate.preset} | dict(candidate.settings) | net | noise
