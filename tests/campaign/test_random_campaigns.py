"""Campaigns of many rounds, beside a memory that knows the rows by something that no table shows."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest

from explore.campaign import Campaign, Schema
from explore.campaign.cells import canonical
from explore.campaign.state import NAME
from tests.campaign.tables import rewritten, table
from tests.seeds import seeds

FEATURES = ("temp", "solvent", "code", "open", "day")


@dataclass
class Truth:
    """A row of the scientist's, and what the campaign has to know of it; `told` counts, whatever the cell says."""

    features: dict
    name: str
    cell: float | None = None
    told: list = field(default_factory=list)
    pending: bool = False
    skipped: bool = False
    here: bool = True

    @property
    def content(self):
        return tuple(self.features.items())


class World:
    """A scientist who edits a table at random between the rounds, and remembers it all."""

    def __init__(self, seed, folder, ids, twins):
        self.rng = np.random.default_rng(seed)
        self.folder, self.ids, self.twins = folder, ids, twins
        self.rows: list[Truth] = []
        self.agreed: dict[str, tuple] = {}  # what the campaign knew after the last command
        self.past: list[dict[str, tuple]] = []  # what it knew before each step
        self.extend(30)
        self.schema = Schema(("y",), FEATURES, "name" if ids else None)
        for row in self.rows[:8]:
            row.cell = self.value()
            row.told = [row.cell]

    def value(self):
        return round(float(self.rng.normal()), int(self.rng.integers(1, 12)))

    def some(self, rows, most):
        rows = list(rows)
        return [rows[i] for i in self.rng.permutation(len(rows))[: self.rng.integers(most + 1)]]

    def extend(self, count):
        rng = self.rng
        while count:
            features = {
                "temp": float(rng.choice([20, 50.5, rng.normal(), rng.normal() * 1e-9])),
                "solvent": ("water", "Äthanol", "1,4-dioxane", None)[rng.integers(4)],
                "code": int(rng.integers(3)),
                "open": bool(rng.integers(2)),
                "day": rng.choice(["2024-03-01", "2024-03-02"]),
            }
            twin = [r for r in self.rows if r.content == tuple(features.items())]
            if twin and not self.twins:
                continue
            if self.twins and rng.random() < 0.5 and self.rows:
                features = dict(self.rows[rng.integers(len(self.rows))].features)
            self.rows.append(Truth(features, f"row {len(self.rows)}"))
            count -= 1

    @property
    def here(self):
        return [row for row in self.rows if row.here]

    def table(self):
        """The table as it is saved now, and which row stands where."""
        rows = [self.here[i] for i in self.rng.permutation(len(self.here))]
        columns = {n: [rewritten(row.features[n], self.rng) for row in rows] for n in FEATURES}
        columns["y"] = [rewritten(row.cell, self.rng) for row in rows]
        if self.ids:
            columns["name"] = [f" {row.name} " for row in rows]
        order = self.rng.permutation(list(columns))
        return table({n: columns[n] for n in order}), rows

    def remember(self, campaign, names):
        """Take note of the steps of a command; suggestions of one that was killed are pending too."""
        for step in campaign.state.steps[len(self.past) :]:
            self.past.append(self.agreed)
            for row in self.rows if step["kind"] == "suggest" else ():
                row.pending = row.pending or names.get(row.name) in step["rows"]
            self.agreed = self.snapshot()

    def snapshot(self):
        return {row.name: (row.told, row.pending, row.skipped) for row in self.rows}

    def undo(self):
        before = self.past.pop()
        for row in self.rows:
            row.told, row.pending, row.skipped = before.get(row.name, ([], False, False))
        self.agreed = self.snapshot()

    def edit(self):
        """Extend, filter, answer, correct, empty; identical rows are all treated alike at a time."""
        rng = self.rng
        self.extend(int(rng.integers(3)))
        kinds: dict = defaultdict(lambda: rng.choice(["answer", "correct", "empty", "filter", "none"]))
        for row in self.rows:
            kind = kinds[row.name if not self.twins else row.content]
            likely = rng.random() < 0.5
            if kind == "filter":
                row.here = not likely if row.here else likely
            elif not row.here:
                continue
            elif (
                kind == "answer" and row.pending and likely or rng.random() < 0.02 and not row.told and kind == "answer"
            ):
                self.answer(row)
            elif kind == "correct" and row.cell is not None and likely:
                self.answer(row)
            elif kind == "empty" and row.cell is not None and likely:
                row.cell, row.told = None, []

    def answer(self, row):
        twins = [r for r in self.rows if r.content == row.content and r.pending]
        if not row.told and not row.pending and twins:
            twins[0].pending = False  # as good as this one
        row.cell = self.value()
        row.told, row.pending, row.skipped = [row.cell], False, False

    def labels(self, ids):
        """A file of labels for some rows in the table, by id or by features, perhaps with replicates."""
        chosen = self.some([r for r in self.here if r.pending or r.told], 4)
        if not chosen or self.rng.random() < 0.5:
            return None
        by_id = bool(self.rng.integers(2)) or self.twins
        for row in chosen:
            row.told, row.pending, row.skipped = [self.value()], False, False
        for row in self.some(chosen, 1):
            row.told = [*row.told, self.value()]
            chosen.append(row)
        columns = {n: [rewritten(row.features[n], self.rng) for row in chosen] for n in FEATURES}
        columns |= {"_rank": ["1"] * len(chosen), "_reason": ["far"] * len(chosen)}
        if by_id:
            columns["_id"] = [ids[row.name] for row in chosen]
        columns["y"] = [rewritten(row.told[row in chosen[:i]], self.rng) for i, row in enumerate(chosen)]
        return table(columns, "next.csv")


