"""Predictions for new tables and images, with a fitted model of a finished run (`explore.load_run`)."""

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
from explore.core.errors import InputError, check_known, check_range, listed, one_of, shown
from explore.data.reading import Cells
from explore.data.table import cells_of
from explore.data.targets import quantities
from explore.images.reading import read_inputs
from explore.learning import saved
from explore.learning.model import FittedModel
from explore.learning.saved import ModelSettings, Names, Saved
from explore.learning.scaling import Transform

FAR = 10.0  # standard deviations from the mean beyond which a prediction is called extrapolated
LEARNT = {
    "log": "The model was fitted to log targets: means are medians, and standard deviations are on the log scale.",
    "rank": "The model was fitted to ranks: means are medians, and standard deviations are in normal scores.",
}


class TableWarning(UserWarning):
    """A warning about a table, such as imputed cells or ignored columns."""


@dataclass(frozen=True)
class LoadedRun:
    """A fitted model of a run, with the names of its features and targets."""

    folder: Path
    settings: ModelSettings  # settings of the run that determine its models
    saved: Saved  # all models of the run
    which: dict[str, Any]  # the keys of this model, {"posterior": ..., "arm": ..., "trial": ...}
    fitted: FittedModel  # one replica; it takes and returns arrays instead of tables

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the model's input columns."""
        return self.saved.names.features

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the predicted probabilities; empty for a regression."""
        return self.saved.names.classes

    @property
    def images(self) -> bool:
        """Whether the model classifies images instead of table rows."""
        return self.settings.net is not None

    @property
    def about(self) -> str:
        """A description of this model: posterior, keys such as arm and trial, and the number of training examples."""
        posterior, *keys = self.which.items()
        parts = [str(posterior[1])]
        for key, value in keys:
            count = len({replica[key] for replica in self.saved.replicas})
            parts.append(f"{key} {value}" + (f" of {count}" if isinstance(value, int) else ""))
        if len(self.saved.models) > 1:
            parts[0] += f" (others: {listed(set(self.saved.models) - {parts[0]})})"
        worth, data = self.fitted.posterior.stands_for(1), float(self.fitted.state.common.n_data)
        each = f", each counted as {worth:g}" if worth != 1 else ""
        return f"{', '.join(parts)}; fitted to {round(data / worth)} examples{each}"

    def predict(
        self, table: pd.DataFrame | str | os.PathLike[str], level: float | None = None,
        quantiles: Sequence[float] = (), sheet: str | None = None,
    ) -> pd.DataFrame:  # fmt: skip
        """Predict the rows of a table that has the feature columns, in any order.

        A `TableWarning` reports imputed cells and unknown columns.

        Args:
            table: a data frame, or a file that `load_table` reads. For a run on images: an image file, a folder
                of images, or an .npz file with array `x`, uint8 [images, height, width] or with 1 or 3 channels last.
            level: probability of the central interval; None: 0.9.
            quantiles: levels of additional quantiles to predict.
            sheet: sheet of an Excel file; None: the first.

        Returns:
            One row per row of `table`, with the index of a data frame, or one row per image.
            Regression: `mean`; `low` and `high`, between which the target lies with probability `level`; the standard
            deviations `epistemic` and `noise`; and quantiles such as `q0.05`. With several targets, each column
            name ends with `_TARGET`. If the model was fitted to log- or rank-transformed targets, `mean` is
            the median, and the standard deviations are on the transformed scale.
            Classification: `p_NAME` for each class; the most likely `class`; and, in nats, the `entropy` of the
            prediction and the mutual `information` between class and weights.

        Raises:
            InputError: if a column is missing, or a cell does not fit the type of its column.
        """
        cells, x, notes = self.read(table, sheet)
        for note in notes:
            warnings.warn(note, TableWarning, stacklevel=2)
        frame = self.predictions(x, level, quantiles)
        if self.images:
            return frame.set_axis(pd.Index(cells.columns["image"], name="image"))
        return frame.set_axis(table.index) if isinstance(table, pd.DataFrame) else frame

    def read(self, table: Any, sheet: str | None = None) -> tuple[Cells, np.ndarray, tuple[str, ...]]:
        """Read a table or images; return the cells (for images: file names), model inputs, and notes for the user."""
        if not self.images:
            cells = cells_of(table, self.settings.decimal, sheet)
            return cells, *self.inputs(cells)
        if sheet is not None:
            raise InputError("sheet (--sheet) applies to tables only. Leave it out for images")
        if not isinstance(table, str | os.PathLike):
            raise InputError(f"this run predicts images: pass a file or folder of images; got {shown(table)}")
        if not Path(table).exists():
            raise InputError(f"{table} does not exist")
        names, x, note = read_inputs(Path(table), self.fitted.shape)  # type: ignore[arg-type]
        return cells_of(pd.DataFrame({"image": names})), x, (note,) if note else ()

    def inputs(self, cells: Cells) -> tuple[np.ndarray, tuple[str, ...]]:
        """Convert table rows to model inputs [P, D]; also return notes, for example on imputed cells."""
        names, schema = self.saved.names, self.saved.schema
        if schema is None:
            cells.require(names.features, known=f"the model's features: {listed(names.features)}")
            x, notes = quantities(cells, names.features), cells.notes
            used = set(names.features)
        else:
            matrix = schema.apply(cells)
            x, notes = matrix.x, (*cells.notes, *matrix.notes)
            used = {column.name for column in schema.columns}
        expected = {*used, *names.targets, *self.settings.drop_columns, self.settings.id_column}
        if self.saved.transform.kind != "none":
            notes = (*notes, LEARNT[self.saved.transform.kind])
        if new := [name for name in cells.columns if name not in expected]:
            notes = (*notes, f"Ignored columns that the model was not trained on: {listed(new, 5)}.")
        return x, (*notes, *self._extrapolated(x))

    def _extrapolated(self, x: np.ndarray) -> Iterator[str]:
        """Yield a note for each numeric column in which some rows of x [P, D] are far from the training data."""
        schema, scales = self.saved.schema, self.fitted.scales.x
        numbers = self.features if schema is None else [c.name for c in schema.columns if c.kind == "number"]
        mean, scale = (moment.flatten().double().cpu().numpy() for moment in scales)
        if not mean.any() and (scale == 1).all():  # not standardised: the range of the training data is unknown
            return
        apart = np.abs(x - mean) / scale  # [P, D]
        for i in np.flatnonzero((apart > FAR).any(0)):
            if (name := self.features[i]) in numbers:
                yield (
                    f"{shown(name)}: {(apart[:, i] > FAR).sum()} of {len(x)} rows are more than {FAR:g} standard "
                    f"deviations from the training data ({mean[i]:.4g} ± {scale[i]:.4g}), up to "
                    f"{x[apart[:, i].argmax(), i]:.6g}; their predictions are extrapolated."
                )

    def predictions(self, x: np.ndarray, level: float | None = None, quantiles: Sequence[float] = ()) -> pd.DataFrame:
        """Return a table of predictions for model inputs x [P, D], see `predict`."""
        return predictions(self.fitted, self.saved.names, self.saved.transform, x, level, quantiles)


def predictions(
    fitted: FittedModel, names: Names, transform: Transform, x: np.ndarray, level: float | None = None,
    quantiles: Sequence[float] = (),
) -> pd.DataFrame:  # fmt: skip
    """Return a table of predictions for model inputs x [P, D], in original units; see `LoadedRun.predict`."""
    if names.classes:
        if quantiles or level is not None:
            option = "quantiles" if quantiles else "level"
            raise InputError(f"a classification predicts probabilities only. Leave out {option} (--{option})")
        p, entropy, information = map(_of_one, fitted.predict_classes(x))
        columns = {f"p_{name}": p[:, i] for i, name in enumerate(names.classes)}
        columns |= {"class": np.array(names.classes, object)[p.argmax(1)]}
        return pd.DataFrame(columns | {"entropy": entropy, "information": information})
    level = 0.9 if level is None else level
    check_range("an interval's level", level, "(0, 1)")
    levels = (0.5, (1 - level) / 2, (1 + level) / 2, *quantiles)
    moments, undo = fitted.predict(x), transform.undo
    middle, low, high, *more = (undo(_of_one(q)) for q in fitted.quantiles(x, levels))
    mean = _of_one(moments.mean) if transform.kind == "none" else middle
    deviations = {"epistemic": _of_one(moments.epistemic), "noise": _of_one(moments.noise)}
    parts = {"mean": mean, "low": low, "high": high} | deviations
    parts |= {f"q{float(q)}": values for q, values in zip(quantiles, more, strict=True)}
    targets = enumerate(names.targets or ("",))
    return pd.DataFrame({names.of(name, t): values[:, o] for o, t in targets for name, values in parts.items()})


def _of_one(values: torch.Tensor) -> np.ndarray:
    """Return the values of the first (and only) replica as a NumPy array, [P, O] or [P]."""
    return values[0].double().cpu().numpy()


def load_run(
    folder: str | os.PathLike[str], *, posterior: str | None = None, arm: str | None = None, trial: int | None = None,
    split: int | None = None, trust: Sequence[str] = (), device: str | torch.device = "cpu",
) -> LoadedRun:  # fmt: skip
    """Load a finished run of `explore active`, `classify` or `compare`, or a campaign of `explore suggest`.

    A run can have several fitted models, of which one is loaded: by default, the first posterior of a comparison, the
    acquisition instead of its control, and the first trial or split. `LoadedRun.about` describes the model.

    Args:
        folder: the run folder, or POOL.explore for a campaign.
        posterior: name of the posterior, for a comparison.
        arm: name of the acquisition, or "random", for active learning.
        trial: number of the trial, from 1, for active learning.
        split: number of the split, from 1, for a comparison.
        trust: modules that the run may import; importing them executes their code.
        device: device to predict on.

    Raises:
        InputError: if the folder is not such a run, is damaged, lacks the chosen model, or needs an untrusted module.
    """
    folder = Path(folder)
    content = saved.read(folder, trust, str(device))
    labels = {registry.hyphened(name): name for name in content.models}  # labels of grid candidates include settings
    wanted = next(iter(content.models)) if posterior is None else posterior
    if (label := labels.get(registry.hyphened(wanted))) is None:
        raise one_of(f"posterior of {folder}", wanted, content.models)
    replicas = list(enumerate(content.replicas))
    for key, value in (("arm", arm), ("trial", trial), ("split", split)):
        if value is None:
            continue
        if key not in content.replicas[0]:
            keys = listed(["posterior", *content.replicas[0]])
            raise InputError(f"{folder} has no {key} to select; select models by {keys}")
        check_known(f"{key} of {folder}", [value], {replica[key] for _, replica in replicas})
        replicas = [(r, replica) for r, replica in replicas if replica[key] == value]
    (r, replica), settings = replicas[0], saved.settings_of(folder, trust)
    return LoadedRun(folder, settings, content, {"posterior": label, **replica}, content.models[label].replica(r))
