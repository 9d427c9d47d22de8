"""A client that was never in the federation gets a personal model from the trained one.

Nothing of the federation's data is needed: the run folder knows shape, classes and normalisation. The new client starts from
the served model (regions that are personal in the method, as drawn), does what the method does to personalise, fine-tunes
on its own training images, and is tested on its own test images before and after.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedloom.data.newcomer import read_newcomer
from fedloom.engine import checkpoint
from fedloom.engine.board import Board
from fedloom.engine.files import read_tensors, write_tensors
from fedloom.engine.folder import RunFolder
from fedloom.engine.local import Which
from fedloom.engine.setup import Experiment, about, one_thread
from fedloom.engine.state import State
from fedloom.engine.worker import Worker
from fedloom.errors import FedloomError
from fedloom.measure.personal import REGIONS, Tuned, check
from fedloom.run import Run


@dataclass(frozen=True)
class Adopted:
    """A new client's model and how well it does on that client's test images; None where it has none."""

    path: Path
    part: Tuned
    epochs: int
    lr: float
    loss: Which
    before: float | None  # the served model, as it is
    curve: list[float | None]  # the client's own after 0, 1, … epochs
    train: int
    test: int
    held_out: bool  # whether the test images were taken from the given ones by us

    @property
    def after(self) -> float | None:
        return self.curve[-1]


def adopt(
    run: Run | str | Path,
    data: str | Path,
    part: Tuned = "full",
    epochs: int = 5,
    lr: float | None = None,
    loss: Which = "method",
    out: str | Path = "client.safetensors",
    hold_out: bool = True,
) -> Adopted:
    """Fine-tune the model of a finished run for a client with these images, and write it to a safetensors file.

    `lr`: a tenth of the run's own unless given. `hold_out=False`: train on all images, and leave the accuracy unknown.
    """
    folder = RunFolder(run.path if isinstance(run, Run) else run)
    recipe = folder.recipe()
    if not folder.finished:
        raise FedloomError(f"{folder.path} is not finished; carry it on with: fedloom run --resume {folder.path}")
    rate = recipe.lr / 10 if lr is None else lr
    inputs = folder.known_inputs()
    with about("data"):
        given, divided = read_newcomer(
            str(data), inputs.shape, inputs.class_names, inputs.scale, recipe.data.resize, hold_out=hold_out
        )
    tensors = (torch.from_numpy(values) for values in (given.train_x, given.train_y, given.test_x, given.test_y))
    images = inputs.images(Path(str(data)).stem, *tensors)
    with one_thread():
        experiment = inputs.experiment(recipe, folder.initial, images)
        check(experiment.layout.regions, part, epochs, rate, loss)
        worker, board = Worker(experiment), Board(experiment, 1)
        if worker.normalisers and len(given.train_y) < 2:
            raise FedloomError("data: batch normalisation needs at least two training images")
        board.broadcast(_served(experiment, folder, loss))
        if experiment.messages.memory.nbytes:
            board.memory_rows[0].copy_(experiment.messages.memory_row)
        plain = worker.test_client(0, 1, board.views(0), personal=False)
        report = worker.tune(0, board.views(0), REGIONS[part], epochs, rate, loss)
    total = report["total"]
    found = Adopted(
        path=Path(out),
        part=part,
        epochs=epochs,
        lr=rate,
        loss=loss,
        before=plain["correct"] / total if total else None,
        curve=[right / total if total else None for right in report["correct"]],
        train=len(given.train_y),
        test=total,
        held_out=divided,
    )
    told = {
        "kind": "adopted",
        "recipe": recipe.digest(),
        "weights": str(Run(folder.path).summary["digest"]),
        "part": part,
        "epochs": str(epochs),
        "lr": repr(rate),
        "loss": loss,
        "accuracy_before": str(found.before),
        "accuracy_after": str(found.after),
        "counts": json.dumps([int(count) for count in torch.bincount(images.train_y, minlength=images.classes)]),
    }
    try:
        write_tensors(found.path, experiment.layout.tensors(worker.weights.storage), told)
    except OSError as error:
        raise FedloomError(f"out: {out} cannot be written ({error.strerror}); choose another place") from None
    return found


def _served(experiment: Experiment, folder: RunFolder, loss: Which) -> dict[str, Tensor]:
    """What the server of the finished run hands out: its final weights, and what parts broadcast beside them."""
    state, layout = State(experiment), experiment.layout
    storage = torch.empty(layout.total)
    layout.read(read_tensors(folder.final)[0], storage)
    last = checkpoint.newest(folder.checkpoints)
    if last is not None and last.round == experiment.recipe.rounds:
        state.load(last.tensors, last.round)
    elif loss == "method" and experiment.method.hooked("broadcast"):
        raise FedloomError(
            f"{folder.path} has lost its last checkpoint, and with it what the method's loss needs; choose loss ce"
        )
    statistics = storage[layout.parameters :][: layout.shared_statistics]
    fixed = {f"fixed.{name}": layout.entries[name].view(storage) for name in experiment.messages.fixed}
    return {**state.broadcast(), "w": storage[: layout.exchanged], "statistics": statistics, **fixed}
