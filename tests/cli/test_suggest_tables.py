"""`explore suggest` on generated tables: a suggestion or one sentence, and every label on its row."""

import csv
import json
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from click.testing import CliRunner

from explore.campaign import Campaign
from explore.campaign.cells import canonical
from explore.cli.main import main
from explore.data import Schema
from tests.seeds import seeds

TINY = ("--epochs", "2", "--samples", "6", "--hidden", "3")
ODD = {
    "unit": "3 mg",
    "thousands": "1,234,567",
    "infinite": "inf",
    "date": "03/04/2024",
    "word": "oops",
    "time": "08:30",
}


@dataclass
class Sheet:
    """A table in memory, as text, and what was measured."""

    rng: np.random.Generator
    columns: dict[str, list[str]] = field(default_factory=dict)
    told: dict[int, str] = field(default_factory=dict)  # by the number of the row
    asked: list[int] = field(default_factory=list)
    mark: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    classes: bool = False

    @property
    def rows(self):
        return len(self.columns["nr."])

    def cell(self, kind, i):
        rng = self.rng
        if kind == "number":
            return self.number(rng.normal() * 10.0 ** rng.integers(-3, 4))
        if kind == "code":
            return str(rng.integers(4))
        if kind == "flag":
            return str(rng.choice(["yes", "no"]))
        if kind == "day":
            return str(np.datetime64("2024-01-13") + int(rng.integers(300)))
        if kind == "german day":
            return f"{rng.integers(13, 29)}.{rng.integers(1, 13):02d}.2024"
        if kind == "category":
            return str(rng.choice(["water", "Äthanol", "1,4-dioxane", 'say "x"']))
        if kind == "name":
            return f"R {i} é"
        if kind == "remark":
            return f"it went rather well on day {i} of {rng.integers(9)}"
        return {"constant": "7", "empty": ""}[kind]

    def number(self, value):
        text = str(self.rng.choice([repr(round(float(value), 4)), f"{value:.3e}"]))
        return text.replace(".", self.decimal)

    def extend(self, kinds, count):
        first = self.rows if self.columns else 0
        for name, kind in kinds.items():
            gaps = 0.0 if kind in ("name", "nr.", "price", "y", "id") else self.rng.choice([0.0, 0.0, 0.2])
            for i in range(first, first + count):
                cell = {"nr.": str(i), "id": f"k-{i}", "price": str(i % 3 + 1), "y": ""}.get(kind) or (
                    "" if kind == "y" else self.cell(kind, i)
                )
                self.columns.setdefault(name, []).append("" if self.rng.random() < gaps else cell)

    def measure(self, rows):
        for i in rows:
            value = str(self.rng.choice(["low", "mid", "high"])) if self.classes else self.number(self.rng.gamma(2.0))
            self.columns["y"][i] = self.told[i] = value

    def save(self, path):
        """In some order of rows and columns; where each row is."""
        rows, names = self.rng.permutation(self.rows).tolist(), self.rng.permutation(list(self.columns)).tolist()
        with open(path, "w", newline="", encoding=self.encoding, errors="replace") as file:
            writer = csv.writer(file, delimiter=self.mark)
            writer.writerow(names)
            writer.writerows([self.columns[name][i] for name in names] for i in rows)
        return rows

    def content(self, i, names):
        """The features of a row, whatever the spelling of numbers and days."""
        return tuple(sorted((n, canonical(self.plain(self.columns[n][i]))) for n in names))

    def plain(self, text):
        day = re.fullmatch(r"(\d+)\.(\d\d)\.(2024)", text)
        return "{2}-{1}-{0}".format(*day.groups()) if day else self.pointed(text)

    def pointed(self, text):
        try:
            float(text.replace(self.decimal, "."))
        except ValueError:
            return text
        return text.replace(self.decimal, ".")


