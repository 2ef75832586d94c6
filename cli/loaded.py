"""A finished run, read to predict other tables: `explore.load_run`."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from explore import registry
from explore.cli import parameters, saved, trust
from explore.cli.saved import Names, Saved
from explore.core.errors import InputError, check_range, listed, one_of, shown
from explore.data.columns import Number
from explore.data.reading import Cells, other_sheets
from explore.data.table import cells_of
from explore.data.targets import quantities
from explore.images.reading import Inputs, read_inputs
from explore.learning.model import FittedModel
from explore.learning.transforms import Transform
from explore.runs.record import read_config

COMMANDS = ("active", "classify", "compare", "suggest")  # whose folders keep a model
HOW = "pass trust=[{name!r}]"  # in Python
FAR = 10.0  # standard deviations from the mean beyond which a number is said to be far from what was learnt from
LEARNT = {
    "log": "The targets were learnt as logarithms: means are medians, and deviations are those of the logarithm.",
    "rank": "The targets were learnt as ranks: means are medians, and deviations are those of normal scores.",
}


class TableWarning(UserWarning):
    """Something in a table was imputed, is unknown, or is not used."""


@dataclass(frozen=True)
class LoadedRun:
    """One of the fitted models of a run, with what its features and targets are called.

    Attributes:
        folder: of the run.
        settings: of the run.
        kept: all models of the run.
        which: what tells this one from the others, {"posterior": ..., "arm": ..., "trial": ...}.
        fitted: the model itself, one replica, in arrays instead of tables.
    """

    folder: Path
    settings: Any
    kept: Saved
    which: dict[str, Any]
    fitted: FittedModel

    @property
    def features(self) -> tuple[str, ...]:
        """What the model sees of a row."""
        return self.kept.names.features

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, in the order of their probabilities; none of a regression."""
        return self.kept.names.classes

    @property
    def images(self) -> bool:
        """Whether it classifies images, not the rows of a table."""
        return getattr(self.settings, "net", None) is not None

    @property
    def about(self) -> str:
        """Which model it is, in words, and of how many."""
        posterior, *others = self.which.items()
        parts = [str(posterior[1])]
        for key, value in others:
            count = len({replica[key] for replica in self.kept.replicas})
            parts.append(f"{key} {value}" + (f" of {count}" if isinstance(value, int) else ""))
        others_there = len(self.kept.models) > 1 and f" (others: {listed(set(self.kept.models) - {parts[0]})})"
        parts[0] += others_there or ""
        worth, data = self.fitted.posterior.stands_for(1), float(self.fitted.state.common.n_data)
        each = f", each counted for {worth:g}" if worth != 1 else ""
        return f"{', '.join(parts)}; fitted to {round(data / worth)} examples{each}"

    def predict(
        self,
        table: pd.DataFrame | str | os.PathLike[str],
        level: float | None = None,
        quantiles: Sequence[float] = (),
        sheet: str | None = None,
    ) -> pd.DataFrame:
        """Predictions of the rows of a table, which has the columns of the features, in any order.

        Warns of what was imputed or is not known, see `TableWarning`.

        Args:
            table: a data frame, or a file as `load_table` takes it; of a run on images an image, a folder of
                images, or an .npz file with `x`, uint8 [images, height, width] or with 1 or 3 channels last.
            level: of the interval; None: 0.9.
            quantiles: levels of more of them.
            sheet: of an Excel file; None: the first.

        Returns:
            A row for each of the table, with its index where it is a data frame. Regression: `mean`, `low` and `high`
            (which hold the target with probability `level`), the standard deviations `epistemic` and `noise`, and
            `q0.05` for a quantile; behind each name `_TARGET` where there are several targets. Classes: `p_NAME` of
            each, the likeliest `class`, and in nats the `entropy` of the prediction and the mutual `information` of
            class and weights. Of targets that were learnt as logarithms or ranks `mean` is the median,
            and the deviations are in that scale.

        Raises:
            InputError: when a column is missing, or a cell is not of its column's kind.
        """
        if self.images:
            names, pixels, note = self.pictures(table)
            if note:
                warnings.warn(note, TableWarning, stacklevel=2)
            return self.predictions(pixels, level, quantiles).set_axis(pd.Index(names, name="image"))
        cells = cells_of(table, self.settings.decimal, sheet)
        x, notes = self.inputs(cells)
        for note in notes:
            warnings.warn(note, TableWarning, stacklevel=2)
        found = self.predictions(x, level, quantiles)
        return found.set_axis(table.index) if isinstance(table, pd.DataFrame) else found

    def inputs(self, cells: Cells) -> tuple[np.ndarray, tuple[str, ...]]:
        """Rows as the model sees them, [P, D], and sentences on what was assumed.

        Raises:
            InputError: see `predict`.
        """
        names, schema = self.kept.names, self.kept.schema
        if schema is None:
            for name in names.features:
                if name not in cells.columns:
                    raise InputError(
                        f"{cells.path} has no column {shown(name)}; the model's features: {listed(names.features)}"
                        f"{other_sheets(cells.sheets)}"
                    )
            x, notes = quantities(cells, names.features), cells.notes
            known = set(names.features)
        else:
            matrix = schema.apply(cells)
            x, notes = matrix.x, (*cells.notes, *matrix.notes)
            known = {column.name for column in schema.columns}
        ignored = {*known, *names.targets, *self.settings.drop_columns, self.settings.id_column}
        if self.kept.transform.kind != "none":
            notes = (*notes, LEARNT[self.kept.transform.kind])
        if new := [name for name in cells.columns if name not in ignored]:
            notes = (*notes, f"Columns that the model does not know are not used: {listed(new, 5)}.")
        return x, (*notes, *self._far(x))

    def _far(self, x: np.ndarray) -> Iterator[str]:
        """Sentences on columns of numbers in which rows [P, D] are far from all that the model has learnt from."""
        schema, scales = self.kept.schema, self.fitted.scales.x
        numbers = self.features if schema is None else [c.name for c in schema.columns if isinstance(c, Number)]
        mean, scale = (moment.flatten().double().cpu().numpy() for moment in scales)
        if not mean.any() and (scale == 1).all():  # not standardised: nothing is known of what it has learnt from
            return
        apart = np.abs(x - mean) / scale  # [P, D]
        for i in np.flatnonzero((apart > FAR).any(0)):
            if (name := self.features[i]) in numbers:
                yield (
                    f"{shown(name)} of {(apart[:, i] > FAR).sum()} of {len(x)} rows is more than {FAR:g} standard "
                    f"deviations from what the model has learnt from ({mean[i]:.4g} ± {scale[i]:.4g}), up to "
                    f"{x[apart[:, i].argmax(), i]:.6g}: what is predicted there is extrapolated."
                )

    def pictures(self, path: Any) -> Inputs:
        """Images with their names, as the model takes them.

        Raises:
            InputError: see `predict`.
        """
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"a run on images predicts images, in a file or a folder; got {shown(path)}")
        if not Path(path).exists():
            raise InputError(f"there is no {path}")
        return read_inputs(Path(path), self.fitted.shape)  # type: ignore[arg-type]

    def predictions(self, x: np.ndarray, level: float | None = None, quantiles: Sequence[float] = ()) -> pd.DataFrame:
        """Those of `predict`, of inputs [P, D]."""
        return predictions(self.fitted, self.kept.names, self.kept.transform, x, level, quantiles)


