"""Results of `explore classify`: the files of a run (see docs/classify.md), the terminal output, and report sections.

In probabilities.npz, `classes` has the class names, `run` the id of the run, and `other_probabilities` and
`other_information` are of out-of-distribution images.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix

from explore.cli.classify.experiment import Event, Experiment, Finished
from explore.cli.display import literal
from explore.cli.report import drawing, page
from explore.cli.report.session import Opened, readable
from explore.cli.start import Report, file_name
from explore.core import files
from explore.core.errors import InputError, counted, curvature_note
from explore.learning import classification, saved
from explore.learning.classification import Classified, Measured
from explore.runs.record import Run
from explore.runs.recorded import flat, run_id

METRICS = {
    "error": "error rate", "log_likelihood": "log-likelihood, nats per image", "brier": "Brier score",
    "calibration_error": "calibration error, 15 bins", "auroc_entropy": "AUROC of entropy",
    "auroc_information": "AUROC of mutual information",
}  # fmt: skip
FIGURE = "reliability.png"
SCORES = {"entropy": "entropy of the prediction, nats", "information": "mutual information of class and weights, nats"}
IDLE = 0.9  # warn above this share of the error of always predicting the most frequent class
DRAWN = 30  # maximum number of classes in a plot of the confusion matrix
PAIRS = 20  # maximum number of rows in the table of confusions
SHOWN = 8  # images per figure


class Tested(NamedTuple):
    """Predictions for the test images and, if there are any, for out-of-distribution images."""

    y: np.ndarray  # [P]
    places: np.ndarray  # [P] indices among all test images, or (with --validate) all training images
    classes: tuple[str, ...]
    images: Classified
    ood: Classified | None
    names: tuple[str, str]  # of the test set and of the out-of-distribution set

    @property
    def probabilities(self) -> drawing.HeldOut:
        """The class indices `y` [P] and predicted probabilities `mean` [P, C] of P test images and C classes."""
        return drawing.HeldOut(self.y, self.images.probabilities.double().cpu().numpy())

    def figures(self, posterior: str) -> dict[str, Figure]:
        """Return name -> figure: `reliability` and, with out-of-distribution images, `others` (histograms)."""
        figure = drawing.calibration({posterior: self.probabilities}, "").figure
        assert figure is not None
        figure.axes[0].set_title(literal(self.names[0]))
        return {"reliability": figure} | ({} if self.ood is None else {"others": uncertainties(self, self.ood)})


def write(run: Run, experiment: Experiment, event: Event) -> int | None:
    """Write an event into the run folder. Return the epoch if a checkpoint is now due, else None."""
    s = experiment.settings
    series = file_name(s.posterior)
    match event:
        case None:
            settings = flat(s, {"posterior_settings": "posterior", "net_settings": "net"})
            run.hparams(series, settings, ["test/error", "test/log_likelihood", "test/calibration_error"])
        case Measured():
            run.scalars(series, event.epoch, event.scalars)
            return event.epoch if event.epoch < experiment.total else None
        case Finished():
            tested, values = _tested(experiment, event), metrics(event)
            row = {"posterior": s.posterior, "net": s.net, "epochs": experiment.total} | values | _success(event)
            arrays: dict[str, Any] = {"y": tested.y, "index": tested.places, "classes": np.array(tested.classes)}
            for kind, images in (("", tested.images), ("other_", tested.ood)):
                if images:
                    arrays[f"{kind}probabilities"] = images.probabilities.numpy()
                    arrays[f"{kind}information"] = images.information.numpy()
            with files.replacing(run.folder / saved.PROBABILITIES) as draft, open(draft, "wb") as file:
                np.savez_compressed(file, **arrays, run=np.array(run_id(run.folder)))
            run.rows("results.csv", [row])
            if detection := {f"test/{name}": value for name, value in values.items() if name.startswith("auroc")}:
                run.scalars(series, experiment.total, detection)
            for name, figure in tested.figures(s.posterior).items():
                run.image(series, experiment.total, f"figures/{name}", figure)
            assert experiment.saved is not None
            saved.write(run.folder, experiment.saved)
            return experiment.total
    return None


def _tested(experiment: Experiment, finished: Finished) -> Tested:
    y, places = experiment.task.test_y.cpu().numpy(), experiment.index.cpu().numpy()
    names = experiment.name, Path(str(experiment.settings.ood)).name
    return Tested(y, places, tuple(experiment.classes), finished.tested, finished.ood, names)


def metrics(finished: Finished) -> dict[str, float]:
    """Return metric -> value on the test images, with the AUROCs of out-of-distribution detection, if there is any."""
    values = {tag.removeprefix("test/"): v for tag, v in finished.scalars.items() if tag.startswith("test/")}
    if finished.ood is not None:
        for score in SCORES:
            scores = getattr(finished.tested, score), getattr(finished.ood, score)
            values[f"auroc_{score}"] = classification.auroc(*scores)
    return values


def _success(finished: Finished) -> dict[str, Any]:
    """Return whether the fit succeeded, and its duration."""
    seconds = {"seconds": round(finished.seconds, 3), "epoch_seconds": round(finished.epoch_seconds, 3)}
    return {"alive": finished.alive} | seconds


def report(experiment: Experiment, folder: Path) -> Report:
    """Return the result, and save the figures in the run folder."""
    finished, s = experiment.finished, experiment.settings
    assert finished is not None
    values, tested = metrics(finished), _tested(experiment, finished)
    figures = {f"{name}.png": figure for name, figure in tested.figures(s.posterior).items()}
    for file, figure in figures.items():
        page.save(figure, folder / file)
    part = "validation" if s.validation else "test"
    against = {name: f", against {tested.names[1]}" for name in values if name.startswith("auroc")}
    rows = [(title + against.get(m, ""), _text(values[m])) for m, title in METRICS.items() if m in values]
    facts = [("epoch", f"{finished.epoch_seconds:.3g} s"), ("model", saved.location(folder))]
    facts += [("figure", str(folder / file)) for file in figures if file != FIGURE]
    wrong = f"{100 * values['error']:.2f} % of the {part} images of {experiment.name} are wrong"
    verdict = f"{s.posterior} on {s.net}: {wrong}, log-likelihood {_text(values['log_likelihood'])}."
    summary = {
        "dataset": experiment.name, "net": s.net, "posterior": s.posterior, "epochs": experiment.total,
        "test": values, "validation": s.validation, "ood": s.ood if finished.ood else None,
        **_success(finished),
    }  # fmt: skip
    title = f"{experiment.name}, {len(experiment.task.test_y)} {part} images"
    tables = [(title, pd.DataFrame(rows, columns=["metric", part]))]
    return Report(_failures(experiment, finished, values["error"]), tables, summary, verdict, facts, FIGURE)


def _failures(experiment: Experiment, finished: Finished, error: float) -> list[str]:
    if not finished.alive:
        return ["the fit diverged and was stopped."]
    idle, note = "", curvature_note([finished.initial_curvature_share])
    y = experiment.task.test_y
    idle_error = 1 - y.bincount().max().item() / len(y)
    if error > IDLE * idle_error:
        baseline = f"always predicting the most frequent class has an error of {100 * idle_error:.2f} %"
        advice = "smaller batches (-p batch_size=32), another learning rate (-p lr=...) or another posterior"
        idle = f"the model learnt almost nothing: {baseline}. Try more --epochs, {advice}."
    return list(filter(None, (idle, note)))


def _text(value: float) -> str:
    """Format a metric with four decimals, or in scientific notation for the huge values of a diverged fit."""
    return f"{value:{'.4f' if abs(value) < 1e6 else '.4g'}}"


def uncertainties(tested: Tested, ood: Classified) -> Figure:
    """Draw histograms of entropy and mutual information for test images and out-of-distribution images."""
    figure, every = drawing.panels(2, width=4, height=3.4)
    for axes, score in zip(every, SCORES, strict=True):
        values = [getattr(images, score) for images in (tested.images, ood)]
        both = [v[v.isfinite()].double().cpu().numpy() for v in values]  # a diverged fit has non-finite values
        bins = np.linspace(0, max(part.max(initial=0) for part in both) or 1, 41).tolist()
        for part, name in zip(both, tested.names, strict=True):
            share = np.full(len(part), 1 / max(1, len(part)))
            axes.hist(part, bins, weights=share, histtype="step", linewidth=2, label=literal(name))
        axes.set(xlabel=SCORES[score], ylabel="share of the images")
        axes.set_title(f"AUROC {classification.auroc(*values):.3f}", fontsize="medium")
    axes.legend(fontsize="x-small")
    return figure


def sections(runs: Sequence[Opened]) -> Iterator[page.Section]:
    """Yield the report sections for all runs."""
    results, missing = readable(runs, "results", lambda run: run.table("results.csv").iloc[-1])
    if results:
        rows = []
        for name, row in results.items():
            run_of = {"run": name, "posterior": str(row.posterior), "network": row.net, "epochs": str(row.epochs)}
            scores = {title: _text(row[metric]) for metric, title in METRICS.items() if metric in row}
            rows.append(run_of | scores | {"seconds per epoch": f"{row.epoch_seconds:.3g}"})
        failed = [f"The fit of {name} diverged and was stopped." for name, row in results.items() if not row.alive]
        yield page.Section("Scores", warnings=failed, **page.cells(pd.DataFrame(rows).fillna("")))
    yield drawing.learning_curves(runs, {m: title for m, title in METRICS.items() if not m.startswith("auroc")})
    predictions, damaged = readable([run for run in runs if run.name in results], "results", read)
    yield from (*missing, *damaged)
    if predictions:
        yield drawing.calibration({name: t.probabilities for name, t in predictions.items()}, "All test images.")
    for run in (run for run in runs if run.name in predictions):
        tested = predictions[run.name]
        parts = [_confusions(tested)]
        if tested.ood is not None:
            note = "Share of images by uncertainty. Out-of-distribution images should be more uncertain."
            parts.append(page.Section("Out-of-distribution images", uncertainties(tested, tested.ood), [note]))
        images, missing = readable([run], "images", lambda run: run.settings.load()[0])
        parts += missing
        for loaded in images.values():
            parts += _pictures(loaded.x if run.config["validation"] else loaded.test_x, tested)
        yield from (part._replace(title=run.prefix + part.title) for part in parts)


def read(run: Opened) -> Tested:
    """Read probabilities.npz of a run. Raise InputError if the file is damaged or from a different run."""
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
            raise ValueError("its arrays have inconsistent shapes")
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"{run.folder / saved.PROBABILITIES} is missing or damaged ({error})") from error
    names = (Path(run.config["dataset"] or run.config["images"]).name, Path(str(run.config["ood"])).name)
    return Tested(y, index, classes, kinds[0], kinds[1] if len(kinds) > 1 else None, names)


def _confusions(tested: Tested) -> page.Section:
    names = tested.classes
    counts = confusion_matrix(tested.y, tested.probabilities.mean.argmax(1), labels=range(len(names)))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    wrong = pd.Series((counts * ~np.eye(len(names), dtype=bool)).ravel())
    most = wrong[wrong > 0].sort_values(kind="stable", ascending=False).head(PAIRS)
    pairs = [divmod(pair, len(names)) for pair in most.index.tolist()]
    rows = [[names[t], names[c], str(counts[t, c]), f"{shares[t, c]:.3g}"] for t, c in pairs]
    table: Any = {"header": ("class", "predicted as", "images", "share of the class"), "rows": rows}
    notes = [f"{int(wrong.sum())} of {counted(len(tested.y), 'image')} misclassified."]
    if len(names) > DRAWN:
        notes.append(f"No plot: {len(names)} classes are too many (at most {DRAWN}).")
        return page.Section("Confusions", None, notes, **table)
    side, labels = 2.5 + 0.28 * len(names), list(map(literal, names))
    figure, (axes,) = drawing.panels(1, width=side + 1, height=side)
    axes.grid(visible=False)
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    axes.set_xticks(range(len(names)), labels, rotation=90, fontsize="small")
    axes.set_yticks(range(len(names)), labels, fontsize="small")
    axes.set(xlabel="predicted as", ylabel="class")
    figure.colorbar(image, ax=axes, label="share of the class")
    return page.Section("Confusions", figure, notes, **table)


def _pictures(x: Any, tested: Tested) -> Iterator[page.Section]:
    """Yield sections with the most confidently misclassified images and the most uncertain images."""
    p, entropy = tested.probabilities.mean, tested.images.entropy.double().numpy()
    table = pd.DataFrame({"true": tested.y, "called": p.argmax(1), "confidence": p.max(1), "entropy": entropy})
    errors = table[table.true != table.called].nlargest(SHOWN, "confidence")
    uncertain = table.nlargest(SHOWN, "entropy")
    for title, shown in {"Most confident errors": errors, "Most uncertain images": uncertain}.items():
        if shown.empty:
            continue
        figure, every = drawing.panels(SHOWN, columns=SHOWN, width=1.3, height=1.8)
        for axes in every:
            axes.set_axis_off()
        pixels = x[tested.places[shown.index]].transpose(0, 2, 3, 1)
        for axes, row, image in zip(every, shown.to_dict("records"), pixels, strict=False):
            axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
            names = [literal(tested.classes[c][:14]) for c in (row["true"], row["called"])]
            axes.set_title(f"{names[0]}\nas {names[1]}: {row['confidence']:.2f}", fontsize=7)
        yield page.Section(title, figure, ["Titles: true class, predicted class and its probability."])
