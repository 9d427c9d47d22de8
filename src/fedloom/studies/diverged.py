"""Which runs of a grid diverged: weights that are no longer finite, or a training loss that settings blew up.

A training loss counts as blown up if it ends above twice that of a first round: the smallest first one among runs of the same
method, seed and data. That holds for any loss function, since both losses are of the same one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedloom.studies.comparison import Result

TIMES = 2.0
# fields that change how training goes, not what a loss is of
TRAINING = ("lr", "momentum", "weight_decay", "clip", "schedule", "optimizer", "epochs", "steps", "batch", "augment")


def divergences(results: Sequence[Result]) -> dict[int, str]:
    """The reason by place in the list, of those that diverged."""
    firsts: dict[object, float] = {}
    for result in results:
        if result.failure is None and (loss := _loss(result, 0)) is not None:
            firsts[_alike(result)] = min(loss, firsts.get(_alike(result), loss))
    reasons = {place: _reason(result, firsts.get(_alike(result))) for place, result in enumerate(results)}
    return {place: reason for place, reason in reasons.items() if reason}


def stopped_by_divergence(failure: str | None) -> str:
    """Why a run that failed has diverged; empty if it failed otherwise."""
    stated = re.search(r"diverged|too large to go on with|no longer finite", failure or "")
    number = re.search(r"round (\d+)", failure or "")
    return f"stopped in round {number.group(1)}" if stated and number else "stopped" if stated else ""


def _reason(result: Result, first: float | None) -> str:
    if result.failure is not None:
        return stopped_by_divergence(result.failure)
    last = _loss(result, -1)
    if last is None:
        return "its training loss is not finite" if result.run.rounds else ""
    return f"training loss {last:.3g}" if first is not None and last > TIMES * first else ""


def _loss(result: Result, place: int) -> float | None:
    lines = result.run.rounds
    return lines[place]["train_loss"] if lines else None


def _alike(result: Result) -> object:
    """Method, seed and all swept values that may change what the loss is of."""
    return (
        result.cell.row,
        result.cell.seed,
        tuple(pair for pair in result.cell.point if pair[0].partition(".")[0] not in TRAINING),
    )
