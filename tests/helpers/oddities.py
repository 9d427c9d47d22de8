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
from fedloom.methods import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.methods.api.registry import PARTS


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
    before, seen = dict(PARTS), Seen()

    class Odd(fl.Part):
        label: int = 3
        only: int = 0  # in this round; 0: in every round

        def hit(self, client: ClientContext) -> bool:
            return bool(client.counts[self.label] > 0) and self.only in (0, client.round)

    class Dies(Odd):
        unless: str = ""  # a file, made by the first death

        def after_training(self, client: ClientContext) -> None:
            if self.hit(client) and (not self.unless or made_first(self.unless)):
                os.kill(os.getpid(), signal.SIGKILL)

    class Raises(Odd):
        def after_training(self, client: ClientContext) -> None:
            if self.hit(client):
                raise ArithmeticError("the dog ate it")

    class Poison(Odd):
        value: float = float("nan")
        where: str = "weights"
        unless: str = ""  # a file: nothing is poisoned while it is there

        def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
            return {"kept": torch.zeros(2)}

        def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
            return {"sent": torch.zeros(2)}

        def after_training(self, client: ClientContext) -> None:
            client.state["kept"] = client.state["kept"] + 1
            if self.hit(client) and not (self.unless and Path(self.unless).exists()):
                place = {"weights": client.weights, "upload": client.upload["sent"], "memory": client.state["kept"]}
                place[self.where][1] = self.value

    class Watch(fl.Part):
        def aggregate(self, server: ServerContext) -> Tensor:
            seen.cohorts.append(list(server.cohort))
            seen.uploads.append([upload.clone() for upload in server.uploads])
            return server.mean(server.uploads)

    class Bursts(fl.Part):
        def aggregate(self, server: ServerContext) -> Tensor:
            return server.mean(server.uploads) * torch.inf

    class Swells(fl.Part):
        """Leaves a number in the server's state after aggregation; one entry of its state is infinite from the beginning."""

        value: float = 1e30
        where: str = "memory"

        def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
            return {"kept": torch.zeros(2), "best": torch.tensor(torch.inf)}

        def after_aggregation(self, server: ServerContext) -> None:
            place = {"memory": server.state["kept"], "weights": server.weights, "best": server.state["best"].view(1)}
            place[self.where][0] = self.value

    class Mumbles(fl.Part):
        def queries(self, weights: Tensor, task: TaskInfo) -> dict[str, fl.Query]:
            return {"again": fl.Query(message={"loud": torch.zeros(1), "clear": torch.zeros(1)}, trains=True)}

        def after_uploads(self, server: ServerContext) -> None:
            server.ask("again", {"loud": torch.ones(1)}, server.cohort)

    class Again(fl.Part):
        """Trains the body, then the head; then a query that trains moves both, and may kill its worker the first time."""

        deadly: bool = False
        unless: str = ""

        def phases(self, epochs: int) -> list[fl.Phase]:
            return [fl.Phase(epochs, ("body",)), fl.Phase(epochs, ("head",))]

        def queries(self, weights: Tensor, task: TaskInfo) -> dict[str, fl.Query]:
            return {"again": fl.Query(message={"rate": torch.zeros(())}, trains=True)}

        def after_uploads(self, server: ServerContext) -> None:
            server.ask("again", {"rate": torch.tensor(0.1)}, server.cohort[:2])

        def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
            if self.deadly and made_first(self.unless):
                os.kill(os.getpid(), signal.SIGKILL)
            client.weights.sub_(message["rate"] * client.gradient_of())

    try:
        yield seen
    finally:
        PARTS.clear()
        PARTS.update(before)
