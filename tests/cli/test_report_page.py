"""`explore report`: its pages stand alone, and their numbers are those of the runs."""

import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from explore.campaign import Campaign, Row, Schema
from explore.cli.classify import report as classify
from explore.cli.estimate import Estimate, decimals
from explore.cli.report import drawing, page, session, suggest
from explore.cli.report.session import Opened
from explore.core.errors import InputError
from explore.learning.classification import Classified
from explore.runs.recorded import CONFIG
from tests.cli.conftest import TINY, run
from tests.oracles import mean_and_se

TARGET = 'yield <b>&"$'  # nothing of it may reach the page or matplotlib's mathematics as it is


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs of all kinds."""
    here = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    frame[TARGET], frame["kind"] = frame.a - frame.b, np.where(frame.a > 0, "high", "low")
    frame.to_csv(here / "t.csv", index=False)
    table = ["--data", here / "t.csv", "--out", here, "--quiet"]
    for command in (
        ["active", *TINY, *table, "--target", TARGET, "--drop-columns", "kind", "--name", "one"],
        ["active", *TINY, *table, "--target", TARGET, "--drop-columns", "kind", "--name", "two", "--no-control"],
        ["compare", *table, "--target", "kind", "--task", "classification", "--drop-columns", TARGET, "--splits", 2,
         "--posterior", "map,bbb", "--epochs", 3, "--samples", 5, "--name", "c"],
        ["rl", "--env", "explore/Chain-v0", "--env-kwargs", "length:5", "--n-envs", 4, "--algo-param", "n_steps=16",
         "--timesteps", 128, "--seeds", 2, "--posterior", "none", "--out", here, "--quiet", "--name", "r"],
        ["classify", "--images", photos(here / "photos"), "--validate", 0.5, "--net", "mlp", "-p", "net.hidden=4",
         "--ood", others(here / "o.npz"), "--posterior", "bbb", "--epochs", 3, "--samples", 5, "--out", here, "--quiet",
         "--name", "k"],
    ):  # fmt: skip
        result = run(*command)
        assert result.exit_code == 0, result.output
    campaign(here / "pool.explore")
    return here


def photos(folder):
    """Noise, so that half of them are taken for what they are not."""
    rng = np.random.default_rng(0)
    for kind in (TARGET, "low"):
        (folder / "train" / kind).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / "train" / kind / f"{i}.png")
    return folder


def others(path):
    np.savez(path, x=np.random.default_rng(1).integers(0, 255, (12, 8, 8, 3), np.uint8))
    return path


def campaign(folder):
    """A campaign of two rounds: of four rows two were answered, one is pending, one was taken back."""
    said = {"mean": 2.0, "low": 1.0, "high": 3.0}

    def measured(values):
        for name, y in values:
            one.state.rows[name] = Row(name, {"a": "1"}, {TARGET: y})
        rows = {name: {TARGET: {"values": [y], "from": "table"}} for name, y in values}
        one.state.step("measure", rows, {})

    def suggested(*scores):
        rows = {name: said | {"score": score, "rank": 1} for name, score in scores}
        one.state.step("suggest", rows, {})
        for name in rows:
            one.state.rows[name] = Row(name, {"a": "1"}, pending=len(one.state.steps))

    with Campaign(folder) as one:
        one.state.schema = Schema((TARGET,), ("a",))
        measured(START)
        suggested(("p", 4), ("q", 2))
        measured((("p", 2.5), ("q", 9.0)))
        suggested(("r", 1.0))
        suggested(("s", 7.0))
        one.undo()
        one.save()
    settings = {"command": "suggest", "goal": "maximise", "target": [TARGET]}
    (folder / "config.json").write_text(json.dumps({"format": CONFIG, "settings": settings}))


START = (("x", 1.0), ("y", 3.0))


@pytest.fixture
def runs(made):
    """A copy of them in the folder `runs`."""
    shutil.copytree(made, "runs")
    return Path("runs")


class Page(HTMLParser):
    """Tags, addresses and the cells of tables by section."""

    def __init__(self, path):
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text: list[str] = []
        self.sections: dict[str, list[str]] = {}
        self._in = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._in = tag
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v and not v.startswith("#")]

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in == "h2":
            self.sections[data] = self.text = []
        elif self._in in ("td", "th", "p"):
            self.text.append(data)


def report(*arguments):
    result = run("report", *arguments)
    assert result.exit_code == 0, result.output
    return result


PAGES = {
    "active": (["active-one", "active-two"], ["learning-curves", "difference-from-random-labelling",
               "chosen-points-by-round", "calibration-and-residuals", "best-score-by-round"]),
    "classify": (["classify-k"], ["training-curves", "calibration", "confusions", "out-of-distribution-images",
                 "most-confident-errors", "most-uncertain-images"]),
    "compare": (["compare-c"], ["scores", "training-curves", "calibration"]),
    "rl": (["rl-r"], ["returns", "rewards-bonus-and-dynamics"]),
    "suggest": (["pool.explore"], ["suggestions-and-measurements", "predictions-and-later-measurements",
                "score-over-rounds",
                "measurements"]),
}  # fmt: skip


@pytest.mark.usefixtures("drawn_in_full")
@pytest.mark.parametrize("kind", PAGES)
def test_a_page_stands_alone_and_has_its_figures_beside_it(runs, kind):
    names, figures = PAGES[kind]
    result = report(*(runs / name for name in names), "--out", "x.html", "--json")
    pictures = [f"x-{figure}.png" for figure in figures]
    assert json.loads(result.stdout) == {"report": "x.html", "figures": pictures, "runs": names}
    for picture in pictures:
        with Image.open(picture) as image:
            assert image.width > 400 and len(set(image.convert("L").resize((99, 99)).tobytes())) > 3
    shown = Page(Path("x.html"))
    assert len(re.findall("<svg", Path("x.html").read_text())) == len(figures)
    # Pixels of clouds of points are in the page too.
    assert not shown.tags & {"script", "link", "iframe"} and all(link.startswith("data:") for link in shown.links)
    assert "b" not in shown.tags and list(shown.sections)[-1] == "Settings"
    if kind == "suggest":  # one says it for all
        before = Path("x.html").read_bytes()
        report(*(runs / name for name in names), "--out", "x.html", "--quiet")
        assert Path("x.html").read_bytes() == before


@pytest.fixture(scope="module")
def alone(made):
    """The sections of the page of one run, whose names are not before those of its arms."""
    report(made / "active-one", "--out", made / "one.html")
    return Page(made / "one.html").sections


def test_learning_curves_and_differences_are_those_of_results_csv(alone, runs):
    shown = alone
    table = pd.read_csv(runs / "active-one" / "results.csv").pivot(
        index=["labels", "trial"], columns="arm", values="rmse"
    )
    paired, curve = (table["variance-reduction"] - table.random).unstack(), table.random.unstack()
    for title, values in {"Difference from random labelling": paired, "Learning curves": curve}.items():
        for cell in (values.mean(axis=0), values.loc[22]):
            mean, se = mean_and_se(cell).values()
            assert Estimate(mean, se).text(decimals(values)) in shown[title]


def test_residuals_are_those_of_the_last_round(alone, runs):
    cells = alone["Calibration and residuals"]
    last = pd.read_csv(runs / "active-one" / "results.csv").query("labels == 22 and arm == 'random'")
    row = cells[cells.index("random") :]
    assert row[1] == "40"  # 20 points of two trials
    # Other samples of the nets than in the run.
    assert float(row[2]) == pytest.approx(np.sqrt((last.rmse**2).mean()), rel=0.3)
    assert float(row[4]) == pytest.approx(last.coverage_95.mean(), abs=0.25)


def test_coverage_counts_what_central_intervals_hold():
    below = np.array([[0.5], [0.3], [0.97], [0.02]])  # within the central 0, 0.4, 0.94 and 0.96
    found = drawing.HeldOut(below, below, below, below)
    share = dict(zip(drawing.LEVELS.round(2).tolist(), drawing.coverage(found), strict=True))
    assert (share[0.0], share[0.35], share[0.45], share[0.9], share[0.95], share[1.0]) == (
        0.25,
        0.25,
        0.5,
        0.5,
        0.75,
        1,
    )


def test_what_was_asked_and_answered(runs):
    history = suggest.read(Opened("pool.explore", runs / "pool.explore", "suggest", {}, (), {}))
    answers = [(s["id"], s["round"], s["measured"]) for s in history.suggestions]
    assert answers == [("p", 1, {TARGET: 2.5}), ("q", 1, {TARGET: 9.0}), ("r", 2, {})]
    result = report(runs / "pool.explore")
    assert "no model is fitted yet" in result.stderr
    shown = Page(Path("report.html")).sections
    assert shown["Suggestions and measurements"][0] == "4 measurements; 3 rows suggested, 1 of them pending."
    cells = shown["Steps"]
    assert cells[:4] == ["batch", "time (UTC)", "step", "rows"] and cells[6::4] == ["measure", "suggest"] * 2
    assert cells[7] == f"x ({TARGET} 1, from table), y ({TARGET} 3, from table)" and cells[11] == "p, q"
    assert f"{TARGET}: 1 of 2 measurements lie in the 90 % interval" in "".join(
        shown["Predictions and later measurements"]
    )


def test_principal_components_are_those_of_the_covariance():
    x = np.random.default_rng(0).normal(size=(50, 4)) @ np.diag([1, 10, 3, 2]) + 7
    x[:, 2] += x[:, 0]
    scores, shares = drawing.components(x)
    values, vectors = np.linalg.eigh(np.corrcoef(x.T))
    z = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(np.abs(scores), np.abs(z @ vectors[:, :-3:-1]), atol=1e-9)
    np.testing.assert_allclose(shares, values[:-3:-1] / 4)
    one, share = drawing.components(np.ones((5, 1)))
    assert one.shape == (5, 2) and not one.any() and not share.any()


def test_what_needs_data_that_have_changed_is_left_out_and_said(runs, made):
    path = made / "t.csv"
    text = path.read_text()
    try:
        path.write_text(text.replace("high", "tall"))
        result = report(runs / "compare-c")
    finally:
        path.write_text(text)
    assert "Skipped the figures that need the data of compare-c: the data of t have changed" in result.stderr
    assert list(Page(Path("report.html")).sections) == [
        "Scores",
        "Training curves",
        "Data of compare-c",
        "Settings",
    ]


def test_a_run_without_a_model_has_its_other_sections(runs):
    (runs / "active-one" / "model.pt").unlink()
    assert "Skipped the figures that need the model of active-one:" in report(runs / "active-one").stderr
    sections = Page(Path("report.html")).sections
    assert "Chosen points by round" in sections and "Calibration and residuals" not in sections


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["active-one", "compare-c"], "a report shows runs of one command, not of active"),
        (["active-one", "active-one"], "several runs have the name active-one."),
        (["active-one", "--out", "x.pdf"], "--out is x.pdf; its name must end with .html"),
        (["active-one", "--out", "mine.html"], "mine.html exists and was not written by explore"),
        (["active-one", "--out", "own.html"], "own-learning-curves.png exists and would be overwritten by"),
        (["active-one", "--out", "no/x.html"], "cannot write no/x.html: No such file or directory"),
        (["."], "is not a run folder: it has no config.json"),
        (["nowhere"], "does not exist"),
        (["edited"], "results.csv is damaged"),
    ],
)
def test_what_is_refused(runs, arguments, message):
    for mine in map(Path, ("mine.html", "own-learning-curves.png")):
        mine.write_text("mine")
    shutil.copytree(runs / "active-one", runs / "edited")
    (runs / "edited" / "results.csv").write_text("round\n1\n")
    paths = [runs / a if not a.startswith("-") and "html" not in a and "pdf" not in a else a for a in arguments]
    result = run("report", *paths)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split()), result.stderr
    assert Path("mine.html").read_text() == Path("own-learning-curves.png").read_text() == "mine"
    assert not Path("own.html").exists()


def test_scores_and_confusions_are_those_of_the_probabilities(runs):
    folder = runs / "classify-k"
    report(folder)
    shown = Page(Path("report.html")).sections
    row = pd.read_csv(folder / "results.csv").iloc[0]
    for name in ("error", "log_likelihood", "brier", "calibration_error", "auroc_entropy", "auroc_information"):
        assert f"{row[name]:.4f}" in shown["Scores"], name
    with np.load(folder / "probabilities.npz") as found:
        y, called, names = found["y"], found["probabilities"].argmax(1), found["classes"].tolist()
    assert names == ["low", TARGET] and (y != called).sum() > 3
    cells = shown["Confusions"]
    assert cells[0] == f"{(y != called).sum()} of 20 images misclassified."
    for true in (0, 1):
        taken = int(((y == true) & (called != true)).sum())
        at = next(i for i, cell in enumerate(cells) if cells[i : i + 2] == [names[true], names[1 - true]])
        assert cells[at + 2 : at + 4] == [str(taken), f"{taken / (y == true).sum():.3g}"]
    assert f"{row.calibration_error:.4g}" in shown["Calibration"]


def test_images_are_those_of_the_surest_errors(runs, made, monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "imshow", lambda axes, pixels, **_: drawn.append(pixels))
    monkeypatch.setattr(Figure, "colorbar", lambda *_, **__: None)
    report(runs / "classify-k")
    with np.load(runs / "classify-k" / "probabilities.npz") as found:
        p, y, index = found["probabilities"], found["y"], found["index"]
    files = [path for kind in ("low", TARGET) for path in sorted((made / "photos" / "train" / kind).glob("*.png"))]
    wrong = np.flatnonzero(p.argmax(1) != y)
    surest, least = wrong[p[wrong].max(1).argmax()], p.max(1).argmin()
    for image, place in ((drawn[1], surest), (drawn[1 + min(8, len(wrong))], least)):
        with Image.open(files[index[place]]) as file:
            assert np.array_equal(image, np.asarray(file))


def test_what_a_run_of_classify_lacks_is_said(runs, made):
    folder = runs / "classify-k"
    opened = session._open(folder, ())
    unfinished = dataclasses.replace(opened, sizes={**opened.sizes, "results.csv": 0})
    found = list(classify.sections([unfinished]))
    assert [section.title for section in found] == ["Training curves", "Results of classify-k"]
    assert "Skipped the figures that need the results of classify-k:" in found[1].warnings[0]
    try:
        (made / "photos").rename(made / "moved")
        said = report(folder).stderr
    finally:
        (made / "moved").rename(made / "photos")
    assert "Skipped the figures that need the images of classify-k:" in said
    assert list(Page(Path("report.html")).sections)[-2:] == ["Images of classify-k", "Settings"]
    arrays = folder / "probabilities.npz"
    whole = arrays.read_bytes()
    for damaged in (whole[:-30], whole[:300] + b"x" * 40 + whole[340:], b"", None):
        arrays.unlink()
        if damaged is not None:
            arrays.write_bytes(damaged)
        assert "is missing or damaged" in report(folder).stderr
        assert list(Page(Path("report.html")).sections) == [
            "Scores", "Training curves", "Results of classify-k", "Settings",
        ]  # fmt: skip


def test_confusions_of_many_classes_are_a_table():
    count = classify.DRAWN + 1
    y, called = np.arange(count), np.roll(np.arange(count), 1)
    tested = Classified(torch.eye(count)[called], torch.zeros(count), torch.zeros(count))
    found = classify._confusions(classify.Tested(y, y, tuple(map(str, y)), tested, None, ("", "")))
    assert found.figure is None and len(found.rows) == classify.PAIRS and found.rows[3] == ["3", "2", "1", "1"]
    assert found.sentences[1] == f"No plot: {count} classes are too many (at most {classify.DRAWN})."


@pytest.mark.parametrize("command", ["active", "classify", "compare"])
def test_runs_on_several_data_sets_have_no_page_in_common(command):
    """Their errors are in other units, and a split of the one is none of the other."""
    runs = [Opened(name, Path(name), command, {"dataset": name}, (), {}) for name in ("boston", "yacht")]
    with pytest.raises(InputError, match="boston, yacht differ in data, target or validation. Write a"):
        session._check_data(command, runs)
    session._check_data(command, runs[:1] * 2)
    session._check_data("suggest", runs)  # where each has figures of its own


def test_settings_that_differ_come_first():
    section = page.settings({"a": {"x": 1, "y": {"z": [1, 2]}}, "b": {"x": 1, "y": {"z": [1, 3]}, "w": None}})
    assert section.rows == [["y.z", "1, 2", "1, 3"], ["w", "", "None"], ["x", "1", "1"]]
