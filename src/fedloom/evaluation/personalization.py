"""Personalization by fine-tuning: every client trains its own model on its own data.

A client starts from its own model: the served weights with its personal regions over them, after the parts' `personalize`
hooks. For most methods that is the served model. Accuracy on the client's own test samples is measured before the first
epoch (`initial`) and after every epoch, so one pass gives the whole curve of FedBABU's Table 5. What fine-tuning forgets is
measured on test samples of classes that the client has no training sample of, before and after.

The loss is the method's own with its regularizers (so distillation to the served model as well), its loss without them, or
cross-entropy. Gradient corrections are ignored. A frozen region is trained if the chosen part contains it (a FedBABU
head is), unless the method fixes it for good (an ETF head).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from fedloom.engine.server.round import Federation
from fedloom.engine.tasks import Assignment
from fedloom.engine.tasks.finetune import FineTune
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.accuracy import summarize
from fedloom.methods.api.context import Objective
from fedloom.rng import numpy_generator
from fedloom.weights import BEFORE_HEAD, Regions

TunedPart = Literal["full", "head", "body", "adapter"]
REGIONS: dict[TunedPart, tuple[str, ...]] = {
    "full": (*BEFORE_HEAD, "head"),
    "head": ("head",),
    "body": BEFORE_HEAD,
    "adapter": ("adapter",),
}
UNSEEN = 500  # at most that many test samples of unseen classes per client

Column = list[float | None]  # one value per client, None where it has no such images


@dataclass(frozen=True)
class PersonalizationResult:
    """accuracy[epoch][client]; epoch 0 is the client's own model before fine-tuning."""

    part: TunedPart
    epochs: int
    lr: float
    accuracy: list[Column]
    loss: Objective = "method"
    global_accuracy: Column = field(default_factory=list)  # the served model on each client's test samples
    # on classes without training samples: before and after fine-tuning
    unseen_accuracy: tuple[Column, Column] = field(default_factory=lambda: ([], []))
    sample: int | None = None  # number of clients, where only a random sample was fine-tuned

    @property
    def curve(self) -> list[dict[str, float | int]]:
        """Mean and quartiles over clients after each epoch."""
        return [summarize(row) for row in self.accuracy]

    @property
    def initial(self) -> dict[str, float | int]:
        return self.curve[0]

    @property
    def personal(self) -> dict[str, float | int]:
        return self.curve[-1]

    @property
    def unseen(self) -> tuple[dict[str, float | int], dict[str, float | int]]:
        """Mean and quartiles over clients of `unseen_accuracy`: before and after fine-tuning."""
        return summarize(self.unseen_accuracy[0]), summarize(self.unseen_accuracy[1])

    def to_json(self) -> dict[str, Any]:
        before, after = self.unseen
        return {
            "part": self.part,
            "epochs": self.epochs,
            "lr": self.lr,
            "loss": self.loss,
            "sample": self.sample,
            "global_accuracy": summarize(self.global_accuracy),
            "initial_accuracy": self.initial,
            "personal_accuracy": self.personal,
            "unseen_before": before,
            "unseen_after": after,
            "curve": self.curve,
            "clients": np.array(self.accuracy, dtype=object).T.tolist(),
            "clients_global": self.global_accuracy,
            "clients_unseen": [list(pair) for pair in zip(*self.unseen_accuracy, strict=True)],
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> PersonalizationResult:
        accuracy: list[Column] = [list(row) for row in zip(*stored["clients"], strict=True)]
        before, after = ([pair[i] for pair in stored["clients_unseen"]] for i in (0, 1))
        return PersonalizationResult(
            stored["part"],
            stored["epochs"],
            stored["lr"],
            accuracy,
            stored["loss"],
            list(stored["clients_global"]),
            (before, after),
            stored["sample"],
        )


@dataclass(frozen=True)
class InitialAccuracy:
    """Accuracy of the clients' own models before fine-tuning. It is the same for every part, learning rate and loss."""

    accuracy: Column
    unseen: Column


def initial_accuracy(federation: Federation, unseen: int = UNSEEN, sample: int | None = None) -> InitialAccuracy:
    """Evaluate every client's own model. The federation is at its last round."""
    reports = _run(federation, "full", 0, 1.0, "method", unseen, True, None, sample)
    return InitialAccuracy(_shares(reports, "correct", "total", 0), _shares(reports, "unseen", "unseen_total", 0))


def fine_tune(
    federation: Federation,
    part: TunedPart,
    epochs: int,
    lr: float,
    done: Callable[[int], None] | None = None,
    *,
    loss: Objective = "method",
    unseen: int = UNSEEN,
    initial: InitialAccuracy | None = None,
    global_accuracy: Column | None = None,
    sample: int | None = None,
) -> PersonalizationResult:
    """Fine-tune every client. The federation is at its last round; `done` is called with each client that is done."""
    check(federation.experiment.program.layout.regions, part, epochs, lr, loss)
    initial = initial or initial_accuracy(federation, unseen, sample)
    reports = _run(federation, part, epochs, lr, loss, unseen, False, done, sample) if epochs else []
    accuracy = [initial.accuracy, *(_shares(reports, "correct", "total", epoch) for epoch in range(epochs))]
    unseen_after = _shares(reports, "unseen", "unseen_total", 0) if epochs else initial.unseen
    unseen_accuracy = (initial.unseen, unseen_after)
    return PersonalizationResult(part, epochs, lr, accuracy, loss, global_accuracy or [], unseen_accuracy, sample)


def _run(
    federation: Federation,
    part: TunedPart,
    epochs: int,
    lr: float,
    loss: Objective,
    unseen: int,
    first: bool,
    done: Callable[[int], None] | None,
    sample: int | None,
) -> Sequence[dict[str, Any] | None]:
    """One report per client; None for clients outside the sample or whose worker died."""
    federation.buffers.broadcast(federation.state.served())
    partition, seed = federation.experiment.data.partition, federation.experiment.recipe.seed
    clients = list(range(partition.clients))
    if sample is not None and sample < len(clients):
        clients = sorted(numpy_generator(seed, "looked at").permutation(len(clients))[:sample].tolist())
    regions = list(REGIONS[part])
    assignments = [
        Assignment(
            FineTune(client, regions, epochs, lr, loss, unseen, first),
            len(partition.train(client)),
            federation.load_state(client),
        )
        for client in clients
    ]
    reports = dict(zip(clients, federation.backend.run(assignments, done), strict=True))
    return [reports.get(client) for client in range(partition.clients)]


def _shares(reports: Sequence[dict[str, Any] | None], correct: str, total: str, place: int) -> Column:
    return [r[correct][place] / r[total] if r and r[total] else None for r in reports]


def check(regions: Regions, part: str, epochs: int, lr: float, loss: str = "method") -> None:
    """Refuse settings that are out of range or leave nothing to fine-tune."""
    if part not in REGIONS:
        raise FedloomError(f"part: {shown(part)} is unknown; allowed are {', '.join(REGIONS)}")
    if epochs < 0:
        raise FedloomError(f"epochs: must not be negative (got {epochs})")
    if not 0 < lr < float("inf"):
        raise FedloomError(f"lr: must be greater than 0 (got {lr})")
    if loss not in get_args(Objective):
        raise FedloomError(f"loss: {shown(loss)} is unknown; allowed are {', '.join(get_args(Objective))}")
    names = regions.select(*REGIONS[part])
    if epochs and not any(n not in regions.statistics and n not in regions.constant for n in names):
        reason = "is fixed by the method" if names else "does not exist in this net"
        raise FedloomError(f"part: the {part} {reason}, so there is nothing to fine-tune; choose another part")
