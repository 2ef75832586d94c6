"""A page of sections: HTML that needs nothing else, with its figures as SVG in it and as PNG beside it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from jinja2 import Environment
from markupsafe import Markup
from matplotlib.figure import Figure

from explore.cli.report import drawing
from explore.core import files
from explore.core.errors import InputError, printable

MARK = '<meta name="generator" content="explore report">'
TEXTS = Environment(
    autoescape=True, trim_blocks=True, finalize=lambda text: text if isinstance(text, Markup) else printable(text)
)
PAGE = TEXTS.from_string("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{{ mark }}
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #eee; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.note { color: #666; font-size: 0.9rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for section in sections %}
<h2>{{ section.title }}</h2>
{% if section.figure %}
<figure role="img" aria-label="{{ section.title }}">{{ section.svg }}</figure>
{% endif %}
{% for sentence in section.sentences|list + section.warnings|list %}
<p class="note">{{ sentence }}</p>
{% endfor %}
{% if section.rows %}
{% if section.fold %}
<details><summary>{{ section.rows|length }} rows</summary>
{% endif %}
<div class="wide"><table><thead><tr>{% for cell in section.header %}<th>{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in section.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if section.fold %}
</details>
{% endif %}
{% endif %}
{% endfor %}
</body>
</html>
""")


class Section(NamedTuple):
    """A part of the page."""

    title: str
    figure: Figure | None = None
    sentences: Sequence[str] = ()
    warnings: Sequence[str] = ()  # sentences that are said in the terminal too
    header: Sequence[str] = ()  # of a table
    rows: Sequence[Sequence[str]] = ()
    fold: bool = False  # whether the table is folded away until one asks for it

    @property
    def name(self) -> str:
        """Of its figure's file."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def svg(self) -> Markup:
        """The figure; its salt keeps the names in it apart from those of other figures, and the same every time."""
        assert self.figure is not None
        text = io.StringIO()
        with mpl.rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(text, format="svg", metadata={"Date": None})
        return Markup(text.getvalue()[text.getvalue().index("<svg") :])  # matplotlib has escaped its texts


def check(path: Path) -> None:
    """Whether a page of this name may be written.

    Raises:
        InputError: otherwise.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out is {path}; its name must end with .html")
    if path.exists() and not (path.is_file() and MARK.encode() in path.read_bytes()[:2000]):
        raise InputError(f"{path} exists and is no report of explore; choose another --out")


def write(path: Path, title: str, sections: Sequence[Section]) -> list[Path]:
    """Write the page, then its figures, which are returned; files of a figure's name are its own beside an old page.

    Raises:
        InputError: when they cannot be written, or a file of such a name stands where there is no page yet.
    """
    figures = {path.with_name(f"{path.stem}-{s.name}.png"): s.figure for s in sections if s.figure is not None}
    if not path.exists() and (foreign := [str(picture) for picture in figures if picture.exists()]):
        raise InputError(f"{foreign[0]} exists, as a figure of the page would be called; choose another --out")
    try:
        with files.replacing(path) as draft:
            draft.write_text(PAGE.render(mark=Markup(MARK), title=title, sections=sections), encoding="utf-8")
        for picture, figure in figures.items():
            drawing.save(figure, picture)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    return list(figures)


def settings(every: Mapping[str, Mapping[str, Any]]) -> Section:
    """The settings of some runs side by side, those that differ first."""
    flat = {name: dict(_flat(values)) for name, values in every.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    rows = [[key, *(values.get(key, "") for values in flat.values())] for key in keys]
    rows.sort(key=lambda row: len(set(row[1:])) < 2)
    return Section("Settings", header=("setting", *every), rows=rows, fold=True)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)
