"""The command that reproduces papers: `fedloom reproduce list | PAPER | PAPER/TABLE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fedloom.cli import complete, console, early
from fedloom.cli.outcome import Outcome
from fedloom.errors import FedloomError
from fedloom.paths import REPRODUCTIONS
from fedloom.recipe import assign


def reproduce(
    target: Annotated[
        str,
        Argument(
            help="list | PAPER | PAPER/TABLE, such as fedbabu/table5",
            show_default=False,
            autocompletion=complete.reproduction,
        ),
    ],
    what: Annotated[
        str | None,
        Argument(help="after list: a paper or a table", show_default=False, autocompletion=complete.paper_or_table),
    ] = None,
    cells: Annotated[
        str | None, Option(help='cells by their labels: "s=10, tau=1"; alternatives: "s=10; s=50"', show_default="all")
    ] = None,
    methods: Annotated[
        str | None,
        Option(help="methods by name or sum: fedavg,fedbabu", show_default="all", autocompletion=complete.method),
    ] = None,
    seeds: Annotated[int, Option(help="number of seeds, beginning with 0")] = 1,
    scale: Annotated[float, Option(help="share of the protocol's rounds")] = 1.0,
    source: Annotated[
        list[Path] | None,
        Option("--from", help="reuse finished runs below this folder; repeatable", show_default=False),
    ] = None,
    out: Annotated[Path, Option("--out", "-o", help="folder for runs and tables")] = REPRODUCTIONS,
    as_published: Annotated[
        bool, Option("--as-published", help="run what the released code did, where that is another method")
    ] = False,
    tuned_clients: Annotated[
        int | None, Option(help="number of clients that are fine-tuned, drawn by the seed", show_default="all")
    ] = None,
    only_plan: Annotated[bool, Option("--plan", help="say what would be run and how long it takes, then stop")] = False,
    workers: Annotated[str | None, Option(help="number of worker processes", show_default="one per core")] = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            help="another value of a recipe field in all runs: a.b=value",
            metavar="FIELD=VALUE",
            autocompletion=complete.field,
        ),
    ] = None,
) -> Outcome:
    """Reproduce a paper's table from its own protocol, with the published numbers beside ours."""
    if (named := what if target == "list" else target) is not None:
        early.check_paper(named.partition("/")[0])
    if target == "list":
        return _list(what)
    if what is not None:
        raise FedloomError(f"reproduce: one table at a time; leave out {what}")
    given: dict[str, Any] = {}
    for setting in set_ or []:
        assign(given, setting)
    if workers is not None:
        given["workers"] = workers

    from fedloom.report.data import reproduction_data
    from fedloom.report.personal import print_wide
    from fedloom.report.progress import ProgressBar
    from fedloom.report.reproduction import save, sheets
    from fedloom.report.sheet import rich_table
    from fedloom.studies.reproduce import carry_out, plan
    from fedloom.studies.reproduce.estimate import duration, job_seconds

    planned = plan(target, cells, methods, seeds, scale, source or (), out, given, as_published, tuned_clients)
    console.note(planned.describe())
    for name, how in planned.without_data.items():
        console.note(f"left out: cells on {name}, which is missing; {how}")
    if only_plan:
        jobs = []
        for job in planned.jobs:
            finished, seconds = job.digest in planned.done, job_seconds(job)
            state = "finished" if finished else f"about {duration(seconds)}"
            console.line(f"{job.cell.title}: {state}; {job.folder}")
            jobs.append({"cell": job.cell.title, "finished": finished, "seconds": seconds, "path": job.folder})
        return Outcome({"path": planned.out, "jobs": jobs}, [job.folder for job in planned.jobs])
    with ProgressBar(console.out) as bar:
        reproduction = carry_out(planned, [bar])
    for key, table in reproduction.tables:
        made = sheets(reproduction, key, table)
        for sheet in made:
            print_wide(console.out, rich_table(sheet))
        for note in made[-1].notes:
            console.out.print(note, highlight=False, markup=False, style="red" if note.startswith("Failed:") else None)
    save(reproduction)
    console.line(f"tables: {planned.out}/*.md, *.tex, *.csv; run folders: {planned.out}/runs")
    failed = any(not item.diverged for item in reproduction.failures)
    return Outcome(reproduction_data(reproduction), [planned.out], code=1 if failed else 0)


def _list(what: str | None) -> Outcome:
    from fedloom.report.catalog.entry import Entry
    from fedloom.report.catalog.render import list_lines, note_lines
    from fedloom.report.published import cell_line, table_line, table_list, tables_list

    one_table = what is not None and "/" in what
    console.note("planning, and timing nets on this machine to say how long runs would take ...")
    listed = table_list(str(what)) if one_table else tables_list(what)
    entries = [Entry(*(cell_line(row) if one_table else table_line(row))) for row in listed.rows]
    width = console.width()
    console.lines([*list_lines(entries, width), "", *note_lines(listed.notes, width)])
    return Outcome(listed.rows)
