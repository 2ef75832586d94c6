"""Command-line options of `explore predict`."""

import click

from explore.cli import options
from explore.cli.options import NAMES, POSITIVE


@click.command("predict", short_help="Predict the targets of new rows or images with a finished run.")
@click.argument("run", metavar="RUN", type=click.Path(exists=True, file_okay=False))
@click.argument("table", metavar="TABLE", type=click.Path(exists=True))
@click.option("--out", metavar="FILE", help="Write the table with its predictions (.csv, .xlsx or .parquet).")
@click.option("--level", type=float, help="Coverage of the predictive interval.  [default: 0.9]")
@click.option("--quantiles", metavar="A,B", help="Additional quantiles, e.g. 0.05,0.5,0.95.")
@click.option("--sheet", metavar="NAME", help="Sheet of TABLE, if Excel.  [default: the first]")
@click.option("--posterior", type=NAMES, help="Posterior of a comparison.  [default: the first]")
@click.option("--arm", type=NAMES, help="Arm of a run of `explore active`.  [default: the acquisition]")
@click.option("--trial", type=POSITIVE, help="Trial of a run of `explore active`.  [default: 1]")
@click.option("--split", type=POSITIVE, help="Split of a comparison.  [default: 1]")
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@options.trust
@options.quiet
@options.json_object
def command(**values: object) -> None:
    """Predict the targets of the rows of a table with a run's fitted model.

    RUN is a run folder of `explore active` or `explore compare`, or POOL.explore of `explore suggest`. TABLE must
    have the run's feature columns; any other columns are kept unchanged. For a run of `explore classify`, TABLE is an
    image, a folder of images, or an .npz file with the array x.

    \b
    explore predict runs/active-houses-gp-variance-reduction new.csv --out predictions.csv
    explore predict runs/compare-boston new.csv --posterior bbb --quantiles 0.05,0.5,0.95
    explore predict runs/classify-photos-resnet18-vogn new-photos --out classes.csv
    """  # noqa: D301
    options.run(values)
