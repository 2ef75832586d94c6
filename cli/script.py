"""A command that stands alone, such as an experiment's."""

from typing import Any

import click

from explore.errors import InputError, shown


class Script(click.Command):
    """Shows wrong input as one sentence; everything else keeps its traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise click.ClickException(str(error)) from error


class Integers(click.ParamType):
    """Whole numbers with commas between, as a tuple."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers of a text."""
        try:
            return value if isinstance(value, tuple) else tuple(int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"{shown(value)} is not whole numbers with commas between, such as 32,64", param, ctx)
