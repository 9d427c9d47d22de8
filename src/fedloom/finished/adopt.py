"""A client that was never in the federation gets a personal model from the trained one.

Nothing of the federation's data is needed: the run folder knows shape, classes and normalization. The new client starts
from the served model (personal regions at initialization), takes the method's personalization step, fine-tunes on its
own training samples, and is tested on its own test samples before and after.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.data import named_data
from fedloom.data.newcomer import read_newcomer
from fedloom.engine.about import about
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.experiment import Experiment
from fedloom.engine.store import checkpoint
from fedloom.engine.store.state import State
from fedloom.engine.threads import one_thread
from fedloom.errors import FedloomError
from fedloom.evaluation.clients import values_of
from fedloom.evaluation.fine_tuned import TunedPart
from fedloom.evaluation.personalization import REGIONS, check
from fedloom.evaluation.tasks.evaluate import EvaluateClient
from fedloom.evaluation.tasks.finetune import FineTune
from fedloom.finished.restore import check_finished
from fedloom.io.files import read_tensors, write_tensors
from fedloom.methods.api.context import Objective
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import Run

WHEN = ("before", "after")  # fine-tuning


@dataclass(frozen=True)
class Adopted:
    """A new client's model and how well it does on that client's test samples; None where it has none.

    `before` and `curve` are of the headline metric; `others` has the same numbers of the recipe's further metrics.

    >>> adopted = fl.adopt(run, "digits", epochs=1)
    >>> len(adopted.curve)
    2
    """

    path: Path
    part: TunedPart
    epochs: int
    lr: float
    loss: Objective
    before: float | None  # the served model
    curve: list[float | None]  # the client's own after 0, 1, … epochs
    train: int
    test: int
    held_out: bool  # whether the test samples were split off from the given ones
    metric: str = "accuracy"
    others: dict[str, tuple[float | None, list[float | None]]] = field(default_factory=dict)  # metric -> before, curve
    notes: tuple[str, ...] = ()  # what reading the data had to repair

    @property
    def after(self) -> float | None:
        return self.curve[-1]


def adopt(
    run: Run | str | Path,
    data: Any,
    part: TunedPart = "full",
    epochs: int = 5,
    lr: float | None = None,
    loss: Objective = "method",
    out: str | Path = "client.safetensors",
    hold_out: bool = True,
) -> Adopted:
    """Fine-tune the model of a finished run for a client with these samples, and write it to a safetensors file.

    `data`: a text as in a recipe, or an object as `fl.run` takes. `lr` defaults to a tenth of the run's own. `hold_out=False`:
    train on all samples, and leave the metrics unknown.

    >>> fl.adopt(run, "digits", part="head", epochs=1, out="new.safetensors").path
    PosixPath('new.safetensors')
    """
    folder = RunFolder(run.path if isinstance(run, Run) else run)
    recipe = folder.recipe()
    check_finished(folder)
    rate = recipe.lr / 10 if lr is None else lr
    source = str(named_data(data))
    schema = folder.schema.read_text(encoding="utf-8") if folder.schema.is_file() else ""
    inputs = folder.known_inputs()
    with about("data"):
        given, divided = read_newcomer(
            source, inputs.spec, inputs.class_names, recipe.data.resize, hold_out=hold_out, schema=schema
        )
    tensors = (torch.from_numpy(values) for values in (given.train_x, given.train_y, given.test_x, given.test_y))
    dataset = inputs.dataset(Path(source.partition("?")[0]).stem, *tensors)
    with one_thread():
        experiment = inputs.experiment(recipe, folder.initial, dataset)
        check(experiment.program.layout.regions, part, epochs, rate, loss, experiment.program.method.parts)
        replica, buffers = Replica(experiment), SharedBuffers(experiment, 1)
        if replica.normalizers and len(given.train_y) < 2:
            raise FedloomError("data: batch normalization needs at least two training samples")
        buffers.broadcast(_served(experiment, folder, loss))
        if experiment.program.messages.state.nbytes:
            buffers.state_rows[0].copy_(experiment.program.messages.state_row)
        plain = EvaluateClient(0, 1, personal=False).perform(replica, buffers, 0)
        task = FineTune(0, list(REGIONS[part]), epochs, rate, loss, alternate=part == "alternate")
        report = task.perform(replica, buffers, 0)
    total, before = report["total"], values_of(plain)
    curves: dict[str, list[float | None]] = {
        "accuracy": [right / total if total else None for right in report["correct"]],
        **report["metrics"],
    }
    headline = recipe.headline
    adopted = Adopted(
        path=Path(out),
        part=part,
        epochs=epochs,
        lr=rate,
        loss=loss,
        before=before.get(headline),
        curve=curves[headline],
        train=len(given.train_y),
        test=total,
        held_out=divided,
        metric=headline,
        others={metric: (before.get(metric), curves[metric]) for metric in recipe.metrics[1:]},
        notes=given.notes,
    )
    ends = {headline: (adopted.before, adopted.after)} | {
        metric: (first, curve[-1]) for metric, (first, curve) in adopted.others.items()
    }
    metadata = {
        "kind": "adopted",
        "recipe": recipe.digest(),
        "weights": str(Run(folder.path).summary["digest"]),
        "part": part,
        "epochs": str(epochs),
        "lr": repr(rate),
        "loss": loss,
        **{
            f"{metric}_{when}": str(value)
            for metric, pair in ends.items()
            for when, value in zip(WHEN, pair, strict=True)
        },
        "counts": json.dumps([int(count) for count in torch.bincount(dataset.train_y, minlength=dataset.classes)]),
    }
    try:
        write_tensors(adopted.path, experiment.program.layout.tensors(replica.weights.storage), metadata)
    except OSError as error:
        raise FedloomError(f"out: {out} cannot be written ({error.strerror}); choose another place") from None
    return adopted


def _served(experiment: Experiment, folder: RunFolder, loss: Objective) -> dict[str, Tensor]:
    """What the server of the finished run hands out: its final weights, and what parts broadcast beside them."""
    state, layout = State(experiment), experiment.program.layout
    storage = torch.empty(layout.total)
    layout.read(read_tensors(folder.final)[0], storage)
    last = checkpoint.newest(folder.checkpoints)
    if last is not None and last.round == experiment.recipe.rounds:
        state.load(last.tensors, last.round)
    elif loss == "method" and experiment.program.method.hooked("broadcast"):
        raise FedloomError(
            f"{folder.path} has lost its last checkpoint, and with it what the method's loss needs; choose loss ce"
        )
    statistics = storage[layout.parameters :][: layout.shared_statistics]
    fixed = {f"fixed.{name}": layout.entries[name].view(storage) for name in experiment.program.messages.fixed}
    return {**state.broadcast(), "w": storage[: layout.shared], "statistics": statistics, **fixed}
