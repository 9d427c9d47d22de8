"""Where a run's seconds go: every moment has one phase, and the phases of all rounds stand in summary.json."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import untimed

import fedloom as fl
from fedloom.data.transforms.images import ImagePipeline
from fedloom.engine import timing as clock
from fedloom.engine.timing import OBSERVERS, PHASES, ROUND, RoundClock, seconds_by
from fedloom.methods import ClientContext, ServerContext

FIELDS: dict[str, Any] = {"split": "iid", "clients": 4, "fraction": 1.0, "rounds": 3, "workers": 2, "eval_every": 1}
NAP = 0.05


class Dawdles(fl.Part):
    """Takes its time on clients and on the server."""

    name = "dawdles"

    def after_training(self, client: ClientContext) -> None:
        time.sleep(NAP)

    def after_aggregation(self, server: ServerContext) -> None:
        time.sleep(NAP)


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(clock, "perf_counter", lambda: self.now)


def sums(run: fl.Run) -> dict[str, float]:
    return {name: sum(line["phase_seconds"].get(name, 0.0) for line in run.rounds) for name in (*ROUND, "checkpoint")}


def test_every_moment_belongs_to_the_innermost_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Ticks(monkeypatch)
    made = RoundClock()
    hand.now += 1
    with made.phase("aggregation"):
        hand.now += 2
        with made.phase("communication"):
            hand.now += 4
        hand.now += 8
        with pytest.raises(ArithmeticError), made.phase(OBSERVERS):
            hand.now += 16
            raise ArithmeticError
    hand.now += 32
    expected = {"compute": 0, "data": 0, "communication": 4, "aggregation": 10, "other": 33}
    assert made.read() == expected
    assert made.read() == expected  # reading changes nothing


def test_a_stretch_of_work_is_split_as_the_workers_report(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Ticks(monkeypatch)
    made = RoundClock()
    with made.phase("communication"):
        hand.now += 10
        reports = [{"compute_seconds": 9.0, "data_seconds": 0.5}, {"compute_seconds": 3.0, "data_seconds": 1.5}, None]
        made.worked(reports, 10.0, workers=2)
    assert made.read() == {"compute": 6.0, "data": 1.0, "communication": 3.0, "aggregation": 0.0, "other": 0.0}


@pytest.mark.parametrize("told", [1e9, float("inf"), float("nan"), -5.0, "x", None])
def test_what_is_reported_cannot_make_more_time_than_passed(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Ticks(monkeypatch)
    made = RoundClock()
    with made.phase("communication"):
        hand.now += 10
        made.worked([{"seconds": told, "loss": 1.0}], 10.0, workers=1)
    found = made.read()
    assert sum(found.values()) == 10
    assert min(found.values()) >= 0
    assert found["compute"] == (10 if told == 1e9 else 0)


def test_the_phases_of_a_run_are_its_seconds_with_tests_and_checkpoints_on_top() -> None:
    run = fl.run(FIELDS, method="scaffold", checkpoint_seconds=0)
    for line in run.rounds:
        assert sum(line["phase_seconds"][name] for name in ROUND) == pytest.approx(line["seconds"], abs=1e-5)
    found, summed = run.summary["seconds_by"], sums(run)
    assert set(found) == set(PHASES)
    assert sum(found[name] for name in ROUND) == pytest.approx(run.summary["seconds"], abs=0.004)
    for name in summed:
        assert found[name] == pytest.approx(summed[name], abs=0.002)
    assert found["compute"] > 0 and found["data"] > 0
    assert found["evaluation"] == pytest.approx(run.summary["evaluation_seconds"], abs=0.001)
    assert "checkpoint" not in run.rounds[0]["phase_seconds"]  # a checkpoint is told by the round after it
    assert all(line["phase_seconds"]["checkpoint"] > 0 for line in run.rounds[1:])


def test_each_phase_has_what_was_done_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = ImagePipeline.__call__

    def slowly(self: ImagePipeline, x: Any, generator: Any) -> Any:
        time.sleep(NAP)
        return prepare(self, x, generator)

    monkeypatch.setattr(ImagePipeline, "__call__", slowly)
    run = fl.run(FIELDS, method="dawdles", rounds=1)
    (line,) = run.rounds
    found = line["phase_seconds"]
    assert found["compute"] >= 2 * NAP  # four clients on two workers
    assert found["data"] >= 2 * NAP
    assert found["aggregation"] >= NAP
    assert line["evaluation_seconds"] >= NAP


@pytest.mark.parametrize("method", ["fnr", "server-data", "sphere(calibrate=true)"])
def test_queries_and_the_servers_training_are_compute(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[float]] = []
    monkeypatch.setattr(
        RoundClock, "worked", lambda self, reports, *_: told.append([one["compute_seconds"] for one in reports])
    )
    fl.run(FIELDS, method=method, rounds=1, data={"name": "digits", "validation": 0.1, "public": 0.1})
    assert len(told) == 2  # the clients' training, and what came after it
    assert all(seconds > 0 for stretch in told for seconds in stretch)


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_clients_that_are_vmapped_report_as_one_task(augment: str) -> None:
    run = fl.run(FIELDS, vmap=2, rounds=1, augment=augment)
    (line,) = run.rounds
    found = line["phase_seconds"]
    assert found["compute"] > 0 and found["data"] > 0
    assert sum(found[name] for name in ROUND) == pytest.approx(line["seconds"], abs=1e-5)


def test_the_time_of_a_batch_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Ticks(monkeypatch)

    def made() -> Iterator[int]:
        for number in range(3):
            began = hand.now
            hand.now += 1
            clock.Preparing.since(began)
            hand.now += 1
            yield number

    before = clock.Preparing.seconds
    for _ in clock.preparing(made()):
        hand.now += 100  # a step
    assert clock.Preparing.seconds - before == 6


class Stops(fl.RunCallback):
    def round_ended(self, line: dict[str, Any]) -> None:
        if line["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)


def test_seconds_add_up_over_an_interruption_and_never_touch_the_bits(straight: Callable[..., fl.Run]) -> None:
    with pytest.raises(fl.FedloomError, match="stopped after round 2"):
        fl.run(FIELDS, rounds=4, out="stopped", callbacks=[Stops()])
    before = fl.Run(Path("stopped")).rounds
    run = fl.run(resume="stopped")
    assert run.rounds[:2] == before[:2]
    assert before[1]["phase_seconds"]["checkpoint"] > 0  # of the stop
    for name, spent in sums(run).items():
        assert run.summary["seconds_by"][name] == pytest.approx(spent, abs=0.002)
    like = straight(**{**FIELDS, "rounds": 4})
    assert run.summary["digest"] == like.summary["digest"]
    assert untimed(run.rounds) == untimed(like.rounds)


def test_rounds_of_an_older_version_are_told_as_other() -> None:
    lines = [
        {"seconds": 2.0, "evaluation_seconds": 0.5},
        {"seconds": 1.0, "phase_seconds": {"compute": 0.75, "checkpoint": 0.125}},
    ]
    found = seconds_by(lines)
    assert found == {
        **dict.fromkeys(PHASES, 0.0),
        "compute": 0.75,
        "other": 2.25,
        "evaluation": 0.5,
        "checkpoint": 0.125,
    }
