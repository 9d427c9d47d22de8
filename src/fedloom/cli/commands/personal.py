"""The commands about personal models: personalize, adopt, export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Option

from fedloom.cli import console
from fedloom.cli.arguments import FinishedRun, FinishedRuns
from fedloom.cli.outcome import Outcome
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.unseen import UNSEEN

if TYPE_CHECKING:
    from fedloom.evaluation.fine_tuned import PersonalizationResult

T = TypeVar("T")


def personalize(
    paths: FinishedRuns,
    part: Annotated[str, Option(help="full | head | body | adapter | alternate, or several: full,head")] = "full",
    epochs: Annotated[str, Option(help="epochs of fine-tuning; of several (1,5,10) each is shown")] = "5",
    lr: Annotated[str, Option(help="fine-tuning rate, or several: 0.1,0.01")] = "0.001",
    loss: Annotated[str, Option(help="method | objective (without regularizers) | ce, or several")] = "method",
    unseen: Annotated[int, Option(help="number of test samples of classes that a client never saw; 0: none")] = UNSEEN,
    clients: Annotated[
        int | None,
        Option(help="number of clients, sampled by the run's seed", show_default="all"),
    ] = None,
    again: Annotated[bool, Option("--again", help="repeat fine-tunings that are stored already")] = False,
) -> Outcome:
    """Fine-tune every client's model on its own data: initial and personal metrics."""
    from rich.progress import Progress

    from fedloom.finished.personalize import FineTuning, personalize_run
    from fedloom.report.data import personal_data
    from fedloom.report.personal import (
        distribution_table,
        personal_table,
        print_wide,
        shared_metrics,
        sweep_table,
        unseen_line,
    )

    epochs_shown = sorted(set(several("epochs", epochs, int)))
    fine_tunings = [
        FineTuning(p, epochs_shown[-1], rate, chosen)  # type: ignore[arg-type]
        for p in several("part", part, str)
        for chosen in several("loss", loss, str)
        for rate in several("lr", lr, float)
    ]
    outcomes: dict[str, list[PersonalizationResult]] = {}
    with Progress(console=console.err, transient=True, disable=not console.err.is_terminal) as bar:
        task = bar.add_task("")
        for path in paths:

            def progress(what: str, done: int, total: int, path: Path = path) -> None:
                bar.update(task, description=f"{path}: {what}", completed=done, total=total)

            outcomes[str(path)] = personalize_run(
                path, fine_tunings, progress, again=again, unseen=unseen, sample=clients
            )
    single = len(paths) * len(fine_tunings) == 1
    metrics = shared_metrics(outcomes)
    if not metrics:
        raise FedloomError("metrics: these runs have no metric in common; show them one by one")
    for metric in metrics:
        if single:
            console.out.print(personal_table(outcomes[str(paths[0])][0], metric))
        else:
            print_wide(console.out, sweep_table(outcomes, epochs_shown, metric))
        print_wide(console.out, distribution_table(outcomes, metric))
    if line := unseen_line(outcomes):
        console.line(line)
    where = paths[0] / "personal" if len(paths) == 1 else "personal/ in each run folder"
    console.line(f"per client: {where}")
    return Outcome(personal_data(outcomes), [path / "personal" for path in paths])


def adopt(
    path: FinishedRun,
    data: Annotated[str, Option(help="the new client's samples: PATH.npz | folder:PATH | …", show_default=False)],
    part: Annotated[str, Option(help="what is fine-tuned: full | head | body | adapter | alternate")] = "full",
    epochs: Annotated[int, Option(help="epochs of fine-tuning")] = 5,
    lr: Annotated[float | None, Option(help="fine-tuning rate", show_default="a tenth of the run's")] = None,
    loss: Annotated[str, Option(help="method | objective (without regularizers) | ce")] = "method",
    output: Annotated[Path, Option("--out", "-o", help="file to write")] = Path("client.safetensors"),
    train_on_all: Annotated[
        bool, Option("--train-on-all", help="hold no test samples out; metrics are then unknown")
    ] = False,
) -> Outcome:
    """Give a client that was never in the federation a personal model of its own."""
    from fedloom.finished.adopt import adopt as adopt_client
    from fedloom.report.data import adopted_data
    from fedloom.report.personal import adopted_table

    adopted = adopt_client(path, data, part, epochs, lr, loss, output, not train_on_all)  # type: ignore[arg-type]
    for note in adopted.notes:
        console.line(f"data: {note}")
    console.out.print(adopted_table(adopted))
    console.line(f"model: {adopted.path}")
    return Outcome(adopted_data(adopted), [adopted.path])


def export(
    path: FinishedRun,
    output: Annotated[
        Path,
        Option("--out", "-o", help="model.pt2 | model.onnx | a folder: adapters", show_default=False),
    ],
    client: Annotated[int | None, Option(help="this client's own model in place of the global one")] = None,
    weights: Annotated[Path | None, Option(help="a model written by `fedloom adopt`")] = None,
    part: Annotated[
        str, Option(help="what is fine-tuned of the client's model: full | head | body | adapter | alternate")
    ] = "full",
    epochs: Annotated[int, Option(help="epochs of fine-tuning of the client's model")] = 0,
    lr: Annotated[float | None, Option(help="fine-tuning rate", show_default="a tenth of the run's")] = None,
    loss: Annotated[str, Option(help="method | objective (without regularizers) | ce")] = "method",
) -> Outcome:
    """Write a model to a file that loads without fedloom, normalization inside."""
    from fedloom.finished.export import export as export_model

    exported = export_model(path, output, client, weights, part, epochs, lr, loss)  # type: ignore[arg-type]
    facts: dict[str, Any] = exported.facts
    outcome = Outcome({"path": exported.path, "notes": exported.notes, **facts}, [exported.path])
    if exported.path.is_dir():
        console.line(f"adapters: {exported.path} ({facts['model']}, {facts['method']})")
        console.line(f"load: peft.PeftModel.from_pretrained(base, {str(exported.path)!r})")
        for note in exported.notes:
            console.note(f"note: {note}")
        return outcome
    given = facts["input"]
    shape = " x ".join(map(str, given["shape"]))
    bounds = " from {} to {:g}".format(*given["range"]) if "range" in given else ""
    inside = "; normalization is inside" if "normalization" in given else ""
    console.line(f"model: {exported.path} ({facts['model']}, {facts['method']})")
    console.line(f"input: {given['dtype']} {shape}, {given['name']}{bounds}{inside}")
    console.line(f"output: logits of {len(facts['class_names'])} classes")
    console.line(f"facts: {exported.path}.json")
    if facts["depends_on_the_batch"]:
        console.note("note: bn is batch, so its outputs depend on the other samples of a batch")
    for note in exported.notes:
        console.note(f"note: {note}")
    return outcome


def several(name: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """Values separated by commas, each once."""
    try:
        values = [kind(item.strip()) for item in text.split(",") if item.strip()]
    except ValueError:
        values = []
    if not values:
        what = {int: "whole numbers", float: "numbers"}.get(kind, "words")  # type: ignore[call-overload]
        raise FedloomError(f"{name}: cannot read {shown(text)}; write {what} separated by commas")
    return list(dict.fromkeys(values))