def predictions(
    fitted: FittedModel,
    names: Names,
    transform: Transform,
    x: np.ndarray,
    level: float | None = None,
    quantiles: Sequence[float] = (),
) -> pd.DataFrame:
    """What a model predicts at inputs [P, D], of targets that were learnt in another scale; see `LoadedRun.predict`."""
    if names.classes:
        if quantiles or level is not None:
            what = "quantiles" if quantiles else "intervals"
            raise InputError(f"classes have probabilities, not {what}; leave --quantiles and --level out")
        p, entropy, information = map(_plain, fitted.predict_classes(x))
        columns = {f"p_{name}": p[:, i] for i, name in enumerate(names.classes)}
        columns |= {"class": np.array(names.classes, object)[p.argmax(1)]}
        return pd.DataFrame(columns | {"entropy": entropy, "information": information})
    level = 0.9 if level is None else level
    check_range("an interval's level", level, "(0, 1)")
    levels = (0.5, (1 - level) / 2, (1 + level) / 2, *quantiles)
    moments, undo = fitted.predict(x), transform.undo
    middle, low, high, *more = (undo(_plain(q)) for q in fitted.quantiles(x, levels))
    mean = _plain(moments.mean) if transform.kind == "none" else middle
    parts = {"mean": mean, "low": low, "high": high}
    parts |= {"epistemic": _plain(moments.epistemic), "noise": _plain(moments.noise)}
    parts |= {f"q{q:g}": values for q, values in zip(quantiles, more, strict=True)}
    return pd.DataFrame(
        {
            names.of(name, target): values[:, o]
            for o, target in enumerate(names.targets or ("",))
            for name, values in parts.items()
        }
    )


