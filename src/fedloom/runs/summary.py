"""The end of a run: the served weights, and the numbers of the whole run."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.engine.server.round import Federation
from fedloom.engine.timing import seconds_by
from fedloom.evaluation.clients import summarize_clients
from fedloom.evaluation.metrics import find_metric
from fedloom.io.digest import digest
from fedloom.io.files import read_lines, write_json, write_tensors
from fedloom.recipe import Recipe
from fedloom.runs.folder import RunFolder
from fedloom.version import __version__


def write_summary(fed: Federation, folder: RunFolder) -> None:
    """Write final.safetensors and summary.json of a federation at its last round."""
    experiment, state, recipe = fed.experiment, fed.state, fed.experiment.recipe
    tensors = experiment.program.layout.tensors(state.whole(state.served()["w"]))
    lines, by_client = read_lines(folder.rounds), read_lines(folder.clients)
    each = by_client[-1] if by_client else {}  # none where test samples are not evaluated
    write_tensors(folder.final, tensors, {"recipe": experiment.recipe.digest(), "round": str(state.round)})
    summary: dict[str, Any] = {
        "method": str(experiment.program.method),
        **_metrics(recipe, lines[-1], summarize_clients(each, recipe.metrics)),
        **best_by_validation(recipe, lines),
        "train_loss": lines[-1]["train_loss"],
        "rounds": state.round,
        "lost": sum(line["lost"] for line in lines),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "evaluation_seconds": round(sum(line.get("evaluation_seconds", 0) for line in lines), 3),
        "seconds_by": seconds_by(lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "workers": fed.backend.count,
        "workers_replaced": fed.backend.deaths,
        "parameters": experiment.program.layout.parameters,
        "shared": 0 if experiment.program.pooled else experiment.program.layout.shared,
        "personal": experiment.program.layout.personal,
        "digest": digest(tensors),
        "recipe_digest": experiment.recipe.digest(),
        "data_digest": experiment.data.dataset.digest,
        "versions": {
            "fedloom": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "system": platform.system(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "device": experiment.recipe.device,
        },
    }
    if experiment.data.dataset.notes:
        summary["data_notes"] = list(experiment.data.dataset.notes)
    if experiment.program.origin:
        summary["init"] = experiment.program.origin
    for part in experiment.program.method.hooked("summary"):
        summary = {**part.summary(experiment.program.plan()), **summary}
    write_json(folder.summary, summary)


def _metrics(recipe: Recipe, last: dict[str, Any], clients: dict[str, Any]) -> dict[str, Any]:
    """All metrics after the last round; `clients`: mean and quartiles over clients, by name."""
    values: dict[str, Any] = {}
    for metric in recipe.metrics:
        if f"test_{metric}" not in last:  # added to the recipe after the last round
            continue
        values |= {f"test_{metric}": last[f"test_{metric}"], f"client_{metric}": clients[f"client_{metric}"]}
        names = (f"{kind}_{metric}" for kind in ("clean_test", "domain", "class"))
        values |= {name: last[name] for name in names if name in last}
        if f"personal_{metric}" in clients:
            values[f"personal_{metric}"] = clients[f"personal_{metric}"]
    return values | {name: last[name] for name in ("site_means",) if name in last}


def best_by_validation(recipe: Recipe, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The round whose headline metric is best on validation samples, the first of equals; never selected on test samples."""
    headline, name = find_metric(recipe.headline), f"validation_{recipe.headline}"
    best: dict[str, Any] | None = None
    for line in lines:
        if line.get(name) is not None and (best is None or headline.is_better(line[name], best[name])):
            best = line
    if best is None:
        return {}
    names = ("round", *(f"{kind}_{metric}" for kind in ("validation", "test") for metric in recipe.metrics))
    return {"best_by_validation": {name: best.get(name) for name in names}, "best_round": best["round"]}


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
