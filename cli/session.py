"""One start of `explore active`: a new run or the rest of one, from its options to its report."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from explore.active import Round
from explore.cli import recording, report
from explore.cli.experiment import Experiment, resolve
from explore.errors import InputError
from explore.record import Run, session


def run(options: Mapping[str, Any]) -> int:
    """Do what the options ask for; the exit code: 0, or 130 after Ctrl-C."""
    silent = options["quiet"] or options["as_json"]
    old = _open(Path(options["resume"])) if options["resume"] else None
    settings = old.config["settings"] if old else resolve(options)
    last: dict[str, Any] = old.config["sessions"][-1] if old else {}
    device = _device(options["device"] or last.get("device", "auto"))
    threads = options["threads"] or last.get("threads", 1)
    torch.set_num_threads(threads)
    experiment = Experiment(settings, device)
    now = session(device=device, threads=threads)
    seconds = 0.0
    notes = [experiment.dataset.note] if experiment.dataset.note else []
    if old:
        experiment.load_state_dict(old.state["experiment"])
        seconds = old.state["seconds"]
        notes.append(f"{old.folder}: {experiment.rounds} of {settings['rounds']} rounds are done.")
        notes += [
            f"Warning: {what} was {last.get(what)} and is {now[what]} now; the last digits may change."
            for what in ("device", "threads", "versions")
            if last.get(what) != now[what]
        ]
        if experiment.rounds < settings["rounds"]:
            old.resumed(now)
    else:
        notes.append(
            f"{settings['trials']} trials of {' and '.join(experiment.arms)} with {settings['posterior']} on {device}"
        )
    if not options["quiet"]:
        for note in notes:
            click.echo(note, err=True)

    state = {"experiment": experiment.state_dict(), "seconds": seconds}
    here = old or _create(options, experiment, state, now)
    with here:
        try:
            seconds = _follow(experiment, here, seconds, silent)
            report.draw(experiment, here.folder / "learning_curve.png")
        except KeyboardInterrupt:
            click.echo(f"Interrupted after round {experiment.rounds} of {experiment.settings['rounds']}.", err=True)
            click.echo(f"Continue: explore active --resume {shlex.quote(str(here.folder))}", err=True)
            return 130
    _print(experiment, here.folder, seconds, options["as_json"], options["quiet"])
    return 0


def _open(folder: Path) -> Run:
    found = Run.open(folder)
    if found.config["settings"].get("command") != "active":
        raise InputError(f"{folder} is a run of explore {found.config['settings'].get('command')}, not of active")
    return found


def _create(
    options: Mapping[str, Any], experiment: Experiment, state: Mapping[str, Any], now: Mapping[str, Any]
) -> Run:
    out, name, s = Path(options["out"]), options["name"], experiment.settings
    if name is not None:
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise InputError(f"--name is {name!r}; it may have letters, digits and . _ + -")
        folder = out / f"active-{name}"
        if folder.exists():
            raise InputError(f"{folder} exists; continue it with --resume {folder}, or choose another --name")
        return Run.create(folder, s, state, now)
    base = recording.file_name("active", experiment.dataset.name, s["posterior"], s["acquisition"])
    for number in itertools.count(1):
        folder = out / (base if number == 1 else f"{base}-{number}")
        if not folder.exists():
            try:
                return Run.create(folder, s, state, now)
            except InputError:
                if not folder.exists():  # else another process was faster
                    raise
    raise AssertionError


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count()
    allowed = ["auto", "cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if name not in allowed:
        raise InputError(f"there is no device {name!r} here; allowed: {', '.join(allowed)}")
    return name


def _follow(experiment: Experiment, run: Run, seconds: float, silent: bool) -> float:
    """Do the rounds that are left, writing each when it is done; the seconds of the whole run."""
    begin, done = time.monotonic() - seconds, experiment.rounds
    rounds, epochs = experiment.settings["rounds"], experiment.posterior.epochs
    if done < rounds:
        recording.begin(run, experiment)
    console = Console(stderr=True)
    with Progress(
        TextColumn("round {task.fields[round]}/{task.fields[rounds]}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=silent or not console.is_terminal,
        transient=True,
    ) as progress:
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


def _print(experiment: Experiment, folder: Path, seconds: float, as_json: bool, quiet: bool) -> None:
    for failure in report.failures(experiment):
        click.echo(f"Warning: {failure}", err=True)
    if as_json:
        if not quiet:
            click.echo(report.verdict(experiment), err=True)
        click.echo(json.dumps(report.summary(experiment, seconds, folder)))
        return
    console = Console()
    for title, table in report.tables(experiment):
        console.print(title, table, sep="\n")
    click.echo(report.verdict(experiment))
    click.echo(f"run          {folder}")
    click.echo(f"figure       {folder / 'learning_curve.png'}")
    click.echo(f"tensorboard  tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}")
