"""Error messages and exit codes of `explore` commands and of stand-alone scripts."""

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from explore.cli import display
from explore.core.errors import Failure, InputError, printable

# Messages of torch for a failed allocation: on a CPU, on a GPU, and of more bytes than an integer can count.
NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed")


class WrongInput(click.ClickException):
    """An input error, shown as one sentence like click's own usage errors."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """The exception for SIGTERM, the signal with which schedulers and containers stop a process."""


def ending(error: KeyboardInterrupt) -> tuple[int, str]:
    """Return the exit code for an interrupt or a SIGTERM, and a word that describes it."""
    return (143, "Terminated") if isinstance(error, Terminated) else (130, "Interrupted")


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, unless the signal is ignored or handled already."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def sentences(more: str = "") -> Iterator[None]:
    """Turn expected errors into a one-sentence message and an exit code; bugs keep their traceback.

    Exit codes: 2 for wrong input, 1 for a failure or a system error (e.g. a full disk), 130 for an interrupt, and 143
    for a SIGTERM. `more` is appended to the message of an interrupt or SIGTERM.
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
        raise click.ClickException("out of memory. Reduce the samples, units, copies or trials") from error
    except OSError as error:
        if error.errno in (None, errno.EPIPE):  # not a system error, or the reader of a pipe has exited
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(printable(f"{where}{error.strerror}")) from error
    except KeyboardInterrupt as error:
        code, word = ending(error)
        display.echo(f"{word}{more}.", err=True)
        raise click.exceptions.Exit(code) from None


class Script(click.Command):
    """A stand-alone command with the error messages and exit codes of `explore` commands."""

    def invoke(self, ctx: click.Context) -> object:
        with sentences():
            return super().invoke(ctx)
