"""The command line: parse, call, print. Every wrong value is one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer
from typer import Option

from fedloom.cli import look, personal, reproduce, train, tune
from fedloom.cli.console import line, note
from fedloom.cli.flower import flower
from fedloom.errors import DISK, FedloomError, Interrupted, Unwritable, one_line
from fedloom.version import __version__

app = typer.Typer(
    help="Federated learning for clients whose data disagree: a method is a sum of parts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    *(train.run, train.compare, train.sweep, tune.tune, look.report, look.watch, look.split, look.analyze),
    *(look.bench, reproduce.reproduce, personal.personalize, personal.adopt, personal.export),
):
    app.command()(command)
app.command(name="list")(look.list_)
app.add_typer(flower, name="flower")
# typer may carry a click of its own, so the class is taken from typer
USAGE: type[typer.BadParameter] = typer.BadParameter.__bases__[0]


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, Option("--version", help="print the version and exit")] = False,
) -> None:
    if version:
        line(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """The entry point; ends the process."""
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except Interrupted as error:
        note(str(error))
        sys.exit(130)
    except Unwritable as error:
        note(f"error: {error}")
        sys.exit(1)
    except FedloomError as error:
        note(f"error: {error}")
        sys.exit(2)
    except USAGE as error:
        note(f"error: {one_line(error.format_message())}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output is gone
        _drop_output()
        sys.exit(1)
    except OSError as error:  # a path that cannot be read or written, where no clearer sentence was made
        named = f"{error.filename}: " if error.filename else ""
        note(f"error: {one_line(f'{named}{error.strerror or error}')}")
        if error.filename is None:
            _drop_output()
        sys.exit(1 if error.errno in DISK else 2)
    except MemoryError:
        note("error: there is not enough memory for this; choose a smaller model, batch or number of clients")
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        note("stopped")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _drop_output() -> None:
    """Output that nobody reads is not written again when the process ends."""
    with suppress(OSError, ValueError):  # not a file at all, under a test or in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
