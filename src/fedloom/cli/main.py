"""The command line: parse, call, print. Every wrong value is one sentence and exit code 2.

Files of `commands` import what needs torch inside their functions: help, completion and answers to typos need none of it.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer import Option

from fedloom.cli.commands import look, lookup, personal, reproduce, train, tune
from fedloom.cli.commands.flower import COMMANDS as FLOWER
from fedloom.cli.console import error as say_error
from fedloom.cli.console import line
from fedloom.cli.flags import with_flags
from fedloom.cli.help import Command, epilog
from fedloom.cli.outcome import Outcome, reported
from fedloom.errors import DISK, FedloomError, Interrupted, Unwritable, one_line
from fedloom.nearest import advice
from fedloom.version import __version__

PANELS: dict[str, dict[str, Any]] = {
    "Train": {
        "run": train.run,
        "compare": train.compare,
        "sweep": train.sweep,
        "tune": tune.tune,
        "reproduce": reproduce.reproduce,
    },
    "Look at results": {
        "report": look.report,
        "watch": look.watch,
        "analyze": look.analyze,
        "personalize": personal.personalize,
    },
    "Use a model": {"adopt": personal.adopt, "export": personal.export},
    "Look up": {"list": lookup.list_, "recipe": lookup.recipe, "split": look.split},
    "Machines": {"bench": look.bench},
}
COMMANDS = {name for commands in PANELS.values() for name in commands}
FLOWER_HELP = "Run a recipe on real machines with Flower."


def application(only: str | None = None) -> typer.Typer:
    """The command line, with all its commands.

    Reading the flags of all commands takes longer than answering one, so `only` names the command that is meant: the others
    are left out. An empty name means none of them: they are there by name, without their flags.
    """
    app = typer.Typer(
        help="Federated learning for clients whose data disagree: a method is a sum of parts.",
        epilog=epilog("fedloom"),
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_version)
    for panel, commands in PANELS.items():
        for name, function in commands.items():
            if only in (None, "", name):
                _add(app, name, _by_name(function) if only == "" else function, panel)
    if only in (None, "", "flower"):
        flower = typer.Typer(help=FLOWER_HELP, rich_markup_mode="rich")
        for name, function in FLOWER.items():
            _add(flower, name, _by_name(function) if only == "" else function, inside="flower")
        app.add_typer(flower, name="flower", rich_help_panel="Machines")
    return app


def _add(group: typer.Typer, name: str, function: Any, panel: str | None = None, inside: str = "") -> None:
    whole = f"{inside} {name}".strip()
    add = group.command(name, cls=Command, epilog=epilog(whole), rich_help_panel=panel)
    add(function if function is look.watch else reported(with_flags(function)))  # it serves until it is stopped


def _by_name(function: Any) -> Any:
    def named() -> Outcome:
        return Outcome()

    named.__doc__ = function.__doc__
    return named


def _meant(arguments: list[str]) -> str:
    """Which command to read: the first word, also of a line that a shell completes."""
    if "_FEDLOOM_COMPLETE" in os.environ:
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        arguments = typed.split()[1:]
    first = next((word for word in arguments if not word.startswith("-")), "")
    return first if first in COMMANDS or first == "flower" else ""


# typer may carry a click of its own, so the class is taken from typer
USAGE: type[typer.BadParameter] = typer.BadParameter.__bases__[0]


def _version(
    version: Annotated[bool, Option("--version", help="print the version and exit")] = False,
) -> None:
    if version:
        line(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """The entry point; ends the process."""
    try:
        given = sys.argv[1:] if arguments is None else arguments
        if given in ([], ["flower"]):
            given = [*given, "--help"]
        code = application(_meant(given))(given, standalone_mode=False)
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
