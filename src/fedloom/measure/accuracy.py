"""Accuracies, each with its own name, because papers mix them up.

    test_accuracy        the served global model on the whole pooled test set: every test image once, as its holder sees it
    clean_test_accuracy  the same on those images as they are, where the split changes what is seen
    domain_accuracy      test_accuracy by domain, where the set has domains
    validation_accuracy  the same on training images that no client holds
    client accuracy      the served global model on each client's own test images
    personal accuracy    each client's own model on its own test images: its personal regions over the global ones, then
                         what parts do to personalise it (ditto's own vector, perfedavg's step)

The server's model has the personal regions as drawn. A client that never took part is tested with those as well. Under
`bn: local` the server has no statistics of its own: there, the test batch's are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedloom.engine.batches import cut
from fedloom.engine.lanes import Job, Report
from fedloom.engine.rounds import Federation
from fedloom.errors import FedloomError

BATCHES = 10  # test batches a job


def pooled(federation: Federation) -> dict[str, Any]:
    """The served model on the pooled test set, as it is seen and as it is, and on validation images if there are any."""
    experiment, board, number = federation.experiment, federation.board, federation.state.round
    board.broadcast(federation.state.served())
    if not len(experiment.images.test_y):  # test images lie at clients alone: the pooled set is theirs, and hits add up
        federation.tested = _reports(federation, personal=False)
        reports = [report for report in federation.tested if report and report.get("total")]
        total = sum(report["total"] for report in reports)
        return {"test_accuracy": sum(report["correct"] for report in reports) / total if total else None}
    step = BATCHES * experiment.recipe.eval_batch
    tested = [name for name, hits in board.hits_of.items() if len(hits)]
    if not experiment.at(number).changes:
        tested = [name for name in tested if name != "clean"]
    jobs = [
        Job("test", {"begin": piece.start, "end": piece.stop, "set": name, "round": number})
        for name in tested
        for piece in cut(len(board.hits_of[name]), step, alone=False)
    ]
    if None in federation.lanes.run(jobs):
        raise FedloomError(f"the test after round {number} failed: its lane died every time")
    names = {"test": "test_accuracy", "validation": "validation_accuracy", "clean": "clean_test_accuracy"}
    found: dict[str, Any] = {names[name]: float(board.hits_of[name].double().mean()) for name in tested}
    domain = experiment.images.test_domain
    if domain is not None:
        found["domain_accuracy"] = {
            experiment.images.domain_names[k]: float(board.hits_of["test"][domain == k].double().mean())
            for k in np.unique(domain.numpy()).tolist()
        }
    return found


def by_client(federation: Federation, fresh: bool = True) -> dict[str, Any]:
    """Accuracy of every client on its own test images: under the global model, and under its own where it has one.

    `fresh`: the pooled test was made for these very weights, so its hits can be read again instead of computed.
    """
    experiment = federation.experiment
    federation.board.broadcast(federation.state.served())
    holding, recipe = experiment.at(federation.state.round), experiment.recipe
    partition = holding.partition
    at_hand = len(experiment.images.train_y) > 0  # else they lie at the clients
    if (
        fresh and at_hand and recipe.bn == "running" and holding.each_once
    ):  # else it matters what is tested together, and by whom
        right = np.concatenate(([0], np.cumsum(federation.board.hits_of["test"].numpy()[partition.test_index])))
        begin, end = partition.test_offsets[:-1], partition.test_offsets[1:]
        accuracy = [
            correct / total if total else None
            for correct, total in zip((right[end] - right[begin]).tolist(), (end - begin).tolist(), strict=True)
        ]
    elif fresh and federation.tested is not None:
        accuracy = _shares(federation.tested)
    else:
        accuracy = _shares(_reports(federation, personal=False))
    found: dict[str, Any] = {"accuracy": accuracy}
    if is_personal(federation):
        found["personal_accuracy"] = _shares(_reports(federation, personal=True))
    return found


def is_personal(federation: Federation) -> bool:
    """Whether clients have models of their own, before any fine-tuning."""
    layout, method = federation.experiment.layout, federation.experiment.method
    makes = method.hooked("personalise") or method.the("own_logits")
    return bool(layout.personal or layout.personal_statistics or makes)


def remember(federation: Federation, client: int) -> Callable[[int], None]:
    """Puts a client's memory on the board, in the row of whichever lane takes the job."""

    def prepare(lane: int) -> None:
        if federation.experiment.messages.memory.nbytes:
            federation.board.memory_rows[lane].copy_(federation.memory.get(client))

    return prepare


def _shares(reports: Sequence[Report | None]) -> list[float | None]:
    return [r["correct"] / r["total"] if r and r.get("total") else None for r in reports]


def _reports(federation: Federation, personal: bool) -> list[Report | None]:
    number = federation.state.round
    partition = federation.experiment.at(number).partition
    jobs = [
        Job(
            "client",
            {"client": k, "personal": personal, "round": number},
            len(partition.test(k)),
            remember(federation, k),
        )
        for k in range(partition.clients)
    ]
    return federation.lanes.run(jobs)


def spread(values: Sequence[float | None]) -> dict[str, float | int]:
    """Mean, deviation (over clients, population), quartiles and worst of what is known."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return {"clients": 0}
    low, middle, high = np.percentile(known, [25, 50, 75])
    return {
        "mean": float(known.mean()),
        "std": float(known.std()),
        "worst": float(known.min()),
        "quarter": float(low),
        "median": float(middle),
        "three_quarters": float(high),
        "clients": len(known),
    }
