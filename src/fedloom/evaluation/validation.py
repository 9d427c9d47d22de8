"""Validation of the clients' own models, where clients hold out validation samples of their own.

    personal_validation_<metric>  every client's own model on its own validation samples: the mean over clients

A method whose clients have models of their own is about these, not about the server's model, whose personal regions keep
their initial values. `validation_<metric>`, of the served model, is in global_model.py.
"""

from __future__ import annotations

import math
from typing import Any

from fedloom.engine.server.round import Federation
from fedloom.engine.tasks import Assignment
from fedloom.evaluation.clients import has_personal_models, values_of
from fedloom.evaluation.measure import summarize
from fedloom.evaluation.metrics import find_metric
from fedloom.evaluation.tasks.validate import ValidateClient


def validate_clients(federation: Federation) -> dict[str, Any]:
    """The means over clients, with their standard errors; empty where clients have no models or samples of their own."""
    round, metrics = federation.state.round, federation.experiment.recipe.metrics
    stage = federation.experiment.data.validation_at(round)
    if stage is None or not has_personal_models(federation):
        return {}
    federation.buffers.broadcast(federation.state.served())
    assignments = [
        Assignment(ValidateClient(k, round), len(stage.partition.train(k)), federation.load_state(k))
        for k in range(stage.partition.clients)
        if len(stage.partition.train(k))
    ]
    each = [values_of(report) for report in federation.backend.run(assignments)]
    values: dict[str, Any] = {}
    for metric in metrics:
        summary = summarize([one.get(metric) for one in each], find_metric(metric).better)
        name = f"personal_validation_{metric}"
        values[name] = summary.get("mean")
        if "mean" in summary:
            values[f"{name}_error"] = summary["std"] / math.sqrt(summary["clients"])
    return values
