"""The one protocol for everything that observes a run: progress bars, trackers, analysis, users' own callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedloom.engine.experiment import Experiment
from fedloom.engine.server.aggregation import Upload
from fedloom.engine.server.machinery import Machinery
from fedloom.engine.timing import OBSERVERS

__all__ = ["Callbacks", "Inspection", "Machinery", "RunCallback"]


class RunCallback:
    """Override what you need. Weights are the same to the bit with and without callbacks.

    >>> class Losses(fl.RunCallback):
    ...     def round_ended(self, line):
    ...         print("round", line["round"])
    >>> done = fl.run(clients=5, rounds=2, model="linear", callbacks=[Losses()])
    round 1
    round 2
    """

    def run_started(self, experiment: Experiment, folder: Path, rounds_done: int) -> None:
        """A run starts, or resumes after some rounds."""

    def client_done(self, done: int) -> None:
        """`done`: number of clients of the current round that have trained."""

    def inspects(self, round: int) -> bool:
        """Whether to call the next two in this round: they cost a copy of the broadcast. Their time is not counted."""
        return False

    def clients_trained(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """Clients have trained from what was `sent`; their uploads and new state are in the buffers. Change nothing."""

    def aggregated(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        """Queries are over and the state holds the new weights; `machinery.client_state` is still the old one."""

    def round_ended(self, line: dict[str, Any]) -> None:
        """`line`: the round's line of rounds.jsonl, with its test results."""

    def run_ended(self, summary: dict[str, Any] | None) -> None:
        """`summary`: the content of summary.json; None if the run was stopped or failed."""

    def cell_started(self, cell: Any, number: int, total: int) -> None:
        """In a comparison or a sweep: one of its runs starts, or is already finished."""

    def client_tuned(self, done: int, total: int) -> None:
        """In a comparison or a reproduction, after a run: `done` of `total` clients have been fine-tuned."""

    def note(self, text: str) -> None:
        """A message for the user."""


class Callbacks(RunCallback):
    """Several callbacks as one, called in order."""

    def __init__(self, *callbacks: RunCallback | None) -> None:
        self.each = [callback for callback in callbacks if callback is not None]

    def run_started(self, experiment: Experiment, folder: Path, rounds_done: int) -> None:
        for callback in self.each:
            callback.run_started(experiment, folder, rounds_done)

    def client_done(self, done: int) -> None:
        for callback in self.each:
            callback.client_done(done)

    def inspects(self, round: int) -> bool:
        self._inspecting = [callback for callback in self.each if callback.inspects(round)]
        return bool(self._inspecting)

    def clients_trained(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        for callback in self._inspecting:
            callback.clients_trained(machinery, sent, uploads)

    def aggregated(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        for callback in self._inspecting:
            callback.aggregated(machinery, sent, uploads)

    def round_ended(self, line: dict[str, Any]) -> None:
        for callback in self.each:
            callback.round_ended(line)

    def run_ended(self, summary: dict[str, Any] | None) -> None:
        for callback in self.each:
            callback.run_ended(summary)

    def cell_started(self, cell: Any, number: int, total: int) -> None:
        for callback in self.each:
            callback.cell_started(cell, number, total)

    def client_tuned(self, done: int, total: int) -> None:
        for callback in self.each:
            callback.client_tuned(done, total)

    def note(self, text: str) -> None:
        for callback in self.each:
            callback.note(text)


class Inspection:
    """The callbacks that inspect one round. They see the broadcast as it was sent, and their time is not the round's."""

    def __init__(self, machinery: Machinery, callback: RunCallback, number: int, sent: Mapping[str, Tensor]) -> None:
        self._machinery, self._callback = machinery, callback
        self._wanted = callback.inspects(number)
        self._sent = {name: tensor.clone() for name, tensor in sent.items()} if self._wanted else {}

    def clients_trained(self, uploads: Sequence[Upload]) -> None:
        if self._wanted:
            with self._machinery.clock.phase(OBSERVERS):
                self._callback.clients_trained(self._machinery, self._sent, uploads)

    def aggregated(self, uploads: Sequence[Upload]) -> None:
        if self._wanted:
            with self._machinery.clock.phase(OBSERVERS):
                self._callback.aggregated(self._machinery, self._sent, uploads)
