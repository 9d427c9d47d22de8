"""Training of the new global weights at the server: one worker does it, by the same loop as a client's."""

from __future__ import annotations

from fedloom.engine.server.aggregation import RoundServer
from fedloom.engine.server.machinery import Machinery
from fedloom.engine.tasks import Assignment
from fedloom.engine.tasks.server_training import TrainOnServer
from fedloom.errors import FedloomError


def train_on_server(machinery: Machinery, server: RoundServer, part: str) -> None:
    """Run a part's `server_training`; weights, statistics and the parts' state are replaced by its results."""
    state, buffers = machinery.state, machinery.buffers
    peers = [(u.row, u.samples, share) for u, share in zip(server.accepted, server.shares, strict=True)]

    def prepare(_: int) -> None:
        buffers.broadcast(state.broadcast())
        for name, home in buffers.server.items():
            home.copy_(state.state[name])

    with machinery.interruptible():
        (report,) = machinery.work([Assignment(TrainOnServer(state.round + 1, part, peers), prepare=prepare)])
    if report is None:
        raise FedloomError(f"the server's training by {part} failed: its worker died every time")
    trained = buffers.server_views().up
    state.w.copy_(trained["w"])
    state.statistics.copy_(trained["statistics"])
    for name, value in buffers.server.items():
        state.state[name].copy_(value)