def run(world, now, labels, picks, saved=lambda: None):
    """What a command does: read, then hand out."""
    with Campaign(world.folder) as campaign:
        campaign.read(now, world.schema, labels)
        campaign.save()
        saved()
        chosen = [campaign.pool[i] for i in picks if i < len(campaign.pool)]
        campaign.suggest(chosen)
        campaign.save()
        saved()
    return campaign, chosen


def killed(world, now, labels, picks):
    """The same, killed at some time: what it leaves behind is the state before or after one of its steps."""
    file = world.folder / NAME
    versions = [file.read_bytes() if file.exists() else b""]
    run(world, now, labels, picks, lambda: versions.append(file.read_bytes()))
    if kept := versions[world.rng.integers(len(versions))]:
        file.write_bytes(kept)
    else:
        file.unlink()


@pytest.mark.parametrize("seed", seeds(20, 5))
@pytest.mark.parametrize("ids", [False, True])
def test_every_label_on_its_row_and_no_row_asked_twice(seed, ids, tmp_path):
    world = World(seed, tmp_path / "pool.explore", ids, twins=False)
    names: dict[str, str] = {}
    for _ in range(12):
        now, rows = world.table()
        labels = world.labels(names) if names else None
        picks = sorted(world.rng.permutation(20)[: world.rng.integers(1, 5)].tolist())
        if world.rng.random() < 0.4:
            killed(world, now, labels, picks)
            with Campaign(world.folder, dry=True) as left:
                left.read(now, world.schema)
            names |= dict(zip([row.name for row in rows], left.ids, strict=True))
            with Campaign(world.folder, dry=True) as left:
                world.remember(left, names)
        campaign, chosen = run(world, now, labels, picks)
        names |= dict(zip([row.name for row in rows], campaign.ids, strict=True))
        for i in chosen:
            assert not (rows[i].pending or rows[i].told or rows[i].skipped), "asked twice"
        world.remember(campaign, names)
        assert all(rows[i].pending for i in chosen)
        check(world, campaign, names)
        commands(world, names)
        world.edit()
    assert sum(bool(row.told) for row in world.rows) > 3


def check(world, campaign, names):
    """The campaign knows what the scientist knows, also of rows that left the table."""
    for row in world.rows:
        found = campaign.state.rows.get(names.get(row.name, ""))
        assert (found.values if found else {}) == ({"y": row.told} if row.told else {}), row
        assert (found is not None and found.pending is not None) == row.pending, row
        assert (found is not None and found.skipped) == row.skipped, row
        assert not (row.pending and row.told)
        if found is not None and (row.told or row.pending or row.skipped):
            assert found.gone == (not row.here)
    here = {names[row.name] for row in world.here if row.told}
    assert {row.id for row in campaign.measured} == here, "what is not in the table is not used"


def commands(world, names):
    """Skip, release, retract and undo, now and then; they are then of the campaign as it is read again."""
    kind = world.rng.choice(["skip", "release", "retract", "undo", "none", "none"])
    rows = [row for row in world.rows if row.name in names]
    with Campaign(world.folder) as again:
        if kind == "skip" and (chosen := world.some([r for r in rows if not r.told and r.here], 1)):
            again.read(world.table()[0], world.schema)
            again.operate("skip", [names[r.name] for r in chosen])
            for row in chosen:
                row.skipped, row.pending = True, False
        if kind == "release":
            chosen = [r for r in rows if r.pending or r.skipped][:3]
            again.operate("release", [names[r.name] for r in chosen])
            for row in chosen:
                row.skipped = row.pending = False
        if kind == "retract" and (chosen := world.some([r for r in rows if r.told], 1)):
            again.operate("retract", [names[r.name] for r in chosen])
            again.undo()
            again.operate("retract", [names[r.name] for r in chosen])
            for row in chosen:
                row.told = []
        world.remember(again, names)
        for _ in range(world.rng.integers(1, 4) if kind == "undo" else 0):
            if len(world.past) > 4:  # so that some labels stay
                again.undo()
                world.undo()
        again.save()
    check(world, again, names)


@pytest.mark.parametrize("seed", seeds(40, 8))
def test_identical_rows_keep_their_labels_together(seed, tmp_path):
    """As many of them are measured, each with its value, and as many pending, as the scientist knows."""
    world = World(seed, tmp_path / "pool.explore", ids=False, twins=True)
    for _ in range(10):
        now, rows = world.table()
        campaign, chosen = run(world, now, None, sorted(world.rng.permutation(10)[:3].tolist()))
        assert len(set(campaign.ids)) == len(rows)
        for i in chosen:
            twins = [r for r in world.here if r.content == rows[i].content]
            next(r for r in twins if not r.pending and not r.told).pending = True  # whichever it is
        for content, twins in groups(world.rows).items():
            cells = {name: canonical(value) for name, value in content}
            found = [r for r in campaign.state.rows.values() if r.cells == cells]
            told = Counter(v for row in twins if row.here for v in row.told)
            assert Counter(v for r in found if not r.gone for v in r.values.get("y", [])) == told
            assert sum(r.pending is not None for r in found) == sum(r.pending for r in twins)
        world.edit()


def groups(rows):
    found = defaultdict(list)
    for row in rows:
        found[row.content].append(row)
    return found
