"""Command-line options that several commands share. This module does not import torch."""

import functools
import importlib
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import click
from click.core import ParameterSource

from explore import registry
from explore.core import machine
from explore.core.errors import InputError


def name(text: str) -> str:
    """Return comma-separated names of plug-ins or presets, with hyphens for underscores."""
    return ",".join(map(registry.hyphened, text.split(",")))


def column(text: str) -> str:
    """Return column names in Unicode NFC, like the column names of tables."""
    return unicodedata.normalize("NFC", text)


NAMES, COLUMN = name, column  # types of options: click shows the names `name` and `column` in help
STORED = click.Path(exists=True, dir_okay=False, resolve_path=True)  # a file that a run reads again when it is resumed
TABLE = click.Path(exists=True, resolve_path=True)  # a file, or a folder of Parquet files
FILE, SHARE = click.Path(exists=True, dir_okay=False), click.FloatRange(0, 0.5, min_open=True)
QUOTED = """; quote a name with commas: '"x, y",z'."""
POSITIVE = click.IntRange(1, 10**9)
SEED = click.IntRange(0, 2**32 - 1)  # the range of Gymnasium, NumPy's RandomState and stable-baselines3
# Limits far above the defaults; larger values would exhaust the memory at once.
TRIALS, COPIES, SAMPLES = click.IntRange(1, 10_000), click.IntRange(1, 100_000), click.IntRange(2, 100_000)
THREADS = click.IntRange(1, machine.THREADS)
# Of `explore rl`; its settings map these names to classes of stable-baselines3.
Algorithm = Literal["trpo", "ppo", "ppo_lstm", "a2c", "sac", "maxinfo", "td3", "ddpg", "tqc", "crossq", "dqn", "qrdqn"]
# Options that may change when a run is resumed: they affect at most the last digits of results.
FREE = {"resume", "cluster", "device", "threads", "graphs", "trust", "quiet", "as_json"}


def _together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Combine several options into one decorator; help shows them in this order."""
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


# How the columns of a table are read.
columns = _together(
    click.option("--task", type=click.Choice(["regression", "classification"]), help="[default: regression]"),
    click.option("--categorical", type=COLUMN, metavar="A,B", help=f"Numeric columns that are categories{QUOTED}"),
    click.option("--decimal", type=click.Choice([".", ","]), help="Decimal mark of your table.  [default: .]"),
    click.option(
        "--feature", multiple=True, type=COLUMN,
        help="Column to use as a feature although it looks like a row number, time stamp or code; repeatable.",
    ),
    click.option("--sheet", metavar="NAME", help="Sheet of an Excel file.  [default: the first]"),
    click.option(
        "--keep-na", multiple=True, type=COLUMN, metavar="COLUMN",
        help="Class target in which NA, nan, - and the like are classes, not missing values; repeatable.",
    ),
)  # fmt: skip
data = _together(
    click.option("--dataset", type=NAMES, help="From `explore list datasets`.  [default: boston]"),
    click.option("--data", type=TABLE, help="Your table instead: a file, or a folder of Parquet files."),
    click.option("--target", multiple=True, type=COLUMN, help="Column of FILE to predict; repeatable."),
    click.option(
        "--drop-columns", type=COLUMN, default="", show_default=False, metavar="A,B",
        help=f"Features to leave out{QUOTED}",
    ),
    columns,
)  # fmt: skip


def model_of(settings: str, default: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the options --preset and -p, with `default` and `settings` in their help texts."""
    preset = f"Named settings: default, plain, vime, image, or those of a paper, such as paper.  [default: {default}]"
    setting = f"A setting of {settings}; repeatable."
    return _together(
        click.option("--preset", type=NAMES, help=preset),
        click.option("-p", "parameters", multiple=True, metavar="KEY=VALUE", help=setting),
    )


