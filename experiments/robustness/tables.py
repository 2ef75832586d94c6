"""A thousand random tables, most of them spoilt: each is trained on, or refused in one sentence.

    python -m experiments.robustness.tables

Each table is written in one of many ways (separators, quotes, line ends, encodings, packing), spoilt in none to three
(ragged rows, NULs, torn ends, flipped bytes, ...), and given to `explore active --data`. The counts go to
results/tables.md.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import tarfile
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.testing import CliRunner

from experiments.driver import FOLDER
from experiments.tables import markdown
from explore.cli.main import main as explore

TINY = "--trials 1 --rounds 1 --epochs 1 --initial 2 --test-size 2 --samples 2 --no-control --json".split()
Pick = Callable[..., Any]


def table(seed: int) -> tuple[str, bytes, list[str]]:
    """(name of the file, its content, options of `explore active`), decided by the seed."""
    rng = np.random.default_rng(seed)

    def pick(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    rows = _rows(rng, pick)
    content = _written(rows, pick)
    for _ in range(pick(0, 0, 0, 0, 1, 2)):
        content = pick(*SPOIL)(content, rng)
    ending = pick(*[""] * 4, *[".gz", ".bz2", ".xz", ".zip", ".tar", ".tar.gz"] * 2, *PACK)
    content = PACK[ending](content, rng) if ending else content
    if ending and pick(True, False, False, False):
        content = pick(_torn, _flipped)(content, rng)
    options = [*pick([], [], [], ["--task", "classification"]), *pick(["--id", "id"], ["--drop-columns", "id"])]
    return f"table.csv{pick(ending, ending, ending, ending.upper())}", content, options


def _rows(rng: np.random.Generator, pick: Pick) -> list[list[str]]:
    """Cells with a header: identifiers, numbers in several spellings, a target."""
    n, d = pick(0, 3, *[20, 60] * 5), pick(1, 2, 5)
    number = pick("{:.3f}".format, "{:.0f}".format, "{:e}".format, "{!r}".format, " {:g} ".format, "{:+.2f}".format)
    words = (lambda v: "high" if v > 0 else "low", lambda v: str(int(v > 0)), lambda v: "é" * 3)
    target = pick(*[number] * 4, *words)
    header = ["id", *pick([f"x{i}" for i in range(d)], ["größe\n", *"abcdefg"][:d]), "y"]
    values = (rng.standard_normal((n, d)) * pick(1.0, 1e3, 1e-200, 1e200)).tolist()
    rows = [[f"n{i}", *map(number, row), target(row[0])] for i, row in enumerate(values)]
    return [header, *rows]


def _written(rows: list[list[str]], pick: Pick) -> bytes:
    quote = pick('"{}"', "{}", "{}", "{}")
    cells = ((quote.format(cell) if "\n" not in cell else f'"{cell}"' for cell in row) for row in rows)
    comma, end = pick(*[","] * 16, ";", "\t"), pick("\n", "\n", "\n", "\r\n", "\r")
    text = end.join(comma.join(row) for row in cells) + pick(end, "")
    return text.encode(pick(*["utf-8"] * 20, "utf-8-sig", "latin-1", "utf-16", "utf-32"))


def _torn(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content) + 1)]


def _flipped(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for place in rng.integers(len(content), size=rng.integers(1, 9)) if content else ():
        changed[place] ^= 1 << rng.integers(8)
    return bytes(changed)


def _with(*pieces: bytes) -> Callable[[bytes, np.random.Generator], bytes]:
    """Puts one of the pieces somewhere."""

    def spoil(content: bytes, rng: np.random.Generator) -> bytes:
        place = rng.integers(len(content) + 1)
        return content[:place] + pieces[rng.integers(len(pieces))] + content[place:]

    return spoil


def _repeated_column(content: bytes, rng: np.random.Generator) -> bytes:
    """The first cell of every line, or of the first one only, stands in front once more."""
    lines = content.split(b"\n")
    return b"\n".join([line.split(b",")[0] + b"," + line for line in lines[: rng.choice([1, len(lines)])]])


def _ragged(content: bytes, rng: np.random.Generator) -> bytes:
    lines = content.split(b"\n")
    place = rng.integers(len(lines))
    lines[place] = lines[place] + b",7" if rng.random() < 0.5 else lines[place].rpartition(b",")[0]
    return b"\n".join(lines)


SPOIL: list[Callable[[bytes, np.random.Generator], bytes]] = [
    _torn, _flipped, _repeated_column, _ragged,
    _with(b"\0", b"\0" * 50, b"\xff\xfe", "ü".encode("latin-1"), "日本".encode("shift_jis"), b"\xef\xbb\xbf"),
    _with(b'"', b'""', b"'", b"\\", b",", b",,,,", b";", b"\n\n", b"\n,,\n", b"\r", b"\x1a", b"\x1b[31m"),
    _with(b"nan", b"-inf", b"1e999", b"1_0", b"0x1F", b"9" * 400, b"0." + b"0" * 5000 + b"1", "٣".encode(), b"NA"),
    _with(b"7" * 200_000, b"a," * 3000, b"x" * 2_000_000, b'"' + b"\n" * 5000 + b'"'),
    lambda content, rng: rng.bytes(int(rng.integers(1, 2000))),
]  # fmt: skip


def _zip(content: bytes, rng: np.random.Generator) -> bytes:
    whole = [["t.csv"], ["a/", "a/t.csv"], ["../../t.csv"], ["t.csv", "__MACOSX/._t.csv"]]
    names = [*whole, ["a.csv", "b.csv"], [], ["a/"]]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice([0, 8, 12, 14])) as archive:
        for name in names[rng.integers(len(names))]:
            archive.writestr(name, b"" if name.endswith("/") else content)
    return buffer.getvalue()


def _tar(content: bytes, rng: np.random.Generator) -> bytes:
    names = [*[["t.csv"]] * 5, ["/etc/t.csv"], ["a.csv", "b.csv"], []]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in names[rng.integers(len(names))]:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.type = rng.choice([tarfile.REGTYPE] * 12 + [tarfile.SYMTYPE, tarfile.DIRTYPE])
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


PACK: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    ".gz": lambda content, _: gzip.compress(content, mtime=0),
    ".bz2": lambda content, _: bz2.compress(content),
    ".xz": lambda content, _: lzma.compress(content),
    ".zip": _zip,
    ".tar": _tar,
    ".tar.gz": lambda content, rng: gzip.compress(_tar(content, rng), mtime=0),
    ".tar.xz": lambda content, rng: lzma.compress(_tar(content, rng)),
    ".zst": lambda content, rng: b"\x28\xb5\x2f\xfd" + rng.bytes(100),
    ".xlsx": _zip,
}


def outcome(seed: int) -> tuple[str, str]:
    """What became of a table, and what was said of it: "trained", "refused", or what should not be."""
    name, content, options = table(seed)
    Path(name).write_bytes(content)
    done = CliRunner().invoke(explore, ["active", "--data", name, "--target", "y", *TINY, *options])
    last = done.stderr.strip().rpartition("\n")[2]
    if done.exception and not isinstance(done.exception, SystemExit):
        return "traceback", "".join(traceback.format_exception(done.exception))
    if done.exit_code == 0:
        return "trained", last
    one_sentence = done.exit_code == 2 and last.startswith("Error: ") and len(last) < 600 and last.isprintable()
    return "refused" if one_sentence else "no sentence", done.stderr


@click.command()
@click.option("--tables", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the first table; the others follow.")
@click.option("--out", default=Path(__file__).parent / "results", type=FOLDER)
def main(tables: int, seed: int, out: Path) -> None:
    """Count what becomes of the tables, and print all but sentences."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = {number: outcome(number) for number in range(seed, seed + tables)}
    counts = Counter(what for what, _ in found.values())
    for number, (what, said) in found.items():
        if what not in ("trained", "refused"):
            click.echo(f"table {number}: {what}\n{said}")
    rows = [(what, counts[what]) for what in ("trained", "refused", "no sentence", "traceback")]
    out.mkdir(parents=True, exist_ok=True)
    command = f"python -m experiments.robustness.tables --tables {tables} --seed {seed}"
    text = f"What `{command}` counted.\n\n{markdown(('outcome', 'tables'), rows)}"
    (out / "tables.md").write_text(text, encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
