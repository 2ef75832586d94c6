"""`explore active`: the options; what they do is in `explore.cli.session`."""

import click
from click.core import ParameterSource

from explore.errors import InputError

POSITIVE = click.IntRange(min=1)
# What may differ between a run and its continuation: none of it decides the numbers, but for their last digits.
FREE = {"resume", "device", "threads", "quiet", "as_json"}


@click.command("active", short_help="Label a pool point by point, and compare with random.")
@click.option("--dataset", metavar="NAME", help="A name from `explore list datasets`.  [default: boston]")
@click.option("--data", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="A CSV file instead.")
@click.option("--target", multiple=True, metavar="COLUMN", help="Column of FILE to predict; repeatable.")
@click.option("--drop-columns", default="", show_default=False, metavar="A,B", help="Features to leave out.")
@click.option("--task", type=click.Choice(["regression", "classification"]), help="For FILE.  [default: regression]")
@click.option("--posterior", default="noisy-kfac", metavar="NAME", help="A name from `explore list posteriors`.")
@click.option("--acquisition", default="max-variance", metavar="NAME", help="From `explore list acquisitions`.")
@click.option("--trials", type=POSITIVE, default=20, help="Independent repetitions, trained side by side.")
@click.option("--rounds", type=POSITIVE, default=10, help="Fits; one acquisition fewer.")
@click.option("--initial", type=POSITIVE, default=20, help="Labelled points at the start.")
@click.option("--acquire", type=POSITIVE, default=1, help="Points labelled after each fit.")
@click.option("--test-size", type=POSITIVE, default=100, help="Points held out for testing in each trial.")
@click.option("--control/--no-control", default=True, help="Also label at random, from the same start.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Root of all random numbers.")
@click.option("--preset", metavar="NAME", help="Settings of the posterior.  [default: small, else its first]")
@click.option(
    "-p", "parameters", multiple=True, metavar="KEY=VALUE",
    help="A setting of the posterior, or likelihood.KEY=VALUE; repeatable.",
)  # fmt: skip
@click.option("--hidden", default="10", metavar="WIDTHS", help="Units of the hidden layers, e.g. 50,50.")
@click.option("--epochs", type=POSITIVE, help="Passes over the labels in each fit.  [default: the preset's]")
@click.option(
    "--standardise", type=click.Choice(["labelled", "pool", "none"]),
    help="Points whose mean and deviation scale the inputs.  [default: the learner's]",
)  # fmt: skip
@click.option("--samples", type=click.IntRange(min=2), default=100, help="Weight samples for predictions.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.  [default: auto]")
@click.option("--threads", type=POSITIVE, help="Processor threads.  [default: 1]")
@click.option("--out", default="runs", type=click.Path(file_okay=False), help="Folder of the run folders.")
@click.option("--name", help="The run's name.  [default: from data, posterior and acquisition]")
@click.option("--resume", metavar="RUN", help="Continue in this run folder, with its settings.")
@click.option("--quiet", is_flag=True, help="No progress and no notes, only the result.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_context
def command(ctx: click.Context, **options: object) -> None:
    """Label the points of a pool one by one, and compare with labelling at random.

    Every trial splits the data at random into labelled points, test points and a pool. In every round the posterior
    is fitted from scratch, tested, and asked which point of the pool to label next.

    \b
    explore active --dataset boston
    explore active --data houses.csv --target price --drop-columns id,street
    explore active --resume runs/active-boston-noisy-kfac-max-variance
    """  # noqa: D301
    if options["resume"]:
        given = {p.opts[0]: p.name for p in ctx.command.params if p.name and _is_given(ctx, p.name)}
        if fixed := [option for option, name in given.items() if name not in FREE]:
            raise InputError(
                f"--resume continues with the recorded settings; leave out {', '.join(fixed)} "
                "(allowed with it: --device, --threads, --quiet, --json)"
            )
    from explore.cli import session  # imports torch

    ctx.exit(session.run(options))


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
