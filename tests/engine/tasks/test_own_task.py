"""A kind of task that fedloom does not know, in one file of a user's own, on every kind of worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.data import load
from fedloom.deploy.messages.schema import order_for, parse_order, parse_reply, report_model
from fedloom.engine.experiment import prepare
from fedloom.engine.tasks import TASKS, Assignment, Report
from fedloom.errors import FedloomError
from fedloom.io.user_code import import_parts
from fedloom.recipe import recipe
from fedloom.runs.federation import federation
from fedloom.runs.folder import create

pytestmark = pytest.mark.usefixtures("forget_parts")
FILE = '''
from dataclasses import dataclass
from typing import ClassVar

from fedloom.engine.tasks import ClientTask


@dataclass(frozen=True)
class CountClass(ClientTask):
    """Counts a client's training samples of one class, and measures the weights that it received."""

    kind: ClassVar[str] = "count class"
    remote: ClassVar[bool] = True
    reports: ClassVar[dict[str, str]] = {"images": "count", "norm": "loss"}
    label: int

    def perform(self, replica, buffers, worker):
        views = buffers.views(worker)
        labels = replica.experiment.data.at(self.round).train(self.client).y
        return {"images": int((labels == self.label).sum()), "norm": float(views.down["w"].norm())}
'''
FIELDS: dict[str, Any] = {"clients": 5, "workers": 2, "split": "shards:2", "parts": ["counts.py"]}


@pytest.fixture(autouse=True)
def _forget_task() -> Any:
    yield
    TASKS.pop("count class", None)


def counted(spawned: bool) -> list[Report | None]:
    Path("counts.py").write_text(FILE)
    experiment = prepare(recipe(FIELDS))
    task = TASKS["count class"]
    with federation(experiment, create(experiment, Path(f"run-{spawned}")), spawned=spawned) as fed:
        fed.buffers.broadcast(fed.state.broadcast())
        return fed.backend.run([Assignment(task(client, 1, 3)) for client in range(5)])


@pytest.mark.parametrize(
    "spawned", [pytest.param(False, id="forked"), pytest.param(True, id="spawned", marks=pytest.mark.slow)]
)
def test_a_task_of_a_users_file_runs_on_workers_that_never_heard_of_it(spawned: bool) -> None:
    reports = counted(spawned)
    assert all(report is not None for report in reports)
    images = [report["images"] for report in reports if report]
    assert sum(images) == int((load("digits").train_y == 3).sum()) and sorted(images)[0] == 0
    initial = prepare(recipe({**FIELDS, "parts": []})).program.initial
    norms = {report["norm"] for report in reports if report}
    assert len(norms) == 1 and norms.pop() == pytest.approx(float(torch.linalg.vector_norm(initial)), rel=1e-5)


def test_orders_and_reports_of_such_a_task_are_checked_by_what_it_declares() -> None:
    Path("counts.py").write_text(FILE)
    import_parts(("counts.py",))
    task = TASKS["count class"]
    order = {"federation": "0" * 16, "digest": "", "base": None, "at": 0, **order_for(task(2, 1, 3))}
    assert parse_order(json.dumps(order)).model_dump()["task"] == "count class"
    with pytest.raises(FedloomError):
        parse_order(json.dumps({**order, "arguments": {**order["arguments"], "label": "three"}}))
    reply = parse_reply(
        json.dumps({"client": 2, "digest": "", "report": {"images": 7, "norm": 1.5}}), report_model(task, recipe({}))
    )
    assert reply.report.model_dump() == {"images": 7, "norm": 1.5}
    for wrong in ({"images": -1, "norm": 1.5}, {"images": 7}, {"images": 7, "norm": 1.5, "labels": [3]}):
        with pytest.raises(FedloomError):
            parse_reply(json.dumps({"client": 2, "digest": "", "report": wrong}), report_model(task, recipe({})))
