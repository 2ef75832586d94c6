"""Results of `explore compare`: the files of a run (see docs/compare.md), terminal output, and report sections."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from explore.cli.compare.experiment import Event, Experiment, Finished
from explore.cli.display import literal
from explore.cli.estimate import SIGN, TITLES, decimals, estimate, metrics, spread, title
from explore.cli.report import drawing, page
from explore.cli.report.session import Opened, readable
from explore.cli.start import Report, file_name
from explore.core.errors import curvature_note, listed
from explore.data import uci_splits
from explore.learning import saved
from explore.learning.compare import Measured, Reliability, is_own
from explore.learning.saved import LIKELIHOOD
from explore.runs.record import Run

DISAGREE = 1.2  # warn if split R-hat, of predictions and in the median of the splits, exceeds it
WORSE = 1.1  # warn if the RMSE exceeds this multiple of the RMSE of predicting the training mean
BESIDE = {"coverage_95": "95 % coverage", "calibration_error": "calibration error"}
BOUND = "bound, nats per training point"
Results = Mapping[str, pd.DataFrame]  # posterior -> its rows of results.csv, indexed by split


def write(run: Run, comparison: Experiment, event: Event) -> int | None:
    """Write an event. If a checkpoint is due, return the epoch of the current fit, or 0 if the fit has finished."""
    match event:
        case name, None:
            decisive = "test/error" if comparison.dataset.classes else "test/rmse"
            every: dict[str, Any] = {}
            for other in reversed(comparison.posteriors):  # the first posterior determines the order of columns
                every = _settings(comparison, other) | every
            tags = [decisive, "test/log_likelihood", "test/calibration_error", "train/elbo"]
            run.hparams(file_name(name), _settings(comparison, name), tags, every)
        case name, Measured() as measured:
            means = {tag: float(value.double().mean()) for tag, value in measured.scalars.items()}
            run.scalars(file_name(name), measured.epoch, means)
            return None if measured.epoch == comparison.posteriors[name].epochs else measured.epoch
        case name, Finished() as finished:
            epochs = comparison.posteriors[name].epochs if name in comparison.posteriors else 0
            splits = range(1, comparison.settings.splits + 1)
            values = {tag.partition("/")[2]: v.tolist() for tag, v in finished.scalars.items() if not is_own(tag)}
            rows = {"posterior": name, "split": splits, "epochs": epochs} | values
            rows |= {"alive": finished.alive.tolist(), "seconds": round(finished.seconds, 3)}
            run.rows("results.csv", pd.DataFrame(rows).to_dict("records"))
            if finished.reliability is not None:  # not of a baseline
                run.image(file_name(name), epochs, "figures/reliability", diagram({name: finished.reliability}))
                assert comparison.saved is not None
                saved.write(run.folder, comparison.saved, more=True)
            return 0
    return None


def _settings(comparison: Experiment, name: str) -> dict[str, Any]:
    """Return the settings of a posterior that TensorBoard shows as hyperparameters."""
    s = comparison.settings
    candidate = s.posteriors[name]
    noise = {f"likelihood.{key}": value for key, value in s.noise(name).items()}
    net = {"dataset": comparison.dataset.name, "hidden": list(s.hidden)}
    return {"posterior": candidate.name, "preset": candidate.preset} | dict(candidate.settings) | net | noise


def by_posterior(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split results.csv into one table per posterior, indexed by split."""
    return {str(name): rows.set_index("split") for name, rows in table.groupby("posterior", sort=False)}


def differences(results: Results, metric: str) -> tuple[str, dict[str, pd.Series]]:
    """Return the name of the posterior with the best mean, and name -> differences from this posterior, by split."""
    means = {name: SIGN[metric] * estimate(rows[metric]).mean for name, rows in results.items()}
    winner = min(means, key=lambda name: means[name] if math.isfinite(means[name]) else math.inf)
    best = results[winner][metric]
    paired = {name: rows[metric].align(best, join="inner") for name, rows in results.items()}
    return winner, {name: values - reference for name, (values, reference) in paired.items()}


