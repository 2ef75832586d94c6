"""The files of an experiment, written round by round.

metrics.jsonl and TensorBoard: a series an arm, a step a number of labels; means over trials, and standard errors of
test metrics. results.csv: a line for each round, arm and trial, with every test metric and whether the fit went well
(`alive`). selected.csv: a line for each labelled point, best first (`order`), with its score; `index` counts the
examples of the data set from 0. Of a user's file, `line` is where the point begins in it, unpacked, and `id` its cell
in the column of --id, behind an apostrophe where a spreadsheet program would take it for a formula. Lines, rounds and
trials count from 1. model.pt: the posteriors of the last round, of all arms and trials.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from explore.cli.active.experiment import Experiment
from explore.cli.estimate import estimate
from explore.cli.start import file_name
from explore.data import Dataset, texts
from explore.learning import saved
from explore.learning.fit import Epoch
from explore.learning.learner import Round
from explore.runs.record import Run
from explore.runs.recorded import written

NESTED = {"posterior_settings": "posterior", "likelihood_settings": "likelihood", "acquisition_settings": "acquisition"}


def write(run: Run, experiment: Experiment, event: Epoch | Round | None) -> int | None:
    """Write a finished round, or the start (None); return the number of labels, the step of a checkpoint."""
    if event is None:
        _begin(run, experiment)
    if not isinstance(event, Round):
        return None
    for arm in experiment.arms:
        run.scalars(_series(experiment, arm), event.labels, dict(_scalars(experiment, event, arm)))
    run.rows("results.csv", list(_results(experiment, event)))
    run.rows("selected.csv", list(_selected(experiment, event)))
    if event.choice is None:
        saved.write(run.folder, experiment.saved)
    return event.labels


def _begin(run: Run, experiment: Experiment) -> None:
    """Write the settings of every arm for TensorBoard."""
    settings = written(experiment.settings)
    flat = {k: v for k, v in settings.items() if k not in (*NESTED, "fingerprint")}
    for key, prefix in NESTED.items():
        flat |= {f"{prefix}.{k}": v for k, v in settings[key].items()}
    decisive = "test/error" if experiment.dataset.classes else "test/rmse"
    for arm in experiment.arms:
        run.hparams(_series(experiment, arm), flat | {"acquisition": arm}, [decisive, "test/log_likelihood"])


def _series(experiment: Experiment, arm: str) -> str:
    return file_name(experiment.settings.posterior, arm)


def _scalars(experiment: Experiment, event: Round, arm: str) -> Iterator[tuple[str, float]]:
    """Yield the scalars of an arm: means over trials, with standard errors of the test metrics."""
    trials = experiment.settings.trials
    start = experiment.arms.index(arm) * trials
    replicas = slice(start, start + trials)
    yield "labels", event.labels
    for name, values in event.metrics.items():
        mean, se = estimate(values[replicas])
        if name == "epistemic":
            yield "uncertainty/epistemic_mean", mean
        else:
            yield from ((f"test/{name}", mean), (f"test/{name}_se", se))
    for name, values in event.info.items():
        yield f"train/{name}", estimate(values[replicas]).mean
    if event.choice is not None:
        scores = event.choice.scores[replicas].double()
        yield from (("acq/score_max", float(scores.max())), ("acq/score_mean", float(scores.mean())))


def _results(experiment: Experiment, event: Round) -> Iterator[dict[str, Any]]:
    columns = {name: values.tolist() for name, values in (*event.metrics.items(), ("alive", event.state.common.alive))}
    for r, values in enumerate(zip(*columns.values(), strict=True)):
        row = {"round": event.round, "labels": event.labels} | _replica(experiment, r)
        yield row | dict(zip(columns, values, strict=True))


def _selected(experiment: Experiment, event: Round) -> Iterator[dict[str, Any]]:
    if event.choice is None:
        return
    for r, (points, scores) in enumerate(zip(event.choice.indices.tolist(), event.choice.scores.tolist(), strict=True)):
        for order, (point, score) in enumerate(zip(points, scores, strict=True), 1):
            place = {"round": event.round, "order": order} | _point(experiment.dataset, point)
            yield _replica(experiment, r) | place | {"score": score}


def _point(dataset: Dataset, index: int) -> dict[str, Any]:
    line = {"line": dataset.lines[index]} if dataset.lines else {}
    return {"index": index} | line | ({"id": texts.neutralised(dataset.ids[index])} if dataset.ids else {})


def _replica(experiment: Experiment, r: int) -> dict[str, Any]:
    arm, trial = divmod(r, experiment.settings.trials)
    return {"arm": experiment.arms[arm], "trial": trial + 1}
