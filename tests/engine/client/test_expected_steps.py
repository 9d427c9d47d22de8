"""How many steps a client takes: what the server expects is what the client's loop makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.engine.client.batches import batches, cut
from fedloom.engine.client.expected_steps import MOST, ExpectedSteps, StepRange
from fedloom.methods import ClientContext, ServerContext, TaskInfo, Tensors
from fedloom.runs.folder import RunFolder

FIELDS: dict[str, Any] = {
    "split": "quantity:0.5",
    "clients": 5,
    "fraction": 1.0,
    "rounds": 1,
    "epochs": 2,
    "batch": 11,
    "eval_every": 0,
    "workers": 1,
}


@pytest.mark.parametrize("alone", [True, False])
def test_batches_are_counted_as_they_are_cut(alone: bool) -> None:
    for total in range(40):
        for size in range(1, 45):
            assert batches(total, size, alone) == len(list(cut(total, size, alone))), (total, size)


class ToldSteps(fl.Part):
    """Lets the server's memory hold what clients reported."""

    name = "told-steps"

    def server_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"steps": torch.zeros(task.cohort)}

    def after_aggregation(self, server: ServerContext) -> None:
        server.state["steps"] = torch.tensor([float(steps) for steps in server.steps])


class TrainsTwice(fl.Part):
    """Trains further in `after_training` and again in `answer`; it may declare so."""

    name = "trains-twice"
    says: bool = True

    def queries(self, weights: Tensor, task: TaskInfo) -> dict[str, fl.Query]:
        return {"again": fl.Query(message={"again": torch.zeros(())}, trains=True)}

    def extra_training(self, hook: Literal["after_training", "answer"]) -> list[tuple[int, Literal["own"]]] | None:
        return [(1, "own")] if self.says else None

    def after_training(self, client: ClientContext) -> None:
        client.train(fl.TrainSpec((fl.Phase(1),)))

    def after_uploads(self, server: ServerContext) -> None:
        server.ask("again", {"again": torch.ones(())}, server.cohort[:2])

    def answer(self, query: str, message: Mapping[str, Tensor], client: ClientContext) -> None:
        client.train(fl.TrainSpec((fl.Phase(1),)))


class SaysLess(TrainsTwice):
    """Takes more steps than it says."""

    name = "says-less"

    def extra_training(self, hook: Literal["after_training", "answer"]) -> list[tuple[int, Literal["own"]]]:
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
    "fedavg": {"vmap": 3},
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
    expected = StepRange(6, 6, 6)
    for steps in (-1, 0, 5, 7, 2**52):
        assert expected.flaw(steps) == f"it reports {steps} steps, and its samples, batches and epochs make 6"
    assert expected.flaw(6) is None


def test_where_a_part_does_not_say_how_much_it_trains_wide_bounds_hold() -> None:
    path = fl.run(FIELDS, method="trains-twice(says=false)").path
    work = ExpectedSteps(RunFolder(path).experiment())
    expected = work.training(0, 1)
    assert expected.least == work.planned(0, 1) > 0
    assert expected.flaw(expected.least * 10) is None
    assert expected.flaw(2**52) is not None
    assert expected.flaw(expected.least + MOST * expected.least + 1) is not None
