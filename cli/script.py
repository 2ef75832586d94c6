"""How commands end, those of `explore` and others that stand alone, such as an experiment's."""

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from explore.errors import Failure, InputError, shown

# What torch says where an allocation fails: on a CPU, on a GPU, and beyond what a number of bytes may be.
NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")


class WrongInput(click.ClickException):
    """Shown as one sentence, as click shows its own usage errors."""

    exit_code = 2


@contextmanager
def interrupts() -> Iterator[None]:
    """KeyboardInterrupt for any error that one became: the C code of matplotlib raises a ValueError in its place."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def noted(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        before(number, frame)

    signal.signal(signal.SIGINT, noted)
    try:
        yield
    except click.exceptions.Exit:  # it was seen to
        raise
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def sentences(interrupted: str) -> Iterator[None]:
    """Ends a command by a sentence and an exit code; what is none of these keeps its traceback.

    2 is for wrong input, 1 for a failure and for what the system refuses (a full disk), 130 for an interrupt.
    """
    try:
        with interrupts():
            yield
    except InputError as error:
        raise WrongInput(str(error)) from error
    except Failure as error:
        raise click.ClickException(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in NO_MEMORY):
            raise
        said = "these settings need more memory than there is; take fewer samples, units, copies or trials"
        raise click.ClickException(said) from error
    except OSError as error:
        if error.errno in (None, errno.EPIPE):  # not of the system; a reader that went away
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror}") from error
    except KeyboardInterrupt:
        click.echo(interrupted, err=True)
        raise click.exceptions.Exit(130) from None


class Script(click.Command):
    """Ends by a sentence if need be."""

    def invoke(self, ctx: click.Context) -> object:
        with sentences("Interrupted."):
            return super().invoke(ctx)


class Integers(click.ParamType):
    """Whole numbers with commas between, as a tuple."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"{shown(value)} is not whole numbers with commas between, such as 32,64", param, ctx)
