"""Command-line options of `explore compare`."""

import click

from explore.cli import options
from explore.cli.options import NAMES, POSITIVE, SEED, SHARE, TRIALS


@click.command("compare", short_help="Train posteriors on the same splits of a data set.")
@options.data
@click.option(
    "--posterior", default="noisy-kfac,bbb,ensemble", type=NAMES, metavar="A,B", help="From `explore list posteriors`."
)
@click.option("--splits", type=TRIALS, default=5, help="Number of standard 90/10 splits.")
@click.option("--seed", type=SEED, default=0, help="Random seed (not of the splits).")
@options.model_of(
    "all posteriors that have it, POSTERIOR.KEY=VALUE for one, or likelihood.KEY=VALUE", "by the number of rows"
)
@options.likelihood
@click.option(
    "--hidden", metavar="WIDTHS",
    help="Units of the hidden layers, e.g. 50,50.  [default: 50; 100,100 from 1,000 training examples on]",
)  # fmt: skip
@click.option("--epochs", type=POSITIVE, help="Passes over the training examples.  [default: each preset's]")
@click.option(
    "--calibrate", type=SHARE, metavar="SHARE",
    help="Hold out this share of the training examples, e.g. 0.1, to fit one factor on the predictive variance.",
)  # fmt: skip
@click.option(
    "--grid", multiple=True, metavar="KEY=A,B",
    help="Candidate values of a setting, for all posteriors that have it; POSTERIOR.KEY for one posterior, or "
    "likelihood.KEY; repeatable.",
)  # fmt: skip
@click.option(
    "--validate", type=SHARE, metavar="SHARE",
    help="Test on this share of each training part, e.g. 0.2, not on the test parts.",
)  # fmt: skip
@options.jobs
@options.samples
@options.session
def command(**values: object) -> None:
    """Train posteriors on the same splits of a data set, and compare them.

    Print tables of test error and log-likelihood. Write results.csv, reliability diagrams, and TensorBoard curves with
    the same tags for all posteriors.

    \b
    explore compare --dataset boston --posterior noisy-kfac,bbb,ensemble
    explore compare --posterior noisy-kfac,vogn -p epochs=200 -p vogn.lr=0.01
    explore compare --posterior noisy-kfac --grid lr=0.01,0.03 --grid beta=0.01,0.1 --validate 0.2
    explore compare --resume runs/compare-boston
    """  # noqa: D301
    options.run(values)
