"""The command line: parse, call, print. Every wrong value is one sentence and exit code 2."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from fedloom import __version__, api
from fedloom.bench import bench as run_bench
from fedloom.cli_personal import register as register_personal
from fedloom.compare import Comparison, Tuning
from fedloom.data import list_sets, list_splits
from fedloom.deploy.cli import flower
from fedloom.engine.setup import import_parts
from fedloom.errors import DISK, FedloomError, Interrupted, Unwritable, one_line, shown
from fedloom.measure.analyze import WHAT
from fedloom.methods import list_methods
from fedloom.nets import list_models
from fedloom.recipe import assign, read_recipe
from fedloom.report.analysis import analysis_tables
from fedloom.report.grid import sheets
from fedloom.report.personal import print_wide
from fedloom.report.progress import Bar
from fedloom.report.sheet import rich_table
from fedloom.report.split_view import split_view
from fedloom.report.table import domain_table, listing, size, summary_table, time_line
from fedloom.report.watch import HOST, serve

app = typer.Typer(
    help="Federated learning for clients whose data disagree: a method is a sum of parts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(flower, name="flower")
USAGE: type[typer.BadParameter] = typer.BadParameter.__bases__[
    0
]  # typer may carry a click of its own, so the class is taken from typer
out = Console()
err = Console(stderr=True)

FLAGS = {
    "data": "digits | NAME (fedloom list data) | PATH.npz | hf:owner/name | folder:PATH",
    "split": 'who holds and sees what, as "dirichlet:0.5+noise:0.1" (fedloom list splits)',
    "clients": "how many clients there are",
    "model": "a net's name (fedloom list models) | package.module:function",
    "method": 'a sum of parts, as "scaffold + fn" (fedloom list methods)',
    "rounds": "how many rounds",
    "fraction": "share of the clients in a round",
    "epochs": "local epochs",
    "batch": "local batch size | full",
    "lr": "learning rate",
    "momentum": "of local SGD",
    "weight_decay": "of local SGD",
    "schedule": "constant | step | exp:0.998 | cosine",
    "weighting": "of clients in the average: samples | uniform",
    "augment": "none | flip | crop+flip",
    "precision": "fp32 | bf16 | auto (by the net and the processor)",
    "kernels": "of convolutions: auto (chosen by shape) | torch (always torch's own)",
    "lanes": "auto (one a core) | how many processes | ray (on a Ray cluster)",
    "device": "cpu | cuda (all that can be seen) | cuda:N",
    "stack": "off | auto | how many clients of a tiny net train in one computation",
    "seed": "of everything that is drawn",
    "eval_every": "rounds between tests (0: only after the last)",
    "init": "PATH.safetensors | hf:owner/name(/file): first weights, where names and shapes match",
    "track": "tensorboard | mlflow | wandb: tell it every round",
    "analyze_every": "rounds between analyses of factors, norms, alignment and drift (0: none)",
    "name": "the run goes to runs/NAME",
    "out": "the run goes here",
}


def recipe_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the recipe's flags in place of its **flags."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                Option(f"--{name.replace('_', '-')}", help=text, show_default=False, rich_help_panel="Recipe"),
            ],
        )
        for name, text in FLAGS.items()
    ]
    settings = inspect.Parameter(
        "set_",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            list[str] | None,
            Option("--set", help="any other field: a.b=value", show_default=False, rich_help_panel="Recipe"),
        ],
    )
    parts = inspect.Parameter(
        "parts",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            list[str] | None,
            Option(
                "--parts",
                help="a module or .py file with parts of your own",
                show_default=False,
                rich_help_panel="Recipe",
            ),
        ],
    )
    keyword_only = [p.replace(kind=p.KEYWORD_ONLY) for p in own]
    command.__signature__ = inspect.Signature([*keyword_only, *more, parts, settings])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def _fields(given: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """A recipe file with the flags laid over it, then --set."""
    settings = flags.pop("set_") or []
    if not flags["parts"]:
        flags.pop("parts")
    found = api.gather(read_recipe(given) if given else None, {k: v for k, v in flags.items() if v is not None})
    for setting in settings:
        assign(found, setting)
    return found


@app.command()
@recipe_flags
def run(
    recipe: Annotated[Path | None, Argument(help="a YAML file; flags go over it", show_default=False)] = None,
    resume: Annotated[
        Path | None, Option(help="carry on an interrupted run in this folder", show_default=False)
    ] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="print nothing but errors")] = False,
    **flags: Any,
) -> None:
    """Run one experiment, or carry one on."""
    with Bar(Console(quiet=True) if quiet else out) as bar:
        if resume is not None:
            lanes = flags.pop("lanes")
            if given := [name for name, value in flags.items() if value]:
                name = given[0].rstrip("_").replace("_", "-")
                raise FedloomError(f"--resume: the recipe is the folder's own; leave out --{name}")
            done = api.run(resume=resume, watcher=bar, lanes=lanes)
        else:
            done = api.run(_fields(recipe, flags), watcher=bar)
    if not quiet:
        out.print(summary_table(done.summary))
        if table := domain_table(done.summary):
            out.print(table)
        if "seconds_by" in done.summary:  # a run that an older version finished has none
            out.print(time_line(done.summary), highlight=False, soft_wrap=True)
        out.print(f"run folder: {done.path}", highlight=False, soft_wrap=True)


@app.command()
@recipe_flags
def compare(
    recipe: Annotated[Path | None, Argument(help="a YAML file; flags go over it", show_default=False)] = None,
    methods: Annotated[
        str, Option(help='"fedavg; fn @ lr=0.3; dr + fd @ lr=1 epochs=2"')
    ] = "fedavg; fn; babu; dr + fd",
    seeds: Annotated[int, Option(help="how many seeds, beginning with --seed")] = 1,
    personal: Annotated[bool, Option(help="also fine-tune every client")] = True,
    personal_part: Annotated[str, Option(help="what is fine-tuned: full | head | body")] = "full",
    personal_epochs: Annotated[int, Option(help="epochs of fine-tuning")] = 5,
    personal_rate: Annotated[float, Option(help="its learning rate, as a share of the method's own")] = 0.1,
    **flags: Any,
) -> None:
    """Run several methods on the same clients and print one table."""
    tuning = Tuning(personal_part, personal_epochs, personal_rate) if personal else None  # type: ignore[arg-type]
    with Bar(out) as bar:
        found = api.compare(methods, seeds, given=_fields(recipe, flags), tuning=tuning, watcher=bar)
    _show(found)


@app.command()
@recipe_flags
def sweep(
    recipe: Annotated[Path | None, Argument(help="a YAML file; flags go over it", show_default=False)] = None,
    over: Annotated[
        list[str] | None, Option(help='field=value,value; again for more fields; also "method=fedavg,fn" and seed=0,1')
    ] = None,
    methods: Annotated[str | None, Option(help='rows of the grid: "fedavg; fn; dr + fd"', show_default=False)] = None,
    seeds: Annotated[int | None, Option(help="how many seeds, beginning with --seed", show_default="1")] = None,
    **flags: Any,
) -> None:
    """Run a grid of settings; the same command carries on after an interruption and skips finished cells."""
    with Bar(out) as bar:
        found = api.sweep(over or [], methods, seeds, given=_fields(recipe, flags), watcher=bar)
    _show(found)


def _show(found: Comparison) -> None:
    """The tables, what must be said of them, and where everything is."""
    for sheet in (made := sheets(found)):
        print_wide(out, rich_table(sheet))
    for note in made[-1].notes:
        out.print(note, highlight=False, markup=False, style="red" if note.startswith("Failed:") else None)
    depth = "*/" * (2 if found.points != [()] else 1)
    out.print(f"run folders: {found.root}/{depth}seed*; tables: {found.root}/table.*", highlight=False, soft_wrap=True)
    if found.failures:
        raise typer.Exit(1)


@app.command()
def report(
    paths: Annotated[list[Path], Argument(help="run folders, or folders of runs", show_default=False)],
    out_: Annotated[
        Path | None,
        Option("--out", "-o", help="the file; for figures a folder", show_default="report.html, or figures/"),
    ] = None,
    format: Annotated[str, Option(help="html | svg | png | pdf: one page, or a file for each figure")] = "html",
    title: Annotated[str, Option(help="of the page", show_default=False)] = "",
) -> None:
    """One self-contained page about runs: tables, curves, splits, clients, analysis, cost."""
    for path in api.report(list(paths), out_, format, title):
        out.print(f"{path}  {size(path.stat().st_size)}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def watch(
    paths: Annotated[list[Path], Argument(help="run folders, or folders of runs", show_default=False)],
    port: Annotated[int, Option(help="on this machine only; 0: any free one")] = 8000,
) -> None:
    """Serve the page of runs while they go; it updates itself. Ctrl-C ends it."""
    with serve(paths, port) as server:
        out.print(f"http://{HOST}:{server.server_port}  (Ctrl-C ends it)", highlight=False, soft_wrap=True)
        server.serve_forever(poll_interval=0.2)


@app.command()
@recipe_flags
def split(
    recipe: Annotated[Path | None, Argument(help="a YAML file; flags go over it", show_default=False)] = None,
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
    """Make, read, store, measure and draw a split: who holds what, and how strongly clients disagree."""
    found = api.split(_fields(recipe, flags), source=source)
    if not quiet:
        out.print(split_view(found))
    written = [] if output is None else found.save(output)
    written += [] if picture is None else api.draw_split(found, picture)
    for path in written:
        out.print(f"written: {path}", highlight=False, soft_wrap=True)


@app.command()
def analyze(
    path: Annotated[Path, Argument(help="the folder of a finished run", show_default=False)],
    what: Annotated[str, Option(help=f"all, or some of: {','.join(WHAT)}")] = "all",
    clients: Annotated[
        str | None,
        Option(
            help="whose local models are made again: 0,3,7 | all (otherwise ten of the last round)", show_default=False
        ),
    ] = None,
    images: Annotated[
        int | None, Option(help="at most so many test images, of each class alike", show_default=False)
    ] = None,
    target: Annotated[
        str | None, Option(help="accuracies whose cost is asked for: 0.6,0.8", show_default=False)
    ] = None,
) -> None:
    """Factors, norms, alignment, drift, embeddings, cost: tables in the run folder."""
    with err.status("analysing") as status:
        found = api.analyze(
            path, "" if what == "all" else what, clients, images, target, lambda text: status.update(text)
        )
    for table in analysis_tables(found.summary, found.what):
        out.print(table)
    out.print(f"tables: {found.path}", highlight=False, soft_wrap=True)


@app.command(name="list")
def list_(
    what: Annotated[str, Argument(help="methods | models | data | splits", show_default=False)],
    parts: Annotated[list[str] | None, Option(help="a module or .py file with parts of your own")] = None,
) -> None:
    """Names that recipes may use."""
    import_parts(tuple(parts or ()))
    tables: dict[str, Callable[[], Any]] = {
        "methods": lambda: listing(
            list_methods(),
            {"title": "name", "summary": "what it does", "paper": "paper", "parameters": "parameters"},
        ),
        "models": lambda: listing(
            list_models(),
            {
                "name": "name",
                "line": "what it is",
                "origin": "as in",
                "smallest": "from px",
                "parameters": "weights at 32x32x3",
            },
        ),
        "data": lambda: listing(list_sets(), {"name": "name", "summary": "what it is", "file": "from"}),
        "splits": lambda: listing(
            list_splits(),
            {"name": "name", "kind": "decides", "example": "example", "summary": "what it does", "paper": "paper"},
        ),
    }
    if what not in tables:
        raise FedloomError(f"list: {shown(what)} is unknown; allowed are {', '.join(tables)}")
    out.print(tables[what]())


@app.command()
def bench(
    seconds: Annotated[float, Option(help="time for each workload")] = 20.0,
    only: Annotated[str | None, Option(help="one workload: lenet | cnn | mobilenet", show_default=False)] = None,
    precision: Annotated[str, Option(help="fp32 | bf16")] = "fp32",
) -> None:
    """Speed against the measured limit of this machine."""
    out.print(run_bench(seconds, only, precision, lambda text: err.print(text, highlight=False)))


register_personal(app, out, err)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, Option("--version", help="print the version and end")] = False,
) -> None:
    if version:
        out.print(__version__, highlight=False)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """The entry point; ends the process."""
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except Interrupted as error:
        _say(str(error))
        sys.exit(130)
    except Unwritable as error:
        _say(f"error: {error}")
        sys.exit(1)
    except FedloomError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except USAGE as error:
        _say(f"error: {one_line(error.format_message())}")
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has had enough
        _drop_output()
        sys.exit(1)
    except OSError as error:  # a place that cannot be read or written, found where no sentence of its own is made
        named = f"{error.filename}: " if error.filename else ""
        _say(f"error: {one_line(f'{named}{error.strerror or error}')}")
        if error.filename is None:
            _drop_output()
        sys.exit(1 if error.errno in DISK else 2)
    except MemoryError:
        _say("error: there is not enough memory for this; choose a smaller model, batch or number of clients")
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        _say("stopped")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _drop_output() -> None:
    """What was printed and nobody can take is not tried again when the process ends."""
    with suppress(OSError, ValueError):  # not a file at all, under a test or in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    err.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
