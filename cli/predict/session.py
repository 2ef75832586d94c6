"""The `explore predict` command: reads a run and a table, predicts, and writes or prints the predictions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from explore.cli import display, start, tables
from explore.core.errors import InputError, counted, curvature_note, shown
from explore.data import parts
from explore.data.reading import NoRows
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
        frame, (count, notes) = pd.DataFrame(), _folder(model, path, out, levels, options)
    else:
        if out:
            tables.check(out, path, "predict", WRITTEN)
        frame, notes = _predicted(model, path, out, levels, options)
        count = len(frame)
    if not options["quiet"]:
        for note in (f"Model: {model.about}.", *notes):
            display.echo(note, err=True)
    if options["as_json"]:
        rows = {} if out else {"predictions": frame.to_dict("records")}
        result = {"run": options["run"], "model": model.about, "rows": count, "out": out and str(out)}
        display.echo(json.dumps(plain(result | rows | {"notes": notes})))
    elif out:
        display.echo(f"Wrote predictions for {counted(count, 'row')} to {out}.")
    else:
        _show(frame)


def _predicted(
    model: LoadedRun, path: Path, out: Path | None, levels: tuple[float, ...], options: Mapping[str, Any]
) -> tuple[pd.DataFrame, list[str]]:
    """Predict the rows of a table or the images at a path, and write them to `out`, if any. Also return notes."""
    try:
        cells, x, reading = model.read(path, options["sheet"])
    except (OSError, ImportError) as error:
        raise InputError(str(error)) from error
    frame = model.predictions(x, options["level"], levels).add_prefix(PREFIX)
    curved = curvature_note(model.fitted.initial_curvature_share.tolist())
    replaced = [str(name) for name in frame if name in cells.columns]
    clash = f"Replaced the columns {', '.join(replaced)} of {path}." if replaced else ""
    notes = [*reading, *filter(None, (curved, clash)), *(tables.write(out, cells, frame) if out else ())]
    if model.images:
        frame.insert(0, "image", cells.columns["image"])
    return frame, notes


def _folder(
    model: LoadedRun, path: Path, out: Path | None, levels: tuple[float, ...], options: Mapping[str, Any]
) -> tuple[int, list[str]]:
    """Predict a folder of Parquet files into files of the same names. Return the number of rows, and notes."""
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
                frame, more = _predicted(model, file, out / file.name, levels, options)
                rows += len(frame)
            except NoRows:
                more = ["Skipped, because it has no row."]
            notes |= dict.fromkeys(f"{file.name}: {note}" for note in more)
            update(completed=i)
    return rows, list(notes)


def _show(frame: pd.DataFrame) -> None:
    """Print the first predictions."""
    classes = [name for name in frame if str(name).startswith(f"{PREFIX}p_")]
    if len(classes) > WIDE:  # print only the probability of the most likely class
        frame = frame.drop(columns=classes).assign(**{f"{PREFIX}p": frame[classes].max(axis=1)})
    cells = frame.head(SHOWN).map(lambda v: f"{v:.5g}" if isinstance(v, float) else str(v))
    cells.insert(0, "row", [str(i + 1) for i in range(len(cells))])
    names = [str(name).removeprefix(PREFIX) for name in cells]
    display.show(display.table(names, cells.to_numpy()))
    if len(frame) > SHOWN:
        display.echo(f"{len(frame) - SHOWN} more rows. Use --out FILE to write all of them.")
