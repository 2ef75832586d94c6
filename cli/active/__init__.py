"""Command-line options of `explore active`."""

import click

from explore.cli import options
from explore.cli.options import COLUMN, NAMES, POSITIVE, SEED, STORED, TRIALS


@click.command("active", short_help="Simulate active learning, and compare it with random choice.")
@options.data
@click.option("--id", "id_column", type=COLUMN, help="Column of FILE that names the points; not a feature.")
@options.posterior
@click.option(
    "--acquisition", type=NAMES,
    help="From `explore list acquisitions`.  [default: variance-reduction; epig for classes]",
)  # fmt: skip
@click.option("--targets", type=STORED, help="Table of target inputs, with the columns of --data.  [default: the pool]")
@click.option("--trials", type=TRIALS, default=20, help="Independent repetitions, trained side by side.")
@click.option("--rounds", type=POSITIVE, default=10, help="Number of fits; points are labelled between fits.")
@click.option("--initial", type=POSITIVE, default=20, help="Labelled points at the start.")
@click.option("--acquire", type=POSITIVE, default=1, help="Points labelled after each fit.")
@click.option("--test-size", type=POSITIVE, help="Test points of each trial.  [default: 100; for images 1000]")
@click.option("--pool", type=POSITIVE, metavar="N", help="Choose among N random points.  [default: all candidates]")
@click.option("--control/--no-control", default=True, help="Also label at random, from the same start.")
@click.option("--seed", type=SEED, default=0, help="Random seed.")
@options.model
@options.likelihood
@click.option("--hidden", metavar="WIDTHS", help="Units of a table's hidden layers, e.g. 50,50.  [default: 10]")
@click.option("--net", metavar="NAME", help="Network for images, as in `explore classify`.  [default: lenet5]")
@click.option("--epochs", type=POSITIVE, help="Passes over the labels in each fit.  [default: the preset's]")
@options.jobs
@options.samples
@options.session
def command(**values: object) -> None:
    """Simulate pool-based active learning on labelled data, and compare it with random choice.

    Every trial splits the data at random into labelled points, test points and a pool. In every round, the posterior
    is fitted from scratch and tested, and the acquisition chooses the next points to label from the pool.

    \b
    explore active --dataset boston
    explore active --data houses.csv --target price --id house --drop-columns street
    explore active --dataset mnist --net lenet5 --acquisition batch-bald --acquire 10 --trials 2
    explore active --resume runs/active-boston-gp-variance-reduction
    explore active --resume runs/active-boston-gp-variance-reduction --rounds 20   # extend a run
    """  # noqa: D301
    options.run(values, ("rounds",))
