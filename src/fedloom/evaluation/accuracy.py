"""Accuracies of a run. Each has its own name, because papers mix them up.

    test_accuracy        the served global model on the pooled test set: every test sample once, as its client sees it
    clean_test_accuracy  the same on unshifted images, where the split has shifts
    domain_accuracy      test_accuracy by domain, where the data set has domains
    validation_accuracy  the served global model on training samples that were held out from all clients
    client accuracy      the served global model on each client's own test samples
    personal accuracy    each client's own model on its own test samples: its personal regions over the global weights,
                         then the parts' `personalize` hooks (ditto's own vector, perfedavg's step)

The server's model has personal regions at their initial values, and so has a client that never took part. With
`bn: local` the server has no running statistics: it normalizes each test batch by the batch's own.

Workers and nodes report counts of correct images, and counts add up exactly. So accuracy needs no scores from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedloom.engine.client.batches import cut
from fedloom.engine.server.round import Federation
from fedloom.engine.tasks import Assignment, Report
from fedloom.engine.tasks.evaluate import Evaluate, EvaluateClient
from fedloom.errors import FedloomError
from fedloom.evaluation.metrics.accuracy import Accuracy

BATCHES = 10  # test batches per task
SUMMARY_KEYS = {"test": "test_accuracy", "validation": "validation_accuracy", "clean": "clean_test_accuracy"}


def evaluate_global(federation: Federation) -> dict[str, Any]:
    """The served model on the pooled test set, with and without shifts, and on validation samples if there are any."""
    experiment, buffers, round = federation.experiment, federation.buffers, federation.state.round
    buffers.broadcast(federation.state.served())
    if not len(experiment.data.dataset.test_y):
        # only the clients have test samples: the pooled test set is the union of theirs
        federation.tested = _client_reports(federation, personal=False)
        reports = [report for report in federation.tested if report and report.get("total")]
        total = sum(report["total"] for report in reports)
        correct = sum(report["correct"] for report in reports)
        return {"test_accuracy": Accuracy.of_counts(correct, total) if total else None}
    step = BATCHES * experiment.recipe.eval_batch
    image_sets = [name for name, hits in buffers.hits_of.items() if len(hits)]
    if not experiment.data.at(round).shifts:
        image_sets = [name for name in image_sets if name != "clean"]
    assignments = [
        Assignment(Evaluate(name, piece.start, piece.stop, round))
        for name in image_sets
        for piece in cut(len(buffers.hits_of[name]), step, alone=False)
    ]
    if None in federation.backend.run(assignments):
        raise FedloomError(f"the test after round {round} failed: its worker died every time")
    accuracies: dict[str, Any] = {
        SUMMARY_KEYS[name]: float(buffers.hits_of[name].double().mean()) for name in image_sets
    }
    domain = experiment.data.dataset.test_domain
    if domain is not None:
        accuracies["domain_accuracy"] = {
            experiment.data.dataset.domain_names[k]: float(buffers.hits_of["test"][domain == k].double().mean())
            for k in np.unique(domain.numpy()).tolist()
        }
    return accuracies


def evaluate_clients(federation: Federation, fresh: bool = True) -> dict[str, Any]:
    """Accuracy of every client on its own test samples: under the global model, and under its own where it has one.

    `fresh`: `evaluate_global` was called for these weights, so its hits are reused where they are the same.
    """
    experiment = federation.experiment
    federation.buffers.broadcast(federation.state.served())
    stage, recipe = experiment.data.at(federation.state.round), experiment.recipe
    partition = stage.partition
    central = len(experiment.data.dataset.train_y) > 0  # the images are here, not only at the clients
    # batch statistics depend on which images are evaluated together, and shifts on whose images they are
    if fresh and central and recipe.bn == "running" and stage.one_view_per_sample:
        correct = np.concatenate(([0], np.cumsum(federation.buffers.hits_of["test"].numpy()[partition.test_index])))
        begin, end = partition.test_offsets[:-1], partition.test_offsets[1:]
        counts = zip((correct[end] - correct[begin]).tolist(), (end - begin).tolist(), strict=True)
        accuracy = [Accuracy.of_counts(right, total) if total else None for right, total in counts]
    elif fresh and federation.tested is not None:
        accuracy = _accuracies(federation.tested)
    else:
        accuracy = _accuracies(_client_reports(federation, personal=False))
    columns: dict[str, Any] = {"accuracy": accuracy}
    if has_personal_models(federation):
        columns["personal_accuracy"] = _accuracies(_client_reports(federation, personal=True))
    return columns


def has_personal_models(federation: Federation) -> bool:
    """Whether clients have models of their own before any fine-tuning."""
    layout, method = federation.experiment.program.layout, federation.experiment.program.method
    hooks = method.hooked("personalize") or method.the("own_logits")
    return bool(layout.personal or layout.personal_statistics or hooks)


def _accuracies(reports: Sequence[Report | None]) -> list[float | None]:
    return [Accuracy.of_counts(r["correct"], r["total"]) if r and r.get("total") else None for r in reports]


def _client_reports(federation: Federation, personal: bool) -> list[Report | None]:
    round = federation.state.round
    partition = federation.experiment.data.at(round).partition
    assignments = [
        Assignment(EvaluateClient(k, round, personal), len(partition.test(k)), federation.load_state(k))
        for k in range(partition.clients)
    ]
    return federation.backend.run(assignments)


def summarize(values: Sequence[float | None]) -> dict[str, float | int]:
    """Mean, population standard deviation, quartiles and minimum over the clients that have a value."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return {"clients": 0}
    q1, median, q3 = np.percentile(known, [25, 50, 75])
    return {
        "mean": float(known.mean()),
        "std": float(known.std()),
        "worst": float(known.min()),
        "q1": float(q1),
        "median": float(median),
        "q3": float(q3),
        "clients": len(known),
    }
