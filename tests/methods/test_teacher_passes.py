"""Teachers share passes: however many parts ask, and over however many epochs, a frozen net sees a sample once."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from tiny import gap, train
from torch import Tensor, nn

import fedloom as fl
from fedloom.engine.client import client
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
def test_parts_that_ask_the_same_teacher_share_its_pass_of_the_first_epoch(
    method: str, teachers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = _counted(method, monkeypatch, epochs=3)
    assert [3 * passes for passes, _ in counted] == [teachers * steps for _, steps in counted]
    assert min(steps for _, steps in counted) > 3


@pytest.mark.parametrize(
    "fields",
    [
        {"epochs": 1},
        {"augment": "crop"},  # another image in every epoch
        {"model": f"{__name__}:digits_by_batch", "bn": "batch"},  # outputs depend on the batch
        {"model": f"{__name__}:digits_with_draws"},  # or on random draws
    ],
    ids=["one epoch", "augmented", "batch statistics", "draws"],
)
def test_a_teacher_whose_outputs_change_is_computed_for_every_batch(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = _counted("fd", monkeypatch, **fields)
    assert [passes for passes, _ in counted] == [steps for _, steps in counted]


def test_a_teacher_that_is_looked_up_agrees_with_a_computed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = train("fd + moon", batch=64)
    monkeypatch.setattr(client, "KEPT_BYTES", 0)
    assert gap(looked_up, train("fd + moon", batch=64)) < 1e-5


def _counted(method: str, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[tuple[int, int]]:
    """Passes of frozen nets, and steps, of every client."""
    look = Net.features

    def counted(self: Net, x: Tensor) -> Tensor:
        trial = len(x) <= 4  # of a few inputs of noise, before the first look-up
        SEEN["passes"] += not trial and not any(parameter.requires_grad for parameter in self.parameters())
        return look(self, x)

    monkeypatch.setattr(Net, "features", counted)
    CountsPasses.found.clear()
    train(f"{method} + counts-passes", **{"batch": 64, "rounds": 2, **fields})
    assert len(CountsPasses.found) == 6
    return CountsPasses.found


def digits_by_batch(shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16)), nn.Linear(16, classes)


class AlwaysNoisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


def digits_with_draws(shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), AlwaysNoisy()), nn.Linear(16, classes)