def tables(results: Results, validation: bool) -> dict[str, pd.DataFrame]:
    """Return one table per metric, with each posterior's mean and its difference from the best posterior."""
    every = {}
    for metric in metrics(results.values(), TITLES):
        winner, apart = differences(results, metric)
        places = decimals(pd.concat([rows[metric] for rows in results.values()]))
        columns = {
            "posterior": list(results),
            title(metric, validation, unit=False): [estimate(rows[metric]).text(places) for rows in results.values()],
            "minus the best": ["best" if name == winner else estimate(v).text(places) for name, v in apart.items()],
        }
        means = pd.DataFrame({name: rows.mean(numeric_only=True) for name, rows in results.items()}).T
        if metric != "log_likelihood":
            columns["seconds"] = [f"{seconds:.1f}" for seconds in means.seconds]
        elif "bound" in means:
            beside = "coverage_95" if "coverage_95" in means else "calibration_error"
            columns[BESIDE[beside]] = [f"{value:.3f}" for value in means[beside]]
            columns[BOUND] = ["no density" if math.isnan(bound) else f"{bound:.3f}" for bound in means.bound]
        every[metric] = pd.DataFrame(columns)
    return every


def report(comparison: Experiment, folder: Path) -> Report:
    """Return the result, and save the reliability diagrams in the run folder."""
    measured = {name: each.reliability for name, each in comparison.finished.items() if each.reliability is not None}
    page.save(diagram(measured), folder / "reliability.png")
    finished, s = by_posterior(pd.read_csv(folder / "results.csv")), comparison.settings
    results = {name: finished[name] for name in (*comparison.posteriors, *s.baselines)}
    validation, numbers = s.validation > 0, spread(s.splits, "split")
    every = tables(results, validation).items()
    return Report(
        list(failures(comparison, results)), [(f"{title(m, validation)}, {numbers}", table) for m, table in every],
        summary(comparison, results), "\n".join(verdicts(comparison, results)), [("model", saved.location(folder))],
    )  # fmt: skip


def ranked(comparison: Experiment, results: Results) -> dict[str, dict[str, pd.Series]]:
    """Return posterior -> grid candidate -> scores on the splits, with the best candidates first.

    The score is the validation log-likelihood or, without --validate, the ELBO; test parts are never used for
    selection. Candidates whose fit failed on any split are left out.
    """
    metric = "log_likelihood" if comparison.settings.validation else "bound"
    ranks: dict[str, dict[str, pd.Series]] = {}
    for label, candidate in comparison.settings.posteriors.items():
        rows = results[label]
        if candidate.chosen:
            ranks.setdefault(candidate.name, {}).update({label: rows[metric]} if rows.alive.all() else {})
    return {name: dict(sorted(each.items(), key=lambda e: -e[1].mean())) for name, each in ranks.items()}


def verdicts(comparison: Experiment, results: Results) -> Iterator[str]:
    """Yield a sentence on the best grid candidate of each posterior."""
    by = "validation log-likelihood" if comparison.settings.validation else "bound"
    for name, each in ranked(comparison, results).items():
        if not each:
            yield f"{name}: no candidate chosen, because each one failed on at least one split."
            continue
        (label, best), *rivals = each.items()
        lead = [best - other for _, other in rivals[:1]]
        ahead = "".join(f", {estimate(v).text(decimals(v))} above the next" for v in lead)
        chosen = comparison.settings.posteriors[label].chosen.items()
        options = " ".join(f"-p {key if key.startswith(LIKELIHOOD) else f'{name}.{key}'}={v}" for key, v in chosen)
        yield f"{name}: best of {len(each)} by the {by}{ahead}: {options}"


def failures(comparison: Experiment, results: Results) -> Iterator[str]:
    """Yield warnings about failed or poor fits, and too much initial curvature."""
    s = comparison.splits
    for name, rows in results.items():
        learned = {tag.removeprefix("train/"): v for tag, v in comparison.finished[name].scalars.items() if is_own(tag)}
        if "r_hat" in learned and (r_hat := float(learned["r_hat"].median())) > DISAGREE:
            yield f"{name}: chains disagree (split R-hat of predictions {r_hat:.2f}). More epochs bring them together."
        shares = rows.initial_curvature_share[rows.alive].tolist() if "initial_curvature_share" in rows else []
        if note := curvature_note(shares):
            yield f"{name}: {note}"
        for split in rows.index[~rows.alive]:
            yield f"Split {split}, {name}: the fit diverged and was stopped."
        if s.scale is not None:
            error = (s.test_y - s.y.mean(1, keepdim=True)) * s.scale.unsqueeze(1)
            constant = error.square().mean((1, 2)).sqrt().cpu().numpy()
            if worse := rows.index[rows.alive & (rows.rmse > WORSE * constant)].map(str).tolist():
                yield (
                    f"{name} predicts worse than the mean of the training targets on {len(worse)} of {len(constant)} "
                    f"splits ({listed(worse, 5)}): its training diverged, or needs more epochs."
                )


