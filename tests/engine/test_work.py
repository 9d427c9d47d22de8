"""How many steps a client takes: what the server expects is what the client's loop makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.engine.batches import batches, cut
from fedloom.engine.folder import RunFolder
from fedloom.engine.work import MOST, Expected, LocalWork
from fedloom.methods import Client, Memory, Server, Task

FIELDS: dict[str, Any] = {
    "split": "quantity:0.5",
    "clients": 5,
    "fraction": 1.0,
    "rounds": 1,
    "epochs": 2,
    "batch": 11,
    "eval_every": 0,
    "lanes": 1,
}


@pytest.mark.parametrize("alone", [True, False])
def test_batches_are_counted_as_they_are_cut(alone: bool) -> None:
    for total in range(40):
        for size in range(1, 45):
            assert batches(total, size, alone) == len(list(cut(total, size, alone))), (total, size)


class ToldSteps(fl.Part):
    """Lets the server's memory hold what clients reported."""

    name = "told-steps"

    def server_memory(self, w: Tensor, task: Task) -> Memory:
        return {"steps": torch.zeros(task.cohort)}

    def after_combine(self, server: Server) -> None:
        server.memory["steps"] = torch.tensor([float(steps) for steps in server.steps])


class TrainsTwice(fl.Part):
    """Trains on in `finish` and again in a second act; it may say so."""

    name = "trains-twice"
    says: bool = True

    def messages(self, w: Tensor, task: Task) -> Memory:
        return {"again": torch.zeros(())}

    def further(self, hook: Literal["finish", "act"]) -> list[tuple[int, Literal["own"]]] | None:
        return [(1, "own")] if self.says else None

    def finish(self, client: Client) -> None:
        client.train(1)

    def after_uploads(self, server: Server) -> None:
        server.ask(server.cohort[:2], {"again": torch.ones(())})

    def act(self, client: Client, message: Mapping[str, Tensor]) -> None:
        client.train(1)


class SaysLess(TrainsTwice):
    """Takes more steps than it says."""

    name = "says-less"

    def further(self, hook: Literal["finish", "act"]) -> list[tuple[int, Literal["own"]]]:
        return []


SUMS: dict[str, dict[str, Any]] = {
    "nova": {},
    "fedrep(head_epochs=3)": {},  # phases, one of which trains nothing that is shared
    "perfedavg": {},
    "fnr(epochs=2) + scaffold": {},
    "fnr(mode=public, epochs=2)": {"data": {"name": "digits", "public": 0.1, "public_to_clients": True}},
    "fnr(mode=held, epochs=2)": {"data": {"name": "digits", "validation": 0.07}},
    "ditto + moon": {},
    "central": {},
    "babu": {"batch": "full"},
    # 144 samples in batches of 11: normalizers do not like a lone last one, so it joins the batch before it
    "fedbn": {"data": {"name": "digits", "resize": 16}, "model": "conv4", "split": "iid", "clients": 10, "epochs": 1},
    "fedavg": {"stack": 3},
    "trains-twice": {},
    "trains-twice(says=false)": {},
}


@pytest.mark.parametrize("method", SUMS)
def test_what_clients_report_is_what_the_server_expects(method: str) -> None:
    run = fl.run({**FIELDS, **SUMS[method]}, method=f"{method} + told-steps" if method != "central" else method)
    assert run.summary["lost"] == 0


def test_steps_that_cannot_be_are_lost_with_the_number_that_can() -> None:
    with pytest.raises(fl.FedloomError, match=r"it reports \d+ steps, and its samples, batches and epochs make \d+"):
        fl.run(FIELDS, method="says-less")
    expected = Expected(6, 6, 6)
    for steps in (-1, 0, 5, 7, 2**52):
        assert expected.flaw(steps) == f"it reports {steps} steps, and its samples, batches and epochs make 6"
    assert expected.flaw(6) is None


def test_where_a_part_does_not_say_how_much_it_trains_wide_bounds_hold() -> None:
    path = fl.run(FIELDS, method="trains-twice(says=false)").path
    work = LocalWork(RunFolder(path).experiment())
    expected = work.training(0, 1)
    assert expected.least == work.planned(0, 1) > 0
    assert expected.flaw(expected.least * 10) is None
    assert expected.flaw(2**52) is not None
    assert expected.flaw(expected.least + MOST * expected.least + 1) is not None
