"""Parts that misbehave on the clients that hold images of a class."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

import fedloom as fl
from fedloom.methods import Client, Memory, Server, Task
from fedloom.methods.method import _PARTS


class Seen:
    """What the part `watch` saw on the server."""

    def __init__(self) -> None:
        self.cohorts: list[list[int]] = []
        self.uploads: list[list[Tensor]] = []


def made_first(path: str) -> bool:
    """Whether this call made the file; of processes that try at the same time, one did."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def odd_parts() -> Iterator[Seen]:
    """The parts are known by name inside of the block only."""
    before, seen = dict(_PARTS), Seen()

    class Odd(fl.Part):
        label: int = 3
        only: int = 0  # in this round; 0: in every round

        def hit(self, client: Client) -> bool:
            return bool(client.counts[self.label] > 0) and self.only in (0, client.round)

    class Dies(Odd):
        unless: str = ""  # a file, made by the first death

        def finish(self, client: Client) -> None:
            if self.hit(client) and (not self.unless or made_first(self.unless)):
                os.kill(os.getpid(), signal.SIGKILL)

    class Raises(Odd):
        def finish(self, client: Client) -> None:
            if self.hit(client):
                raise ArithmeticError("the dog ate it")

    class Poison(Odd):
        value: float = float("nan")
        where: str = "weights"
        unless: str = ""  # a file: nothing is poisoned while it is there

        def client_memory(self, w: Tensor, task: Task) -> Memory:
            return {"kept": torch.zeros(2)}

        def uploads(self, w: Tensor, task: Task) -> Memory:
            return {"sent": torch.zeros(2)}

        def finish(self, client: Client) -> None:
            client.memory["kept"] = client.memory["kept"] + 1
            if self.hit(client) and not (self.unless and Path(self.unless).exists()):
                place = {"weights": client.w, "upload": client.upload["sent"], "memory": client.memory["kept"]}
                place[self.where][1] = self.value

    class Watch(fl.Part):
        def combine(self, server: Server) -> Tensor:
            seen.cohorts.append(list(server.cohort))
            seen.uploads.append([upload.clone() for upload in server.uploads])
            return server.mean(server.uploads)

    class Bursts(fl.Part):
        def combine(self, server: Server) -> Tensor:
            return server.mean(server.uploads) * torch.inf

    class Swells(fl.Part):
        """Leaves a number in the server's state after combining; one of its memories is infinite from the beginning."""

        value: float = 1e30
        where: str = "memory"

        def server_memory(self, w: Tensor, task: Task) -> Memory:
            return {"kept": torch.zeros(2), "best": torch.tensor(torch.inf)}

        def after_combine(self, server: Server) -> None:
            place = {"memory": server.memory["kept"], "weights": server.weights, "best": server.memory["best"].view(1)}
            place[self.where][0] = self.value

    class Mumbles(fl.Part):
        def messages(self, w: Tensor, task: Task) -> Memory:
            return {"loud": torch.zeros(1), "clear": torch.zeros(1)}

        def after_uploads(self, server: Server) -> None:
            server.ask(server.cohort, {"loud": torch.ones(1)})

    class Again(fl.Part):
        """Trains the body, then the head; then a second act moves both, and may kill its lane the first time."""

        deadly: bool = False
        unless: str = ""

        def phases(self, epochs: int) -> list[fl.Phase]:
            return [fl.Phase(epochs, ("body",)), fl.Phase(epochs, ("head",))]

        def messages(self, w: Tensor, task: Task) -> Memory:
            return {"rate": torch.zeros(())}

        def after_uploads(self, server: Server) -> None:
            server.ask(server.cohort[:2], {"rate": torch.tensor(0.1)})

        def act(self, client: Client, message: Mapping[str, Tensor]) -> None:
            if self.deadly and made_first(self.unless):
                os.kill(os.getpid(), signal.SIGKILL)
            client.w.sub_(message["rate"] * client.gradient_of())

    try:
        yield seen
    finally:
        _PARTS.clear()
        _PARTS.update(before)
