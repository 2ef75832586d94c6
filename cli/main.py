"""The `explore` command group, which imports each command only when it is needed."""

import importlib
import json
import platform

import click

from explore import registry
from explore.cli import display
from explore.cli.script import sentences

# Command modules import torch only when a command runs, so that help and lists appear at once.
COMMANDS = ("active", "classify", "compare", "predict", "report", "rl", "suggest")
# Users see the kind `data` as "datasets". Environments are in Gymnasium's registry, not in `explore.registry`.
KINDS = {"datasets" if kind == "data" else kind: kind for kind in registry.KINDS} | {"envs": "envs"}


class Commands(click.Group):
    """A click group that imports commands on demand and reports errors in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*COMMANDS, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        return importlib.import_module(f"explore.cli.{cmd_name}").command

    def invoke(self, ctx: click.Context) -> object:
        with sentences("; no work is lost"):
            return super().invoke(ctx)


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the facts that a bug report needs: versions, devices and the number of threads."""
    if not asked or ctx.resilient_parsing:
        return
    import torch

    from explore.core import machine
    from explore.runs import provenance

    versions = provenance.versions()
    display.echo(f"explore, version {versions.pop('explore')}")
    display.echo(f"Python {versions.pop('python')} on {platform.platform()}")
    display.echo(", ".join(f"{name} {version}" for name, version in versions.items()))
    gpus = (f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count()))
    display.echo(f"devices: {', '.join(['cpu', *gpus])}")
    display.echo(f"threads: 1 (change with --threads), {machine.cores()} cores")
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show versions, devices and threads, and exit.",
)
def main() -> None:
    """Active learning and reinforcement-learning exploration on Bayesian neural networks."""


@main.command("list", short_help="List posteriors, acquisitions, bonuses, datasets and other plug-ins.")
@click.argument("kind", type=click.Choice(sorted(KINDS)))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of names and descriptions.")
def list_plug_ins(kind: str, as_json: bool) -> None:
    """List posteriors, likelihoods, acquisitions, bonuses, datasets, images or environments, one line about each."""
    if kind == "envs":
        from explore.envs import EVERY as listed
    else:
        listed = registry.names(KINDS[kind])
    if as_json:
        display.echo(json.dumps([{"name": n, "description": d} for n, d in listed.items()], indent=2))
        return
    display.show(display.table(("name", "description"), listed.items(), slice(0), box=None, pad_edge=False))
