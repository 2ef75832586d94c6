"""`explore list`: the plug-ins."""

import json

import click

from explore import registry
from explore.cli import console, display

# For users, the kind `data` is called datasets; environments are in Gymnasium's registry, not in ours.
KINDS = {"datasets" if kind == "data" else kind: kind for kind in registry.KINDS} | {"envs": "envs"}


@click.command("list", short_help="List posteriors, likelihoods, acquisitions, datasets, images or environments.")
@click.argument("kind", type=click.Choice(sorted(KINDS)))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of names and descriptions.")
def command(kind: str, as_json: bool) -> None:
    """List posteriors, likelihoods, acquisitions, datasets, images or environments with one line about each."""
    if kind == "envs":
        from explore.envs import ENVS as listed
    else:
        listed = registry.names(KINDS[kind])
    if as_json:
        display.echo(json.dumps([{"name": n, "description": d} for n, d in listed.items()], indent=2))
        return
    table = console.Table("name", "description", box=None, pad_edge=False)
    for name, description in listed.items():
        table.add_row(name, description)
    console.show(table)
