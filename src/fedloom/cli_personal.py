"""The commands about personal models: personalize, adopt, export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress
from typer import Argument, Option

from fedloom.adopt import adopt as adopt_client
from fedloom.errors import FedloomError, shown
from fedloom.export import export as export_model
from fedloom.measure.personal import UNSEEN, Personal
from fedloom.personal import Tuning, personalize_run
from fedloom.report.personal import (
    adopted_table,
    distribution_table,
    personal_table,
    print_wide,
    sweep_table,
    unseen_line,
)

T = TypeVar("T")


def register(app: typer.Typer, out: Console, err: Console) -> None:
    @app.command()
    def personalize(
        paths: Annotated[list[Path], Argument(metavar="RUN...", help="folders of finished runs", show_default=False)],
        part: Annotated[str, Option(help="full | head | body, or several: full,head")] = "full",
        epochs: Annotated[str, Option(help="epochs of fine-tuning, or several to be shown: 1,5,10")] = "5",
        lr: Annotated[str, Option(help="its learning rate, or several: 0.1,0.01")] = "0.001",
        loss: Annotated[str, Option(help="method | objective (without penalties) | ce, or several")] = "method",
        unseen: Annotated[
            int, Option(help="test each client on so many images of classes it never saw, at most; 0: none")
        ] = UNSEEN,
        clients: Annotated[
            int | None,
            Option(help="only so many clients, drawn by the run's seed; all unless given", show_default=False),
        ] = None,
        again: Annotated[bool, Option("--again", help="do again what is stored already")] = False,
    ) -> None:
        """Fine-tune every client's model on its own data: initial and personal accuracy."""
        shown = sorted(set(several("epochs", epochs, int)))
        tunings = [
            Tuning(p, shown[-1], rate, chosen)  # type: ignore[arg-type]
            for p in several("part", part, str)
            for chosen in several("loss", loss, str)
            for rate in several("lr", lr, float)
        ]
        found: dict[str, list[Personal]] = {}
        with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
            task = bar.add_task("")
            for path in paths:

                def told(what: str, done: int, total: int, path: Path = path) -> None:
                    bar.update(task, description=f"{path}: {what}", completed=done, total=total)

                found[str(path)] = personalize_run(path, tunings, told, again=again, unseen=unseen, sample=clients)
        single = len(paths) * len(tunings) == 1
        if single:
            out.print(personal_table(found[str(paths[0])][0]))
        else:
            print_wide(out, sweep_table(found, shown))
        print_wide(out, distribution_table(found))
        if line := unseen_line(found):
            out.print(line, highlight=False, soft_wrap=True)
        where = paths[0] / "personal" if len(paths) == 1 else "personal/ in each run folder"
        out.print(f"per client: {where}", highlight=False, soft_wrap=True)

    @app.command()
    def adopt(
        path: Annotated[Path, Argument(metavar="RUN", help="the folder of a finished run", show_default=False)],
        data: Annotated[str, Option(help="the new client's images: PATH.npz | folder:PATH | …", show_default=False)],
        part: Annotated[str, Option(help="what is fine-tuned: full | head | body")] = "full",
        epochs: Annotated[int, Option(help="epochs of fine-tuning")] = 5,
        lr: Annotated[float | None, Option(help="its learning rate; a tenth of the run's unless given")] = None,
        loss: Annotated[str, Option(help="method | objective (without penalties) | ce")] = "method",
        output: Annotated[Path, Option("--out", "-o", help="where its model goes")] = Path("client.safetensors"),
        train_on_all: Annotated[
            bool, Option("--train-on-all", help="hold nothing out: no test, accuracy unknown")
        ] = False,
    ) -> None:
        """Give a client that was never in the federation a personal model of its own."""
        found = adopt_client(path, data, part, epochs, lr, loss, output, not train_on_all)  # type: ignore[arg-type]
        out.print(adopted_table(found))
        out.print(f"model: {found.path}", highlight=False, soft_wrap=True)

    @app.command()
    def export(
        path: Annotated[Path, Argument(metavar="RUN", help="the folder of a finished run", show_default=False)],
        output: Annotated[Path, Option("--out", "-o", help="model.pt2 | model.onnx", show_default=False)],
        client: Annotated[int | None, Option(help="this client's own model in place of the global one")] = None,
        weights: Annotated[Path | None, Option(help="a model that `fedloom adopt` wrote")] = None,
        part: Annotated[str, Option(help="of the client's model, what is fine-tuned: full | head | body")] = "full",
        epochs: Annotated[int, Option(help="epochs of fine-tuning of the client's model")] = 0,
        lr: Annotated[float | None, Option(help="its learning rate; a tenth of the run's unless given")] = None,
        loss: Annotated[str, Option(help="method | objective (without penalties) | ce")] = "method",
    ) -> None:
        """Write a model to a file that loads without fedloom, normalisation inside."""
        found = export_model(path, output, client, weights, part, epochs, lr, loss)  # type: ignore[arg-type]
        facts: dict[str, Any] = found.facts
        low, high = facts["input"]["range"]
        shape = " x ".join(str(size) for size in facts["input"]["shape"])
        out.print(f"model: {found.path} ({facts['model']}, {facts['method']})", highlight=False, soft_wrap=True)
        out.print(f"input: float32 {shape}, pixels from {low} to {high:g}; normalisation is inside", highlight=False)
        out.print(f"output: logits of {len(facts['class_names'])} classes", highlight=False)
        out.print(f"facts: {found.path}.json", highlight=False, soft_wrap=True)
        if facts["depends_on_the_batch"]:
            err.print("note: bn is batch, so its answers depend on the other images of a batch", highlight=False)
        for note in found.notes:
            err.print(f"note: {note}", highlight=False, soft_wrap=True)


def several(name: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """Values with commas between, each once."""
    try:
        found = [kind(item.strip()) for item in text.split(",") if item.strip()]
    except ValueError:
        found = []
    if not found:
        what = {int: "whole numbers", float: "numbers"}.get(kind, "words")  # type: ignore[call-overload]
        raise FedloomError(f"{name}: cannot read {shown(text)}; write {what} with commas between")
    return list(dict.fromkeys(found))