def generated(seed):
    """A table, its options, and its columns' kinds."""
    rng = np.random.default_rng(seed)
    sheet = Sheet(rng, mark=str(rng.choice([",", ";", "\t", "|"])), classes=bool(rng.random() < 0.25))
    sheet.encoding = str(rng.choice(["utf-8", "utf-8-sig", "cp1252"]))
    sheet.decimal = "," if sheet.mark != "," and rng.random() < 0.3 else "."
    options = ["--target", "y", "--batch", str(rng.integers(1, 6)), *TINY]
    options += ["--decimal", ","] if sheet.decimal == "," else []
    options += ["--task", "classification"] if sheet.classes else []
    kinds = {"nr.": "nr.", "y": "y", "x": "number"}
    some = ["number", "code", "flag", "day", "german day", "category", "name", "remark", "constant", "empty"]
    for i, kind in enumerate(rng.choice(some, rng.integers(0, 6))):
        kinds[f"{kind} {i}"] = str(kind)
    if rng.random() < 0.4:
        kinds["key"] = "id"
        options += ["--id", "key"]
    if rng.random() < 0.2:
        kinds["price"] = "price"
        options += ["--cost", "price"]
    if not sheet.classes and rng.random() < 0.4:
        options += [["--transform", "log"], ["--transform", "rank"], ["--goal", "maximise"]][rng.integers(3)]
    sheet.extend(kinds, int(rng.integers(1, 40)))
    sheet.measure(rng.permutation(sheet.rows)[: rng.integers(0, 14)].tolist())
    if rng.random() < 0.15:
        name, what = str(rng.choice(list(sheet.columns))), str(rng.choice(list(ODD)))
        sheet.columns[name][rng.integers(sheet.rows)] = ODD[what]
        sheet.told = {i: cell for i, cell in enumerate(sheet.columns["y"]) if cell}
    return sheet, kinds, options


def start(path, *options):
    """What a start says as JSON; None where it ends with a sentence, which is one line."""
    result = CliRunner().invoke(main, ["suggest", str(path), "--json", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        assert len(sentence) > 20 and "Traceback" not in result.output
        return None
    return json.loads(result.stdout)


def check(sheet, path, said, order):
    """Labels are on their rows; what is handed out is new, empty, and as it stands in the table."""
    with Campaign(path.with_suffix(".explore"), dry=True) as known:
        schema, rows = known.state.schema, list(known.state.rows.values())
    assert schema is not None
    names = [*schema.features, *([schema.id_column] if schema.id_column else [])]

    def key(row):
        own = {**row.cells, **({schema.id_column: row.id} if schema.id_column else {})}
        return tuple(sorted((n, own[n]) for n in names))

    found = Counter((key(row), str(value)) for row in rows for value in row.values.get("y", []))
    truth = Counter((sheet.content(i, names), canonical(sheet.pointed(v))) for i, v in sheet.told.items())
    assert {(k, canonical(v)): n for (k, v), n in found.items()} == dict(truth)

    pending = [order[row["line"] - 2] for row in (*said["rows"], *said["pending"])]
    alike = Counter(sheet.content(i, names) for i in pending)
    free = Counter(sheet.content(i, names) for i in range(sheet.rows) if i not in sheet.told)
    assert not alike - free, "a measured row was handed out, or one twice"
    sheet.asked += [order[row["line"] - 2] for row in said["rows"]]
    every = Counter(sheet.content(i, names) for i in range(sheet.rows))
    assert not Counter(sheet.content(i, names) for i in sheet.asked) - every, "a row was asked for twice"


def check_columns(sheet, path, said):
    """No column is left out without a word, and none is used that has another role."""
    with open(path.with_suffix(".explore") / "config.json", encoding="utf-8") as file:
        settings = json.load(file)["settings"]
    roles = {"y", settings["id_column"], settings["cost"]}
    with Campaign(path.with_suffix(".explore"), dry=True) as known:
        assert known.state.schema is not None
        used = set(known.state.schema.features)
    assert not used & roles
    for name in set(sheet.columns) - used - roles:
        assert any(f"'{name}'" in note and "left out" in note.lower() for note in said["notes"]), name
    kept = path.with_suffix(".explore") / "schema.json"
    if kept.exists():
        features = Schema.from_json(json.loads(kept.read_text(encoding="utf-8"))).features
        assert features and not any(feature.startswith(("y", "key", "price")) for feature in features)


def story(seed, folder):
    """Three rounds; how many of them gave a suggestion."""
    sheet, kinds, options = generated(seed)
    path = folder / "pool.csv"
    done = 0
    for _ in range(3):
        order = sheet.save(path)
        if (said := start(path, *options)) is None:
            return done
        options = []
        check(sheet, path, said, order)
        check_columns(sheet, path, said)
        done += bool(said["rows"])
        asked = [order[row["line"] - 2] for row in (*said["rows"], *said["pending"])]
        sheet.measure([i for i in asked if sheet.rng.random() < 0.7])
        if sheet.rng.random() < 0.5:
            sheet.extend(kinds, int(sheet.rng.integers(1, 4)))
        sheet.encoding = str(sheet.rng.choice(["utf-8", "cp1252"]))
    return done


@pytest.mark.parametrize("seed", seeds(500, 8))
def test_a_suggestion_or_a_sentence(seed, tmp_path):
    story(seed, tmp_path)


def test_most_tables_get_a_suggestion(tmp_path):
    """Else the test above would say little."""
    found = []
    for seed in range(1000, 1006):
        (folder := tmp_path / str(seed)).mkdir()
        found.append(story(seed, folder))
    assert sum(count > 0 for count in found) >= 3, found
