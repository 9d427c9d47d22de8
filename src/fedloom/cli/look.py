"""The commands that look: split, analyze, report, watch, list, bench."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fedloom import api
from fedloom.cli import console
from fedloom.cli.flags import RecipeFile, recipe_fields, recipe_flags
from fedloom.data import list_sets, list_splits
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.metrics import list_metrics
from fedloom.io.user_code import import_parts
from fedloom.methods import list_methods
from fedloom.nets import list_models
from fedloom.papers.listing import list_protocols
from fedloom.papers.nearest import nearest
from fedloom.report.analysis import analysis_tables
from fedloom.report.bench import bench_tables
from fedloom.report.page.watch import HOST, serve
from fedloom.report.split_view import split_view
from fedloom.report.table import description, listing, size
from fedloom.runs.analyze import WHAT
from fedloom.runs.bench import MEASUREMENTS, Effort, machine, read_stored, save_stored, speed_up
from fedloom.runs.bench import bench as run_bench

Folders = Annotated[list[Path], Argument(help="run folders, or folders of runs", show_default=False)]


def report(
    paths: Folders,
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="the file, or a folder for figures", show_default="report.html, figures/"),
    ] = None,
    format: Annotated[str, Option(help="html (one page) | svg | png | pdf (one file per figure)")] = "html",
    title: Annotated[str, Option(help="title of the page", show_default=False)] = "",
) -> None:
    """Write one self-contained page about runs: tables, curves, splits, clients, analysis, cost."""
    for path in api.report(list(paths), out, format, title):
        console.line(f"{path}  {size(path.stat().st_size)}")


def watch(
    paths: Folders,
    port: Annotated[int, Option(help="port on this machine; 0: any free one")] = 8000,
) -> None:
    """Serve the page of runs while they go; it updates itself. Ctrl-C ends it."""
    with serve(paths, port) as server:
        console.line(f"http://{HOST}:{server.server_port}  (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)


@recipe_flags
def split(
    recipe: RecipeFile = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="store it here, for --split file:PATH.npz", show_default=False)
    ] = None,
    source: Annotated[
        Path | None, Option("--from", help="read a stored split, or the folder of a run", show_default=False)
    ] = None,
    picture: Annotated[
        Path | None, Option(help="draw clients by classes: PATH.svg or PATH.png", show_default=False)
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="print nothing but errors")] = False,
    **flags: Any,
) -> None:
    """Make, read, store, measure and draw a split: who holds what, and how much clients differ."""
    made = api.split(recipe_fields(recipe, flags), source=source)
    if not quiet:
        console.out.print(split_view(made))
    written = [] if output is None else made.save(output)
    written += [] if picture is None else api.draw_split(made, picture)
    for path in written:
        console.line(f"written: {path}")


def analyze(
    path: Annotated[Path, Argument(help="the folder of a finished run", show_default=False)],
    what: Annotated[str, Option(help=f"all, or some of: {','.join(WHAT)}")] = "all",
    clients: Annotated[
        str | None,
        Option(help="clients whose local models are trained again: 0,3,7 | all", show_default="ten of the last round"),
    ] = None,
    images: Annotated[int | None, Option(help="number of test samples, balanced by class", show_default="all")] = None,
    target: Annotated[
        str | None,
        Option(help="report the cost of reaching these values of the headline metric: 0.6,0.8", show_default=False),
    ] = None,
) -> None:
    """Measure factors, norms, alignment, drift, embeddings and cost; tables go to the run folder."""
    with console.err.status("analyzing") as status:
        analysis = api.analyze(path, "" if what == "all" else what, clients, images, target, status.update)
    for table in analysis_tables(analysis.summary, analysis.what):
        console.out.print(table)
    console.line(f"tables: {analysis.path}")


@dataclass(frozen=True)
class Listing:
    """Names that recipes may use: `columns` in the list, `more` also where one of them is asked for; keys to headings."""

    entries: Callable[[], Sequence[Mapping[str, Any]]]
    columns: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict)


LISTS: dict[str, Listing] = {
    "methods": Listing(
        list_methods,
        {
            "title": "name",
            "group": "changes",
            "summary": "what it does",
            "paper": "paper",
            "parameters": "parameters",
        },
    ),
    "models": Listing(
        list_models,
        {
            "name": "name",
            "line": "what it is",
            "inputs": "inputs",
            "options": "parameters",
            "smallest": "from px",
            "parameters": "weights",
            "origin": "as in",
        },
    ),
    "metrics": Listing(
        list_metrics,
        {"name": "name", "title": "title", "better": "better", "format": "format", "summary": "what it is"},
    ),
    "data": Listing(list_sets, {"name": "name", "summary": "what it is", "file": "from"}),
    "splits": Listing(
        list_splits,
        {"name": "name", "kind": "decides", "example": "example", "summary": "what it does", "paper": "paper"},
    ),
    "protocols": Listing(
        list_protocols,
        {"name": "name", "paper": "paper", "about": "what it is"},
        {"settings": "settings", "methods": "by method", "tested": "tested", "notes": "notes"},
    ),
}


def list_(
    what: Annotated[str, Argument(help=" | ".join(LISTS), show_default=False)],
    name: Annotated[str | None, Argument(help="one of these, with all that is known of it", show_default=False)] = None,
    parts: Annotated[list[str] | None, Option(help="a module or .py file with parts of your own")] = None,
) -> None:
    """List the names that recipes may use."""
    import_parts(tuple(parts or ()))
    if what not in LISTS:
        raise FedloomError(f"list: {shown(what)} is unknown; allowed are {', '.join(LISTS)}")
    kind = LISTS[what]
    entries = kind.entries()
    if name is None:
        console.out.print(listing(entries, kind.columns))
        return
    by_name = {str(entry["name"]): entry for entry in entries}
    if name not in by_name:
        raise FedloomError(f"list: {nearest(what.removesuffix('s'), name, by_name)}")
    console.out.print(description(by_name[name], {**kind.columns, **kind.more}))


def bench(
    seconds: Annotated[float | None, Option(help="time for each workload", show_default="20; quick: 1")] = None,
    only: Annotated[str | None, Option(help=f"one of: {', '.join(MEASUREMENTS)}", show_default=False)] = None,
    precision: Annotated[str, Option(help="fp32 | bf16")] = "fp32",
    quick: Annotated[bool, Option("--quick", help="few and short repetitions")] = False,
    as_json: Annotated[bool, Option("--json", help="print the figures as JSON")] = False,
    save: Annotated[bool, Option("--save", help="store the figures, to compare later ones with")] = False,
    stored: Annotated[
        Path | None,
        Option(help="file of stored figures", show_default="bench.json in the cache folder"),
    ] = None,
) -> None:
    """Measure the speed of this machine: training against matrix products, start-up, evaluation, aggregation, tuning.

    Stored figures of the same processor, number of cores and version of torch are shown beside the new ones.
    """
    effort = Effort((1.0 if quick else 20.0) if seconds is None else seconds, precision, quick)
    before = read_stored(effort, stored)
    figures = list(run_bench(effort, only, console.note))
    if as_json:
        content = [{**figure.to_json(), "speed_up": speed_up(figure, before)} for figure in figures]
        console.line(json.dumps({"machine": machine(effort), "figures": content}, indent=2))
    else:
        for table in bench_tables(figures, before, precision):
            console.out.print(table)
    if save:
        console.note(f"stored: {save_stored(figures, effort, stored)}")
