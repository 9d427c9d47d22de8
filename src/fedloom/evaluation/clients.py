"""Every client on its own test samples.

    <metric>           the served global model on the client's own test samples
    personal_<metric>  the client's own model on them: its personal regions over the global weights, then the parts'
                       `personalize` hooks (ditto's own vector, perfedavg's step)

A client that never took part has personal regions at their initial values. A metric that is undefined for a client (AUROC
with a single class) is null, left out of means and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedloom.engine.program import Program
from fedloom.engine.server.round import Federation
from fedloom.engine.tasks import Assignment, Report
from fedloom.evaluation.measure import Values, count_undefined, defined, measure, summarize
from fedloom.evaluation.metrics import find_metric
from fedloom.evaluation.metrics.accuracy import Accuracy
from fedloom.evaluation.tasks.evaluate import PREFIX, EvaluateClient

Columns = dict[str, list[float | None]]  # by metric, a number for each client


def evaluate_clients(federation: Federation, fresh: bool = True) -> dict[str, Any]:
    """One column per metric, under the global model, and under the clients' own where they have one.

    `fresh`: `evaluate_global` was called for these weights, so its results are reused where they are the same. Where more
    than accuracy is asked for, the column `tested` has the number of test samples, null where a client's report was lost.
    """
    federation.buffers.broadcast(federation.state.served())
    metrics = federation.experiment.recipe.metrics
    if fresh and _same_as_pooled(federation):
        each, tested = _from_pooled(federation)
    else:
        known = fresh and federation.tested is not None
        reports = (federation.tested or []) if known else client_reports(federation, personal=False)
        each, tested = _columns([values_of(report) for report in reports], metrics), _tested(reports)
    columns: dict[str, Any] = {"tested": tested} if federation.experiment.recipe.needs_scores else {}
    columns |= each
    if has_personal_models(federation):
        own = [values_of(report) for report in client_reports(federation, personal=True)]
        columns |= {f"personal_{metric}": column for metric, column in _columns(own, metrics).items()}
    return columns


def summarize_clients(columns: dict[str, Any], metrics: Sequence[str]) -> dict[str, dict[str, float | int]]:
    """client_<metric>, and personal_<metric> where clients have models of their own: mean and quartiles over clients."""
    summaries = {}
    for kind, prefix in (("client", ""), ("personal", "personal_")):
        for metric in metrics:
            if (column := columns.get(f"{prefix}{metric}")) is not None:
                undefined = count_undefined(column, columns.get("tested"))
                summaries[f"{kind}_{metric}"] = summarize(column, find_metric(metric).better, undefined)
    return summaries


def has_personal_models(federation: Federation) -> bool:
    """Whether clients have models of their own before any fine-tuning."""
    return personal_models(federation.experiment.program)


def personal_models(program: Program) -> bool:
    layout, method = program.layout, program.method
    hooks = method.hooked("personalize") or method.the("own_logits")
    return bool(layout.personal or layout.personal_statistics or hooks)


def values_of(report: Report | None) -> Values:
    """The metrics in a report of `EvaluateClient`; none of a client without test samples or whose report was lost."""
    if not report or not report.get("total"):
        return {}
    others = {name.removeprefix(PREFIX): defined(v) for name, v in report.items() if name.startswith(PREFIX)}
    return {"accuracy": Accuracy.of_counts(report["correct"], report["total"]), **others}


def client_reports(federation: Federation, personal: bool) -> list[Report | None]:
    round = federation.state.round
    partition = federation.experiment.data.at(round).partition
    assignments = [
        Assignment(EvaluateClient(k, round, personal), len(partition.test(k)), federation.load_state(k))
        for k in range(partition.clients)
    ]
    return federation.backend.run(assignments)


def _same_as_pooled(federation: Federation) -> bool:
    """Batch statistics depend on which samples are evaluated together, and shifts on whose samples they are."""
    experiment = federation.experiment
    central = len(experiment.data.dataset.train_y) > 0  # the samples are here, not only at the clients
    stage = experiment.data.at(federation.state.round)
    return central and experiment.recipe.bn == "running" and stage.one_view_per_sample


def _from_pooled(federation: Federation) -> tuple[Columns, list[int | None]]:
    """From the hits and scores of the pooled test set."""
    experiment, buffers = federation.experiment, federation.buffers
    metrics, partition = experiment.recipe.metrics, experiment.data.at(federation.state.round).partition
    begin, end = partition.test_offsets[:-1], partition.test_offsets[1:]
    place = np.searchsorted(experiment.data.tested, partition.test_index)  # in the pooled test set
    tested = (end - begin).tolist()
    if not experiment.recipe.needs_scores:  # a column at once: a dictionary for each of many clients takes megabytes
        correct = np.concatenate(([0], np.cumsum(buffers.hits_of["test"].numpy()[place])))
        counts = zip((correct[end] - correct[begin]).tolist(), tested, strict=True)
        return {"accuracy": [Accuracy.of_counts(right, total) if total else None for right, total in counts]}, tested
    each = []
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):
        own = place[first:last]
        hits, scores = buffers.hits_of["test"][own], buffers.scores_of["test"][own]
        each.append(measure(metrics, hits, scores, experiment.data.dataset.test_y[partition.test_index[first:last]]))
    return _columns(each, metrics), tested


def _columns(each: Sequence[Values], metrics: Sequence[str]) -> Columns:
    return {metric: [values.get(metric) for values in each] for metric in metrics}


def _tested(reports: Sequence[Report | None]) -> list[int | None]:
    return [None if not report or "total" not in report else report["total"] for report in reports]
