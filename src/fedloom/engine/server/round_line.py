"""The line of a round in rounds.jsonl: what every run records, and what the method's parts add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.engine.client.local_work import local_work
from fedloom.engine.program import Program
from fedloom.engine.server.aggregation import RoundServer, Upload
from fedloom.engine.timing import RoundClock
from fedloom.errors import FedloomError
from fedloom.methods.api.part import Method

METRIC_PREFIXES = (
    *("test", "clean_test", "validation", "domain", "class", "client", "personal", "personal_validation"),
)  # test_accuracy ...
SECONDS = ("seconds", "phase_seconds", "evaluation_seconds")
LOST = ("lost", "lost_clients")
OF_EVALUATION = ("undefined", "site_means")
RESERVED = frozenset(
    ("round", "cohort", "work", "lr", "train_loss", *SECONDS, "bytes_down", "bytes_up", *LOST, *OF_EVALUATION)
)


def round_line(
    program: Program,
    number: int,
    cohort: Sequence[int],
    server: RoundServer,
    lost: Mapping[int, str],
    clock: RoundClock,
) -> dict[str, Any]:
    seconds, messages = clock.read(), program.messages
    travels = 0 if program.pooled else 1  # pooled data are in one place: nothing is sent
    line: dict[str, Any] = {
        "round": number,
        "cohort": cohort,
        "lr": program.recipe.rate(number),
        "train_loss": _mean_loss(server.accepted),
        "seconds": round(sum(seconds.values()), 6),
        "phase_seconds": {name: round(value, 6) for name, value in seconds.items()},
        "bytes_down": travels * (len(cohort) * messages.download + server.down),
        "bytes_up": travels * (len(cohort) * messages.up.payload + server.up),
        "lost": len(lost),
    }
    if program.recipe.varied_work:
        drawn = [local_work(program.recipe, client, number) for client in cohort]
        line["work"] = [work.steps or work.epochs for work in drawn]
    if lost:
        line["lost_clients"] = {str(client): reason for client, reason in lost.items()}
    return line


def method_entries(method: Method, server: RoundServer, metrics: Sequence[str]) -> dict[str, Any]:
    """What parts record of this round. Metrics are added to the line after the evaluation."""
    taken = RESERVED | {f"{prefix}_{metric}" for prefix in METRIC_PREFIXES for metric in metrics}
    entries: dict[str, Any] = {}
    for part in method.hooked("log"):
        for name, value in part.log(server.context(part)).items():
            if name in entries or name in taken or name.startswith("client_"):  # of a line of clients.jsonl
                raise FedloomError(f"method: {part.name} logs {name!r}, which the line of a round has already")
            entries[name] = value
    return entries


def _mean_loss(uploads: Sequence[Upload]) -> float | None:
    """Over clients, weighted by samples; each client's own is a mean over its steps."""
    total = sum(upload.samples for upload in uploads)
    if not total:
        return None
    loss = sum(upload.loss * upload.samples for upload in uploads) / total
    return loss if math.isfinite(loss) else None
