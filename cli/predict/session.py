"""The `explore predict` command: reads a run and a table, predicts, and writes or prints the predictions."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from explore.cli import display, start, tables
from explore.core.errors import InputError, counted, curvature_note, shown
from explore.data import parts
from explore.data.reading import Cells, NoRows
from explore.learning import loaded
from explore.learning.loaded import LoadedRun
from explore.runs.record import plain

PREFIX = "_"  # prefix of the names of added columns
WRITTEN = f"{PREFIX}class|{PREFIX}epistemic(_.*)?"  # only predictions have these columns; next.csv has others
SHOWN, WIDE = 20, 5  # maximum numbers of rows, and of probabilities per row, to print


def run(options: Mapping[str, Any]) -> None:
    """Run `explore predict` with its command-line options."""
    path, folder = Path(options["table"]), Path(options["run"])
    out = Path(options["out"]) if options["out"] else None
    if out and not path.is_dir():
        tables.check(out, path, "predict", WRITTEN)
    try:
        levels = tuple(map(float, options["quantiles"].split(","))) if options["quantiles"] else ()
    except ValueError:
        message = f"--quantiles is {shown(options['quantiles'])}; it must be levels such as 0.05,0.5,0.95"
        raise InputError(message) from None
    device, _ = start.compute(options)
    which = {key: options[key] for key in ("posterior", "arm", "trial", "split")}
    with start.reading(folder):
        model = loaded.load_run(folder, **which, trust=options["trust"], device=device)
    if path.is_dir() and not model.images:
        _folder(model, path, out, levels, options)
        return
    if out and path.is_dir():
        tables.check(out, path, "predict", WRITTEN)
    cells, frame, notes = _predicted(model, path, out, levels, options)
    _note(model, notes, options)
    if model.images:
        frame.insert(0, "image", cells.columns["image"])
    _print(model.about, frame, out, notes, options)


def _predicted(
    model: LoadedRun, path: Path, out: Path | None, levels: tuple[float, ...], options: Mapping[str, Any]
) -> tuple[Cells, pd.DataFrame, tuple[str, ...]]:
    """Predict the rows of a table, and write them to `out`, if any. Return cells, predictions and notes."""
    try:
        cells, x, notes = model.read(path, options["sheet"])
    except (OSError, ImportError) as error:
        raise InputError(str(error)) from error
    frame = model.predictions(x, options["level"], levels).add_prefix(PREFIX)
    if curved := curvature_note(model.fitted.initial_curvature_share.tolist()):
        notes = (*notes, curved)
    if replaced := [str(name) for name in frame if name in cells.columns]:
        notes = (*notes, f"Replaced the columns {', '.join(replaced)} of {path}.")
    return cells, frame, (*notes, *(tables.write(out, cells, frame) if out else ()))


def _folder(
    model: LoadedRun, path: Path, out: Path | None, levels: tuple[float, ...], options: Mapping[str, Any]
) -> None:
    """Predict the rows of a folder of Parquet files, one file after another, into files of the same names."""
    if out is None or (out.exists() and (not out.is_dir() or out.samefile(path))):
        raise InputError(f"{path} is a folder. Pass --out with another folder, for a file of predictions for each part")
    files = parts.files_of(path)
    for file in files:
        tables.check(out / file.name, file, "predict", WRITTEN)
    out.mkdir(parents=True, exist_ok=True)
    rows, notes = 0, dict[str, None]()
    with display.progress(options["quiet"] or options["as_json"], "parts", len(files)) as update:
        for i, file in enumerate(files, 1):
            try:
                _, frame, more = _predicted(model, file, out / file.name, levels, options)
                rows += len(frame)
            except NoRows:
                more = ("Skipped, because it has no row.",)
            notes |= dict.fromkeys(f"{file.name}: {note}" for note in more)
            update(completed=i)
    _note(model, tuple(notes), options)
    _print(model.about, pd.DataFrame(), out, tuple(notes), options, rows)


def _note(model: LoadedRun, notes: Sequence[str], options: Mapping[str, Any]) -> None:
    if not options["quiet"]:
        for note in (f"Model: {model.about}.", *notes):
            display.echo(note, err=True)


def _print(
    about: str, frame: pd.DataFrame, out: Path | None, notes: Sequence[str], options: Mapping[str, Any],
    count: int | None = None,
) -> None:  # fmt: skip
    """Print predictions, or where `count` (None: those in `frame`) predictions were written."""
    count = len(frame) if count is None else count
    if options["as_json"]:
        rows = {} if out else {"predictions": frame.to_dict("records")}
        result = {"run": options["run"], "model": about, "rows": count, "out": out and str(out)}
        display.echo(json.dumps(plain(result | rows | {"notes": list(notes)})))
        return
    if out:
        display.echo(f"Wrote predictions for {counted(count, 'row')} to {out}.")
        return
    classes = [name for name in frame if str(name).startswith(f"{PREFIX}p_")]
    if len(classes) > WIDE:  # print only the probability of the most likely class
        frame = frame.drop(columns=classes).assign(**{f"{PREFIX}p": frame[classes].max(axis=1)})
    cells = frame.head(SHOWN).map(lambda v: f"{v:.5g}" if isinstance(v, float) else str(v))
    cells.insert(0, "row", [str(i + 1) for i in range(len(cells))])
    names = [str(name).removeprefix(PREFIX) for name in cells]
    display.show(display.table(names, cells.to_numpy()))
    if len(frame) > SHOWN:
        display.echo(f"{len(frame) - SHOWN} more rows. Use --out FILE to write all of them.")
