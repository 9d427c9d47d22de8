"""The served global model on whole test sets. Each number has its own name, because papers mix them up.

    test_<metric>        the served global model on the pooled test set: every test sample once, as its client sees it
    clean_test_<metric>  the same on unshifted samples, where the split has shifts
    domain_<metric>      test_<metric> by domain, where the data set has domains
    class_<metric>       test_<metric> by class, after the last round and where more than accuracy is asked for
    validation_<metric>  the served global model on training samples that no client trains on; where clients held out their
                         own (`data.validation_from: clients`), as each client sees them

The server's model has personal regions at their initial values. With `bn: local` the server has no running statistics: it
normalizes each test batch by the batch's own.

Where only the clients have test samples, the pooled test set is the union of theirs. Accuracy is then a ratio of counts, and
every other metric is the mean over clients, weighted by their test samples. That mean is exact for a metric that is itself a
mean over samples (loss, top5). For the others (macro F1, AUROC, ...) it is another number than the metric of the union,
which no one can compute without the scores: `site_means` names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.client.batches import cut
from fedloom.engine.server.round import Federation
from fedloom.engine.tasks import Assignment, Report
from fedloom.errors import FedloomError
from fedloom.evaluation.clients import client_reports, values_of
from fedloom.evaluation.measure import Values, defined, measure
from fedloom.evaluation.metrics import compute_by_class, find_metric
from fedloom.evaluation.metrics.accuracy import Accuracy
from fedloom.evaluation.tasks.evaluate import Evaluate

BATCHES = 10  # test batches per task
KEYS = {"test": "test", "validation": "validation", "clean": "clean_test"}  # by set, before _<metric>


def evaluate_global(federation: Federation) -> dict[str, Any]:
    """The served model on the pooled test set, with and without shifts, and on validation samples if there are any."""
    experiment, buffers, round = federation.experiment, federation.buffers, federation.state.round
    recipe, dataset = experiment.recipe, experiment.data.dataset
    buffers.broadcast(federation.state.served())
    if recipe.eval_test and not len(dataset.test_y):
        federation.tested = client_reports(federation, personal=False)
        return _union(recipe.metrics, federation.tested)
    step = BATCHES * recipe.eval_batch
    own = experiment.data.validation_at(round)
    sizes = {name: len(hits) for name, hits in buffers.hits_of.items() if len(hits)}
    if own is not None:
        sizes["validation"] = len(own.partition.train_index)
    if not experiment.data.at(round).shifts:
        sizes.pop("clean", None)
    sets = [name for name in sizes if recipe.eval_test or name == "validation"]
    assignments = [
        Assignment(Evaluate(name, piece.start, piece.stop, round, recipe.needs_scores))
        for name in sets
        for piece in cut(sizes[name], step, alone=False)
    ]
    if None in federation.backend.run(assignments):
        raise FedloomError(f"the test after round {round} failed: its worker died every time")

    def measured(name: str, chosen: Tensor | slice = slice(None)) -> Values:
        targets = test_y
        if name == "validation":
            held = experiment.data.validation
            targets = dataset.train_y[held] if own is None else torch.from_numpy(own.held_labels())
        hits, scores = buffers.hits_of[name][: sizes[name]], buffers.scores_of[name][: sizes[name]]
        return measure(recipe.metrics, hits[chosen], scores[chosen] if len(scores) else scores, targets[chosen])

    tested = experiment.data.tested
    test_y = dataset.test_y[tested]
    values: dict[str, Any] = {}
    for name in sets:
        values |= {f"{KEYS[name]}_{metric}": value for metric, value in measured(name).items()}
    if not recipe.eval_test:
        return values
    if dataset.test_domain is not None:
        test_domain = dataset.test_domain[tested]
        domains = np.unique(test_domain.numpy()).tolist()
        inside = {dataset.domain_names[k]: measured("test", test_domain == k) for k in domains}
        for metric in recipe.metrics:
            values[f"domain_{metric}"] = {domain: by_metric[metric] for domain, by_metric in inside.items()}
    if recipe.needs_scores and round == recipe.rounds:
        for metric in recipe.metrics:
            by_class = compute_by_class(metric, buffers.scores_of["test"], test_y)
            values[f"class_{metric}"] = dict(zip(dataset.class_names, map(defined, by_class), strict=True))
    return values


def _union(metrics: Sequence[str], reports: Sequence[Report | None]) -> dict[str, Any]:
    """Metrics of all clients' test samples together, as far as the clients' numbers tell them."""
    known = [report for report in reports if report and report.get("total")]
    values: dict[str, Any] = {}
    for metric in metrics:
        if metric == "accuracy":
            total = sum(report["total"] for report in known)
            correct = sum(report["correct"] for report in known)
            values["test_accuracy"] = Accuracy.of_counts(correct, total) if total else None
            continue
        pairs = [(value, report["total"]) for report in known if (value := values_of(report)[metric]) is not None]
        weight = sum(total for _, total in pairs)
        values[f"test_{metric}"] = sum(value * total for value, total in pairs) / weight if weight else None
    if means := [metric for metric in metrics if not find_metric(metric).sample_mean]:
        values["site_means"] = means
    return values
