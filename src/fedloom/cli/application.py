"""The commands, in the groups of `fedloom --help`. Only the command that is meant is read in full."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer import Option

from fedloom.cli.commands import look, lookup, personal, reproduce, train, tune
from fedloom.cli.commands.flower import COMMANDS as FLOWER
from fedloom.cli.console import line
from fedloom.cli.flags import with_flags
from fedloom.cli.help import Command, epilog
from fedloom.cli.outcome import Outcome, reported
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


def meant(arguments: list[str]) -> str:
    """Which command to read: the first word, also of a line that a shell completes."""
    if "_FEDLOOM_COMPLETE" in os.environ:
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        arguments = typed.split()[1:]
    first = next((word for word in arguments if not word.startswith("-")), "")
    return first if first in COMMANDS or first == "flower" else ""


def _version(
    version: Annotated[bool, Option("--version", help="print the version and exit")] = False,
) -> None:
    if version:
        line(__version__)
        raise typer.Exit
