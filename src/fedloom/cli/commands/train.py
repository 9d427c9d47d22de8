"""The commands that train: run, compare, sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fedloom.cli import complete, console
from fedloom.cli.arguments import Labels
from fedloom.cli.flags import RecipeFile, recipe_fields, recipe_flags
from fedloom.cli.outcome import Outcome
from fedloom.errors import FedloomError

if TYPE_CHECKING:
    from fedloom.studies.comparison import Comparison

Methods = 'methods and settings of their own: "fedavg; fn @ lr=0.3; dr + fd @ lr=1 epochs=2"'
Seeds = "number of seeds, beginning with --seed"
DEFAULT = "fedavg; fn; babu; dr + fd"  # what `compare` compares
STYLES = {"Failed:": "red", "Warning": "yellow"}


@recipe_flags
def run(
    recipe: RecipeFile = None,
    resume: Annotated[
        Path | None,
        Option(
            help="continue the interrupted run in this folder",
            show_default=False,
            autocompletion=complete.run_folder,
        ),
    ] = None,
    **flags: Any,
) -> Outcome:
    """Run one experiment, or resume one."""
    workers = flags["workers"]
    fields = recipe_fields(recipe, flags) if resume is None else _refuse_others(flags)

    from fedloom import api
    from fedloom.report.personal import print_wide
    from fedloom.report.progress import ProgressBar
    from fedloom.report.table import group_tables, metric_notes, summary_table, time_line
    from fedloom.runs.metrics import import_metrics

    with ProgressBar(console.out) as bar:
        done = (
            api.run(fields, callbacks=[bar])
            if resume is None
            else api.run(resume=resume, callbacks=[bar], workers=workers)
        )
    import_metrics(done.recipe)
    for table in (summary_table(done.summary, done.metrics, done.method), *group_tables(done.summary, done.metrics)):
        print_wide(console.out, table)
    for note in metric_notes(done.summary):
        console.line(f"note: {note}")
    console.line(time_line(done.summary))
    console.line(f"run folder: {done.path}")
    return Outcome({"path": done.path, **done.summary}, [done.path])


def _refuse_others(flags: dict[str, Any]) -> dict[str, Any]:
    if given := [name for name, value in flags.items() if value and name != "workers"]:
        name = given[0].rstrip("_").replace("_", "-")
        raise FedloomError(f"--resume: the recipe is the folder's own; leave out --{name}")
    return {}


@recipe_flags
def compare(
    recipe: RecipeFile = None,
    methods: Annotated[
        str | None,
        Option(help=Methods, show_default=f"{DEFAULT}, or all that were tuned", autocompletion=complete.method),
    ] = None,
    seeds: Annotated[int, Option(help=Seeds)] = 1,
    tuned: Annotated[
        Path | None,
        Option(
            help="run what `fedloom tune` chose in this folder, on seeds that it never saw",
            show_default=False,
            autocompletion=complete.run_folder,
        ),
    ] = None,
    label: Labels = None,
    personal: Annotated[bool, Option(help="also fine-tune every client")] = True,
    personal_part: Annotated[str, Option(help="what is fine-tuned: full | head | body | adapter | alternate")] = "full",
    personal_epochs: Annotated[int, Option(help="epochs of fine-tuning")] = 5,
    personal_rate: Annotated[float, Option(help="fine-tuning rate as a fraction of the method's own")] = 0.1,
    **flags: Any,
) -> Outcome:
    """Run several methods on the same clients and print one table."""
    if methods is not None and not methods.strip("; "):
        raise FedloomError(f"methods: none is given; write for instance --methods {DEFAULT!r}")
    fields = recipe_fields(recipe, flags, methods)

    from fedloom import api
    from fedloom.report.progress import ProgressBar
    from fedloom.studies.cells import RelativeFineTuning

    fine_tuning = RelativeFineTuning(personal_part, personal_epochs, personal_rate) if personal else None  # type: ignore[arg-type]
    with ProgressBar(console.out) as bar:
        comparison = api.compare(
            methods or (None if tuned else DEFAULT),
            seeds,
            tuned=tuned,
            labels=label or (),
            given=fields,
            fine_tuning=fine_tuning,
            callbacks=[bar],
        )
    return _show(comparison)


@recipe_flags
def sweep(
    recipe: RecipeFile = None,
    over: Annotated[
        list[str] | None,
        Option(
            help='field=value,value; repeat for more fields; also "method=fedavg,fn", seed=0,1',
            metavar="FIELD=VALUES",
            autocompletion=complete.field,
        ),
    ] = None,
    methods: Annotated[
        str | None, Option(help=Methods, show_default="the recipe's", autocompletion=complete.method)
    ] = None,
    seeds: Annotated[int | None, Option(help=Seeds, show_default="1")] = None,
    label: Labels = None,
    **flags: Any,
) -> Outcome:
    """Run a grid of settings; the same command resumes it and skips finished cells."""
    fields = recipe_fields(recipe, flags, methods)

    from fedloom import api
    from fedloom.report.progress import ProgressBar

    with ProgressBar(console.out) as bar:
        comparison = api.sweep(over or [], methods, seeds, labels=label or (), given=fields, callbacks=[bar])
    return _show(comparison)


def _show(comparison: Comparison) -> Outcome:
    """The tables, notes on them, and where everything is."""
    from fedloom.report.data import comparison_data
    from fedloom.report.grid import sheets
    from fedloom.report.personal import print_wide
    from fedloom.report.sheet import rich_table

    for sheet in (made := sheets(comparison)):
        print_wide(console.out, rich_table(sheet))
    for note in (made[0].caption, *made[-1].notes):
        style = next((style for word, style in STYLES.items() if note.startswith(word)), None)
        if note:
            console.out.print(note, highlight=False, markup=False, style=style)
    depth = "*/" * (2 if comparison.points != [()] else 1)
    console.line(f"run folders: {comparison.root}/{depth}seed*; tables: {comparison.root}/table.*")
    return Outcome(comparison_data(comparison), [comparison.root], code=1 if comparison.failures else 0)
