"""Results as plain values: what `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from fedloom.data.split.client_names import client_names
from fedloom.evaluation.fine_tuned import PersonalizationResult
from fedloom.finished.adopt import Adopted
from fedloom.runs.split import Split
from fedloom.studies.comparison import Comparison
from fedloom.studies.reproduce import Reproduction


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Means and deviations by method and setting, then every run."""
    rows = []
    for row in comparison.rows:
        for point in comparison.points:
            by_seed = comparison.of(row, point)
            names = by_seed[0] if by_seed else {}
            rows.append(
                {
                    "method": row,
                    "label": comparison.label(row),
                    **({"settings": dict(point)} if point else {}),
                    "seeds": len(by_seed),
                    "mean": {name: comparison.mean(row, name, point) for name in names},
                    "deviation": {name: comparison.deviation(row, name, point) for name in names},
                }
            )
    runs = [
        {
            "method": result.cell.row,
            **({"settings": dict(result.cell.point)} if result.cell.point else {}),
            "seed": result.cell.seed,
            "path": None if result.failure is not None else result.run.path,
            "values": result.values(),
            **({} if result.failure is None else {"failure": result.failure}),
        }
        for result in comparison.results
    ]
    return {"path": comparison.root, "metrics": comparison.metrics, "rows": rows, "runs": runs}


def reproduction_data(reproduction: Reproduction) -> dict[str, Any]:
    cells = [
        {
            "paper": item.cell.paper,
            "table": item.cell.table,
            "labels": dict(item.cell.labels),
            "method": item.cell.sum,
            "published": item.cell.value,
            "ours": item.mean,
            "deviation": item.deviation,
            "seeds": item.seeds,
            "difference": item.difference,
            "departs": list(item.differs),
            "failure": item.failure or None,
        }
        for item in reproduction.outcomes
    ]
    return {"path": reproduction.plan.out, "departs": list(reproduction.plan.departures), "cells": cells}


def personal_data(outcomes: Mapping[str, Sequence[PersonalizationResult]]) -> dict[str, Any]:
    return {path: [result.to_json() for result in results] for path, results in outcomes.items()}


def split_data(split: Split) -> dict[str, Any]:
    stages = [
        {
            "from_round": stage.begin,
            "train": [int(end - begin) for begin, end in _bounds(stage.partition.train_offsets)],
            "test": [int(end - begin) for begin, end in _bounds(stage.partition.test_offsets)],
            "heterogeneity": split.strength(number).to_json(),
        }
        for number, stage in enumerate(split.stages)
    ]
    names = client_names(split.stages[0])
    named = {"client_names": names} if names else {}
    return {
        "split": split.spec,
        "data": split.data,
        "clients": split.clients,
        **named,
        "seed": split.seed,
        "stages": stages,
    }


def adopted_data(adopted: Adopted) -> dict[str, Any]:
    return asdict(adopted)


def _bounds(offsets: Any) -> list[tuple[int, int]]:
    return list(pairwise(offsets))
