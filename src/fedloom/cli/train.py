"""The commands that train: run, compare, sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Option

from fedloom import api
from fedloom.cli import console
from fedloom.cli.flags import RecipeFile, recipe_fields, recipe_flags
from fedloom.errors import FedloomError
from fedloom.report.grid import sheets
from fedloom.report.personal import print_wide
from fedloom.report.progress import ProgressBar
from fedloom.report.sheet import rich_table
from fedloom.report.table import group_tables, metric_notes, summary_table, time_line
from fedloom.runs.cells import RelativeFineTuning
from fedloom.runs.comparison import Comparison
from fedloom.runs.metrics import import_metrics

Methods = 'methods and settings of their own: "fedavg; fn @ lr=0.3; dr + fd @ lr=1 epochs=2"'
Seeds = "number of seeds, beginning with --seed"
Label = 'display name of a method in tables and on the page: "dr + fd=FedDr+"; repeat for more'
DEFAULT = "fedavg; fn; babu; dr + fd"  # what `compare` compares
STYLES = {"Failed:": "red", "Warning": "yellow"}


@recipe_flags
def run(
    recipe: RecipeFile = None,
    resume: Annotated[
        Path | None, Option(help="continue the interrupted run in this folder", show_default=False)
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="print nothing but errors")] = False,
    **flags: Any,
) -> None:
    """Run one experiment, or resume one."""
    with ProgressBar(Console(quiet=True) if quiet else console.out) as bar:
        if resume is None:
            done = api.run(recipe_fields(recipe, flags), callbacks=[bar])
        else:
            workers = flags.pop("workers")
            if given := [name for name, value in flags.items() if value]:
                name = given[0].rstrip("_").replace("_", "-")
                raise FedloomError(f"--resume: the recipe is the folder's own; leave out --{name}")
            done = api.run(resume=resume, callbacks=[bar], workers=workers)
    if quiet:
        return
    import_metrics(done.recipe)
    for table in (summary_table(done.summary, done.metrics), *group_tables(done.summary, done.metrics)):
        print_wide(console.out, table)
    for note in metric_notes(done.summary):
        console.line(f"note: {note}")
    console.line(time_line(done.summary))
    console.line(f"run folder: {done.path}")


@recipe_flags
def compare(
    recipe: RecipeFile = None,
    methods: Annotated[str | None, Option(help=Methods, show_default=f"{DEFAULT}, or all that were tuned")] = None,
    seeds: Annotated[int, Option(help=Seeds)] = 1,
    tuned: Annotated[
        Path | None,
        Option(help="run what `fedloom tune` chose in this folder, on seeds that it never saw", show_default=False),
    ] = None,
    label: Annotated[list[str] | None, Option(help=Label)] = None,
    personal: Annotated[bool, Option(help="also fine-tune every client")] = True,
    personal_part: Annotated[str, Option(help="what is fine-tuned: full | head | body | adapter | alternate")] = "full",
    personal_epochs: Annotated[int, Option(help="epochs of fine-tuning")] = 5,
    personal_rate: Annotated[float, Option(help="fine-tuning rate as a fraction of the method's own")] = 0.1,
    **flags: Any,
) -> None:
    """Run several methods on the same clients and print one table."""
    fine_tuning = RelativeFineTuning(personal_part, personal_epochs, personal_rate) if personal else None  # type: ignore[arg-type]
    with ProgressBar(console.out) as bar:
        comparison = api.compare(
            methods or (None if tuned else DEFAULT),
            seeds,
            tuned=tuned,
            labels=label or (),
            given=recipe_fields(recipe, flags),
            fine_tuning=fine_tuning,
            callbacks=[bar],
        )
    _show(comparison)


@recipe_flags
def sweep(
    recipe: RecipeFile = None,
    over: Annotated[
        list[str] | None, Option(help='field=value,value; repeat for more fields; also "method=fedavg,fn", seed=0,1')
    ] = None,
    methods: Annotated[str | None, Option(help=Methods, show_default="the recipe's")] = None,
    seeds: Annotated[int | None, Option(help=Seeds, show_default="1")] = None,
    label: Annotated[list[str] | None, Option(help=Label)] = None,
    **flags: Any,
) -> None:
    """Run a grid of settings; the same command resumes it and skips finished cells."""
    with ProgressBar(console.out) as bar:
        comparison = api.sweep(
            over or [], methods, seeds, labels=label or (), given=recipe_fields(recipe, flags), callbacks=[bar]
        )
    _show(comparison)


def _show(comparison: Comparison) -> None:
    """The tables, notes on them, and where everything is."""
    for sheet in (made := sheets(comparison)):
        print_wide(console.out, rich_table(sheet))
    for note in (made[0].caption, *made[-1].notes):
        style = next((style for word, style in STYLES.items() if note.startswith(word)), None)
        if note:
            console.out.print(note, highlight=False, markup=False, style=style)
    depth = "*/" * (2 if comparison.points != [()] else 1)
    console.line(f"run folders: {comparison.root}/{depth}seed*; tables: {comparison.root}/table.*")
    if comparison.failures:
        raise typer.Exit(1)
