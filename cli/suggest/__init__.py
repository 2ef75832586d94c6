"""Command-line options of `explore suggest`."""

import click

from explore.cli import options
from explore.cli.options import COLUMN, FILE, NAMES, POSITIVE, SAMPLES, SEED


@click.command("suggest", short_help="Suggest which rows of your table to measure next.")
@click.argument("table", metavar="POOL", type=click.Path(exists=True))
@click.option("--target", multiple=True, type=COLUMN, help="Column to predict, empty where unknown; repeatable.")
@click.option("--batch", type=POSITIVE, help="Rows to measure next.  [default: 5]")
@click.option("--out", metavar="FILE", help="File for the suggestions.  [default: next.csv beside POOL, or next.xlsx]")
@click.option("--labels", type=FILE, help="File with more measurements, such as next.csv.")
@click.option("--id", "id_column", type=COLUMN, help="Column that names the rows; not a feature.")
@click.option("--drop-columns", type=COLUMN, metavar="A,B", help=f"Columns to leave out{options.QUOTED}")
@options.columns
@click.option(
    "--failed", multiple=True, metavar="TEXT",
    help="Target text that marks a failed experiment; repeatable. Numeric targets also accept failed, fail and error. "
    "Pass none to declare no other text.",
)  # fmt: skip
@click.option("--skip", multiple=True, metavar="ID", help="Never suggest this row; repeatable.")
@click.option("--release", multiple=True, metavar="ID|all", help="Let a pending or skipped row be suggested again.")
@click.option("--retract", multiple=True, metavar="ID", help="Withdraw a row's measurements; repeatable.")
@click.option("--undo", is_flag=True, help="Undo the last measurements, suggestions or operations.")
@click.option("--status", is_flag=True, help="Report measured and pending rows; suggest none.")
@click.option("--dry-run", is_flag=True, help="Do everything, but write nothing.")
@click.option(
    "--goal", type=click.Choice(["learn", "maximise", "minimise"]), help="Aim of the suggestions.  [default: learn]"
)
@click.option("--cost", type=COLUMN, help="Column of costs; rows are ranked by score per cost; none: no costs.")
@click.option(
    "--transform", type=click.Choice(["none", "log", "rank"]), help="Transform of the targets.  [default: none]"
)
@click.option(
    "--stop-when", multiple=True, metavar="LIMIT",
    help="Stop when gain<X or width<X, or before budget<=X or labels<=X is exceeded; repeatable; none: no limit.",
)  # fmt: skip
@options.posterior
@click.option(
    "--acquisition", type=NAMES,
    help="From `explore list acquisitions`.  [default: variance-reduction; epig for classes; expected-improvement with "
    "--goal maximise or minimise]",
)  # fmt: skip
@options.model
@options.likelihood
@click.option("--hidden", metavar="WIDTHS", help="Units of the hidden layers, e.g. 50,50.  [default: 10]")
@click.option("--epochs", type=POSITIVE, help="Passes over the labels in each fit.  [default: by the number of labels]")
@click.option("--samples", type=SAMPLES, help="Weight samples for predictions.  [default: 100]")
@click.option("--seed", type=SEED, help="Random seed.  [default: 0]")
@options.jobs
@options.compute
@options.trust
@options.quiet
@options.json_object
def command(**values: object) -> None:
    """Suggest which rows of a table to measure next.

    A model learns from the measured rows; rows with an empty target are candidates. Write measurements into the table
    or next.csv, and run the command again. Measurements, suggestions and settings are kept in a folder beside the
    table; the table itself is never changed. A setting stays until you change it.

    \b
    explore suggest pool.csv --target yield
    explore suggest pool.csv                     # again, after you filled in cells of the table
    explore suggest pool.csv --labels next.csv   # or cells of next.csv
    explore suggest pool.csv --skip 3f2a81c0     # or --release, --retract, --undo, --status
    """  # noqa: D301
    options.run(values)
