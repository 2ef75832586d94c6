"""One start of `explore compare`: a new run or the rest of one, from its options to its report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from explore import files
from explore.cli import compare_recording as recording
from explore.cli import compare_report as report
from explore.cli import figures, start
from explore.cli.comparison import Comparison, Finished, resolve
from explore.compare import Measured
from explore.errors import InputError
from explore.record import Run


def run(options: Mapping[str, Any]) -> None:
    """Do what the options ask for."""
    old, device, now = start.start(options, "compare")
    settings = old.config["settings"] if old else resolve(options)
    if "overlay" in settings:
        raise InputError(f"{options['resume']} lays finished runs over each other; there is nothing to continue")
    with start.reading(old.folder if old else None):
        comparison = Comparison(settings, device)
        if old:
            comparison.load_state_dict(old.state)
    notes = [comparison.dataset.note] if comparison.dataset.note else []
    if old:
        notes.append(f"{old.folder}: {_done(comparison)} are done.")
        if comparison.current:
            start.resumed(old, now)
    else:
        notes.append(f"{', '.join(comparison.posteriors)} on {settings['splits']} splits, on {device}")
    if not options["quiet"]:
        for note in notes:
            click.echo(note, err=True)

    parts = ("compare", comparison.dataset.name)
    here = old or start.create(options, parts, comparison.settings, comparison.state_dict(), now)

    def where(saved: Mapping[str, Any]) -> str:
        comparison.load_state_dict(saved)
        return _done(comparison)

    with start.following("compare", here, where):
        _follow(comparison, here, options["quiet"] or options["as_json"])
        for picture in figures.PICTURES:
            if (found := figures.draw(picture, comparison.finished)) is not None:
                with files.replacing(here.folder / f"{picture}.png") as draft:
                    found.savefig(draft, dpi=100)
    _print(comparison, here, options["as_json"])


def _done(comparison: Comparison) -> str:
    total = sum(p.epochs for p in comparison.posteriors.values())
    return (
        f"{len(comparison.finished)} of {len(comparison.posteriors)} posteriors, {comparison.epochs} of {total} epochs"
    )


def _follow(comparison: Comparison, run: Run, silent: bool) -> None:
    """Do what is left, writing each measurement when it is there."""
    total = sum(p.epochs for p in comparison.posteriors.values())
    with start.progress("{task.description}", silent) as progress:
        task = progress.add_task("", total=total, completed=comparison.epochs)
        if comparison.current:
            recording.begin(run, comparison, comparison.current)
        for name, event in comparison.events():
            if isinstance(event, Finished):
                recording.finish(run, comparison, name, event)
                run.checkpoint(comparison.state_dict(), 0)  # of the next posterior
                if comparison.current:
                    recording.begin(run, comparison, comparison.current)
            elif isinstance(event, Measured):
                recording.write(run, name, event)
                if event.epoch < comparison.posteriors[name].epochs:
                    run.checkpoint(comparison.state_dict(), event.epoch)
            else:
                progress.update(task, description=name, advance=1)


def _print(comparison: Comparison, run: Run, as_json: bool) -> None:
    for failure in report.failures(comparison):
        click.echo(f"Warning: {failure}", err=True)
    if as_json:
        click.echo(json.dumps(report.summary(comparison, run.folder) | start.warnings(run)))
        return
    console, folder = Console(), run.folder
    for title, table in report.tables(comparison):
        console.print(title, table, sep="\n")
    click.echo(f"run          {folder}")
    click.echo(f"tensorboard  tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}")
