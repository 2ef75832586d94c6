"""What a run folder keeps of an experiment, round by round.

metrics.jsonl and TensorBoard: a series an arm, a step a number of labels; means over trials and, of test metrics, their
standard errors. results.csv: one line a round, arm and trial, with every test metric and whether the fit went well
(`alive`). selected.csv: one line a labelled point, best first (`order`), with its score; `index` counts the examples of
the data set from 0. Where these come from a file of the user's, `line` is where the point begins in it, unpacked, and
`id` its cell in the column of --id, behind an apostrophe where a spreadsheet program would take it for a formula.
Lines, rounds and trials count from 1. model.pt: the posterior of the last round, of all arms and trials.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from explore.cli.active.experiment import Experiment
from explore.cli.estimate import estimate
from explore.cli.parameters import written
from explore.cli.start import file_name
from explore.data import texts
from explore.learning import saved
from explore.learning.fit import Epoch
from explore.learning.learner import Round
from explore.runs.record import Run

NESTED = {"posterior_settings": "posterior", "likelihood_settings": "likelihood", "acquisition_settings": "acquisition"}


def write(run: Run, experiment: Experiment, event: Epoch | Round | None) -> int | None:
    """Write a round that is done; None: what begins. The step of a checkpoint is the number of labels."""
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
    """What TensorBoard shows of an arm: means over trials, with standard errors for the test metrics."""
    trials = experiment.settings.trials
    start = experiment.arms.index(arm) * trials
    mine = slice(start, start + trials)
    yield "labels", event.labels
    for name, values in event.metrics.items():
        mean, se = estimate(values[mine])
        if name == "epistemic":
            yield "uncertainty/epistemic_mean", mean
        else:
            yield from ((f"test/{name}", mean), (f"test/{name}_se", se))
    for name, values in event.info.items():
        yield f"train/{name}", estimate(values[mine]).mean
    if event.choice is not None:
        scores = event.choice.scores[mine].double()
        yield from (("acq/score_max", float(scores.max())), ("acq/score_mean", float(scores.mean())))


def _results(experiment: Experiment, event: Round) -> Iterator[dict[str, Any]]:
    metrics = {name: values.tolist() for name, values in event.metrics.items()}
    for r, alive in enumerate(event.state.common.alive.tolist()):
        row = {"round": event.round, "labels": event.labels} | _replica(experiment, r)
        yield row | {name: values[r] for name, values in metrics.items()} | {"alive": alive}


def _selected(experiment: Experiment, event: Round) -> Iterator[dict[str, Any]]:
    if event.choice is None:
        return
    for r, (points, scores) in enumerate(zip(event.choice.indices.tolist(), event.choice.scores.tolist(), strict=True)):
        for i, (point, score) in enumerate(zip(points, scores, strict=True)):
            place = {"round": event.round, "order": i + 1} | _point(experiment, point)
            yield _replica(experiment, r) | place | {"score": score}


def _point(experiment: Experiment, index: int) -> dict[str, Any]:
    """How a point can be found again."""
    data = experiment.dataset
    place: dict[str, Any] = {"index": index}
    if data.lines:
        place["line"] = data.lines[index]
    return place | ({"id": texts.neutralised(data.ids[index])} if data.ids else {})


def _replica(experiment: Experiment, r: int) -> dict[str, Any]:
    trials = experiment.settings.trials
    return {"arm": experiment.arms[r // trials], "trial": r % trials + 1}
