"""One start of `explore active`: a new run or the rest of one, from its options to its report."""

from __future__ import annotations

import json
import shlex
import time
import warnings
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from explore.acquisitions.base import RedundancyWarning
from explore.active import Round
from explore.cli import recording, report, start
from explore.cli.experiment import Experiment, resolve
from explore.cli.problem import Settings
from explore.record import Run


def run(options: Mapping[str, Any]) -> None:
    """Do what the options ask for."""
    silent = options["quiet"] or options["as_json"]
    old, device, now = start.start(options, "active")
    settings = old.config["settings"] if old else resolve(options)
    seconds = 0.0
    with start.reading(old.folder if old else None):
        experiment = Experiment(settings, device)
        if old:
            experiment.load_state_dict(old.state["experiment"])
            seconds = float(old.state["seconds"])
    notes = [experiment.dataset.note] if experiment.dataset.note else []
    if old:
        notes.append(f"{old.folder}: {experiment.rounds} of {settings['rounds']} rounds are done.")
        if experiment.rounds < settings["rounds"]:
            start.resumed(old, now)
    else:
        notes.append(
            f"{settings['trials']} trials of {' and '.join(experiment.arms)} with {settings['posterior']} on {device}"
        )
    if not options["quiet"]:
        for note in notes:
            click.echo(note, err=True)
    for warning in experiment.warnings():
        click.echo(f"Warning: {warning}", err=True)

    state = {"experiment": experiment.state_dict(), "seconds": seconds}
    parts = ("active", experiment.dataset.name, settings["posterior"], settings["acquisition"])
    here = old or start.create(options, parts, experiment.settings, state, now)
    with start.following("active", here, lambda saved: _where(settings, saved)):
        seconds = _follow(experiment, here, seconds, silent)
        report.draw(experiment, here.folder / "learning_curve.png")
    _print(experiment, here, seconds, options["as_json"], options["quiet"])


def _where(settings: Settings, saved: Mapping[str, Any]) -> str:
    """How far a checkpoint is."""
    history = saved["experiment"]["history"]
    return f"round {len(history['labels']) if history else 0} of {settings['rounds']}"


def _follow(experiment: Experiment, run: Run, seconds: float, silent: bool) -> float:
    """Do the rounds that are left, writing each when it is done; the seconds of the whole run."""
    begin, done = time.monotonic() - seconds, experiment.rounds
    rounds, epochs = experiment.settings["rounds"], experiment.posterior.epochs
    if done < rounds:
        recording.begin(run, experiment)
    with (
        warnings.catch_warnings(),
        start.progress("round {task.fields[round]}/{task.fields[rounds]}", silent) as progress,
    ):
        warnings.simplefilter("ignore", RedundancyWarning)  # it was said at the start
        task = progress.add_task("", total=rounds * epochs, completed=done * epochs, round=done + 1, rounds=rounds)
        for event in experiment.events():
            if isinstance(event, Round):
                recording.write(run, experiment, event)
                seconds = time.monotonic() - begin
                state = {"experiment": experiment.state_dict(), "seconds": seconds}
                run.checkpoint(state, event.labels)
                progress.update(task, round=min(event.round + 1, rounds))
            else:
                progress.advance(task)
    return seconds


def _print(experiment: Experiment, run: Run, seconds: float, as_json: bool, quiet: bool) -> None:
    for failure in report.failures(experiment):
        click.echo(f"Warning: {failure}", err=True)
    if as_json:
        if not quiet:
            click.echo(report.verdict(experiment), err=True)
        click.echo(json.dumps(report.summary(experiment, seconds, run.folder) | start.warnings(run)))
        return
    console, folder = Console(), run.folder
    for title, table in report.tables(experiment):
        console.print(title, table, sep="\n")
    click.echo(report.verdict(experiment))
    click.echo(f"run          {folder}")
    click.echo(f"figure       {folder / 'learning_curve.png'}")
    click.echo(f"tensorboard  tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}")
