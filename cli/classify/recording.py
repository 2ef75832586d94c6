"""What a run folder keeps of a fit to images.

metrics.jsonl and TensorBoard: one series, a step an epoch; with images of another kind a last line on how well they are
told apart. results.csv: one line, after the last epoch.
probabilities.npz: of the test images `probabilities` [P, C], `information` [P] (nats), the true classes `y` and
`index`, their places among the test images (with --validate, among the training images); the names of the `classes`;
of images of another kind `other_probabilities` and `other_information`; and the id of the `run`. model.pt: the
posterior.
"""

from __future__ import annotations

import numpy as np

from explore.cli import saved
from explore.cli.classify import report
from explore.cli.classify.experiment import Event, Experiment, Finished
from explore.cli.compare.figures import pixels
from explore.cli.parameters import written
from explore.cli.start import file_name
from explore.core import files
from explore.learning.classification import Measured
from explore.runs.record import Run
from explore.runs.recorded import run_id


def write(run: Run, experiment: Experiment, event: Event) -> int | None:
    """Write what the fit came to. The step of a checkpoint is an epoch."""
    series = file_name(experiment.settings.posterior)
    match event:
        case None:
            own = {"posterior": experiment.settings.posterior_settings, "net": experiment.settings.net_settings}
            plain = written(experiment.settings)
            flat = {k: v for k, v in plain.items() if not k.endswith("_settings") and k != "fingerprint"}
            flat |= {f"{kind}.{k}": v for kind, settings in own.items() for k, v in settings.items()}
            run.hparams(series, flat, ["test/error", "test/log_likelihood", "test/calibration_error"])
        case Measured():
            run.scalars(series, event.epoch, event.scalars)
            return event.epoch if event.epoch < experiment.total else None
        case Finished():
            _finish(run, experiment, event, series)
            return experiment.total
    return None


def _finish(run: Run, experiment: Experiment, finished: Finished, series: str) -> None:
    found = {"probabilities": finished.found.probabilities, "information": finished.found.information}
    if finished.others:
        found["other_probabilities"] = finished.others.probabilities
        found["other_information"] = finished.others.information
    found |= {"y": experiment.task.test_y, "index": experiment.places}
    arrays = {name: t.cpu().numpy() for name, t in found.items()} | {"classes": np.array(experiment.classes)}
    arrays["run"] = np.array(run_id(run.folder))
    with files.replacing(run.folder / saved.PROBABILITIES) as draft, open(draft, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    row = {"posterior": experiment.settings.posterior, "net": experiment.settings.net, "epochs": experiment.total}
    values = report.metrics(finished)
    times = {"seconds": round(finished.seconds, 3), "epoch_seconds": round(finished.epoch_seconds, 3)}
    run.rows("results.csv", [row | values | {"alive": finished.alive} | times])
    told = {f"test/{name}": value for name, value in values.items() if name.startswith("auroc")}
    if told:
        run.scalars(series, experiment.total, told)
    for name, figure in report.pictures(experiment, finished).items():
        run.image(series, experiment.total, f"figures/{name}", pixels(figure))
    assert experiment.saved is not None
    saved.write(run.folder, experiment.saved)
