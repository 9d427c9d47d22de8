"""Analysis during a run: every few rounds, from the uploads of that round, at low cost.

One line per measured round in analysis/rounds.jsonl: factors of the new global model; norms, alignment and drift of the
clients' models after queries. Client models are evaluated on at most IMAGES test samples, the global model on at most
SERVER_IMAGES; both subsets are class-balanced and the same in every round. Training is not affected: the weights are the
same to the bit with and without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedloom.analysis.collect.probe import Prober
from fedloom.analysis.collect.round_means import alignment, norms, train_counts
from fedloom.analysis.drift import drift
from fedloom.analysis.numbers import to_json
from fedloom.engine.server.aggregation import RoundServer, Upload
from fedloom.engine.server.callback import Machinery, RunCallback
from fedloom.io.files import append_line, read_lines, replace_lines

IMAGES, SERVER_IMAGES = 200, 500
FILE = "rounds.jsonl"


class PeriodicAnalysis(RunCallback):
    """Measures every `every` rounds, and the last one."""

    def __init__(self, every: int, rounds: int, folder: Path) -> None:
        self.every, self.rounds, self.path = every, rounds, folder / FILE

    def inspects(self, round: int) -> bool:
        return self.every > 0 and (round % self.every == 0 or round == self.rounds)

    def aggregated(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """Uploads are measured as they enter the average. The line is written before that of rounds.jsonl, so every
        logged round has one."""
        began = time.perf_counter()
        experiment, state = machinery.experiment, machinery.state
        server = Prober(machinery, SERVER_IMAGES).server_model(state.served())
        reports = Prober(machinery, IMAGES).client_models(sent, uploads, brief=True)
        clients = [
            (train_counts(experiment, upload.client, state.round + 1) > 0, report)
            for upload, report in zip(uploads, reports, strict=True)
            if report is not None
        ]
        shares = RoundServer(state, uploads).shares
        line: dict[str, Any] = {
            "round": state.round + 1,
            "clients": [upload.client for upload in uploads],
            "images": min(IMAGES, len(experiment.data.tested)),
            "images_global": min(SERVER_IMAGES, len(experiment.data.tested)),
            "factors": dict(server.factors) if server else None,
            "norms": norms(server, clients),
            "alignment": alignment(server, clients),
            "drift": drift(sent["w"], [upload.tensors["w"] for upload in uploads], shares).means(),
        }
        line["seconds"] = time.perf_counter() - began
        self.path.parent.mkdir(exist_ok=True)
        append_line(self.path, to_json(line))

    def truncate(self, rounds_done: int) -> None:
        """Drop lines of later rounds, which will be measured again."""
        if self.path.exists():
            lines = [line for line in read_lines(self.path) if line.get("round", 0) <= rounds_done]
            replace_lines(self.path, lines)
