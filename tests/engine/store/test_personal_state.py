"""What a hundred clients keep for themselves: the same after kill -9 and resume, and never uploaded."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from folders import check_whole, logged
from processes import Child, group, until
from torch import Tensor

import fedloom as fl
from fedloom.io.files import read_tensors

pytestmark = pytest.mark.slow  # a hundred clients, killed and resumed

HUNDRED = {"clients": 100, "fraction": 0.2, "rounds": 12, "workers": 2, "batch": 8, "eval_every": 0}


def kept(run: fl.Run) -> dict[str, Tensor]:
    """Everything that clients remember after the last round."""
    last = max((run.path / "checkpoints").glob("*.safetensors"))
    tensors, _ = read_tensors(last)
    found = {}
    for client, version in zip(tensors["clients"].tolist(), tensors["versions"].tolist(), strict=True):
        path = run.path / "checkpoints" / "clients" / f"client-{client:06d}-round-{version:06d}.safetensors"
        found.update({f"{client}.{name}": value for name, value in read_tensors(path)[0].items()})
    return found


@pytest.mark.parametrize("memory_mb", [2048, 0.5])  # in RAM, or most of it on disk
def test_a_hundred_clients_keep_the_same_after_being_killed(memory_mb: float, straight: Callable[..., fl.Run]) -> None:
    fields = {**HUNDRED, "method": "fedper + ditto", "memory_mb": memory_mb}
    path = Path("killed")
    for moment in (2, 5, 9):
        child = Child(
            lambda: fl.run(resume=path) if path.exists() else fl.run(fields, checkpoint_seconds=0, out=str(path))
        )
        until(lambda moment=moment: logged(path) >= moment, seconds=60)
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        until(lambda child=child: not group(child.pid), seconds=5)
    run, like = fl.run(resume=path), straight(**fields)
    check_whole(run, like)
    mine, theirs = kept(run), kept(like)
    clients = {name.split(".")[0] for name in mine}
    assert len(clients) > 80
    assert set(mine) == set(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert len({value.square().sum().item() for name, value in mine.items() if name.endswith(".personal")}) == len(
        clients
    )


def test_what_a_client_keeps_is_not_sent(straight: Callable[..., fl.Run]) -> None:
    """Bytes are counted from the messages themselves: a body of 64 x 64 + 64 floats, each way, and nothing else."""
    run = straight(**{**HUNDRED, "method": "fedper + ditto", "memory_mb": 2048})
    assert {(line["bytes_up"], line["bytes_down"]) for line in run.rounds} == {(20 * 4 * 4160, 20 * 4 * 4160)}
    first = read_tensors(run.path / "initial.safetensors")[0]
    assert all(torch.equal(run.weights[name], first[name]) for name in ("head.weight", "head.bias"))
    server, _ = read_tensors(max((run.path / "checkpoints").glob("*.safetensors")))
    assert set(server) == {"w", "statistics", "clients", "versions"} and len(server["w"]) == 4160
