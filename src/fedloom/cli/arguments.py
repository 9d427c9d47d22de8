"""Arguments and flags that several commands share. Recipe files and the recipe's fields are in flags.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fedloom.cli import complete


def _folder(metavar: str, help: str) -> Any:
    return Argument(metavar=metavar, help=help, show_default=False, autocompletion=complete.run_folder)


FinishedRun = Annotated[Path, _folder("RUN", "the folder of a finished run")]
FinishedRuns = Annotated[list[Path], _folder("RUN...", "folders of finished runs")]
RunFolders = Annotated[list[Path], _folder("RUN...", "run folders, or folders of runs")]
Labels = Annotated[
    list[str] | None,
    Option(
        "--label",
        help='display name of a method in tables and on the page: "dr + fd=FedDr+"; repeat for more',
        metavar="METHOD=NAME",
        show_default=False,
    ),
]
