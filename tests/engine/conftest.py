"""Small recipes, parts that misbehave, and processes that can be watched and killed."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.engine.files import read_tensors
from fedloom.errors import Interrupted
from fedloom.methods import Client, Memory, Server, Task
from fedloom.methods import method as methods

SMALL = {"clients": 10, "fraction": 0.3, "rounds": 3, "lanes": 1, "eval_every": 0}
LOST, STOPPED = 9, 3  # exit codes of a child that failed, and of one that raised Interrupted

Straight = Callable[..., fl.Run]


@pytest.fixture
def small() -> dict[str, Any]:
    return dict(SMALL)


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """A recipe run from beginning to end without trouble, once a session."""
    known: dict[str, fl.Run] = {}

    def run(**fields: Any) -> fl.Run:
        key = json.dumps(fields, sort_keys=True)
        if key not in known:
            known[key] = fl.run(fields, out=str(tmp_path_factory.mktemp("straight") / "run"))
        return known[key]

    return run


# parts


class Seen:
    """What a `watch` part saw on the server, in this process."""

    def __init__(self) -> None:
        self.cohorts: list[list[int]] = []
        self.uploads: list[list[Tensor]] = []


@pytest.fixture
def odd_parts() -> Iterator[Seen]:
    """Parts that misbehave on the client that holds images of a class; known in this test only.

    With shards:2 and five clients, each class is held by one client.
    """
    before, seen = dict(methods._PARTS), Seen()

    class Odd(fl.Part):
        label: int = 3
        only: int = 0  # round; 0: every round

        def hit(self, client: Client) -> bool:
            return bool(client.counts[self.label] > 0) and self.only in (0, client.round)

    class Dies(Odd):
        marker: str = ""  # a file: dies only as long as there is none

        def finish(self, client: Client) -> None:
            if self.hit(client) and not (self.marker and Path(self.marker).exists()):
                if self.marker:
                    Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    class Raises(Odd):
        def finish(self, client: Client) -> None:
            if self.hit(client):
                raise ArithmeticError("the dog ate it")

    class Poison(Odd):
        value: float = float("nan")
        where: str = "weights"

        def client_memory(self, w: Tensor, task: Task) -> Memory:
            return {"kept": torch.zeros(2)}

        def uploads(self, w: Tensor, task: Task) -> Memory:
            return {"sent": torch.zeros(2)}

        def finish(self, client: Client) -> None:
            client.memory["kept"] = client.memory["kept"] + 1
            if self.hit(client):
                place = {"weights": client.w, "upload": client.upload["sent"], "memory": client.memory["kept"]}
                place[self.where][1] = self.value

    class Watch(fl.Part):
        def combine(self, server: Server) -> Tensor:
            seen.cohorts.append(list(server.cohort))
            seen.uploads.append([upload.clone() for upload in server.uploads])
            return server.mean(server.uploads)

    yield seen
    methods._PARTS.clear()
    methods._PARTS.update(before)


def holder(run: fl.Run, label: int) -> int:
    """The one client that holds images of a class."""
    experiment = fl.run.__globals__["RunFolder"](run.path).experiment()
    labels = experiment.images.train_y.numpy()
    found = [k for k in range(experiment.partition.clients) if label in labels[experiment.partition.train(k)]]
    assert len(found) == 1
    return found[0]


# processes


class Child:
    """A process with a group of its own; it can be watched, signalled and killed."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = LOST
            try:
                os.setsid()
                work()
                code = 0
            except Interrupted as error:
                print(error)
                code = STOPPED
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def signal(self, sign: int, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, sign)

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def group(self) -> list[int]:
        """Itself and its lanes, as long as they live."""
        return group(self.pid)


def group(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(group) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.001)


def lines(path: Path) -> int:
    """Rounds that a run has logged so far."""
    log = path / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


# what every run folder must look like


def check_whole(run: fl.Run, like: fl.Run) -> None:
    """The folder of a finished run, whatever happened on the way, is that of one that was left in peace."""
    told = run.recipe
    assert run.summary["digest"] == like.summary["digest"]
    assert [line["round"] for line in run.rounds] == list(range(1, told.rounds + 1))
    assert _untimed(run.rounds) == _untimed(like.rounds)
    assert run.clients == like.clients
    names = {path.name for path in run.path.rglob("*") if path.is_file()}
    assert not [name for name in names if name.startswith(".")]
    assert spoken(run.path) == {path.name for path in (run.path / "checkpoints" / "clients").iterdir()}


def spoken(path: Path) -> set[str]:
    """The files of clients' memory that a folder's checkpoints speak of; there are at most two of these."""
    checkpoints = sorted((path / "checkpoints").glob("*.safetensors"))
    assert 1 <= len(checkpoints) <= 2
    found = set()
    for checkpoint in checkpoints:
        tensors, _ = read_tensors(checkpoint)
        for client, version in zip(tensors["clients"].tolist(), tensors["versions"].tolist(), strict=True):
            found.add(f"client-{client:06d}-round-{version:06d}.safetensors")
    return found


def _untimed(rounds: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.endswith("seconds")} for line in rounds]
