"""What the command line does, as Python functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn import Module

from fedloom.data import named_data
from fedloom.engine.given import given_recipe
from fedloom.engine.server.callback import RunCallback
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.fine_tuned import PersonalizationResult, TunedPart
from fedloom.evaluation.personalization import UNSEEN
from fedloom.methods import Method, Part
from fedloom.methods.api.context import Objective
from fedloom.nets import refuse_while_reading, stored_name
from fedloom.papers import Protocol, apply, nested, protocol
from fedloom.papers import protocols as all_protocols
from fedloom.papers.comparison import rows as protocol_rows
from fedloom.recipe import NAMED_GROUPS, Recipe, read_recipe, recipe
from fedloom.report.grid import save as save_tables
from fedloom.report.page.figures import export
from fedloom.report.page.html import report as write_page
from fedloom.report.reproduction import save as save_reproduction
from fedloom.report.split_picture import write_picture
from fedloom.runs.analyze import Analysis, AnalysisRequest, run_analysis
from fedloom.runs.cells import RelativeFineTuning, plan, rows_of
from fedloom.runs.compare import compare_cells
from fedloom.runs.comparison import Comparison
from fedloom.runs.federation import federation
from fedloom.runs.finished import restore_finished
from fedloom.runs.folder import RunFolder
from fedloom.runs.labels import Labels, read_labels, refuse_equal_names
from fedloom.runs.personalize import FineTuning, personalize_run
from fedloom.runs.reproduce import OUT, Reproduction, carry_out
from fedloom.runs.reproduce import plan as plan_reproduction
from fedloom.runs.run import Run, resume, start
from fedloom.runs.split import Split, make_split, read_split
from fedloom.runs.sweep import grid
from fedloom.runs.tune.budget import read_budget
from fedloom.runs.tune.carry_out import Observer
from fedloom.runs.tune.carry_out import carry_out as carry_out_tuning
from fedloom.runs.tune.fresh import Tuning, fresh
from fedloom.runs.tune.over import Over
from fedloom.runs.tune.plan import plan as plan_tuning
from fedloom.runs.tune.study import Study


def run(
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    *,
    callbacks: Sequence[RunCallback] = (),
    **fields: Any,
) -> Run:
    """Run an experiment: `run(data="digits", split="shards:2", method="scaffold + fn", rounds=50)`.

    The first argument may be a recipe, its fields or a YAML file; keywords override it. `run(resume="runs/x")` resumes
    an interrupted run. `run(protocol="fedbabu", method="fn")` takes all other fields from a paper's protocol.

    `data` may be an object: an fl.Dataset (`from_arrays`, `from_frame`, `from_torch`, `from_hf`), a torch Dataset or a pair
    of them, arrays, or a Hugging Face Dataset. `model` may be an nn.Module; its weights are the initial ones, and
    `head="classifier"` names its last layer where that is not the linear layer which makes its output. Both are stored in the
    cache, and the recipe names them by their content.
    """
    if "resume" in fields:
        refuse_while_reading()
        path, workers = fields.pop("resume"), fields.pop("workers", None)
        if (data := fields.pop("data", None)) is not None:
            _refuse_other_data(path, data)
        if given is not None or fields:
            raise FedloomError(f"resume: the recipe is the folder's own; leave out {next(iter(fields), 'the recipe')}")
        return resume(path, callbacks, workers)
    return start(given_recipe(with_protocol(gather(given, fields))), callbacks)


def _refuse_other_data(path: str | Path, data: Any) -> None:
    """Naming an object puts it back into the cache, from where a run resumes; it must be the run's own."""
    stored, named = RunFolder(path).recipe().data.name, named_data(data)
    if named != stored:
        raise FedloomError(f"data: {path} was trained on {stored}, and this is {shown(named)}; pass the run's own data")


