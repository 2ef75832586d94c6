"""Texts that someone else wrote are shown letter by letter: in the terminal, in figures and on pages."""

import random
import re
import xml.dom.minidom
from pathlib import Path

import click
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure

from explore.cli import display
from explore.cli.predict import session
from explore.cli.report import page
from explore.cli.script import Script
from explore.core.errors import InputError, printable

ODD: tuple[str, ...] = (
    "c1cc[nH]c1",
    "S[a]",
    "S[b]",
    "a[/1]",
    "[bold]x[/bold]",
    ":cat:",
    "$x_1$",
    r"\$5",
    "_hidden",
    "e\x1b[31mred",
)
ODD += ("two\nlines", "back\x08space", "\u202eright", "caf\udce9", "5\u00a0\N{MICRO SIGN}m", "<b>&amp;")
PLAIN = {"e\x1b[31mred": r"e\x1b[31mred", "two\nlines": r"two\nlines", "back\x08space": r"back\x08space"}
PLAIN |= {"\u202eright": r"\u202eright", "caf\udce9": r"caf\udce9"}


def test_texts_are_one_line_and_stay_apart():
    assert [printable(text) for text in ODD] == [PLAIN.get(text, text) for text in ODD]
    rng = random.Random(0)
    texts = {"".join(chr(rng.randrange(0x3000)) for _ in range(4)).replace("\\", "") for _ in range(500)}
    made = {printable(text) for text in texts}
    assert len(made) == len(texts) and not any("\x1b" in text or len(text.splitlines()) > 1 for text in made)


def test_tables_and_lines_have_no_markup(capsys):
    table = display.table(["id", *ODD], [["row", *ODD]])
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ignore"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "400")
        display.show("[red]title", table)
    title, _, head, _, row, _ = capsys.readouterr().out.splitlines()
    assert title == "[red]title"
    for line in (head, row):
        assert [cell.strip(" ") for cell in re.split("[┃│]", line)[2:-1]] == [PLAIN.get(text, text) for text in ODD]
    display.echo("a[/1]\x1b\nb")
    assert capsys.readouterr().out == "a[/1]\\x1b\nb\n"


def test_long_names_wrap(capsys, monkeypatch):
    """Two plug-ins of one package were both shown as its first letters."""
    monkeypatch.setenv("COLUMNS", "30")
    names = "some.long.package:First", "some.long.package:Second"
    display.show(display.table(["posterior", "x"], [(name, "1.25") for name in names]))
    shown = "".join(re.findall(r"│ (.+?) +│", capsys.readouterr().out))
    assert "package:First" in shown and "package:Second" in shown and "…" not in shown


def test_classes_that_look_like_styles_are_told_apart(capsys):
    """Both were shown as S."""
    found = pd.DataFrame({"_p_S[a]": [0.25], "_p_S[b]": [0.75], "_class": ["S[b]"]})
    session._show(found)
    shown = capsys.readouterr().out
    assert "p_S[a]" in shown and "p_S[b]" in shown and shown.count("S[b]") == 2


def test_ids_that_look_like_styles(explore):
    """Pyrrole was shown as another molecule, and the second id was a traceback after the measurements were logged."""
    lines = [f"m{i},{i % 7},{i * i % 5}" for i in range(9)] + ["c1cc[nH]c1,9,", "a[/1],4,"]
    Path("pool.csv").write_text("\n".join(["smiles,x,y [%]", *lines]))
    result = explore("suggest", "pool.csv", "--target", "y [%]", "--id", "smiles", "--epochs", 1, "--samples", 3)
    assert result.exit_code == 0 and "Fill in y [%] there" in result.stdout
    assert "│ c1cc[nH]c1 │" in result.stdout and re.search(r"│ a\[/1\] +│", result.stdout)


def test_figures_have_no_formulas_and_leave_no_name_out():
    figure = Figure()
    axes = figure.add_subplot()
    for text in ODD:
        axes.plot([0, 1], label=display.literal(text))
    assert not any(is_math_text(display.literal(text)) for text in ODD)
    drawn = [text.get_text() for text in axes.legend().get_texts()]
    assert [text.replace(r"\$", "$").removeprefix(" ") for text in drawn] == [PLAIN.get(text, text) for text in ODD]
    assert display.literal("") == "-"


def test_a_page_of_odd_texts_is_well_formed(drawn_in_full):
    """An escape character was copied into the figure, which then is no SVG."""
    figure = Figure()
    axes = figure.add_subplot()
    odd = [text for text in ODD if text.isascii()]
    axes.set_xticks(range(len(odd)), [display.literal(text) for text in odd])
    section = page.Section("\x1b$", figure, ODD, ODD, ODD, [ODD])
    page.write(Path("page.html"), "e\x1b[31mred", [section])
    text = Path("page.html").read_text(encoding="utf-8")
    assert not set(map(chr, (*range(9), *range(11, 32)))) & set(text) and r"<h1>e\x1b[31mred</h1>" in text
    (svg,) = re.findall("<svg.*?</svg>", text, re.DOTALL)
    root = xml.dom.minidom.parseString(svg).documentElement
    assert root is not None and root.tagName == "svg"
    assert "<td>S[a]</td>" in text and r"<td>caf\udce9</td>" in text and "<td>&lt;b&gt;&amp;amp;</td>" in text


def test_an_encoding_that_lacks_a_letter_and_an_error_with_an_escape():
    @click.command(cls=Script)
    def script():
        display.show("µ ± 1…", display.table(["mean ± s.e."], [["0.5 ± 0.1"]]))
        raise InputError("there is no \x1b[31mfolder")

    done = CliRunner(charset="ascii").invoke(script)
    assert (done.exit_code, done.stderr) == (2, "Error: there is no \\x1b[31mfolder\n")
    assert done.stdout.startswith("\\xb5 \\xb1 1\\u2026\n+") and "0.5 \\xb1 0.1" in done.stdout
