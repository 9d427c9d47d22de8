"""One more round of a finished run, for looking only: the engine's own round on a copy of the state.

Local models are not stored, so they are made again: the chosen clients train from the final state by the engine's round
loop, as round R once more (its rate, its draws), and what follows in a round follows (second acts, combining). The copy is
thrown away, and so is what clients would have remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from fedloom.engine.memory import ClientMemory
from fedloom.engine.rounds import Federation, Observer
from fedloom.engine.server import Upload
from fedloom.engine.state import State
from fedloom.errors import FedloomError


class EnoughError(Exception):
    """Raised by an observer that need not see the rest of the round."""


class ReadOnly(ClientMemory):
    """Another's memory; what is put there is forgotten."""

    def __init__(self, owner: ClientMemory) -> None:
        self.owner, self.packing = owner, owner.packing

    def __len__(self) -> int:
        return len(self.owner)

    def __contains__(self, client: int) -> bool:
        return client in self.owner

    def get(self, client: int) -> Tensor:
        return self.owner.get(client)

    def put(self, client: int, row: Tensor, round: int) -> None:
        """Forgets."""


class _Refusing:
    """Passes everything on to an observer, unless there is nothing to look at."""

    def __init__(self, inner: Observer) -> None:
        self.inner = inner

    def due(self, number: int) -> bool:
        return True

    def trained(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        if not uploads:
            raise FedloomError(
                "no client could be trained from the final weights, so there are no local models to look at"
            )
        self.inner.trained(federation, sent, uploads)

    def combined(self, federation: Federation, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        self.inner.combined(federation, sent, uploads)


def one_more_round(federation: Federation, clients: Sequence[int], observer: Observer) -> None:
    """Show an observer the round that these clients would make; the federation stays as it is."""
    state = State(federation.experiment)
    state.load(federation.state.tensors(), max(federation.state.round - 1, 0))
    scratch = replace(federation, state=state, memory=ReadOnly(federation.memory), observer=_Refusing(observer))
    with suppress(EnoughError):
        scratch.round(list(clients))
