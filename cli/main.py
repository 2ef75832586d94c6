"""The command `explore`: a group of commands that are imported when they are used."""

import importlib

import click

from explore.cli.script import sentences

# Their modules import torch only inside the command, so that help and lists appear at once.
COMMANDS = {
    "active": "explore.cli.active",
    "classify": "explore.cli.classify",
    "compare": "explore.cli.compare",
    "list": "explore.cli.listing",
    "predict": "explore.cli.predict",
    "report": "explore.cli.report",
    "rl": "explore.cli.rl",
    "suggest": "explore.cli.suggest",
}


class Commands(click.Group):
    """A group that imports commands on use, and ends them with a one-sentence error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command

    def invoke(self, ctx: click.Context) -> object:
        with sentences("; no work is lost"):
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="explore-bnn", prog_name="explore")
def main() -> None:
    """Active learning and reinforcement-learning exploration on Bayesian neural networks."""
