"""Personal fine-tuning: every client starts from the served model and trains it on its own data.

Accuracy is taken on the client's own test images before (`initial`) and after every epoch, so one pass gives the whole
curve of FedBABU's Table 5. The loss is the method's own, without its corrections; frozen regions are trained when the
chosen part holds them (so a FedBABU head is), except what a part fixed for good (an ETF head).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedloom.engine import checkpoint
from fedloom.engine.files import write_json
from fedloom.engine.folder import RunFolder
from fedloom.engine.lanes import Job
from fedloom.engine.rounds import Federation
from fedloom.errors import FedloomError
from fedloom.measure.accuracy import remember, spread

Tuned = Literal["full", "head", "body"]
REGIONS: dict[Tuned, tuple[str, ...]] = {"full": ("body", "norm", "head"), "head": ("head",), "body": ("body", "norm")}


@dataclass(frozen=True)
class Personal:
    """The outcome for all clients: accuracy[epoch][client], epoch 0 being the start."""

    part: Tuned
    epochs: int
    lr: float
    accuracy: list[list[float | None]]

    @property
    def curve(self) -> list[dict[str, float | int]]:
        """Mean and spread over clients after each epoch."""
        return [spread(row) for row in self.accuracy]

    @property
    def initial(self) -> dict[str, float | int]:
        return self.curve[0]

    @property
    def personal(self) -> dict[str, float | int]:
        return self.curve[-1]

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "epochs": self.epochs,
            "lr": self.lr,
            "initial_accuracy": self.initial,
            "personal_accuracy": self.personal,
            "curve": self.curve,
            "clients": np.array(self.accuracy, dtype=object).T.tolist(),
        }


def fine_tune(
    fed: Federation, part: Tuned, epochs: int, lr: float, done: Callable[[int], None] | None = None
) -> Personal:
    """Fine-tune every client of a federation that stands at its last round."""
    _check(fed, part, epochs, lr)
    fed.board.broadcast(fed.state.served())
    partition = fed.experiment.partition
    jobs = []
    for client in range(partition.clients):
        arguments = {"client": client, "regions": list(REGIONS[part]), "epochs": epochs, "lr": lr}
        jobs.append(Job("tune", arguments, len(partition.train(client)), remember(fed, client)))
    reports = fed.lanes.run(jobs, done)
    table: list[list[float | None]] = [
        [r["correct"][epoch] / r["total"] if r and r["total"] else None for r in reports] for epoch in range(epochs + 1)
    ]
    return Personal(part, epochs, lr, table)


def _check(fed: Federation, part: str, epochs: int, lr: float) -> None:
    if part not in REGIONS:
        raise FedloomError(f"part: {part!r} is unknown; allowed are {', '.join(REGIONS)}")
    if epochs < 0:
        raise FedloomError(f"epochs: must not be negative (got {epochs})")
    if not 0 < lr < float("inf"):
        raise FedloomError(f"lr: must be greater than 0 (got {lr})")
    regions = fed.experiment.layout.regions
    names = regions.select(*REGIONS[part])
    if epochs and not any(n not in regions.statistics and n not in regions.constant for n in names):
        fixed = "is fixed by the method" if names else "does not exist in this net"
        raise FedloomError(f"part: the {part} {fixed}, so there is nothing to fine-tune; choose another part")


def restore_finished(fed: Federation, folder: RunFolder) -> None:
    """Bring a federation to the end of its finished run."""
    if not folder.finished:
        raise FedloomError(f"{folder.path} is not finished; carry it on with: fedloom run --resume {folder.path}")
    checkpoint.restore(folder.checkpoints, fed.state, fed.memory, fed.experiment.recipe.digest())
    if fed.state.round != fed.experiment.recipe.rounds:
        raise FedloomError(f"{folder.path} has lost its last checkpoint, so its clients' state is not known")


def store(folder: RunFolder, outcome: Personal) -> Path:
    path = folder.path / "personal" / f"{outcome.part}-{outcome.epochs}-{outcome.lr:g}.json"
    write_json(path, outcome.to_json())
    return path