def _plain(values: torch.Tensor) -> np.ndarray:
    """Of the one replica, [P, O] or [P]."""
    array: np.ndarray = values[0].double().cpu().numpy()
    return array


def load_run(
    folder: str | os.PathLike[str],
    *,
    posterior: str | None = None,
    arm: str | None = None,
    trial: int | None = None,
    split: int | None = None,
    trust: Sequence[str] = (),
    device: str | torch.device = "cpu",
) -> LoadedRun:
    """A finished run of `explore active`, `classify` or `compare`, or a campaign of `explore suggest`, to predict with.

    A run has many fitted models. By default it is the first one: of the first posterior that was compared, of the
    acquisition that was asked for and not its control, and of the first trial or split; `LoadedRun.about` says which.

    Args:
        folder: of the run, or POOL.explore of a campaign.
        posterior: of a comparison.
        arm: the acquisition or "random", of active learning.
        trial: of active learning, from 1.
        split: of a comparison, from 1.
        trust: modules that the run may import, which runs them.
        device: where to predict.

    Raises:
        InputError: when it is no such run, has no such model, is damaged, or needs a module that is not trusted.
    """
    path = Path(folder)
    return chosen(path, trust, {"posterior": posterior, "arm": arm, "trial": trial, "split": split}, str(device), HOW)


def chosen(folder: Path, trusted: Sequence[str], given: dict[str, Any], device: str, how: str = trust.HOW) -> LoadedRun:
    """The model of a run that the given keys, some of them None, name; `how` says how to trust a module."""
    settings = settings_of(folder, trusted, how)
    kept = saved.read(folder, settings, device)
    asked = {key: value for key, value in given.items() if value is not None}
    posterior = asked.pop("posterior", next(iter(kept.models)))
    named = {registry.hyphened(name): name for name in kept.models}  # candidates of a grid name settings, too
    posterior = named.get(registry.hyphened(posterior), posterior)
    if posterior not in kept.models:
        raise one_of(f"posterior of {folder}", posterior, kept.models)
    left = list(range(len(kept.replicas)))
    for key, value in asked.items():
        if key not in kept.replicas[0]:
            raise InputError(
                f"{folder} has no {key}; its models are told by {listed(['posterior', *kept.replicas[0]])}"
            )
        matching = [r for r in left if kept.replicas[r][key] == value]
        if not matching:
            raise one_of(f"{key} of {folder}", str(value), {kept.replicas[r][key] for r in left})
        left = matching
    fitted = kept.models[posterior].replica(left[0])
    return LoadedRun(folder, settings, kept, {"posterior": posterior, **kept.replicas[left[0]]}, fitted)


def settings_of(folder: Path, trusted: Sequence[str], how: str = trust.HOW) -> Any:
    """The settings of a run that keeps models.

    Raises:
        InputError: when it is none, or names modules that are not trusted.
    """
    trust.check_links(folder)
    command = command_of(folder)
    if command not in COMMANDS:
        raise InputError(
            f"{folder} is a run of explore {command}, which keeps no model of a table; those of {listed(COMMANDS)} do"
        )
    written = recorded(folder) if command == "suggest" else read_config(folder)["settings"]
    if "overlay" in written:
        raise InputError(f"{folder} lays finished runs over each other; give one of those")
    trust.check(folder, written, trusted, how)
    cls = importlib.import_module(f"explore.cli.{command}.settings").Settings
    return parameters.read(cls, written, str(folder / "config.json"))


def command_of(folder: Path) -> str:
    """Of which command a folder is.

    Raises:
        InputError: when it is of none.
    """
    try:
        return str(recorded(folder)["command"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'} is damaged: it names no command ({error!r})") from None


def recorded(folder: Path) -> dict[str, Any]:
    """The settings in config.json, unchecked.

    Raises:
        InputError: when there is no such file, or nothing of that kind in it.
    """
    path = folder / "config.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["settings"])
    except FileNotFoundError:
        raise InputError(f"{folder} is no run folder: it has no config.json") from None
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it names no settings ({error!r})") from error
