"""How scores changed while posteriors learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explore.cli.compare import overlay
from explore.cli.report.drawing import curve, panels
from explore.cli.report.page import Section
from explore.cli.report.session import Opened


def section(runs: Sequence[Opened], titles: Mapping[str, str], said: str = "") -> Section:
    """A panel for each metric of the runs' curves, by the names of their tags without "test/"."""
    figure, every = panels(len(titles))
    for run in runs:
        for series, steps in overlay.read(run.folder).items():
            label = f"{run.name}: {series}" if len(runs) > 1 else series
            for axes, metric in zip(every, titles, strict=True):
                curve(axes, steps.reindex(columns=[f"test/{metric}"]).iloc[:, 0], label)
    for axes, called in zip(every, titles.values(), strict=True):
        axes.set(xlabel="epoch", ylabel=called)
    every[0].legend(fontsize="small")
    return Section("While they learnt", figure, [said] if said else [])