def gather(given: Recipe | str | Path | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> dict[str, Any]:
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
    if isinstance(changes.get("method"), Method | Part):
        changes["method"] = str(changes["method"])
    for values in (base, changes):
        if "data" in values:
            values["data"] = named_data(values["data"])
        if isinstance(values.get("model"), Module):
            values["model"] = stored_name(values["model"], values.pop("head", None))
    for group in NAMED_GROUPS:
        if isinstance(changes.get(group), str) and isinstance(base.get(group), dict):
            changes[group] = {**base[group], "name": changes[group]}
    return {**base, **changes}


def with_protocol(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe; `protocol` among them stands for those of a paper's protocol, which the others override."""
    whole = dict(fields)
    name = whole.pop("protocol", None)
    if name is None:
        return whole
    return nested(apply(protocol(str(name)), str(whole.pop("method", "fedavg")), whole))


def _rows(methods: str | Sequence[str], fields: Mapping[str, Any], swept: Collection[str] = ()) -> list[str]:
    """Methods of a comparison, each with the settings that a protocol among the fields gives it."""
    texts = methods.split(";") if isinstance(methods, str) else list(methods)
    if "protocol" not in fields:
        return texts
    given = {name: value for name, value in fields.items() if name not in ("protocol", "method")}
    if "epochs" in swept and "rounds" not in (*swept, *given) and protocol(str(fields["protocol"])).rounds_times_epochs:
        raise FedloomError("over: epochs is swept, and the protocol fixes rounds x epochs; give --rounds too")
    return protocol_rows(protocol(str(fields["protocol"])), [t.strip() for t in texts if t.strip()], given, swept)


def split(
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    *,
    source: str | Path | None = None,
    **fields: Any,
) -> Split:
    """The split that a run with these fields has: `split(data="digits", split="dirichlet:0.5", clients=20)`.

    `source`: read it from a stored file or from the folder of a run instead.
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
    """Measure a finished run: `analyze(run, what="factors,norms", clients=[0, 3])`; tables go into its folder.

    By default everything is measured. `clients`: whose local models are trained again (default: ten of the last cohort; "all").
    `images`: number of test samples. `target`: values of the headline metric whose cost is reported.
    """
    folder = RunFolder(path.path if isinstance(path, Run) else path)
    request = AnalysisRequest.of(what, clients, images, target)
    experiment = folder.experiment()
    with federation(experiment, folder, request.rows(experiment.recipe.clients)) as fed:
        restore_finished(fed, folder)
        with folder.held():
            return run_analysis(fed, folder, request, progress or (lambda text: None))


def compare(
    methods: str | list[str] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    tuned: str | Path | None = None,
    labels: Labels = (),
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    fine_tuning: RelativeFineTuning | None = None,
    callbacks: Sequence[RunCallback] = (),
    **fields: Any,
) -> Comparison:
    """Run several methods on the same clients: `compare("fedavg; fn @ lr=0.3", seeds=3, data="digits", rounds=20)`.

    `compare(tuned="runs/tune", seeds=5)` runs the settings that a tuning chose, with its recipe, on seeds that it never saw;
    `methods` may name some of its methods, and others. `labels={"dr + fd": "FedDr+"}` are names for tables and the page.
    """
    whole = gather(given, fields)
    if tuned is not None:
        return _compare_tuned(tuned, methods, seeds, whole, labels, fine_tuning, callbacks)
    if methods is None:
        raise FedloomError('methods: none given; separate them by semicolons, as in "fedavg; fn; dr + fd"')
    rows = _rows(methods, whole)
    cells = plan(rows, seeds, with_protocol(whole), fine_tuning=fine_tuning)
    names = read_labels(labels, rows_of(cells))
    return _compared(compare_cells(cells, fine_tuning, callbacks), names)


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
    return whole


def sweep(
    over: Sequence[str] | Mapping[str, Sequence[Any]],
    methods: str | list[str] | None = None,
    seeds: int | None = None,
    *,
    labels: Labels = (),
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    fine_tuning: RelativeFineTuning | None = None,
    callbacks: Sequence[RunCallback] = (),
    **fields: Any,
) -> Comparison:
    """Run a grid: `sweep({"lr": [0.01, 0.03], "epochs": [1, 5]}, methods="fedavg; fn", seeds=3, rounds=20)`."""
    swept, whole = grid(over), gather(given, fields)
    if swept.methods is not None and methods is not None:
        raise FedloomError("over: methods are given twice; leave out --methods or --over method=…")
    if swept.seeds is not None and seeds is not None:
        raise FedloomError("over: seeds are given twice; leave out --seeds or --over seed=…")
    base = with_protocol(whole)
    rows = _rows(swept.methods or methods or str(base.get("method", recipe(base).method)), whole, swept.points)
    cells = plan(rows, swept.seeds or (1 if seeds is None else seeds), base, swept.points, fine_tuning)
    names = read_labels(labels, rows_of(cells))
    return _compared(compare_cells(cells, fine_tuning, callbacks), names)


def tune(
    methods: str | list[str],
    over: Over = (),
    trials: int | None = None,
    budget: str | float | None = None,
    *,
    halving: bool = True,
    given: Recipe | str | Path | Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    **fields: Any,
) -> Study:
    """Choose rates and hyper-parameters of every method on validation samples, with the same budget for each:
    `tune("fedavg; dr + fd(beta=?)", over={"lr": "log:0.003..3"}, trials=16, rounds=50).best`.

    `over`: ranges by setting; without it, every method's own. `budget`: a time such as "2h" (or seconds), or "5000rounds", that
    the methods share, in place of a number of trials each. `halving`: worse trials stop early. Test samples are not evaluated.
    The same call resumes an interrupted tuning.
    """
    whole = gather(given, fields)

    def usual(row: str) -> str:
        return _rows([row], whole)[0]

    planned = plan_tuning(methods, with_protocol(whole), over, read_budget(trials, budget), halving, usual)
    study = carry_out_tuning(planned, observer)
    study.save()
    return study


def protocols() -> dict[str, Protocol]:
    """The papers' protocols by name, for `run(protocol=NAME, method=SUM)`."""
    return dict(all_protocols())


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
    callbacks: Sequence[RunCallback] = (),
    **fields: Any,
) -> Reproduction:
    """A paper's table from its own protocol: `reproduce("fedbabu/table5", cells="s=10", seeds=3, scale=0.25)`.

    Tables go to `out`, run folders to `out`/runs; finished runs of the same recipe below `sources` are read. Keywords are
    recipe fields that override the protocol in all runs. `tuned_clients`: how many clients are fine-tuned; default: all. The
    same call resumes an interrupted job.
    """
    planned = plan_reproduction(target, cells, methods, seeds, scale, sources, out, fields, as_published, tuned_clients)
    reproduction = carry_out(planned, callbacks)
    save_reproduction(reproduction)
    return reproduction


def report(
    paths: str | Path | Run | Sequence[str | Path | Run],
    out: str | Path | None = None,
    format: str = "html",
    title: str = "",
    *,
    labels: Labels = (),
) -> list[Path]:
    """One page about these runs, or all runs below these folders; with svg, png or pdf a file for each figure.

    `labels={"dr + fd": "FedDr+"}` are names of methods, as in `compare`.
    """
    given = [paths] if isinstance(paths, str | Path | Run) else list(paths)
    folders = [path.path if isinstance(path, Run) else path for path in given]
    if not folders:
        raise FedloomError("report: no run folder is given")
    if format == "html":
        return [write_page(folders, "report.html" if out is None else out, title, labels)]
    return export(folders, "figures" if out is None else out, format, labels)
