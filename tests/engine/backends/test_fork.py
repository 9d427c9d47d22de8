"""Forked workers: one that dies is replaced and its task run again, one that fails ends the run, none is left over."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from folders import Notes, check_whole, holder

import fedloom as fl
from fedloom.engine.backends.fork import count
from fedloom.engine.buffers import SharedBuffers
from fedloom.engine.client.replica import Replica
from fedloom.engine.tasks import TASKS, Assignment, Report, Task
from fedloom.errors import Interrupted
from fedloom.evaluation.tasks.evaluate import EvaluateClient
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import federation

FIELDS = {"clients": 5, "fraction": 1.0, "rounds": 2, "workers": 2, "eval_every": 0}  # one client holds a class
DEADLY = """
import multiprocessing, os, signal
from torch import nn

class Deadly(nn.Flatten):
    def forward(self, x):
        if not self.training and multiprocessing.parent_process():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

def net(shape, classes):
    return nn.Sequential(Deadly(), nn.Linear(64, 8)), nn.Linear(8, classes)
"""


@pytest.mark.usefixtures("odd_parts")
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedrep(head_epochs=1)"])
def test_a_worker_that_dies_is_replaced_and_its_client_runs_again(
    method: str, tmp_path: Path, straight: Callable[..., fl.Run]
) -> None:
    run = fl.run(FIELDS, method=f"{method} + dies(label=3, unless={tmp_path / 'died'})")
    assert (tmp_path / "died").exists()
    assert (run.summary["workers_replaced"], run.summary["lost"]) == (1, 0)
    check_whole(run, straight(**FIELDS, method=method))


@pytest.mark.usefixtures("odd_parts")
def test_a_query_that_trains_does_not_depend_on_what_its_worker_did_before(tmp_path: Path) -> None:
    alone = fl.run(FIELDS, method="again", workers=1)
    replaced = fl.run(FIELDS, method=f"again(deadly=true, unless={tmp_path / 'died'})", workers=1)
    assert replaced.summary["workers_replaced"] == 1
    assert replaced.summary["digest"] == alone.summary["digest"]


@pytest.mark.usefixtures("odd_parts")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_kills_its_worker_every_time_is_given_up_after_three_tries(workers: int) -> None:
    run = fl.run(FIELDS, method="dies(label=3, only=1)", workers=workers)
    assert run.rounds[0]["lost"] == 1
    assert run.rounds[0]["lost_clients"] == {str(holder(run, 3)): "its worker died every time"}
    assert (run.rounds[1]["lost"], run.summary["lost"]) == (0, 1)
    assert run.summary["workers_replaced"] == 3


@pytest.mark.usefixtures("odd_parts")
def test_an_exception_in_a_hook_ends_the_run_with_a_sentence_and_leaves_no_workers() -> None:
    with pytest.raises(fl.FedloomError) as caught:
        fl.run(FIELDS, method="raises(label=3, only=2)", name="failed", checkpoint_seconds=0)
    client = holder(fl.Run(Path("runs/failed")), 3)
    assert str(caught.value).startswith(f"train of client {client} failed: ArithmeticError: the dog ate it")
    assert "in after_training" in str(caught.value)  # where it happened
    assert not multiprocessing.active_children()
    assert not RunFolder("runs/failed").finished
    assert [line["round"] for line in fl.Run(Path("runs/failed")).rounds] == [1]


def test_a_test_that_kills_its_workers_ends_the_run_instead_of_counting_old_hits() -> None:
    Path("net.py").write_text(DEADLY)
    with pytest.raises(fl.FedloomError, match="the test after round 2 failed: its worker died every time"):
        fl.run(FIELDS, model="net.py:net")
    assert not multiprocessing.active_children()


def test_reports_come_in_the_order_of_the_tasks_though_the_longest_go_first() -> None:
    folder = RunFolder(fl.run(FIELDS, rounds=1, workers=1).path)
    finished: list[int] = []
    prepared: list[int] = []
    costs = [2, 5, 1, 4, 3]
    with federation(folder.experiment(), folder) as fed:
        assignments = [
            Assignment(EvaluateClient(k, 1, personal=False), cost, lambda _, k=k: prepared.append(k))
            for k, cost in enumerate(costs)
        ]
        reports = fed.backend.run(assignments, finished.append)
        sizes = [len(fed.experiment.data.partition.test(k)) for k in range(5)]
    assert finished == prepared == [1, 3, 4, 0, 2]
    assert [report["total"] for report in reports if report] == sizes
    assert len(set(sizes)) > 1


def test_a_task_that_no_worker_knows_is_an_error_and_workers_are_closed() -> None:
    class Fly(Task):
        kind = "fly"

        def perform(self, replica: Replica, buffers: SharedBuffers, worker: int) -> Report:
            raise NotImplementedError

    del TASKS["fly"]  # as on a worker that cannot import the module of a task
    folder = RunFolder(fl.run(FIELDS, rounds=1, workers=1).path)
    with federation(folder.experiment(), folder) as fed:
        with pytest.raises(fl.FedloomError, match="'fly'"):
            fed.backend.run([Assignment(Fly())])
        assert not multiprocessing.active_children()


def test_as_many_workers_as_cores_unless_a_number_is_given() -> None:
    assert count("auto", "cpu") == len(os.sched_getaffinity(0))
    assert count(3, "cpu") == 3
    assert count(3, "cuda:0") == 3


def test_one_worker_for_each_accelerator_unless_a_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert (count("auto", "cuda"), count("auto", "cuda:2"), count(8, "cuda")) == (4, 1, 8)


def test_a_failing_callback_ends_the_run_and_its_workers() -> None:
    class Fails(fl.RunCallback):
        def client_done(self, done: int) -> None:
            raise RuntimeError("no more paper")

    with pytest.raises(RuntimeError, match="no more paper"):
        fl.run(FIELDS, callbacks=[Fails()])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("start", [fl.run, lambda **fields: fl.compare("fedavg", **fields)], ids=["run", "compare"])
def test_more_workers_than_cores_are_refused_with_advice_and_nothing_is_written(
    start: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDLOOM_OVERSUBSCRIBE")
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(fl.FedloomError) as caught:
        start(clients=5, rounds=1, workers=cores + 1)
    for said in ("workers: ", f"at most {cores}", f"got {cores + 1}", "auto", "FEDLOOM_OVERSUBSCRIBE=1"):
        assert said in str(caught.value)
    assert not Path("runs").exists()


def test_a_resumed_run_takes_the_workers_that_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))

    class Stops(Notes):
        def client_done(self, done: int) -> None:
            if self.rounds:
                raise KeyboardInterrupt

    fields = {**FIELDS, "workers": cores + 3, "checkpoint_seconds": 0}
    with pytest.raises(Interrupted):
        fl.run(fields, name="moved", callbacks=[Stops()])
    monkeypatch.delenv("FEDLOOM_OVERSUBSCRIBE")
    with pytest.raises(fl.FedloomError, match=f"workers: must be at most {cores}"):
        fl.run(resume="runs/moved", workers=cores + 1)  # this was asked for here
    notes = Notes()
    run = fl.run(resume="runs/moved", callbacks=[notes])
    note = f"the recipe asks for {cores + 3} workers, this machine has {cores} cores: continuing with {cores}"
    assert (notes.begun, notes.said) == ([1], [note])
    assert run.summary["workers"] == cores
    assert run.summary["digest"] == fl.run(FIELDS, workers=1).summary["digest"]


def test_without_ray_its_workers_are_refused_but_a_run_that_had_them_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stops(Notes):
        def client_done(self, done: int) -> None:
            if self.rounds:
                raise KeyboardInterrupt

    monkeypatch.setattr("fedloom.engine.backends.ray.installed", lambda: False)
    with pytest.raises(fl.FedloomError, match=r'workers: ray needs Ray on every machine; .*pip install -e ".*\[ray\]"'):
        fl.run(FIELDS, workers="ray")
    assert not Path("runs").exists()
    with pytest.raises(Interrupted):
        fl.run(FIELDS, name="moved", callbacks=[Stops()], checkpoint_seconds=0)
    recipe = Path("runs/moved/recipe.yaml")
    recipe.write_text(recipe.read_text().replace("workers: 2", "workers: ray"))
    notes = Notes()
    run = fl.run(resume="runs/moved", callbacks=[notes])
    assert len(notes.said) == 1 and notes.said[0].startswith("Ray is not installed here: continuing with")
    assert run.summary["digest"] == fl.run(FIELDS).summary["digest"]
