"""The command line: parse, call, print. Every wrong value is one sentence and exit code 2.

Files of `commands` import what needs torch inside their functions: help, completion and answers to typos need none of it.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any

import typer

from fedloom.cli.application import application, meant
from fedloom.cli.console import error as say_error
from fedloom.errors import DISK, FedloomError, Interrupted, Unwritable, one_line
from fedloom.nearest import advice

# typer may carry a click of its own, so the class is taken from typer
USAGE: type[typer.BadParameter] = typer.BadParameter.__bases__[0]


def main(arguments: list[str] | None = None) -> None:
    """The entry point; ends the process."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        if given in ([], ["flower"]):
            given = [*given, "--help"]
        code = application(meant(given))(given, standalone_mode=False)
        sys.stdout.flush()
    except Interrupted as error:
        say_error(str(error))
        sys.exit(130)
    except Unwritable as error:
        say_error(f"error: {error}")
        sys.exit(1)
    except FedloomError as error:
        say_error(f"error: {error}")
        sys.exit(2)
    except USAGE as error:
        say_error(f"error: {_usage(error)}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output is gone
        _drop_output()
        sys.exit(1)
    except OSError as error:  # a path that cannot be read or written, where no clearer sentence was made
        named = f"{error.filename}: " if error.filename else ""
        say_error(f"error: {one_line(f'{named}{error.strerror or error}')}")
        if error.filename is None:
            _drop_output()
        sys.exit(1 if error.errno in DISK else 2)
    except MemoryError:
        say_error("error: there is not enough memory for this; choose a smaller model, batch or number of clients")
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        say_error("stopped")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """One sentence about words that do not fit the command; proposals for unknown commands and flags are our own."""
    message, context = one_line(error.format_message()), getattr(error, "ctx", None)
    path = context.command_path.replace("python -m fedloom", "fedloom") if context is not None else "fedloom"
    unknown = re.match(
        r"No such (command|option):? '?([^' ]+?)'?[. (]|No such (command|option):? '?([^' ]+?)'?$", message
    )
    if context is None or unknown is None:
        return message
    kind, name = unknown[1] or unknown[3], unknown[2] or unknown[4]
    if kind == "command":
        hint = advice(name, context.command.list_commands(context), "commands", f"`{path} --help` lists all")
        return f"there is no command {name!r}; {hint.replace('did you mean ', f'did you mean {path} ')}"
    flags = {flag.lstrip("-"): flag for parameter in context.command.params for flag in parameter.opts}
    hint = advice(name.lstrip("-"), [flag for flag in flags if len(flag) > 1], "fields", f"`{path} --help` lists all")
    return f"{path} has no flag {name}; {hint.replace('did you mean ', 'did you mean --').replace('_', '-')}"


def _drop_output() -> None:
    """Output that nobody reads is not written again when the process ends."""
    with suppress(OSError, ValueError):  # not a file at all, under a test or in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