model = model_of("the posterior, likelihood.KEY=VALUE or acquisition.KEY=VALUE", "by the number of labels")
posterior = click.option(
    "--posterior", type=NAMES,
    help="From `explore list posteriors`.  [default: gp; noisy-kfac for classes, for many labels and with settings]",
)  # fmt: skip
likelihood = click.option(
    "--likelihood", type=NAMES,
    help="From `explore list likelihoods`; heteroscedastic: noise depends on the features.  [default: by the task]",
)  # fmt: skip
trust = click.option(
    "--trust", multiple=True, metavar="MODULE",
    help="Allow a run folder to import (execute) this module; repeatable.",
)  # fmt: skip
compute = _together(
    click.option("--device", help="auto, cpu, cuda or cuda:N.  [default: auto]"),
    click.option("--threads", type=THREADS, help="CPU threads.  [default: 1]"),
    click.option(
        "--graphs/--no-graphs", default=None,
        help="On a GPU, capture updates as CUDA graphs.  [default: for nets of up to 30 million weights]",
    ),
)  # fmt: skip
quiet = click.option("--quiet", is_flag=True, help="No notes, only the result.")
json_object = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
# Options of the device, the run folder and the output.
session = _together(
    compute,
    click.option("--out", default="runs", type=click.Path(file_okay=False), help="Parent of the run folder."),
    click.option("--name", help="The run's name.  [default: derived from the settings]"),
    click.option("--resume", metavar="RUN", help="Continue this run, with its settings."),
    trust,
    quiet,
    json_object,
)
jobs = _together(
    click.option("--jobs", type=THREADS, default=1, help="Processes that share trials, splits, seeds or candidates."),
    click.option(
        "--cluster", envvar="EXPLORE_CLUSTER", metavar="ENGINE:ADDRESS",
        help="Run the --jobs on dask:ADDRESS, ray:ADDRESS or slurm:KEY=VALUE,...",
    ),
)  # fmt: skip
samples = click.option("--samples", type=SAMPLES, default=100, help="Weight samples for predictions.")


def run(options: Mapping[str, Any], totals: Collection[str] = ()) -> None:
    """Run the current command: with `start.run` if it writes a run folder, else with its package's module `session`.

    --resume may increase the options in `totals`. The modules import torch.
    """
    check_empty()
    command = click.get_current_context().command.name or ""
    if "resume" not in options:
        importlib.import_module(f"explore.cli.{command}.session").run(options)
        return
    if options["resume"]:
        refuse({*totals, *FREE}, "--resume continues with the recorded settings")
    extend = {name: options[name] for name in on_command_line() if name in totals and options["resume"]}
    from explore.cli import ranks, start

    with ranks.joined(command):
        start.run(command, {**options, "extend": extend})


def check_empty() -> None:
    """Raise InputError if an option is an empty string, e.g. `--resume "$RUN"` with RUN unset."""
    ctx = click.get_current_context()
    for option in ctx.command.params:
        value = ctx.params.get(option.name or "")
        if option.name != "drop_columns" and (value == "" or (isinstance(value, tuple) and "" in value)):
            raise InputError(f"{option.opts[0]} is empty. Pass a value, or leave it out")


def refuse(allowed: Collection[str], reason: str) -> None:
    """Raise InputError, with `reason`, if the command line has an option that is not in `allowed`."""
    if excluded := [option for name, option in on_command_line().items() if name not in allowed]:
        names = sorted(p.opts[0] for p in click.get_current_context().command.params if p.name in allowed)
        raise InputError(f"{reason}. Leave out {', '.join(excluded)} (allowed: {', '.join(names)})")


def on_command_line() -> dict[str, str]:
    """Return the options that the user passed, as a dict from name to flag, e.g. {"seed": "--seed"}."""
    ctx = click.get_current_context()
    options = {parameter.name or "": parameter.opts[0] for parameter in ctx.command.params}
    return {n: o for n, o in options.items() if ctx.get_parameter_source(n) is ParameterSource.COMMANDLINE}
