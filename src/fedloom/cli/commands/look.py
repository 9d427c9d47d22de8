"""The commands that look: split, analyze, report, watch, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fedloom.analysis.what import WHAT
from fedloom.cli import complete, console
from fedloom.cli.arguments import FinishedRun, Labels, RunFolders
from fedloom.cli.flags import RecipeFile, recipe_fields, recipe_flags
from fedloom.cli.outcome import Outcome


def report(
    paths: RunFolders,
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="the file, or a folder for figures", show_default="report.html, figures/"),
    ] = None,
    format: Annotated[str, Option(help="html (one page) | svg | png | pdf (one file per figure)")] = "html",
    title: Annotated[str, Option(help="title of the page", show_default="methods, data, split, model")] = "",
    label: Labels = None,
) -> Outcome:
    """Write one self-contained page about runs: tables, curves, splits, clients, analysis, cost."""
    from fedloom import api
    from fedloom.report.table import size

    written = api.report(list(paths), out, format, title, labels=label or ())
    for path in written:
        console.line(f"{path}  {size(path.stat().st_size)}")
    return Outcome({"paths": written}, written)


def watch(
    paths: RunFolders,
    port: Annotated[int, Option(help="port on this machine; 0: any free one")] = 8000,
    label: Labels = None,
) -> None:
    """Serve the page of runs while they go; it updates itself. Ctrl-C ends it."""
    from fedloom.report.page.watch import HOST, serve

    with serve(paths, port, labels=label or ()) as server:
        console.line(f"http://{HOST}:{server.server_port}  (Ctrl-C ends it)")
        server.serve_forever(poll_interval=0.2)


@recipe_flags
def split(
    recipe: RecipeFile = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="store it here, for --split file:PATH.npz", show_default=False)
    ] = None,
    source: Annotated[
        Path | None,
        Option(
            "--from",
            help="read a stored split, or the folder of a run",
            show_default=False,
            autocompletion=complete.run_folder,
        ),
    ] = None,
    picture: Annotated[
        Path | None, Option(help="draw clients by classes: PATH.svg or PATH.png", show_default=False)
    ] = None,
    **flags: Any,
) -> Outcome:
    """Make, read, store, measure and draw a split: who holds what, and how much clients differ."""
    fields = recipe_fields(recipe, flags)

    from fedloom import api
    from fedloom.report.data import split_data
    from fedloom.report.split_view import split_view

    made = api.split(fields, source=source)
    console.out.print(split_view(made))
    written = [] if output is None else made.save(output)
    written += [] if picture is None else api.draw_split(made, picture)
    for path in written:
        console.line(f"written: {path}")
    return Outcome({**split_data(made), "paths": written}, written)


def analyze(
    path: FinishedRun,
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
) -> Outcome:
    """Measure factors, norms, alignment, drift, embeddings and cost; tables go to the run folder."""
    from fedloom import api
    from fedloom.report.analysis import analysis_tables

    with console.err.status("analyzing") as status:
        analysis = api.analyze(path, "" if what == "all" else what, clients, images, target, status.update)
    for table in analysis_tables(analysis.summary, analysis.what):
        console.out.print(table)
    console.line(f"tables: {analysis.path}")
    return Outcome({"path": analysis.path, **analysis.summary}, [analysis.path])


def bench(
    seconds: Annotated[float | None, Option(help="time for each workload", show_default="20; quick: 1")] = None,
    only: Annotated[
        str | None,
        Option(help="a net | kinds | tiny | evaluation | aggregation | start | ray | tuning", show_default=False),
    ] = None,
    precision: Annotated[str, Option(help="fp32 | bf16")] = "fp32",
    quick: Annotated[bool, Option("--quick", help="few and short repetitions")] = False,
    save: Annotated[bool, Option("--save", help="store the figures, to compare later ones with")] = False,
    stored: Annotated[
        Path | None, Option(help="file of stored figures", show_default="bench.json in the cache folder")
    ] = None,
) -> Outcome:
    """Measure the speed of this machine: training against matrix products, start-up, evaluation, aggregation, tuning.

    Stored figures of the same processor, number of cores and version of torch are shown beside the new ones.
    """
    from fedloom.bench import Effort, machine, read_stored, save_stored, speed_up
    from fedloom.bench import bench as run_bench
    from fedloom.report.bench import bench_tables

    effort = Effort((1.0 if quick else 20.0) if seconds is None else seconds, precision, quick)
    before = read_stored(effort, stored)
    figures = list(run_bench(effort, only, console.note))
    for table in bench_tables(figures, before, precision):
        console.out.print(table)
    if save:
        console.note(f"stored: {save_stored(figures, effort, stored)}")
    content = [{**figure.to_json(), "speed_up": speed_up(figure, before)} for figure in figures]
    return Outcome({"machine": machine(effort), "figures": content})
