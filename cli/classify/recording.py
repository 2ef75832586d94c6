"""The files of a fit to images.

metrics.jsonl and TensorBoard: one series, a step an epoch; a last line has the detection of out-of-distribution images.
results.csv: one row, after the last epoch.
probabilities.npz: of the test images `probabilities` [P, C], `information` [P] (nats), the true classes `y` and
`index`, their places among the test images (with --validate, among the training images); the names of the `classes`;
of out-of-distribution images `other_probabilities` and `other_information`; and the id of the `run`. model.pt: the
posterior.
"""

from __future__ import annotations

import numpy as np

from explore.cli.classify import report
from explore.cli.classify.experiment import Event, Experiment, Finished
from explore.cli.start import file_name
from explore.core import files
from explore.learning import saved
from explore.learning.classification import Measured
from explore.runs.record import Run
from explore.runs.recorded import flat, run_id


def write(run: Run, experiment: Experiment, event: Event) -> int | None:
    """Write an event. The step of a checkpoint is an epoch."""
    s = experiment.settings
    series = file_name(s.posterior)
    match event:
        case None:
            settings = flat(s, {"posterior_settings": "posterior", "net_settings": "net"})
            run.hparams(series, settings, ["test/error", "test/log_likelihood", "test/calibration_error"])
        case Measured():
            run.scalars(series, event.epoch, event.scalars)
            return event.epoch if event.epoch < experiment.total else None
        case Finished():
            _finish(run, experiment, event, series)
            return experiment.total
    return None


def _finish(run: Run, experiment: Experiment, finished: Finished, series: str) -> None:
    tensors = {"probabilities": finished.tested.probabilities, "information": finished.tested.information}
    if finished.ood:
        tensors["other_probabilities"] = finished.ood.probabilities
        tensors["other_information"] = finished.ood.information
    tensors |= {"y": experiment.task.test_y, "index": experiment.index}
    arrays = {name: t.cpu().numpy() for name, t in tensors.items()}
    arrays |= {"classes": np.array(experiment.classes), "run": np.array(run_id(run.folder))}
    with files.replacing(run.folder / saved.PROBABILITIES) as draft, open(draft, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    row = {"posterior": experiment.settings.posterior, "net": experiment.settings.net, "epochs": experiment.total}
    values = report.metrics(finished)
    times = {"seconds": round(finished.seconds, 3), "epoch_seconds": round(finished.epoch_seconds, 3)}
    run.rows("results.csv", [row | values | {"alive": finished.alive} | times])
    if detection := {f"test/{name}": value for name, value in values.items() if name.startswith("auroc")}:
        run.scalars(series, experiment.total, detection)
    for name, figure in report.pictures(experiment, finished).items():
        run.image(series, experiment.total, f"figures/{name}", figure)
    assert experiment.saved is not None
    saved.write(run.folder, experiment.saved)
