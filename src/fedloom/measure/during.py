"""Analysis while a run goes: every few rounds, from the uploads of that round, at low cost.

Factors of the new global model, norms, alignment and drift of the clients' models (after second acts), one line each in
analysis/rounds.jsonl. Clients' features are those of at most IMAGES test images, the global model's of at most
SERVER_IMAGES, of each class alike and the same ones every time. Nothing that training uses is touched: the weights are the
same to the bit with and without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedloom.engine.files import append_line, keep_lines, read_lines
from fedloom.engine.rounds import Federation
from fedloom.engine.server import Upload
from fedloom.engine.shares import client_shares
from fedloom.measure.drift import drift
from fedloom.measure.looking import Looker
from fedloom.measure.numbers import plain
from fedloom.measure.scalars import alignment, norms, train_counts

IMAGES, SERVER_IMAGES = 200, 500
FILE = "rounds.jsonl"


class Periodic:
    """Measures every so many rounds, and the last one; the engine tells it when."""

    def __init__(self, every: int, rounds: int, folder: Path) -> None:
        self.every, self.rounds, self.path = every, rounds, folder / FILE
        self._line: dict[str, Any] | None = None

    def due(self, number: int) -> bool:
        return self.every > 0 and (number % self.every == 0 or number == self.rounds)

    def trained(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """Looks at what enters the average, so not before second acts."""

    def combined(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        began = time.perf_counter()
        experiment, state = federation.experiment, federation.state
        server = Looker(federation, SERVER_IMAGES).at_server(state.served())
        clients = Looker(federation, IMAGES).at_clients(sent, uploads, brief=True)
        found = [
            (train_counts(experiment, upload.client, state.round + 1) > 0, looked)
            for upload, looked in zip(uploads, clients, strict=True)
            if looked is not None
        ]
        shares = client_shares([upload.samples for upload in uploads], experiment.recipe)
        self._line = {
            "round": state.round + 1,
            "clients": [upload.client for upload in uploads],
            "images": min(IMAGES, len(experiment.images.test_y)),
            "images_global": min(SERVER_IMAGES, len(experiment.images.test_y)),
            "factors": dict(server.factors) if server else None,
            "norms": norms(server, found),
            "alignment": alignment(server, found),
            "drift": drift(sent["w"], [upload.tensors["w"] for upload in uploads], shares).scalars(),
        }
        self._line["seconds"] = round(time.perf_counter() - began, 6)

    def write(self) -> None:
        """What the round just made came to; before the round itself is written down, so that no round lacks its line."""
        if self._line is not None:
            self.path.parent.mkdir(exist_ok=True)
            append_line(self.path, plain(self._line))
            self._line = None

    def cut(self, done: int) -> None:
        """Back to a round: what was measured after it will be measured again."""
        if self.path.exists():
            lines = [line for line in read_lines(self.path) if line.get("round", 0) <= done]
            keep_lines(self.path, lines)
