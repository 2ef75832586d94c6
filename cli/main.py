"""The command `explore`: a group whose commands are imported when they are asked for."""

import errno
import importlib

import click

from explore.errors import Failure, InputError

# Their modules import torch only inside the command, so that help and lists come at once.
COMMANDS = {
    "active": "explore.cli.active",
    "compare": "explore.cli.compare",
    "list": "explore.cli.listing",
    "rl": "explore.cli.rl",
}
# What torch says where an allocation fails: on a CPU, on a GPU, and beyond what a number of bytes may be.
NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")


class WrongInput(click.ClickException):
    """Shown as one sentence, as click shows its own usage errors."""

    exit_code = 2


class Commands(click.Group):
    """Shows wrong input as one sentence with exit code 2, a failure or what the system refuses (a full disk) with 1.

    Everything else keeps its traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, if there is one."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise WrongInput(str(error)) from error
        except Failure as error:
            raise click.ClickException(str(error)) from error
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not any(text in str(error) for text in NO_MEMORY):
                raise
            raise click.ClickException(
                "these settings need more memory than there is; take fewer samples, units, copies or trials"
            ) from error
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # not of the system; a reader that went away
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror}") from error
        except KeyboardInterrupt:
            click.echo("Interrupted; no work is lost.", err=True)
            ctx.exit(130)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="explore-bnn", prog_name="explore")
def main() -> None:
    """Active learning and reinforcement-learning exploration on Bayesian neural networks."""
