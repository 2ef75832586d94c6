"""Options that several commands have, word for word the same. Imports no torch."""

import functools
import os
import unicodedata
from collections.abc import Callable, Collection
from typing import Any

import click
from click.core import ParameterSource

from explore import registry
from explore.core.errors import InputError, shown


class Whole(click.IntRange):
    """Whole numbers in a range; long ones are refused without being repeated."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and len(value) > 20:
            self.fail(f"{shown(value)} is not in the range {self._describe_range()}.", param, ctx)
        return super().convert(value, param, ctx)


class Names(click.ParamType):
    """Names of plug-ins or presets with commas between, in which underscores are hyphens."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return ",".join(map(registry.hyphened, value.split(",")))


class Column(click.ParamType):
    """A column's name, or several, in Unicode's composed form, as tables have them once they are read."""

    name = "column"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return unicodedata.normalize("NFC", value)


NAMES, COLUMN = Names(), Column()
QUOTED = """; a name with commas in quotes: '"x, y",z'."""
FEATURE = "to learn from though it numbers rows, is a time of measurement or looks like a code; repeatable."
POSITIVE = Whole(1, 10**9)
SEED = Whole(0, 2**32 - 1)  # what Gymnasium, NumPy's old generator and stable-baselines3 take too
# Each option has a default of its own far below: beyond these a machine is out of memory before it has begun.
TRIALS, COPIES, SAMPLES = Whole(1, 10_000), Whole(1, 100_000), Whole(2, 100_000)
THREADS = Whole(1, max(256, os.cpu_count() or 1))  # OpenMP ends the process where the system gives it no more
# What may differ between a run and its continuation: none of it decides the numbers, but for their last digits.
FREE = {"resume", "device", "threads", "graphs", "trust", "quiet", "as_json"}


def _modules(ctx: click.Context, option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [name for name in names if ":" in name or not name]:
        raise InputError(f"--trust is {shown(wrong[0])}; it takes a module, such as mypackage.envs")
    return names


def _together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator of several options, shown in this order."""
    return lambda command: functools.reduce(lambda made, option: option(made), reversed(options), command)


keep_na = click.option(
    "--keep-na", multiple=True, type=COLUMN, metavar="COLUMN",
    help="Target of classes in which NA, nan, - and the like are classes; else they mean not measured. Repeatable.",
)  # fmt: skip
# Where examples come from.
data = _together(
    click.option(
        "--dataset", type=NAMES, metavar="NAME", help="A name from `explore list datasets`.  [default: boston]"
    ),
    click.option("--data", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Your table instead."),
    click.option("--target", multiple=True, type=COLUMN, help="Column of FILE to predict; repeatable."),
    click.option(
        "--drop-columns", type=COLUMN, default="", show_default=False, metavar="A,B",
        help=f"Features to leave out{QUOTED}",
    ),
    click.option(
        "--task", type=click.Choice(["regression", "classification"]), help="For FILE.  [default: regression]"
    ),
    click.option(
        "--categorical", type=COLUMN, metavar="A,B", help=f"Columns of FILE whose numbers are names{QUOTED}"
    ),
    click.option("--decimal", type=click.Choice([".", ","]), help="The mark in the numbers of FILE.  [default: .]"),
    click.option("--feature", multiple=True, type=COLUMN, help=f"Column of FILE {FEATURE}"),
    click.option("--sheet", metavar="NAME", help="Sheet of FILE, of Excel.  [default: the first]"),
    keep_na,
)  # fmt: skip
model = _together(
    click.option(
        "--preset", type=NAMES, metavar="NAME",
        help="Settings: default, plain, vime, image or a paper's.  [default: by the number of labels]",
    ),
    click.option(
        "-p", "parameters", multiple=True, metavar="KEY=VALUE",
        help="A setting of the posterior, likelihood.KEY=VALUE or acquisition.KEY=VALUE; repeatable.",
    ),
)  # fmt: skip
trust = click.option(
    "--trust",
    multiple=True,
    metavar="MODULE",
    callback=_modules,
    help="Let a run folder import this module, which runs it; repeatable.",
)
compute = _together(
    click.option("--device", help="auto, cpu, cuda or cuda:N.  [default: auto]"),
    click.option("--threads", type=THREADS, help="Processor threads.  [default: 1]"),
    click.option(
        "--graphs/--no-graphs", default=None,
        help="Record updates: as CUDA graphs on a GPU, compiled in half a minute on a processor.  [default: on a GPU, "
        "for nets of up to 30 million weights]",
    ),
)  # fmt: skip
# Where and how to compute, and what to do with the result.
session = _together(
    compute,
    click.option("--out", default="runs", type=click.Path(file_okay=False), help="Folder of the run folders."),
    click.option("--name", help="The run's name.  [default: made of the settings]"),
    click.option("--resume", metavar="RUN", help="Continue in this run folder, with its settings."),
    trust,
    click.option("--quiet", is_flag=True, help="No progress and no notes, only the result."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
)
jobs = click.option("--jobs", type=THREADS, default=1, help="Processes that share the trials or splits.")
run = _together(click.option("--samples", type=SAMPLES, default=100, help="Weight samples for predictions."), session)


def check_empty(ctx: click.Context) -> None:
    """Refuse empty values: of `--resume "$RUN"`, where RUN is not set, and others that would pass for not given."""
    for option in ctx.command.params:
        value = ctx.params.get(option.name or "")
        if option.name != "drop_columns" and (value == "" or (isinstance(value, tuple) and "" in value)):
            shown = option.opts[0] if isinstance(option, click.Option) else "a run folder"
            raise InputError(f"{shown} is empty; give it a value, or leave it out")


def check_resume(ctx: click.Context, more: Collection[str] = ()) -> None:
    """Refuse options that would change the numbers of a run that is continued, but for those that extend it."""
    if ctx.params["resume"] and (fixed := given(ctx, FREE | set(more))):
        allowed = [f"--{name}" for name in (*more, "device", "threads", "graphs", "trust", "quiet", "json")]
        raise InputError(
            f"--resume continues with the recorded settings; leave out {', '.join(fixed)} "
            f"(allowed with it: {', '.join(allowed)})"
        )


def longer(ctx: click.Context, names: Collection[str]) -> dict[str, Any]:
    """Of the options that extend a run which is continued, those that were given; others are refused with --resume."""
    check_resume(ctx, names)
    asked = [name for name in names if given(ctx, ctx.params.keys() - {name})]
    return {name: ctx.params[name] for name in asked} if ctx.params["resume"] else {}


def given(ctx: click.Context, ignored: Collection[str]) -> list[str]:
    """What stands on the command line, as the user writes it, but for the ignored parameters."""
    names = {p.name: p.opts[0] if isinstance(p, click.Option) else p.make_metavar(ctx) for p in ctx.command.params}
    return [
        shown
        for name, shown in names.items()
        if name and name not in ignored and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
