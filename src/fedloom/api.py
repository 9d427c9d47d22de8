"""What the command line does, as Python functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch.nn import Module

from fedloom.data import named_data, named_split
from fedloom.engine.given import given_recipe
from fedloom.engine.server.callback import RunCallback
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.fine_tuned import PersonalizationResult, TunedPart
from fedloom.evaluation.unseen import UNSEEN
from fedloom.finished.analyze import Analysis, AnalysisRequest, run_analysis
from fedloom.finished.personalize import FineTuning, personalize_run
from fedloom.finished.restore import restore_finished
from fedloom.keywords import ProtocolKeywords, RecipeKeywords
from fedloom.methods import Method, Part
from fedloom.methods.api.context import Objective
from fedloom.nets import refuse_while_reading, stored_name
from fedloom.papers import Protocol, apply, as_typed, nested, protocol
from fedloom.papers import protocols as all_protocols
from fedloom.papers.comparison import names as protocol_names
from fedloom.papers.comparison import rows as protocol_rows
from fedloom.recipe import Recipe, merged, read_recipe, recipe
from fedloom.report.grid import save as save_tables
from fedloom.report.page.figures import export
from fedloom.report.page.html import report as write_page
from fedloom.report.progress import watching
from fedloom.report.reproduction import save as save_reproduction
from fedloom.report.split_picture import write_picture
from fedloom.report.tuning import watching_trials
from fedloom.runs.existing import resume_or_return, start_or_return
from fedloom.runs.federation import federation
from fedloom.runs.folder import RunFolder
from fedloom.runs.labels import Labels, read_labels, refuse_equal_names
from fedloom.runs.run import Run
from fedloom.runs.split import Split, make_split, read_split
from fedloom.signature import with_keywords
from fedloom.studies.cells import RelativeFineTuning, plan
from fedloom.studies.compare import compare_cells
from fedloom.studies.comparison import Comparison
from fedloom.studies.comparison_file import write_comparison
from fedloom.studies.reproduce import OUT, Reproduction, carry_out
from fedloom.studies.reproduce import plan as plan_reproduction
from fedloom.studies.sweep import grid
from fedloom.studies.tune.budget import read_budget
from fedloom.studies.tune.carry_out import Observer
from fedloom.studies.tune.carry_out import carry_out as carry_out_tuning
from fedloom.studies.tune.fresh import Tuning, fresh
from fedloom.studies.tune.over import Over
from fedloom.studies.tune.plan import plan as plan_tuning
from fedloom.studies.tune.study import Study

Reported = str | Path | Run | Comparison | Study | Reproduction
Given = Recipe | str | Path | Mapping[str, Any] | None


@with_keywords
def run(
    given: Given = None,
    *,
    resume: str | Path | bool | None = None,
    progress: bool | None = None,
    callbacks: Sequence[RunCallback] = (),
    **fields: Unpack[RecipeKeywords],
) -> Run:
    """Run an experiment.

    The first argument may be a recipe, its fields or a YAML file; keywords override it. `protocol` takes all other fields from
    a paper's protocol.

    A named run that is finished is returned if its recipe is the same. `resume=True` continues it if it was interrupted;
    `run(resume="runs/x")` continues the run of a folder.

    `data` may be an object: an fl.Dataset (`from_arrays`, `from_frame`, `from_torch`, `from_hf`), a torch Dataset or a pair
    of them, arrays, or a Hugging Face Dataset. `model` may be an nn.Module; its weights are the initial ones, and
    `head="classifier"` names its last layer where that is not the linear layer which makes its output. `split` may be a list
    with the training indices of each client, or a function (labels, clients, rng) that returns one. All of them are stored in
    the cache, and the recipe names them by their content.

    `progress`: a bar; by default in a terminal or a notebook.

    >>> run = fl.run(data="digits", split="shards:2", clients=20, method="scaffold + fn", rounds=2)
    >>> run.metric("accuracy") > 0.1
    True
    """
    if resume is None or isinstance(resume, bool):
        recipe = given_recipe(with_protocol(gather(given, fields)))
        with watching(progress, callbacks) as watchers:
            return start_or_return(recipe, watchers, bool(resume))
    refuse_while_reading()
    rest: dict[str, Any] = {**fields}
    workers, data = rest.pop("workers", None), rest.pop("data", None)
    if data is not None:
        _refuse_other_data(resume, data)
    if given is not None or rest:
        raise FedloomError(f"resume: the recipe is the folder's own; leave out {next(iter(rest), 'the recipe')}")
    with watching(progress, callbacks) as watchers:
        return resume_or_return(resume, watchers, workers)


def _refuse_other_data(path: str | Path, data: Any) -> None:
    """Naming an object puts it back into the cache, from where a run resumes; it must be the run's own."""
    stored, named = RunFolder(path).recipe().data.name, named_data(data)
    if named != stored:
        raise FedloomError(f"data: {path} was trained on {stored}, and this is {shown(named)}; pass the run's own data")


