"""One more round of a finished run, for measurement only: the engine's own round on a copy of the state.

Local models are not stored, so clients train again from the final state. The engine repeats round R, with its learning
rate and its random draws, then queries and aggregation. The copy of the state and the clients' new state are discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from fedloom.engine.server.aggregation import Upload
from fedloom.engine.server.callback import Machinery, RunCallback
from fedloom.engine.server.round import Federation
from fedloom.engine.store.client_state import ClientStateStore
from fedloom.engine.store.state import State
from fedloom.errors import FedloomError


class StopReplayError(Exception):
    """Raised by a callback that does not need the rest of the round."""


class ReadOnlyClientState(ClientStateStore):
    """Reads from another store and discards what is written."""

    def __init__(self, store: ClientStateStore) -> None:
        self.store, self.layout = store, store.layout

    def __len__(self) -> int:
        return len(self.store)

    def __contains__(self, client: int) -> bool:
        return client in self.store

    def get(self, client: int) -> Tensor:
        return self.store.get(client)

    def put(self, client: int, row: Tensor, round: int) -> None:
        """Discards the row."""


class _NeedsUploads(RunCallback):
    """Another callback, which is only called if a client could be trained."""

    def __init__(self, inner: RunCallback) -> None:
        self.inner = inner

    def inspects(self, round: int) -> bool:
        return True

    def clients_trained(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        if not uploads:
            raise FedloomError(
                "no client could be trained from the final weights, so there are no local models to analyze"
            )
        self.inner.clients_trained(machinery, sent, uploads)

    def aggregated(self, machinery: Machinery, sent: Mapping[str, Tensor], uploads: Sequence[Upload]) -> None:
        self.inner.aggregated(machinery, sent, uploads)


def replay_round(federation: Federation, clients: Sequence[int], callback: RunCallback) -> None:
    """Repeat the last round with these clients, observed by a callback. The federation is not changed."""
    state = State(federation.experiment)
    state.load(federation.state.tensors(), max(federation.state.round - 1, 0))
    scratch = replace(
        federation,
        state=state,
        client_state=ReadOnlyClientState(federation.client_state),
        callback=_NeedsUploads(callback),
    )
    with suppress(StopReplayError):
        scratch.round(list(clients))
