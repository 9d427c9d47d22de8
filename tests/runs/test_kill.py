"""kill -9 at any moment, resume, same bits; and nothing is left behind by those who were killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders import check_whole, checkpoints, logged
from processes import Child, die_at, group, until

import fedloom as fl

pytestmark = pytest.mark.slow  # every case is killed and resumed

TINY = {"clients": 5, "fraction": 0.4, "rounds": 3, "workers": 1, "eval_every": 0, "checkpoint_seconds": 0}
LONGER = {"clients": 10, "fraction": 0.5, "rounds": 40, "workers": 2}
SHARED = Path("/dev/shm")


def killed_at(step: int, fields: dict[str, Any], path: Path) -> bool:
    def work() -> None:
        die_at(step)
        fl.run(fields, out=str(path))

    return Child(work).wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("method", "stride"),
    [("scaffold", 1), ("fedper", 11), ("fedavg", 11)],
)
def test_a_run_killed_at_any_step_that_changes_files_resumes_to_the_same_bits(
    method: str, stride: int, straight: Callable[..., fl.Run]
) -> None:
    fields = {**TINY, "method": method}
    like = straight(**fields)
    step = 1
    while killed_at(step, fields, path := Path(f"killed-{step}")):
        run = fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path))
        check_whole(run, like)
        step += stride
    assert step > 20  # else next to nothing was tried


def test_a_killed_run_keeps_its_metrics(straight: Callable[..., fl.Run]) -> None:
    """Every value of every metric is the same after kills, and the line that holds them is complete."""
    fields = {**TINY, "method": "fedper", "metrics": ["macro_f1", "auroc", "loss"], "eval_every": 1, "eval_clients": 1}
    like, step = straight(**fields), 3
    timed = ("seconds", "phase_seconds", "evaluation_seconds")
    while killed_at(step, fields, path := Path(f"killed-{step}")):
        run = fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path))
        assert [{k: v for k, v in line.items() if k not in timed} for line in run.rounds] == [
            {k: v for k, v in line.items() if k not in timed} for line in like.rounds
        ]
        assert run.clients == like.clients
        for name in ("test_macro_f1", "client_auroc", "personal_loss", "class_macro_f1", "digest"):
            assert run.summary[name] == like.summary[name]
        step += 9
    assert step > 20


@pytest.mark.parametrize("method", ["scaffold", "fedper", "fedavg"])
@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_run_killed_again_and_again_at_random_moments_resumes_to_the_same_bits(
    method: str, seconds: float, straight: Callable[..., fl.Run]
) -> None:
    fields = {**LONGER, "method": method, "checkpoint_seconds": seconds}
    path, draw = Path("killed"), random.Random(f"{method} {seconds}")
    before = set(SHARED.iterdir())
    for moment in (1, 3, 5):
        child = Child(lambda: fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)))
        until(lambda moment=moment: logged(path) >= moment)
        time.sleep(draw.uniform(0, 0.05))
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        if moment > 1:
            assert bool(checkpoints(path)) == (seconds == 0)
        until(lambda child=child: not group(child.pid), seconds=3)
    check_whole(fl.run(resume=path), straight(**{**LONGER, "method": method}))
    until(lambda: set(SHARED.iterdir()) <= before, seconds=10)  # others may pass something there in the meantime


def test_workers_in_the_middle_of_training_end_when_their_main_process_is_killed() -> None:
    child = Child(lambda: fl.run(clients=5, fraction=1.0, epochs=100000, rounds=1, workers=2, out="long"))
    until(lambda: len(group(child.pid)) == 3)
    time.sleep(0.2)
    assert len(group(child.pid)) == 3
    child.signal(signal.SIGKILL)
    child.wait()
    until(lambda: not group(child.pid), seconds=3)


def test_the_command_killed_and_resumed_ends_with_the_same_bits(straight: Callable[..., fl.Run]) -> None:
    words = "run --clients 10 --rounds 40 --workers 2 --method scaffold --set checkpoint_seconds=0 --out killed -q"
    command = [sys.executable, "-m", "fedloom", *words.split()]
    with subprocess.Popen(command, start_new_session=True) as process:
        until(lambda: logged(Path("killed")) >= 3 or process.poll() is not None, seconds=60)
        assert process.poll() is None, "it ended by itself"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    until(lambda: not group(process.pid), seconds=3)
    assert 3 <= logged(Path("killed")) < 40
    check_whole(fl.run(resume="killed"), straight(clients=10, rounds=40, method="scaffold", workers=2))


def test_two_processes_never_work_in_one_folder(
    straight: Callable[..., fl.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.runs.folder.PATIENCE", 0.3)
    fields = {**LONGER, "method": "scaffold"}
    child = Child(lambda: fl.run(fields, out="busy"))
    until(lambda: logged(Path("busy")) >= 1)
    child.signal(signal.SIGSTOP)
    try:
        with pytest.raises(fl.FedloomError, match="busy: another process works on this run"):
            fl.run(resume="busy")
    finally:
        child.signal(signal.SIGCONT)
    assert child.wait() == 0
    check_whole(fl.run(resume="busy"), straight(**fields))
