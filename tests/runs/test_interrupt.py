"""Ctrl-C and SIGTERM: the run stops where its state is whole, says how to resume, and loses no round."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import Notes, check_whole, checkpoints, logged
from processes import STOPPED, Child, group, until

import fedloom as fl

FIELDS = {"clients": 10, "fraction": 0.5, "rounds": 25, "workers": 2, "method": "scaffold"}  # a checkpoint every 15 s


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """Where tests are started in the background, the shell lets them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Sends(Notes):
    """Sends signals to its own process when a round is done, outside of local training."""

    def __init__(self, round: int, *signs: int) -> None:
        super().__init__()
        self.when, self.signs = round, signs

    def round_ended(self, line: dict[str, Any]) -> None:
        super().round_ended(line)
        if line["round"] == self.when:
            for sign in self.signs:
                os.kill(os.getpid(), sign)


@pytest.mark.parametrize("to_group", [False, True], ids=["to-the-process", "to-the-group"])
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_in_order_and_no_round_is_lost(
    sign: signal.Signals, to_group: bool, straight: Callable[..., fl.Run]
) -> None:
    path = Path("stopped")
    child = Child(lambda: fl.run(FIELDS, out=str(path)))
    until(lambda: logged(path) >= 3)
    child.signal(sign, to_group)
    assert child.wait() == STOPPED
    assert not group(child.pid)  # it waited for its workers
    done = logged(path)
    assert 3 <= done < 25
    assert [int(found.stem.partition("-")[2]) for found in checkpoints(path)] == [done]
    assert Path("said").read_text() == f"stopped after round {done} of 25; resume with: fedloom run --resume stopped"
    notes = Notes()
    check_whole(fl.run(resume=path, callbacks=[notes]), straight(**FIELDS))
    assert notes.begun == [done]


def test_a_signal_between_trainings_takes_effect_before_the_next_one(straight: Callable[..., fl.Run]) -> None:
    notes = Sends(3, signal.SIGINT)
    with pytest.raises(fl.FedloomError, match="stopped after round 3 of 25"):
        fl.run(FIELDS, out="stopped", callbacks=[notes])
    assert notes.rounds == [1, 2, 3]
    check_whole(fl.run(resume="stopped"), straight(**FIELDS))


def test_a_second_signal_is_obeyed_at_once(straight: Callable[..., fl.Run]) -> None:
    path = Path("stopped")
    child = Child(lambda: fl.run(FIELDS, out=str(path), callbacks=[Sends(3, signal.SIGINT, signal.SIGINT)]))
    assert child.wait() == 130
    until(lambda: not group(child.pid), seconds=3)
    assert (logged(path), checkpoints(path)) == (3, [])
    check_whole(fl.run(resume=path), straight(**FIELDS))


def test_a_signal_too_late_to_stop_a_run_stops_what_comes_after_it(straight: Callable[..., fl.Run]) -> None:
    with pytest.raises(KeyboardInterrupt):
        fl.run(FIELDS, out="late", callbacks=[Sends(25, signal.SIGINT)])
    check_whole(fl.Run(Path("late")), straight(**FIELDS))


def test_a_run_gives_the_signal_handlers_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    fl.run(FIELDS, rounds=1)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_run_goes_in_a_thread_where_there_are_no_signals(straight: Callable[..., fl.Run]) -> None:
    found: list[fl.Run] = []
    thread = threading.Thread(target=lambda: found.append(fl.run(FIELDS, out="aside")))
    thread.start()
    thread.join()
    check_whole(found[0], straight(**FIELDS))


def test_control_c_on_the_command_says_one_sentence() -> None:
    words = "run --clients 10 --rounds 200 --workers 2 --out stopped"
    command = [sys.executable, "-m", "fedloom", *words.split()]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: logged(Path("stopped")) >= 2 or process.poll() is not None, seconds=60)
        assert process.poll() is None, process.communicate()[1]
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert not group(process.pid)
    done = logged(Path("stopped"))
    assert said == f"stopped after round {done} of 200; resume with: fedloom run --resume stopped\n"
