"""A page of sections: HTML that stands alone, with its figures as SVG in it and as PNG beside it."""

from __future__ import annotations

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
    """A part of the page."""

    title: str
    figure: Figure | None = None
    sentences: Sequence[str] = ()
    warnings: Sequence[str] = ()  # sentences that are printed too
    header: Sequence[str] = ()  # of a table
    rows: Sequence[Sequence[str]] = ()
    fold: bool = False  # whether the table is folded

    @property
    def name(self) -> str:
        """The name of its figure's file."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def svg(self) -> Markup:
        """The figure as SVG; the salt makes the names in it unique on the page, and the same every time."""
        assert self.figure is not None
        text = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return Markup(text.getvalue()[text.getvalue().index("<svg") :])  # matplotlib has escaped its texts


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, replacing an old file in one step."""
    with files.replacing(path) as draft:
        figure.savefig(draft, dpi=120)


def check(path: Path) -> None:
    """Refuse to overwrite a file that is not a page of this command."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out is {path}; its name must end with .html")
    if path.exists() and not (path.is_file() and MARK.encode() in path.read_bytes()[:2000]):
        raise InputError(f"{path} exists and was not written by explore report; choose another --out")


def write(path: Path, title: str, sections: Sequence[Section]) -> list[Path]:
    """Write the page and its figures, and return the figures' paths.

    Files of a figure's name are replaced beside an old page, and refused where there is none yet.
    """
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
    """Return header and rows of a section from a table of texts."""
    return {"header": list(table), "rows": table.to_numpy().tolist()}


def settings(every: Mapping[str, Mapping[str, Any]]) -> Section:
    """Return the settings of runs side by side, different ones first."""
    columns = {
        name: pd.json_normalize(dict(values)).astype(object).iloc[0].map(_text) for name, values in every.items()
    }
    table = pd.concat(columns, axis=1).fillna("").rename_axis("setting").reset_index()
    table = table.loc[table[list(every)].nunique(axis=1).eq(1).sort_values(kind="stable").index]
    return Section("Settings", fold=True, **cells(table))


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
