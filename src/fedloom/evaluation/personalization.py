"""Personalization by fine-tuning: every client trains its own model on its own data.

A client starts from its own model: the served weights with its personal regions over them, after the parts' `personalize`
hooks. For most methods that is the served model. The recipe's metrics on the client's own test samples are computed before
the first epoch (`initial`) and after every epoch, so one pass gives the whole curve of FedBABU's Table 5. What fine-tuning
forgets is measured on test samples of classes that the client has no training sample of, before and after.

The loss is the method's own with its regularizers (so distillation to the served model as well), its loss without them, or
cross-entropy. Gradient corrections are ignored. A frozen region is trained if the chosen part contains it (a FedBABU
head is), unless the method fixes it for good (an ETF head).

`alternate` trains pieces of the net in turns: head and body, or what a part of the method declares (FedETF).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fedloom.engine.server.round import Federation
from fedloom.engine.tasks import Assignment
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.fine_tuned import FineTunedMetric, PersonalizationResult, TunedPart
from fedloom.evaluation.measure import Column
from fedloom.evaluation.tasks.finetune import FineTune
from fedloom.evaluation.unseen import UNSEEN
from fedloom.methods.api.alternation import Alternating, alternation_of
from fedloom.methods.api.context import Objective
from fedloom.rng import numpy_generator
from fedloom.weights import BEFORE_HEAD, Regions

REGIONS: dict[TunedPart, tuple[str, ...]] = {
    "full": (*BEFORE_HEAD, "head"),
    "head": ("head",),
    "body": BEFORE_HEAD,
    "adapter": ("adapter",),
    "alternate": (*BEFORE_HEAD, "head"),
}

Reports = Sequence[dict[str, Any] | None]  # of FineTune, one per client; None where there is none


@dataclass(frozen=True)
class InitialValues:
    """Metrics of the clients' own models before fine-tuning. They are the same for every part, learning rate and loss."""

    reports: Reports


def initial_values(federation: Federation, unseen: int = UNSEEN, sample: int | None = None) -> InitialValues:
    """Evaluate every client's own model. The federation is at its last round."""
    return InitialValues(_run(federation, "full", 0, 1.0, "method", unseen, True, None, sample))


def fine_tune(
    federation: Federation,
    part: TunedPart,
    epochs: int,
    lr: float,
    done: Callable[[int], None] | None = None,
    *,
    loss: Objective = "method",
    unseen: int = UNSEEN,
    initial: InitialValues | None = None,
    on_global: Mapping[str, Column] | None = None,
    sample: int | None = None,
) -> PersonalizationResult:
    """Fine-tune every client. The federation is at its last round; `done` is called with each client that is done.

    `on_global`: the served model on each client's test samples, by metric.
    """
    program = federation.experiment.program
    check(program.layout.regions, part, epochs, lr, loss, program.method.parts)
    first = (initial or initial_values(federation, unseen, sample)).reports
    reports = _run(federation, part, epochs, lr, loss, unseen, False, done, sample) if epochs else []
    last = reports if epochs else first
    results, recipe = [], federation.experiment.recipe
    # accuracy is never undefined, so where it is the only metric nothing has to be counted
    counts = (_counts(first, "total"), _counts(first, "unseen_total")) if recipe.needs_scores else ([], [])
    for metric in recipe.metrics:
        values = [_values(first, metric, 0), *(_values(reports, metric, epoch) for epoch in range(epochs))]
        on_unseen = _unseen(first, metric), _unseen(last, metric)
        globally = list((on_global or {}).get(metric, []))
        results.append(FineTunedMetric(metric, values, globally, on_unseen, *counts))
    alternating = alternation_of(program.method.parts).epochs(epochs) if part == "alternate" else []
    turns = tuple(turn.name for turn in alternating)
    return PersonalizationResult(part, epochs, lr, tuple(results), loss, sample, turns)


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
            FineTune(client, regions, epochs, lr, loss, unseen, first, part == "alternate"),
            len(partition.train(client)),
            federation.load_state(client),
        )
        for client in clients
    ]
    reports = dict(zip(clients, federation.backend.run(assignments, done), strict=True))
    return [reports.get(client) for client in range(partition.clients)]


def _counts(reports: Reports, name: str) -> list[int | None]:
    return [None if report is None else report[name] for report in reports]


def _values(reports: Reports, metric: str, place: int) -> Column:
    if metric == "accuracy":
        return [r["correct"][place] / r["total"] if r and r["total"] else None for r in reports]
    return [r["metrics"][metric][place] if r and r["total"] else None for r in reports]


def _unseen(reports: Reports, metric: str) -> Column:
    if metric == "accuracy":
        return [r["unseen"][0] / r["unseen_total"] if r and r["unseen_total"] else None for r in reports]
    return [r["unseen_metrics"][metric][0] if r and r["unseen_total"] else None for r in reports]


def check(
    regions: Regions, part: str, epochs: int, lr: float, loss: str = "method", parts: Sequence[Alternating] = ()
) -> None:
    """Refuse settings that are out of range or leave nothing to fine-tune. `parts`: those of the method."""
    if part not in REGIONS:
        raise FedloomError(f"part: {shown(part)} is unknown; allowed are {', '.join(REGIONS)}")
    if epochs < 0:
        raise FedloomError(f"epochs: must not be negative (got {epochs})")
    if not 0 < lr < float("inf"):
        raise FedloomError(f"lr: must be greater than 0 (got {lr})")
    if loss not in get_args(Objective):
        raise FedloomError(f"loss: {shown(loss)} is unknown; allowed are {', '.join(get_args(Objective))}")
    if part == "alternate" and epochs:
        for turn in alternation_of(parts).turns:
            if not turn.tensors(regions):
                reason = "is fixed by the method" if regions.select(*turn.train) else "does not exist in this net"
                raise FedloomError(
                    f"part: the {turn.name} {reason}, so there is nothing to alternate with; choose another part"
                )
    names = regions.select(*REGIONS[part])
    if epochs and not any(n not in regions.statistics and n not in regions.constant for n in names):
        reason = "is fixed by the method" if names else "does not exist in this net"
        raise FedloomError(f"part: the {part} {reason}, so there is nothing to fine-tune; choose another part")
