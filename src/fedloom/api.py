"""What the command line does, as Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.compare import CellWatcher, Comparison, Tuning, compare_cells, plan
from fedloom.engine.folder import RunFolder
from fedloom.engine.local import Which
from fedloom.errors import FedloomError
from fedloom.measure.analyze import Analysis, Question, answer
from fedloom.measure.personal import UNSEEN, Personal, Tuned, restore_finished
from fedloom.methods import Method, Part
from fedloom.personal import Tuning as FineTuning
from fedloom.personal import personalize_run
from fedloom.recipe import Recipe, read_recipe, recipe
from fedloom.report.figures import export
from fedloom.report.grid import save as save_tables
from fedloom.report.page import report as write_page
from fedloom.report.split_picture import write_picture
from fedloom.run import Run, Watcher, federation, resume, start
from fedloom.splitting import Split, make_split, read_split
from fedloom.sweep import grid


def run(
    given: Recipe | str | Path | Mapping[str, Any] | None = None, *, watcher: Watcher | None = None, **fields: Any
) -> Run:
    """Run an experiment: `run(data="digits", split="shards:2", method="scaffold + fn", rounds=50)`.

    The first argument may be a recipe, its fields or a YAML file; keywords go over it. `run(resume="runs/x")` carries
    on an interrupted run.
    """
    if "resume" in fields:
        path, lanes = fields.pop("resume"), fields.pop("lanes", None)
        if given is not None or fields:
            raise FedloomError(f"resume: the recipe is the folder's own; leave out {next(iter(fields), 'the recipe')}")
        return resume(path, watcher, lanes)
    return start(recipe(gather(given, fields)), watcher)


def gather(given: Recipe | str | Path | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe and what is laid over them."""
    if isinstance(given, Recipe):
        found = given.model_dump()
    elif isinstance(given, str | Path):
        found = read_recipe(given)
    else:
        found = dict(given or {})
    if isinstance(fields.get("method"), Method | Part):
        fields = {**fields, "method": str(fields["method"])}
    if isinstance(fields.get("data"), str) and isinstance(found.get("data"), dict):
        fields = {**fields, "data": {**found["data"], "name": fields["data"]}}
    return {**found, **fields}


def split(
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    *,
    source: str | Path | None = None,
    **fields: Any,
) -> Split:
    """The split that a run with these fields has: `split(data="digits", split="dirichlet:0.5", clients=20)`.

    `source`: read it from a stored file or from the folder of a run instead.
    """
    found = gather(given, fields)
    return make_split(found) if source is None else read_split(source, found)


def draw_split(found: Split, path: str | Path) -> list[Path]:
    """Clients by classes as a picture, .svg or .png; one a stage."""
    path, written = Path(path), []
    for holding in found.stages:
        place = path if holding.begin == 1 else path.with_stem(f"{path.stem}-{holding.begin}")
        write_picture(holding, f"{found.spec} on {found.data}", place)
        written.append(place)
    return written


def personalize(
    path: str | Path | Run,
    part: Tuned = "full",
    epochs: int = 5,
    lr: float = 0.001,
    done: Callable[[int], None] | None = None,
    *,
    loss: Which = "method",
    unseen: int = UNSEEN,
) -> Personal:
    """Fine-tune every client of a finished run; the outcome is also stored in its folder.

    `loss`: the method's own, its objective without penalties, or ce. `unseen`: each client is also tested on at most so
    many test images of classes that it never saw. `fl.personalize_run` does several combinations at once.
    """
    tuning = FineTuning(part, epochs, lr, loss)
    return personalize_run(path, [tuning], again=True, unseen=unseen, done=done)[0]


def analyze(
    path: str | Path | Run,
    what: str | Sequence[str] = (),
    clients: Sequence[int] | str | None = None,
    images: int | None = None,
    target: float | Sequence[float] | str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Analysis:
    """Measure a finished run: `analyze(run, what="factors,norms", clients=[0, 3])`; tables go into its folder.

    Without `what`, everything. `clients`: whose local models are made again (at most ten of the last cohort, if none are
    named; "all" for everybody). `images`: at most so many test images. `target`: accuracies whose cost is asked for.
    """
    folder = RunFolder(path.path if isinstance(path, Run) else path)
    question = Question.of(what, clients, images, target)
    experiment = folder.experiment()
    with federation(experiment, folder, question.rows(experiment.recipe.clients)) as fed:
        restore_finished(fed, folder)
        with folder.held():
            return answer(fed, folder, question, tell or (lambda text: None))


def compare(
    methods: str | list[str],
    seeds: int = 1,
    *,
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    tuning: Tuning | None = None,
    watcher: CellWatcher | None = None,
    **fields: Any,
) -> Comparison:
    """Run several methods on the same clients: `compare("fedavg; fn @ lr=0.3", seeds=3, data="digits", rounds=20)`."""
    found = compare_cells(plan(methods, seeds, gather(given, fields), tuning=tuning), tuning, watcher)
    save_tables(found)
    return found


def sweep(
    over: Sequence[str] | Mapping[str, Sequence[Any]],
    methods: str | list[str] | None = None,
    seeds: int | None = None,
    *,
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    tuning: Tuning | None = None,
    watcher: CellWatcher | None = None,
    **fields: Any,
) -> Comparison:
    """Run a grid: `sweep({"lr": [0.01, 0.03], "epochs": [1, 5]}, methods="fedavg; fn", seeds=3, rounds=20)`."""
    asked, whole = grid(over), gather(given, fields)
    if asked.methods is not None and methods is not None:
        raise FedloomError("over: methods are given twice; leave out --methods or --over method=…")
    if asked.seeds is not None and seeds is not None:
        raise FedloomError("over: seeds are given twice; leave out --seeds or --over seed=…")
    rows = asked.methods or methods or str(whole.get("method", recipe(whole).method))
    cells = plan(rows, asked.seeds or (1 if seeds is None else seeds), whole, asked.points, tuning)
    found = compare_cells(cells, tuning, watcher)
    save_tables(found)
    return found


def report(
    paths: str | Path | Run | Sequence[str | Path | Run],
    out: str | Path | None = None,
    format: str = "html",
    title: str = "",
) -> list[Path]:
    """One page about these runs, or all runs below these folders; with svg, png or pdf a file for each figure."""
    given = [paths] if isinstance(paths, str | Path | Run) else list(paths)
    folders = [path.path if isinstance(path, Run) else path for path in given]
    if not folders:
        raise FedloomError("report: no run folder is given")
    if format == "html":
        return [write_page(folders, "report.html" if out is None else out, title)]
    return export(folders, "figures" if out is None else out, format)