def gather(given: Given, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe, overridden by others."""
    refuse_while_reading()
    if isinstance(given, Recipe):
        unset = {"split", "clients"} - given.model_fields_set  # the data may decide them
        base = given.model_dump(exclude=unset)
    elif isinstance(given, str | Path):
        base = read_recipe(given)
    else:
        base = dict(given or {})
    changes = dict(fields)
    for values in (base, changes):
        if isinstance(values.get("method"), Method | Part):
            values["method"] = str(values["method"])
        if "data" in values:
            values["data"] = named_data(values["data"])
        if isinstance(values.get("model"), Module):
            values["model"] = stored_name(values["model"], values.pop("head", None))
        if "split" in values:
            values["split"], clients = named_split(values["split"])
            if clients is not None:
                values.setdefault("clients", clients)
        values |= {name: _plain(value) for name, value in values.items()}
    return merged(base, changes)


def _plain(value: Any) -> Any:
    """Paths and numbers of numpy as a recipe has them."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def with_protocol(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe; `protocol` among them stands for those of a paper's protocol, which the others override."""
    whole = dict(fields)
    name = whole.pop("protocol", None)
    if name is None:
        return whole
    text = str(whole.pop("method", "fedavg"))
    applied = apply(protocol(str(name)), text, whole)
    return nested({**applied, "method": as_typed(text, applied["method"])})


def _rows(methods: str | Sequence[str], fields: Mapping[str, Any], swept: Collection[str] = ()) -> list[str]:
    """Methods of a comparison, each with the settings that a protocol among the fields gives it."""
    texts = _listed(methods)
    if "protocol" not in fields:
        return texts
    given = {name: value for name, value in fields.items() if name not in ("protocol", "method")}
    if "epochs" in swept and "rounds" not in (*swept, *given) and protocol(str(fields["protocol"])).rounds_times_epochs:
        raise FedloomError("over: epochs is swept, and the protocol fixes rounds x epochs; give --rounds too")
    return protocol_rows(protocol(str(fields["protocol"])), texts, given, swept)


def _names(
    methods: str | Sequence[str], rows: Sequence[str], labels: Labels, fields: Mapping[str, Any]
) -> dict[str, str]:
    """Names of rows in tables: those that are given, and methods as they were typed, where a protocol spelled them out."""
    typed = protocol_names(_listed(methods), rows) if "protocol" in fields else {}
    return {**typed, **read_labels(labels, rows)}


def _listed(methods: str | Sequence[str]) -> list[str]:
    texts = methods.split(";") if isinstance(methods, str) else list(methods)
    return [text.strip() for text in texts if text.strip()]


@with_keywords
def split(
    given: Given = None,
    *,
    source: str | Path | None = None,
    **fields: Unpack[RecipeKeywords],
) -> Split:
    """The split that a run with these fields has.

    `source`: read it from a stored file or from the folder of a run instead.

    >>> split = fl.split(data="digits", split="dirichlet:0.5", clients=20)
    >>> len(split.partition.train(0)) > 0
    True
    >>> fl.split(split=[[0, 1, 2], [3, 4]]).clients
    2
    """
    whole = with_protocol(gather(given, fields))
    return make_split(whole) if source is None else read_split(source, whole)


def draw_split(split: Split, path: str | Path) -> list[Path]:
    """Draw clients by classes, as .svg or .png; one picture per stage."""
    path, written = Path(path), []
    for stage in split.stages:
        place = path if stage.begin == 1 else path.with_stem(f"{path.stem}-{stage.begin}")
        write_picture(stage, f"{split.spec} on {split.data}", place)
        written.append(place)
    return written


def personalize(
    path: str | Path | Run,
    part: TunedPart = "full",
    epochs: int = 5,
    lr: float = 0.001,
    done: Callable[[int], None] | None = None,
    *,
    loss: Objective = "method",
    unseen: int = UNSEEN,
) -> PersonalizationResult:
    """Fine-tune every client of a finished run; the outcome is also stored in its folder.

    `loss`: the method's own, the same without regularizers, or cross-entropy (ce). `unseen`: number of test samples of classes
    that a client never saw, on which it is tested too. `fl.personalize_run` does several combinations at once.

    >>> tuned = fl.personalize(run, part="head", epochs=1, lr=0.01)
    >>> tuned.headline.personal["mean"] >= 0
    True
    """
    return personalize_run(path, [FineTuning(part, epochs, lr, loss)], again=True, unseen=unseen, done=done)[0]


def analyze(
    path: str | Path | Run,
    what: str | Sequence[str] = (),
    clients: Sequence[int] | str | None = None,
    images: int | None = None,
    target: float | Sequence[float] | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Analysis:
    """Measure a finished run; tables go into its folder.

    By default everything is measured. `clients`: whose local models are trained again (default: ten of the last cohort; "all").
    `images`: number of test samples. `target`: values of the headline metric whose cost is reported.

    >>> fl.analyze(run, what="cost", target=0.2).path.name
    'analysis'
    """
    folder = RunFolder(path.path if isinstance(path, Run) else path)
    request = AnalysisRequest.of(what, clients, images, target)
    experiment = folder.experiment()
    with federation(experiment, folder, request.rows(experiment.recipe.clients)) as fed:
        restore_finished(fed, folder)
        with folder.held():
            return run_analysis(fed, folder, request, progress or (lambda text: None))


@with_keywords
def compare(
    methods: str | list[str] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    tuned: str | Path | None = None,
    labels: Labels = (),
    given: Given = None,
    fine_tuning: RelativeFineTuning | None = None,
    progress: bool | None = None,
    callbacks: Sequence[RunCallback] = (),
    **fields: Unpack[RecipeKeywords],
) -> Comparison:
    """Run several methods on the same clients. A method may have settings of its own behind an @.

    Finished runs are read and interrupted ones resumed, if the name and everything else is the same.

    `compare(tuned="runs/tune", seeds=5)` runs the settings that a tuning chose, with its recipe, on seeds that it never saw;
    `methods` may name some of its methods, and others. `labels={"dr + fd": "FedDr+"}` are names for tables and the page.

    >>> comparison = fl.compare("fedavg; fn @ lr=0.3", seeds=2, data="digits", clients=5, rounds=1, model="linear")
    >>> comparison.rows
    ['fedavg', 'fn @ lr=0.3']
    """
    whole = gather(given, fields)
    if tuned is not None:
        with watching(progress, callbacks) as watchers:
            return _compare_tuned(tuned, methods, seeds, whole, labels, fine_tuning, watchers)
    if methods is None:
        raise FedloomError('methods: none given; separate them by semicolons, as in "fedavg; fn; dr + fd"')
    rows = _rows(methods, whole)
    cells = plan(rows, seeds, with_protocol(whole), fine_tuning=fine_tuning)
    names = _names(methods, rows, labels, whole)
    with watching(progress, callbacks) as watchers:
        return _compared(compare_cells(cells, fine_tuning, watchers), names)


def _compare_tuned(
    folder: str | Path,
    methods: str | Sequence[str] | None,
    seeds: int | Sequence[int],
    given: Mapping[str, Any],
    labels: Labels,
    fine_tuning: RelativeFineTuning | None,
    callbacks: Sequence[RunCallback],
) -> Comparison:
    texts = methods.split(";") if isinstance(methods, str) else methods
    job = fresh(folder, texts, seeds, given)
    if not {"name", "out"} & {name for name, value in job.fields.items() if value is not None}:
        place = Path(folder) if Path(folder).name not in ("", "..") else Path(folder).resolve()
        job.fields["out"] = f"{place}-compared"
    cells = plan(job.rows, job.seeds, job.fields, fine_tuning=fine_tuning)
    names = {**job.names, **read_labels(labels, [*job.rows, *(item.method for item in job.tuning.diverged)])}
    refuse_equal_names([names.get(row, row) for row in dict.fromkeys([*job.rows, *names])])
    return _compared(compare_cells(cells, fine_tuning, callbacks), names, job.tuning)


def _compared(comparison: Comparison, labels: Mapping[str, str], tuning: Tuning | None = None) -> Comparison:
    whole = replace(comparison, labels=labels, tuning=tuning)
    save_tables(whole)
    write_comparison(whole)
    return whole


@with_keywords
def sweep(
    over: Sequence[str] | Mapping[str, Sequence[Any]],
    methods: str | list[str] | None = None,
    seeds: int | None = None,
    *,
    labels: Labels = (),
    given: Given = None,
    fine_tuning: RelativeFineTuning | None = None,
    progress: bool | None = None,
    callbacks: Sequence[RunCallback] = (),
    **fields: Unpack[RecipeKeywords],
) -> Comparison:
    """Run a grid of settings: every combination of the values, for every method and seed.

    >>> grid = fl.sweep({"lr": [0.01, 0.1]}, methods="fedavg", clients=5, rounds=1, model="linear")
    >>> grid.points
    [(('lr', '0.01'),), (('lr', '0.1'),)]
    """
    swept, whole = grid(over), gather(given, fields)
    if swept.methods is not None and methods is not None:
        raise FedloomError("over: methods are given twice; leave out --methods or --over method=…")
    if swept.seeds is not None and seeds is not None:
        raise FedloomError("over: seeds are given twice; leave out --seeds or --over seed=…")
    base = with_protocol(whole)
    texts = swept.methods or methods or str(base.get("method", recipe(base).method))
    rows = _rows(texts, whole, swept.points)
    cells = plan(rows, swept.seeds or (1 if seeds is None else seeds), base, swept.points, fine_tuning)
    names = _names(texts, rows, labels, whole)
    with watching(progress, callbacks) as watchers:
        return _compared(compare_cells(cells, fine_tuning, watchers), names)


@with_keywords
def tune(
    methods: str | list[str],
    over: Over = (),
    trials: int | None = None,
    budget: str | float | None = None,
    *,
    halving: bool = True,
    given: Given = None,
    progress: bool | None = None,
    observer: Observer | None = None,
    **fields: Unpack[RecipeKeywords],
) -> Study:
    """Choose rates and hyper-parameters of every method on validation samples, with the same budget for each.

    `over`: ranges by setting; without it, every method's own. `budget`: a time such as "2h" (or seconds), or "5000rounds", that
    the methods share, in place of a number of trials each. `halving`: worse trials stop early. Test samples are not evaluated.
    The same call resumes an interrupted tuning.

    >>> tuned = fl.tune("prox(mu=?)", over={"prox.mu": [0.01, 0.1]}, clients=5, rounds=1, model="linear", name="prox")
    >>> len(tuned.trials)
    2
    """
    whole = gather(given, fields)

    def usual(row: str) -> str:
        return _rows([row], whole)[0]

    planned = plan_tuning(methods, with_protocol(whole), over, read_budget(trials, budget), halving, usual)
    with watching_trials(progress, observer) as watcher:
        study = carry_out_tuning(planned, watcher)
    study.save()
    return study


def protocols() -> dict[str, Protocol]:
    """The papers' protocols by name, for `run(protocol=NAME, method=SUM)`.

    >>> fl.protocols()["fedbabu"].about
    '...'
    """
    return dict(all_protocols())


@with_keywords
def reproduce(
    target: str,
    cells: str | None = None,
    methods: str | None = None,
    seeds: int = 1,
    *,
    scale: float = 1.0,
    sources: Sequence[str | Path] = (),
    out: str | Path = OUT,
    as_published: bool = False,
    tuned_clients: int | None = None,
    progress: bool | None = None,
    callbacks: Sequence[RunCallback] = (),
    **fields: Unpack[ProtocolKeywords],
) -> Reproduction:
    """A paper's table from its own protocol.

    Tables go to `out`, run folders to `out`/runs; finished runs of the same recipe below `sources` are read. Keywords are
    recipe fields that override the protocol in all runs. `tuned_clients`: how many clients are fine-tuned; default: all. The
    same call resumes an interrupted job.

    >>> small = {"data": "digits", "model": "linear", "clients": 10, "epochs": 1}  # instead of CIFAR-100 and MobileNet
    >>> done = fl.reproduce("fedbabu/table5", cells="s=10", methods="fedavg", scale=0.01, out="runs/again", **small)
    >>> done.tables
    [('fedbabu', 'table5')]
    """
    planned = plan_reproduction(
        target, cells, methods, seeds, scale, sources, out, gather(None, fields), as_published, tuned_clients
    )
    with watching(progress, callbacks) as watchers:
        reproduction = carry_out(planned, watchers)
    save_reproduction(reproduction)
    return reproduction


def report(
    paths: Reported | Sequence[Reported],
    out: str | Path | None = None,
    format: str = "html",
    title: str = "",
    *,
    labels: Labels = (),
) -> list[Path]:
    """One page about these runs, or all runs below these folders; with svg, png or pdf a file for each figure.

    `labels={"dr + fd": "FedDr+"}` are names of methods, as in `compare`.

    >>> fl.report(run, out="page.html")
    [PosixPath('page.html')]
    """
    given = list(paths) if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    folders = [_folder(path) for path in given]
    if not folders:
        raise FedloomError("report: no run folder is given")
    if format == "html":
        return [write_page(folders, "report.html" if out is None else out, title, labels)]
    return export(folders, "figures" if out is None else out, format, labels)


def _folder(result: Reported) -> str | Path:
    if isinstance(result, Run):
        return result.path
    if isinstance(result, Reproduction):
        return result.plan.out
    return result.root if isinstance(result, Comparison | Study) else result
