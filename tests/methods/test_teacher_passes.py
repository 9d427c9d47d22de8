"""Teachers share passes: however many parts ask, a frozen net looks at a batch once."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from tiny import train
from torch import Tensor

import fedloom as fl
from fedloom.methods import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.nets import Net

SEEN = {"passes": 0}  # of frozen nets, in a worker


class CountsPasses(fl.Part):
    """Says how often frozen nets were asked by the end of its client's training."""

    name: ClassVar[str] = "counts-passes"
    found: ClassVar[list[tuple[int, int]]] = []  # passes and steps of each client, on the server

    def uploads(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"passes": torch.zeros(1)}

    def after_training(self, client: ClientContext) -> None:
        client.upload["passes"] = torch.tensor([float(SEEN["passes"])])
        SEEN["passes"] = 0

    def after_aggregation(self, server: ServerContext) -> None:
        passes = [int(value) for value in server.extras("passes")]
        self.found.extend(zip(passes, server.steps, strict=True))


@pytest.mark.parametrize(
    ("method", "teachers"),
    [
        ("fedavg", 0),
        ("fd", 1),
        ("kd", 1),
        ("fd + kd", 1),
        ("dr + fd + kd + ntd + ld", 1),
        ("moon", 2),  # the global model and the client's last one
        ("fd + kd + moon", 2),
    ],
)
def test_parts_that_ask_the_same_teacher_share_its_pass(
    method: str, teachers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Net.features

    def counted(self: Net, x: Tensor) -> Tensor:
        SEEN["passes"] += not any(parameter.requires_grad for parameter in self.parameters())
        return look(self, x)

    monkeypatch.setattr(Net, "features", counted)
    CountsPasses.found.clear()
    train(f"{method} + counts-passes", batch=64, rounds=2)
    assert len(CountsPasses.found) == 6
    assert [passes for passes, _ in CountsPasses.found] == [teachers * steps for _, steps in CountsPasses.found]
    assert min(steps for _, steps in CountsPasses.found) > 1
