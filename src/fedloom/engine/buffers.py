"""The memory that the main process and its workers share: broadcast, uploads, clients' state, replies, test results.

Each client of a cohort has a row for its upload and one for its state, which its worker writes and the main process reads.
Nothing is copied through pipes. A worker in a fresh process has buffers of its own: it receives the bytes of the regions
that a task reads, and sends back those that the task writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.client.replica import MessageViews
from fedloom.engine.experiment import Experiment
from fedloom.engine.tensor_layout import shared

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Region:
    """A part of the buffers, such as ("upload", 3), ("hits", "test", 0, 1000) or ("message",)."""

    name: str
    place: tuple[Any, ...] = ()


class SharedBuffers:
    def __init__(self, experiment: Experiment, rows: int) -> None:
        messages = experiment.program.messages
        self.rows = rows
        self.broadcasts = 0  # number of broadcasts so far
        self.down_row = shared(messages.down.nbytes)
        self.down = {**messages.down.views(self.down_row), "round": shared(8).view(torch.int64)[0]}
        self._up, self._state, self._reply = messages.up, messages.state, messages.reply
        self.up_rows = shared(rows * messages.up.nbytes).view(rows, messages.up.nbytes)
        size = messages.state.nbytes
        self.state_rows = shared(rows * size).view(rows, size)
        self.prior_rows = shared(rows * size).view(rows, size)  # by worker: a client's state before the round
        self.reply_rows = shared(rows * messages.reply.nbytes).view(rows, messages.reply.nbytes)
        self.message_row = shared(messages.message.nbytes)
        self.message = messages.message.views(self.message_row)
        self.server_row = shared(messages.server.nbytes)
        self.server = messages.server.views(self.server_row)
        self.server_up_row = shared(messages.up.nbytes)
        tested = len(experiment.data.tested)
        shifted = any(stage.shifts for stage in experiment.data.stages)
        own = [len(stage.partition.train_index) for stage in experiment.data.validation_stages]
        held = max(own, default=len(experiment.data.validation))
        sizes = {"test": tested, "validation": held, "clean": tested if shifted else 0}
        self.hits_of = {name: shared(size).view(torch.bool) for name, size in sizes.items()}  # by sample, in order
        classes = experiment.program.task.classes if experiment.recipe.needs_scores else 0
        self.scores_of = {
            name: shared(4 * size * classes).view(torch.float32).view(size, classes) for name, size in sizes.items()
        }
        self._views: dict[int, MessageViews] = {}

    def up(self, row: int) -> Mapping[str, Tensor]:
        return self.views(row).up

    def views(self, row: int) -> MessageViews:
        """The tensors of one row. Made once, since with a tiny net making them is a noticeable part of a round."""
        if row not in self._views:
            state, reply = self._state.views(self.state_rows[row]), self._reply.views(self.reply_rows[row])
            self._views[row] = MessageViews(self.down, self._up.views(self.up_rows[row]), state, reply)
        return self._views[row]

    def server_views(self) -> MessageViews:
        """The tensors for the server's own training: the broadcast, an upload, and the server's state."""
        return MessageViews(self.down, self._up.views(self.server_up_row), self.server)

    def prior_state(self, worker: int) -> dict[str, Tensor]:
        return self._state.views(self.prior_rows[worker])

    def broadcast(self, tensors: Mapping[str, Tensor]) -> None:
        self.broadcasts += 1
        for name, view in self.down.items():
            view.copy_(tensors[name])

    # regions, for workers with buffers of their own

    def read(self, regions: Sequence[Region]) -> list[Bytes]:
        return [self._bytes(region) for region in regions]

    def write(self, regions: Sequence[Region], values: Sequence[Bytes]) -> None:
        for region, value in zip(regions, values, strict=True):
            np.copyto(self._bytes(region), value)

    def _bytes(self, region: Region) -> Bytes:
        tensor: Tensor = _PLACES[region.name](self, *region.place)
        region_bytes: Bytes = tensor.numpy().view(np.uint8)
        return region_bytes


_PLACES: dict[str, Callable[..., Tensor]] = {
    "upload": lambda buffers, row: buffers.up_rows[row],
    "state": lambda buffers, row: buffers.state_rows[row],
    "prior": lambda buffers, worker: buffers.prior_rows[worker],
    "reply": lambda buffers, row: buffers.reply_rows[row],
    "message": lambda buffers: buffers.message_row,
    "server": lambda buffers: buffers.server_row,
    "server upload": lambda buffers: buffers.server_up_row,
    "hits": lambda buffers, which, begin, end: buffers.hits_of[which][begin:end],
    "scores": lambda buffers, which, begin, end: buffers.scores_of[which][begin:end].view(-1),
}
