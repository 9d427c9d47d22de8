"""The memory that the main process and its lanes share: broadcast, uploads, clients' memory, test results.

Each client of a cohort has a row to send and a row to remember in; lanes write there, the main process reads. Nothing
is copied through pipes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.engine.arena import shared
from fedloom.engine.scope import Views
from fedloom.engine.setup import Experiment


class Board:
    def __init__(self, experiment: Experiment, rows: int) -> None:
        self.rows = rows
        self.broadcasts = 0  # how often something else was broadcast
        self.down_row = shared(experiment.messages.down.nbytes)
        self.down = {**experiment.messages.down.views(self.down_row), "round": shared(8).view(torch.int64)[0]}
        self._up, self._memory = experiment.messages.up, experiment.messages.memory
        self.up_rows = shared(rows * experiment.messages.up.nbytes).view(rows, experiment.messages.up.nbytes)
        self._views: dict[int, Views] = {}
        size = experiment.messages.memory.nbytes
        self.memory_rows = shared(rows * size).view(rows, size)
        self.before_rows = shared(rows * size).view(rows, size)  # by lane: a client's memory before the round
        self.message_row = shared(experiment.messages.message.nbytes)
        self.message = experiment.messages.message.views(self.message_row)
        self._server, self._findings = experiment.messages.server, experiment.messages.findings
        self.server_row = shared(self._server.nbytes)
        self.server = self._server.views(self.server_row)
        self.refined_row = shared(experiment.messages.up.nbytes)
        self.finding_rows = shared(rows * self._findings.nbytes).view(rows, self._findings.nbytes)
        tested = len(experiment.images.test_y)
        changed = any(holding.changes for holding in experiment.holdings)
        sizes = {"test": tested, "validation": len(experiment.validation), "clean": tested if changed else 0}
        self.hits_of = {name: shared(size).view(torch.bool) for name, size in sizes.items()}  # by image, in order

    def up(self, row: int) -> Mapping[str, Tensor]:
        return self.views(row).up

    def views(self, row: int) -> Views:
        """Made once: with a small net, making them again for every client was a tenth of a round."""
        if row not in self._views:
            memory = self._memory.views(self.memory_rows[row])
            self._views[row] = Views(self.down, self._up.views(self.up_rows[row]), memory)
        return self._views[row]

    def refined(self) -> Views:
        """For the server's own training: it reads what was broadcast, and its memory is the server's."""
        return Views(self.down, self._up.views(self.refined_row), self.server)

    def findings(self, row: int) -> dict[str, Tensor]:
        return self._findings.views(self.finding_rows[row])

    def before(self, lane: int) -> dict[str, Tensor]:
        return self._memory.views(self.before_rows[lane])

    def broadcast(self, tensors: Mapping[str, Tensor]) -> None:
        self.broadcasts += 1
        for name, view in self.down.items():
            view.copy_(tensors[name])
