"""How commands end, those of `explore` and others that stand alone, such as an experiment's."""

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from explore.cli import display
from explore.core.errors import Failure, InputError, printable, shown

# What torch says where an allocation fails: on a CPU, on a GPU, and beyond what a number of bytes may be.
NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")


class WrongInput(click.ClickException):
    """Shown as one sentence, as click shows its own usage errors."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """A SIGTERM, by which schedulers and containers end a process: an interrupt of another sender."""


def ending(error: KeyboardInterrupt) -> tuple[int, str]:
    """The exit code of a process that was stopped, and a word for that."""
    return (143, "Terminated") if isinstance(error, Terminated) else (130, "Interrupted")


@contextmanager
def interrupts() -> Iterator[None]:
    """KeyboardInterrupt, of SIGINT and SIGTERM, for any error that one became.

    The C code of matplotlib raises a ValueError in its place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        raise Terminated

    for number, handler in before.items():
        if callable(handler) or (number == signal.SIGTERM and handler == signal.SIG_DFL):
            signal.signal(number, note)
    try:
        yield
    except click.exceptions.Exit:  # it was seen to
        raise
    except Exception as error:
        if received:
            raise (KeyboardInterrupt if received[0] == signal.SIGINT else Terminated) from error
        raise
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)


@contextmanager
def sentences(more: str = "") -> Iterator[None]:
    """Ends a command by a sentence and an exit code; what is none of these keeps its traceback.

    2 is for wrong input, 1 for a failure and for what the system refuses (a full disk), 130 for an interrupt, 143 for a
    SIGTERM; `more` is what their sentence says behind the word.
    """
    display.spell()
    try:
        with interrupts():
            yield
    except InputError as error:
        raise WrongInput(printable(error)) from error
    except Failure as error:
        raise click.ClickException(printable(error)) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in NO_MEMORY):
            raise
        said = "these settings need more memory than there is; take fewer samples, units, copies or trials"
        raise click.ClickException(said) from error
    except OSError as error:
        if error.errno in (None, errno.EPIPE):  # not of the system; a reader that went away
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(printable(f"{where}{error.strerror}")) from error
    except KeyboardInterrupt as error:
        code, word = ending(error)
        display.echo(f"{word}{more}.", err=True)
        raise click.exceptions.Exit(code) from None


class Script(click.Command):
    """Ends by a sentence if need be."""

    def invoke(self, ctx: click.Context) -> object:
        with sentences():
            return super().invoke(ctx)


class Integers(click.ParamType):
    """Whole numbers with commas between, as a tuple."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(number) for number in value.split(","))
        except ValueError:
            self.fail(f"{shown(value)} is not whole numbers with commas between, such as 32,64", param, ctx)
