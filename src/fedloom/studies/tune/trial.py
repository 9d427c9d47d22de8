"""One trial: a run folder that is trained until a round, and evaluated on validation samples only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from fedloom.engine.server.acceptance import WORKER_DIED
from fedloom.engine.server.callback import RunCallback
from fedloom.errors import Diverged, TooFew
from fedloom.io.files import read_lines
from fedloom.recipe import Recipe
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import resume, start
from fedloom.studies.tune.search import Outcome

PERSONAL = "personal_validation"  # preferred: methods that have it are about the clients' own models


def run_trial(recipe: Recipe, until: int, callbacks: Sequence[RunCallback] = ()) -> Outcome:
    """Start the trial, or go on with it, and evaluate it after this round. Divergence is an outcome."""
    assert recipe.out is not None
    folder = RunFolder(recipe.out)
    try:
        if folder.recipe_yaml.exists():
            resume(folder.path, callbacks, recipe.workers, until)
        else:
            start(recipe, callbacks, until)
    except (TooFew, Diverged, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        if WORKER_DIED in str(error):
            raise
        matched = re.search(r"\bround (\d+)", str(error))
        done, seconds = _spent(folder.path)
        reason = f"in round {matched[1]}" if matched else f"in round {done + 1}"
        return Outcome(until, None, seconds=seconds, diverged=reason, done=done)
    return _outcome(folder.path, recipe.headline, until)


def _outcome(folder: Path, metric: str, until: int) -> Outcome:
    line = read_lines(folder / "rounds.jsonl")[until - 1]
    stage = PERSONAL if f"{PERSONAL}_{metric}" in line else "validation"
    value = line.get(f"{stage}_{metric}")
    done, seconds = _spent(folder)
    undefined = "" if value is not None else f"{metric} is undefined after round {until}"
    return Outcome(
        until,
        value,
        error=line.get(f"{stage}_{metric}_error"),
        seconds=seconds,
        diverged=undefined,
        done=done,
        loss=line.get(f"{stage}_loss"),
    )


def _spent(folder: Path) -> tuple[int, float]:
    """Completed rounds, and their seconds with evaluation."""
    lines = read_lines(folder / "rounds.jsonl")
    return len(lines), round(sum(line["seconds"] + line.get("evaluation_seconds", 0.0) for line in lines), 3)