def summary(comparison: Experiment, results: Results) -> dict[str, Any]:
    """Return the results as values for JSON; docs/compare.md explains the keys."""
    s = comparison.settings
    apart = {metric: differences(results, metric) for metric in metrics(results.values(), TITLES)}
    posteriors: dict[str, Any] = {}
    for name, rows in results.items():
        tags = [tag.removeprefix("test/") for tag in comparison.finished[name].scalars if tag.startswith("test/")]
        posteriors[name] = {metric: estimate(rows[metric])._asdict() for metric in (*tags, "bound")} | {
            "minus_best": {metric: estimate(each[name])._asdict() for metric, (_, each) in apart.items()},
            "failed": rows.index[~rows.alive].tolist(),
            "seconds": float(rows.seconds.iloc[0]),
        }
    best = {metric: winner for metric, (winner, _) in apart.items()}
    chosen = {name: s.posteriors[next(iter(each))].chosen for name, each in ranked(comparison, results).items() if each}
    return {
        "dataset": comparison.dataset.name, "splits": s.splits, "validation": s.validation, "best": best,
        "posteriors": posteriors, "chosen": chosen,
    }  # fmt: skip


def diagram(panels: Mapping[str, Reliability]) -> Figure:
    """Draw the reliability diagrams of posteriors by name."""
    figure, every = drawing.panels(len(panels), columns=4, width=3.6, height=3.6)
    for axes, (name, r) in zip(every, panels.items(), strict=True):
        axes.grid(visible=False)
        expected, observed = ((v * r.weight).sum(0) / r.weight.sum(0) for v in (r.expected, r.observed))
        drawing.reliability(axes, {"all splits": (expected.numpy(), observed.numpy())})
        axes.set(xlabel="confidence, or level of an interval", ylabel="accuracy, or coverage", aspect="equal")
        axes.set_title(literal(name))
    every[0].legend(fontsize="x-small", loc="upper left")
    if len(panels) > 1:
        figure.suptitle("Reliability on held-out examples", fontsize=11)
    return figure


def sections(runs: Sequence[Opened]) -> Iterator[page.Section]:
    """Yield the report sections for all runs."""
    results = {run.prefix + name: rows for run in runs for name, rows in by_posterior(run.table("results.csv")).items()}
    validation = bool(runs[0].config["validation"])
    titles = {metric: title(metric, validation) for metric in metrics(results.values(), TITLES)}
    splits = [(name, str(len(rows))) for name, rows in results.items()]
    columns = [pd.DataFrame(splits, columns=["posterior", "splits"]).set_index("posterior")]
    columns += (table.set_index("posterior") for table in tables(results, validation).values())
    note = "Grey: single splits. Dot and bar: mean ± standard error. Differences are paired by split."
    scores = pd.concat(columns, axis=1).reset_index()
    yield page.Section("Scores", _splits(results, titles), [note], **page.cells(scores))
    yield drawing.learning_curves(runs, titles, "Means over splits.")
    sets, missing = readable(runs, "data", lambda run: run.settings.table()[0])
    yield from missing

    def held_out(count: int, settings: Any) -> list[np.ndarray]:
        return [rows for _, rows in uci_splits(count, settings.splits, validation=settings.validation)]

    yield from drawing.held_out(runs, sets, held_out, "Held-out examples of all splits{first}.")


def _splits(results: Results, titles: Mapping[str, str]) -> Figure:
    """Draw the values of each metric on all splits, with mean and standard error."""
    figure, every = drawing.panels(len(titles), height=1.2 + 0.45 * len(results))
    for axes, (metric, heading) in zip(every, titles.items(), strict=True):
        for i, rows in enumerate(results.values()):
            mean, error = estimate(rows[metric])
            axes.plot(rows[metric], np.full(len(rows), i), "|", color="grey", markersize=8)
            axes.errorbar([mean], [i], xerr=[np.nan_to_num(error)], fmt="o", color=f"C{i}", capsize=3)
        axes.set_yticks(range(len(results)), [literal(name) for name in results])
        axes.invert_yaxis()
        axes.set(xlabel=heading)
    return figure
