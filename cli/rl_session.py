"""One start of `explore rl`: a new run or the rest of one, from its options to its report."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from explore import files
from explore.cli import rl_problem, start
from explore.cli import rl_recording as recording
from explore.cli import rl_report as report
from explore.cli.problem import Settings
from explore.cli.rl_callbacks import RunWriter
from explore.cli.rl_recording import Position, Recorder
from explore.cli.rl_training import Training
from explore.errors import InputError
from explore.record import Run


def run(options: Mapping[str, Any]) -> None:
    """Do what the options ask for."""
    silent = options["quiet"] or options["as_json"]
    old, device, now = start.start(options, "rl")
    settings = old.config["settings"] if old else rl_problem.resolve(options)
    with start.reading(old.folder if old else None):
        position = Position.load(old.state) if old else Position()
        # Before there is a folder: wrong settings leave none.
        training = _training(settings, position, device, old.folder if old else None)
    if old:
        notes = [f"{old.folder}: done are {_where(settings, position)}."]
        if training:
            start.resumed(old, now)
    else:
        notes = [f"{settings['algo']} on {settings['env']} with {_bonus(settings)} on {device}"]
    if not options["quiet"]:
        for note in notes:
            click.echo(note, err=True)
    if training and (unpaid := rl_problem.unpaid(settings)):
        click.echo(f"Warning: the bonus will be 0 throughout: {unpaid}.", err=True)

    parts = ("rl", settings["env"], settings["algo"], settings["posterior"])
    here = old or start.create(options, parts, settings, position.state(), now)
    with start.following("rl", here, lambda saved: _where(settings, Position(**saved))):
        total = settings["seeds"] * settings["timesteps"]
        with start.progress("seed {task.description}", silent) as progress:
            task = progress.add_task("", total=total)
            while training:
                recorder = Recorder(here, settings, training, position)
                progress.update(task, description=str(settings["seed"] + position.done))
                progress.update(task, completed=position.done * settings["timesteps"] + position.timesteps)
                recording.begin(here, settings, position.done)
                training.learn(
                    RunWriter(here, recording.series(settings, position.done)), position.iteration,
                    on_step=lambda steps: progress.advance(task, steps),
                    before_log=recorder.evaluate, after_log=recorder.keep,
                )  # fmt: skip
                training.close()
                position = recorder.position
                training = _training(settings, position, device, None)
    _print(here, settings, options["as_json"])


def _training(settings: Settings, position: Position, device: str, folder: Path | None) -> Training | None:
    """The seed that is to be trained, from its checkpoint in the run folder if it has one; None: all are done."""
    if position.done >= settings["seeds"]:
        return None
    saved = None
    if folder and position.timesteps:
        saved = recording.models(folder, settings, position.done) / str(position.timesteps)
        if not saved.is_dir():
            raise InputError(f"{folder} is damaged: it has no folder {saved.relative_to(folder)}")
        for name, digest in position.digests.items():
            files.check(saved / name, digest)
    training = Training(settings, settings["seed"] + position.done, device, saved)
    if training.model.num_timesteps != position.timesteps:
        raise InputError(f"{saved} is damaged: its policy has taken {training.model.num_timesteps} steps")
    return training


def _where(settings: Settings, position: Position) -> str:
    if position.done >= settings["seeds"]:
        return "all seeds"
    seed = settings["seed"] + position.done
    return f"{position.timesteps} of {settings['timesteps']} steps of seed {seed}"


def _bonus(settings: Settings) -> str:
    vime = settings["vime"]
    return f"{vime['eta']:g} x {vime['bonus']} of {vime['posterior']}" if vime else "no bonus"


def _unpaid(settings: Settings, found: list[dict[str, Any]]) -> str | None:
    """Why there was no bonus; None: there was one. Off-policy it is no part of what a batch says."""
    if settings["algo"] != "sac" and settings["vime"] and not any(row["bonus_paid"] for row in found):
        return rl_problem.unpaid(settings) or "no transition gave the dynamics model anything to learn"
    return rl_problem.unpaid(settings)


def _print(run: Run, settings: Settings, as_json: bool) -> None:
    folder = run.folder
    found = report.results(folder)
    if as_json:
        click.echo(json.dumps(report.summary(found, settings, folder) | start.warnings(run)))
        return
    console = Console()
    console.print(report.TITLE, report.table(found), sep="\n")
    if why := _unpaid(settings, found):
        click.echo(f"bonus        0 throughout: {why}")
    if not math.isnan(share := report.share(found)):
        click.echo(f"bonus        {share:.0%} of the time")
    click.echo(f"run          {folder}")
    click.echo(f"tensorboard  tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}")
