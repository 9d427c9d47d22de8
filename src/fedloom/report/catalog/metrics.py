"""Metrics."""

from __future__ import annotations

import inspect

from fedloom.evaluation.metrics import METRICS, list_metrics
from fedloom.report.catalog.entry import Description, Entry, Section
from fedloom.report.catalog.find import chosen


def entries() -> list[Entry]:
    return [
        Entry(row["name"], f"{row['summary']} ({row['better']} is better)", "", {**row, "summary": row["summary"]})
        for row in list_metrics()
    ]


def describe(name: str) -> Description:
    row = chosen("metric", name, list_metrics(), "metrics")
    metric = METRICS[name]
    low, high = metric.bounds
    facts = [("better", row["better"]), ("format", row["format"]), ("values", f"{low:g} to {high:g}")]
    facts.append(("columns", f"test_{name}, client_{name}, personal_{name}"))
    facts.append(
        ("sites", "mean over samples, so sites' values average exactly" if metric.sample_mean else "a mean over sites")
    )
    return Description(
        name,
        [
            Section("In short", [("", row["summary"])]),
            Section("Definition", inspect.getdoc(type(metric)) or ""),
            Section("Facts", facts),
            Section(
                "Example", [("", f"fedloom run --metrics accuracy,{name}" if name != "accuracy" else "fedloom run")]
            ),
        ],
    )
