"""Command-line options of `explore report`."""

import click

from explore.cli import options


@click.command("report", short_help="Draw finished runs on one page.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--out", default="report.html", metavar="FILE", help="The page; figures are also saved as PNG beside it.")
@options.trust
@options.quiet
@click.option("--json", "as_json", is_flag=True, help="Print the written paths as one JSON object.")
def command(**values: object) -> None:
    """Draw runs of one command on a self-contained page, without scripts or network access.

    RUN is a folder of `explore active`, `classify`, `compare` or `rl`, or POOL.explore of `explore suggest`. The page
    shows learning curves with standard errors, paired differences, the chosen points by round, calibration and
    residuals on held-out data, misclassified images, and settings.

    \b
    explore report runs/active-boston-gp-variance-reduction
    explore report runs/compare-boston runs/compare-boston-2 --out boston.html
    """  # noqa: D301
    options.run(values)
