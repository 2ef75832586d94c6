"""Three rounds of `explore suggest` as a scientist has them: the transcript of docs/suggest.md."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import explore
from explore.campaign import Campaign
from tests.cli.conftest import run

PAGE = Path(explore.__file__).parent.parent / "docs" / "suggest.md"
KILLED_WHILE_READING = """
def replace(*_):
    os.kill(os.getpid(), signal.SIGKILL)

os.replace = replace
"""
KILLED_WHILE_WRITING = """
from explore.cli.suggest import report

def write(*_):
    os.kill(os.getpid(), signal.SIGKILL)

report.write = write
"""


def measured(rows):
    """What an experiment would find."""
    solvent = rows.solvent.map({"water": 0, "ethanol": 12, "toluene": -8, "DMF": 20})
    ligand = rows.ligand.map({"XPhos": 5, "SPhos": 0, "none": -10})
    heat = 25 - (rows.temperature.fillna(60) - 70) ** 2 / 60
    return (50 + solvent + ligand + heat + 3 * (rows.catalyst - 3)).clip(0, 100).round(1)


def rows(first, count, seed):
    """Experiments that could be made."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2024-03-01") + pd.to_timedelta(rng.integers(0, 90, count), "D")
    table = pd.DataFrame(
        {
            "sample": [f"R-{i:04d}" for i in range(first, first + count)],
            "solvent": rng.choice(["water", "ethanol", "toluene", "DMF"], count),
            "ligand": rng.choice(["XPhos", "SPhos", "none"], count),
            "catalyst": rng.integers(1, 6, count),
            "made": days.strftime("%Y-%m-%d"),
            "temperature": rng.uniform(20, 110, count).round(1),
            "concentration": rng.uniform(0.05, 1.5, count).round(3),
            "yield": np.nan,
        }
    )
    table.loc[rng.random(count) < 0.06, "temperature"] = np.nan
    return table


class Story:
    """A scientist with a table, who remembers what was measured, asked and skipped."""

    def __init__(self, folder):
        self.path, self.next = folder / "lab.csv", folder / "next.csv"
        self.told: dict[str, float] = {}
        self.asked: list[str] = []
        self.said: list[str] = []
        table = rows(1, 500, 0)
        table.loc[:11, "yield"] = measured(table)[:12]
        self.told |= dict(zip(table["sample"][:12], table["yield"][:12], strict=True))
        self.save(table)

    def save(self, table):
        table.to_csv(self.path, index=False)

    def table(self):
        return pd.read_csv(self.path, keep_default_na=False, na_values=[""])

    def explore(self, *words):
        """The command, whose rows must be new; the table stays as it is."""
        before = self.path.read_bytes()
        result = run(*words)
        assert result.exit_code == 0 and self.path.read_bytes() == before, result.output
        self.said += [f"$ explore {' '.join(words)}", *result.stderr.splitlines(), *result.stdout.splitlines()]
        self.check()

    def new(self):
        """What is handed out beyond what was before."""
        asked = pd.read_csv(self.next, keep_default_na=False)["sample"].tolist()
        new = [name for name in asked if name not in self.asked]
        assert not set(new) & set(self.told)
        self.asked += new
        return new

    def check(self):
        """Every label is on its row, and no other row has one."""
        with Campaign(self.path.with_suffix(".explore"), dry=True) as known:
            found = {row.id: row.mean["yield"] for row in known.measured}
        assert found == self.told

    def killed(self, how, *words):
        code = f"import os, signal\n{how}\nfrom explore.cli.main import main\nmain({list(words)!r})"
        environment = os.environ | {"PYTHONPATH": str(PAGE.parent.parent)}
        died = subprocess.run([sys.executable, "-c", code], cwd=self.path.parent, env=environment, capture_output=True)
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
        self.said += [f"$ explore {' '.join(words)}", *died.stderr.decode().splitlines(), "Killed"]

    def measure(self, names, path=None, digits=1):
        """Fill in cells of the table, or of another file."""
        table = pd.read_csv(path or self.path, keep_default_na=False, na_values=[""])
        here = table["sample"].isin(names)
        table.loc[here, "yield"] = measured(table)[here].round(digits)
        self.told |= dict(zip(table["sample"][here], table["yield"][here], strict=True))
        table.to_csv(path or self.path, index=False)


@pytest.mark.posix
def test_three_rounds(tmp_path):
    story = Story(tmp_path)
    story.explore("suggest", "lab.csv", "--target", "yield", "--id", "sample", "--categorical", "catalyst")
    first = story.new()
    assert len(first) == 5

    # Measured, sorted, extended; the first attempt to read it is killed.
    story.measure(first)
    table = pd.concat([story.table(), rows(501, 20, 1)])
    story.save(table.sort_values("temperature", ascending=False))
    story.killed(KILLED_WHILE_READING, "suggest", "lab.csv")
    story.explore("suggest", "lab.csv")
    second = story.new()
    assert len(second) == 5

    # Three are measured, one is skipped, one is left pending; an earlier one is corrected. Killed before next.csv.
    story.explore("suggest", "lab.csv", "--skip", second[0])
    story.measure(second[1:4])
    table = story.table()
    table.loc[table["sample"] == "R-0003", "yield"] = story.told["R-0003"] = 61.5
    story.save(table.sort_values("sample"))
    story.killed(KILLED_WHILE_WRITING, "suggest", "lab.csv")
    story.explore("suggest", "lab.csv")
    third = story.new()
    assert len(third) == 5
    pending = pd.read_csv(story.next)["sample"].tolist()
    assert pending == [*third, second[4]]

    # Filled in in next.csv.
    story.measure([*third, second[4]], story.next)
    story.explore("suggest", "lab.csv", "--labels", "next.csv")
    fourth = story.new()
    assert len(fourth) == 5 and not set(fourth) & {second[0]} and len(story.asked) == len(set(story.asked)) == 20
    story.explore("suggest", "lab.csv", "--status")

    new = rows(601, 8, 2)
    new.to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", "lab.explore", "new.csv", "--out", "predictions.csv")
    assert result.exit_code == 0, result.output
    found = pd.read_csv(tmp_path / "predictions.csv")
    assert ((found._low < measured(new)) & (measured(new) < found._high)).sum() >= 5
    result = run("report", "lab.explore")
    assert result.exit_code == 0 and (tmp_path / "report.html").exists(), result.output
    commands = ["predict lab.explore new.csv --out predictions.csv", "report lab.explore"]
    compare([*story.said, *(f"$ explore {words}" for words in commands)])


def compare(said):
    """Every line of the page's transcript was said, in this order; numbers may be others elsewhere."""
    pages = re.findall(r"<!-- transcript -->\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    left = iter([plain(line) for line in said])
    for line in "".join(pages).splitlines():
        start = plain(line.partition(" ...")[0])
        if start and start[0] not in "┏┃┡│└…":
            assert any(found.startswith(start) for found in left), line


def plain(line):
    """Without numbers."""
    return re.sub(r"\d+([.-]\d+)*", "#", " ".join(line.split()))


if __name__ == "__main__":
    Path("/tmp/story").mkdir(exist_ok=True)
    os.chdir("/tmp/story")
    compare = lambda said: print("\n".join(said))  # noqa: E731
    test_three_rounds(Path("/tmp/story"))
