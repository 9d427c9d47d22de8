"""The server's own training may be interrupted or killed like anything else: the round begins again, to the same bits."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from folders import check_whole, checkpoints, logged
from processes import STOPPED, Child, group, until
from torch import Tensor

import fedloom as fl
from fedloom.methods import ClientContext, TaskInfo, Tensors
from fedloom.methods.api.registry import PARTS

FIELDS = {"clients": 5, "fraction": 0.4, "rounds": 4, "workers": 2, "method": "waits", "checkpoint_seconds": 1000}
STOP = 3  # the round in whose training the server waits


@pytest.fixture
def like() -> Iterator[fl.Run]:
    """The part `waits` is known, and this is its run without trouble."""
    before = dict(PARTS)

    class Waits(fl.Part):
        """Trains on the server, moves its memory, and waits there in one round until it may go on."""

        def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
            return {"sum": torch.zeros(())}

        def server_training(self, client: ClientContext) -> None:
            client.train(
                fl.TrainSpec((fl.Phase(1),), data=client.pooled_sample(0.1), loss=lambda batch, _: client.loss(batch))
            )
            client.state["sum"] = client.state["sum"] + client.weights.sum()
            if client.round == STOP:
                Path("inside").touch()
                while not Path("go").exists():
                    time.sleep(0.01)
            client.weights.add_(1e-3 * client.state["sum"].tanh())

    Path("go").touch()
    yield fl.run(FIELDS, out="like")
    PARTS.clear()
    PARTS.update(before)


def caught(sign: int) -> Child:
    """A run that gets a signal while its server trains."""
    for name in ("go", "inside"):
        Path(name).unlink(missing_ok=True)
    child = Child(lambda: fl.run(FIELDS, out="caught"))
    until(Path("inside").exists)
    child.signal(sign)
    return child


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_before_the_round_that_it_belongs_to(sign: int, like: fl.Run) -> None:
    child = caught(sign)
    assert child.wait() == STOPPED
    assert not group(child.pid)
    assert logged(Path("caught")) == STOP - 1
    assert [path.stem for path in checkpoints(Path("caught"))] == [f"round-{STOP - 1:06d}"]
    Path("go").touch()
    check_whole(fl.run(resume="caught"), like)


def test_a_kill_loses_nothing_that_cannot_be_made_again(like: fl.Run) -> None:
    child = caught(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    until(lambda: not group(child.pid), seconds=5)
    Path("go").touch()
    check_whole(fl.run(resume="caught"), like)
