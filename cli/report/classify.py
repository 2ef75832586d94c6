"""The page on runs of `explore classify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from explore.cli.classify import report
from explore.cli.display import literal
from explore.cli.report import held_out
from explore.cli.report.drawing import panels
from explore.cli.report.held_out import HeldOut
from explore.cli.report.page import Section
from explore.cli.report.session import Opened, learning_curves
from explore.core.errors import InputError, counted
from explore.learning import saved
from explore.learning.classification import Classified

DRAWN = 30  # classes at most whose confusions are drawn
PAIRS = 20  # of classes, in the table of confusions
SHOWN = 8  # images in a row


class Tested(NamedTuple):
    """Predictions of a run for its test images, and for out-of-distribution images."""

    y: np.ndarray  # [P]
    places: np.ndarray  # [P] among the test images, with --validate among the training images
    classes: tuple[str, ...]
    tested: Classified
    ood: Classified | None

    @property
    def p(self) -> np.ndarray:
        """The probabilities [P, C]."""
        return self.tested.probabilities.double().numpy()


def sections(runs: Sequence[Opened]) -> Iterator[Section]:
    """Yield all sections."""
    done = [run for run in runs if run.sizes.get("results.csv")]
    if done:
        yield _scores({run.name: run.table("results.csv") for run in done})
    yield learning_curves(runs, {m: title for m, title in report.METRICS.items() if not m.startswith("auroc")})
    for run in runs:
        if run not in done:
            yield Section(f"Results of {run.name}", warnings=[f"{run.folder} is not finished; there are its curves."])
    predictions = {}
    for run in done:
        try:
            predictions[run.name] = read(run)
        except InputError as error:
            yield Section(f"Results of {run.name}", warnings=[f"Not shown is what needs the probabilities: {error}."])
    if predictions:
        none = np.empty(0)
        yield held_out.section(
            {name: HeldOut(t.y, t.p, none, none) for name, t in predictions.items()}, "Of all of them."
        )
    for run in done:
        if run.name in predictions:
            prefix = f"{run.name}: " if len(runs) > 1 else ""
            for section in _of_run(run, predictions[run.name]):
                yield section._replace(title=prefix + section.title)


def read(run: Opened) -> Tested:
    """Read the probabilities of a run, if they are intact and the run's."""
    arrays = saved.probabilities(run.folder)
    try:
        y, index, classes = arrays["y"], arrays["index"], tuple(map(str, arrays["classes"]))
        kinds = [
            Classified(torch.from_numpy(arrays[f"{kind}probabilities"]), torch.full((0,), torch.nan), information)
            for kind in ("", "other_")
            if (information := torch.from_numpy(arrays.get(f"{kind}information", np.empty(0)))).numel()
        ]
        fits = kinds[0].probabilities.shape == (len(y), len(classes)) and index.shape == y.shape
        if not (fits and 0 <= y.min() <= y.max() < len(classes)):
            raise ValueError("its arrays do not fit each other")
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{run.folder / saved.PROBABILITIES} is gone or damaged ({error})") from error
    return Tested(y, index, classes, kinds[0], kinds[1] if len(kinds) > 1 else None)


def _scores(tables: Mapping[str, pd.DataFrame]) -> Section:
    last = {name: table.iloc[-1] for name, table in tables.items()}
    metrics = {m: title for m, title in report.METRICS.items() if any(m in row for row in last.values())}
    rows = [
        [
            name, str(row.posterior), str(row.net), str(row.epochs),
            *(f"{row[m]:.4f}" if m in row else "" for m in metrics), f"{row.epoch_seconds:.3g}",
        ]
        for name, row in last.items()
    ]  # fmt: skip
    failed = [f"The fit of {n} failed and was stopped where it stood." for n, row in last.items() if not row.alive]
    header = ("run", "posterior", "network", "epochs", *metrics.values(), "seconds an epoch")
    return Section("Scores", warnings=failed, header=header, rows=rows)


def _of_run(run: Opened, tested: Tested) -> Iterator[Section]:
    yield _confusions(tested)
    if tested.ood is not None:
        names = (Path(run.config["dataset"] or run.config["images"]).name, Path(run.config["ood"]).name)
        note = "Shares of the images; out-of-distribution images should be more uncertain."
        yield Section("Out-of-distribution images", report.uncertainties(tested.tested, tested.ood, names), [note])
    yield from _images(run, tested)


def _confusions(tested: Tested) -> Section:
    """Count each pair of true and predicted class."""
    count = len(tested.classes)
    counts = np.zeros((count, count), int)
    np.add.at(counts, (tested.y, tested.p.argmax(1)), 1)
    totals = counts.sum(1)
    wrong = counts * ~np.eye(count, dtype=bool)
    most = [pair for pair in np.argsort(-wrong, axis=None, kind="stable")[:PAIRS] if wrong.flat[pair]]
    rows = [
        [tested.classes[t], tested.classes[c], str(counts[t, c]), f"{counts[t, c] / totals[t]:.3g}"]
        for t, c in (divmod(int(pair), count) for pair in most)
    ]
    notes = [f"{int(wrong.sum())} of {counted(len(tested.y), 'image')} are taken for another class."]
    header = ("class", "taken for", "images", "share of the class")
    if count > DRAWN:
        notes.append(f"Of {count} classes, more than {DRAWN}, no picture is drawn.")
        return Section("Confusions", None, notes, header=header, rows=rows)
    side = 2.5 + 0.28 * count
    figure, (axes,) = panels(1, width=side + 1, height=side)
    axes.grid(visible=False)
    drawn = axes.imshow(counts / np.maximum(totals, 1)[:, None], vmin=0, vmax=1, cmap="Blues")
    names = [literal(name) for name in tested.classes]
    axes.set_xticks(range(count), names, rotation=90, fontsize="small")
    axes.set_yticks(range(count), names, fontsize="small")
    axes.set(xlabel="taken for", ylabel="class")
    figure.colorbar(drawn, ax=axes, label="share of the class")
    return Section("Confusions", figure, notes, header=header, rows=rows)


def _images(run: Opened, tested: Tested) -> Iterator[Section]:
    """Show the images with the most confident errors, and the most uncertain ones."""
    settings = run.settings
    try:
        loaded, _ = settings.load()
    except InputError as error:
        yield Section("Images", warnings=[f"Not shown is what needs the images of {run.name}: {error}."])
        return
    x = loaded.x if settings.validation else loaded.test_x
    confidence, classes = tested.p.max(1), tested.p.argmax(1)
    wrong = classes != tested.y
    errors = np.argsort(np.where(wrong, -confidence, np.inf), kind="stable")[: min(SHOWN, wrong.sum())]
    uncertain = np.argsort(-tested.tested.entropy.double().numpy(), kind="stable")[:SHOWN]
    for title, shown in {"Surest of what is wrong": errors, "Least sure": uncertain}.items():
        if not len(shown):
            continue
        figure, every = panels(SHOWN, columns=SHOWN, width=1.3, height=1.8)
        pixels = x[tested.places[shown]].transpose(0, 2, 3, 1)
        for axes in every:
            axes.set_axis_off()
        for axes, place, image in zip(every, shown, pixels, strict=False):
            axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
            names = [literal(tested.classes[c][:14]) for c in (tested.y[place], classes[place])]
            axes.set_title(f"{names[0]}\nas {names[1]}: {confidence[place]:.2f}", fontsize=7)
        yield Section(title, figure, ["Above each image its class, and as what it is taken with which probability."])
