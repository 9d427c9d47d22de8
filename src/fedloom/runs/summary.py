"""The end of a run: the served weights, and the numbers of the whole run."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.engine.server.round import Federation
from fedloom.engine.timing import seconds_by
from fedloom.evaluation.accuracy import has_personal_models, summarize
from fedloom.io.digest import digest
from fedloom.io.files import read_lines, write_json, write_tensors
from fedloom.runs.folder import RunFolder
from fedloom.version import __version__


def write_summary(fed: Federation, folder: RunFolder) -> None:
    """Write final.safetensors and summary.json of a federation at its last round."""
    experiment, state = fed.experiment, fed.state
    tensors = experiment.program.layout.tensors(state.whole(state.served()["w"]))
    lines, each = read_lines(folder.rounds), read_lines(folder.clients)[-1]
    write_tensors(folder.final, tensors, {"recipe": experiment.recipe.digest(), "round": str(state.round)})
    summary: dict[str, Any] = {
        "method": str(experiment.program.method),
        "test_accuracy": lines[-1]["test_accuracy"],
        "client_accuracy": summarize(each["accuracy"]),
    }
    summary |= {name: lines[-1][name] for name in ("clean_test_accuracy", "domain_accuracy") if name in lines[-1]}
    if has_personal_models(fed):
        summary["personal_accuracy"] = summarize(each["personal_accuracy"])
    if len(experiment.data.validation):
        best = max(
            (line for line in lines if "validation_accuracy" in line), key=lambda line: line["validation_accuracy"]
        )
        names = ("round", "validation_accuracy", "test_accuracy")
        summary["best_by_validation"] = {name: best[name] for name in names}
    summary |= {
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
            "processor": _processor(),
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


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
