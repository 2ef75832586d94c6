"""A self-contained HTML page of sections, with figures embedded as SVG and also saved as PNG files."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from jinja2 import Environment
from markupsafe import Markup
from matplotlib.figure import Figure

from explore.core import files
from explore.core.errors import InputError, printable

MARK = '<meta name="generator" content="explore report">'
TEXTS = Environment(
    autoescape=True, trim_blocks=True, finalize=lambda text: text if isinstance(text, Markup) else printable(text)
)
PAGE = Path(__file__).with_name("page.html")


class Section(NamedTuple):
    """A part of the page, with an optional figure and table."""

    title: str
    figure: Figure | None = None
    sentences: Sequence[str] = ()
    warnings: Sequence[str] = ()  # also printed in the terminal
    header: Sequence[str] = ()  # column names of a table
    rows: Sequence[Sequence[str]] = ()
    fold: bool = False  # whether the table is collapsed at first

    @property
    def name(self) -> str:
        """The title in lower case, with hyphens, for file names."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def svg(self) -> Markup:
        """The figure as SVG. The hash salt makes element ids reproducible, and unique on the page."""
        assert self.figure is not None
        text = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return Markup(text.getvalue()[text.getvalue().index("<svg") :])  # matplotlib escapes its strings


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, replacing an old file atomically."""
    with files.replacing(path) as draft:
        figure.savefig(draft, dpi=120)


def check(path: Path) -> None:
    """Raise InputError if the path does not end in .html or .htm, or is a file that `explore report` did not write."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out is {path}; its name must end with .html")
    if path.exists() and not (path.is_file() and MARK.encode() in path.read_bytes()[:2000]):
        raise InputError(f"{path} exists and was not written by explore report; choose another --out")


def write(path: Path, title: str, sections: Sequence[Section]) -> list[Path]:
    """Write the page and its figures; return their paths. Raise InputError if a figure would overwrite another file."""
    figures = {path.with_name(f"{path.stem}-{s.name}.png"): s.figure for s in sections if s.figure is not None}
    if not path.exists() and (foreign := [str(picture) for picture in figures if picture.exists()]):
        raise InputError(f"{foreign[0]} exists and would be overwritten by a figure; choose another --out")
    try:
        with files.replacing(path) as draft:
            page = TEXTS.from_string(PAGE.read_text(encoding="utf-8"))
            draft.write_text(page.render(mark=Markup(MARK), title=title, sections=sections), encoding="utf-8")
        for picture, figure in figures.items():
            save(figure, picture)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    return list(figures)


def cells(table: pd.DataFrame) -> dict[str, Any]:
    """Return the arguments `header` and `rows` of a `Section` that shows a table of strings."""
    return {"header": list(table), "rows": table.to_numpy().tolist()}


def settings(every: Mapping[str, dict[str, Any]]) -> Section:
    """Return a section with the settings of all runs side by side; settings that differ come first."""
    columns = {}
    for name, values in every.items():
        recorded = pd.json_normalize(values).astype(object).iloc[0]
        columns[name] = recorded.map(lambda v: ", ".join(map(str, v)) if isinstance(v, list) else str(v))
    table = pd.concat(columns, axis=1).fillna("").rename_axis("setting").reset_index()
    order = table[list(every)].nunique(axis=1).eq(1).sort_values(kind="stable").index
    return Section("Settings", fold=True, **cells(table.loc[order]))
