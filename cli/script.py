"""A command that stands alone, such as an experiment's."""

import click

from explore.errors import InputError


class Script(click.Command):
    """Shows wrong input as one sentence; everything else keeps its traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise click.ClickException(str(error)) from error
