"""Workers in fresh processes, as accelerators need them; here they compute on the CPU, so that bits can be compared."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from folders import check_whole, untimed

import fedloom as fl
from fedloom.engine.backends import select as where
from fedloom.engine.backends import spawn
from fedloom.engine.backends.spawn import Processes
from fedloom.engine.buffers import Bytes
from fedloom.engine.experiment import prepare
from fedloom.engine.server.callback import RunCallback
from fedloom.io.files import read_lines
from fedloom.recipe import recipe
from fedloom.runs.folder import create
from fedloom.runs.run import federation, go

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forget_parts")]  # fresh processes import torch
FIELDS: dict[str, Any] = {"clients": 5, "fraction": 1.0, "rounds": 2, "workers": 2, "eval_every": 0}
DIES = """
import os, signal
from pathlib import Path
import fedloom as fl

class Dies(fl.Part):
    unless: str

    def after_training(self, client):
        with open(self.unless, "a") as pids:
            print(os.getpid(), file=pids)
        if client.counts[3] > 0 and client.round == 2 and not Path(self.unless + ".died").exists():
            Path(self.unless + ".died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def spawned(fields: dict[str, Any], **more: Any) -> fl.Run:
    """A run whose workers are fresh processes though its device is the CPU."""
    asked = recipe({**fields, **more, "out": "runs/spawned"})
    experiment = prepare(asked)
    return go(experiment, create(experiment, Path("runs/spawned")), RunCallback(), partial(federation, spawned=True))


def gone(pids: Sequence[int]) -> bool:
    """Whether none of these processes is there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return False
    return True


def test_fresh_processes_dealt_out_over_devices_give_the_bits_of_forked_ones(
    straight: Callable[..., fl.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that trains, validation samples and an analysis on the way: most of what can travel does."""
    dealt: list[str] = []

    class Noting(Processes):
        def send(
            self, worker: int, order: dict[str, Any], common: tuple[str, Bytes] | None, values: Sequence[Bytes]
        ) -> None:
            if order["kind"] == "build":
                dealt.append(order["recipe"]["device"])
                order["recipe"]["device"] = "cpu"
            super().send(worker, order, common, values)

    monkeypatch.setattr(spawn, "Processes", Noting)
    monkeypatch.setattr(where.workers, "devices", lambda device: ["cuda:0", "cuda:1"])
    fields = {**FIELDS, "method": "fnr", "data": {"name": "digits", "validation": 0.1}, "analyze_every": 2}
    run, like = spawned(fields), straight(**fields)
    assert sorted(dealt) == ["cuda:0", "cuda:1"]
    check_whole(run, like)
    (found,) = [path.name for path in (like.path / "analysis").iterdir()]
    lines = untimed(read_lines(like.path / "analysis" / found))
    assert lines and untimed(read_lines(run.path / "analysis" / found)) == lines


def test_fresh_processes_carry_a_kept_optimizer(straight: Callable[..., fl.Run]) -> None:
    fields = {**FIELDS, "method": "fedavg", "optimizer": {"name": "adam", "keep": True}, "steps": "2..6", "lr": 0.003}
    check_whole(spawned(fields), straight(**fields))


def test_fresh_processes_get_messages_of_their_own(straight: Callable[..., fl.Run]) -> None:
    fields = {**FIELDS, "method": "fedpac", "split": "dirichlet:0.3"}
    check_whole(spawned(fields), straight(**fields))


def test_a_fresh_process_that_dies_is_replaced_and_its_client_runs_again(straight: Callable[..., fl.Run]) -> None:
    """The part comes from a file of the user's, and the server trains as well."""
    Path("dies.py").write_text(DIES)
    fields = {**FIELDS, "method": "scaffold + feddf(steps=3)", "data": {"name": "digits", "public": 0.1}}
    place = Path("pids").absolute()
    run = spawned(fields, method=f"{fields['method']} + dies(unless={place})", parts=["dies.py"])
    assert (run.summary["workers_replaced"], run.summary["lost"]) == (1, 0)
    check_whole(run, straight(**fields))
    pids = {int(pid) for pid in place.read_text().split()}
    assert pids and os.getpid() not in pids
    assert gone(list(pids))


def test_a_part_that_only_this_process_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Jotted(fl.Part):
        pass

    monkeypatch.setattr(Jotted, "__module__", "__main__")
    experiment = prepare(recipe({**FIELDS, "method": "jotted"}))
    with pytest.raises(fl.FedloomError, match=r"cannot see the part 'jotted' .* name that in `parts`"):
        go(experiment, create(experiment, Path("runs/never")), RunCallback(), partial(federation, spawned=True))


def test_where_processes_are_not_forked_commands_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: fresh processes are what a run, a fine-tuning and a tuning use by themselves."""
    fields = {**FIELDS, "method": "scaffold", "model": "linear"}

    def results(folder: str) -> list[Any]:
        run = fl.run(**fields, out=f"{folder}/run")
        tuned = fl.personalize(run, part="head", epochs=1, lr=0.01)
        study = fl.tune("fedavg", over={"lr": [0.03, 0.3]}, trials=2, **{**fields, "out": f"{folder}/tune"})
        return [run.summary["digest"], tuned.accuracy, study.best]

    forked = results("forked")
    monkeypatch.setenv("FEDLOOM_START", "spawn")
    used = []
    monkeypatch.setattr(
        Processes, "start", lambda self, worker, start=Processes.start: (used.append(worker), start(self, worker))
    )
    assert results("fresh") == forked
    assert used


def test_runs_of_one_command_share_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets, methods and data differ from run to run; every run has the bits that it has alone, and no process stays behind."""
    methods = ["fedavg", "scaffold + fn", "fedavg @ model=linear", "fedavg @ split=iid"]
    monkeypatch.setenv("FEDLOOM_START", "spawn")
    started: list[int] = []

    class Counted(spawn.Process):
        def __init__(self) -> None:
            super().__init__()
            started.append(self._process.pid)

    monkeypatch.setattr(spawn, "Process", Counted)
    comparison = fl.compare(methods, seeds=1, **{**FIELDS, "out": "runs/shared"})
    assert len(started) == FIELDS["workers"]
    assert gone(started)
    monkeypatch.setenv("FEDLOOM_START", "fork")
    alone = fl.compare(methods, seeds=1, **{**FIELDS, "out": "runs/alone"})
    digests = [[result.run.summary["digest"] for result in both.results] for both in (comparison, alone)]
    assert digests[0] == digests[1] and len(set(digests[0])) == len(methods)
