"""A disk that gets full: nothing is lost silently, the run ends with one sentence and can be resumed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from folders import check_whole
from processes import Child

import fedloom as fl
from fedloom.io.files import append_line, read_lines

pytestmark = pytest.mark.slow  # every case is a process of its own

LIMIT = 30_000  # bytes: more than any file of these runs but the log
FIELDS = {"clients": 5, "fraction": 0.4, "rounds": 150, "workers": 1, "eval_every": 0, "checkpoint_seconds": 0.5}
FLAGS = ["--clients", "5", "--fraction", "0.4", "--rounds", "150", "--workers", "1", "--eval-every", "0"]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def command(*arguments: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedloom", "run", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=before,
        env={**os.environ, "COLUMNS": "400"},
    )


def check_said(done: subprocess.CompletedProcess[str], place: str, reason: str) -> None:
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"error: {place}")
    assert reason in line
    assert "fedloom run --resume" in line


def test_a_line_that_does_not_fit_is_taken_back_and_said() -> None:
    """The limit falls into the middle of a line, so that the system takes a part of it without an error."""

    def work() -> None:
        limited()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        written = 0
        try:
            while True:
                append_line(Path("log"), {"round": written + 1, "text": "x" * 997})
                written += 1
        except OSError as error:
            assert error.filename == "log"
        assert len(read_lines(Path("log"))) == written
        assert Path("log").read_bytes().endswith(b"}\n")
        os._exit(7)

    assert Child(work).wait() == 7


def test_a_run_whose_log_does_not_fit_stops_with_a_sentence_and_is_resumed(straight: Callable[..., fl.Run]) -> None:
    done = command(*FLAGS, "--set", "checkpoint_seconds=0.5", "--out", "full", before=limited)
    check_said(done, "full/rounds.jsonl cannot be written (File too large)", "make room")
    rounds = [line["round"] for line in read_lines(Path("full/rounds.jsonl"))]
    assert rounds == list(range(1, len(rounds) + 1))
    assert 40 < len(rounds) < 150
    assert not Path("full/summary.json").exists()
    again = command("--resume", "full", before=limited)
    check_said(again, "full/rounds.jsonl", "File too large")
    check_whole(fl.run(resume="full"), straight(**FIELDS))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=180k", "fedloom-test", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_ends_a_run_that_can_be_resumed_when_there_is_room(
    small_disk: Path, straight: Callable[..., fl.Run]
) -> None:
    done = command(*FLAGS, "--set", "checkpoint_seconds=0.5", "--out", str(small_disk / "run"))
    check_said(done, str(small_disk / "run"), "No space left on device")
    assert not any(path.name.startswith(".") for path in (small_disk / "run").rglob("*"))
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True)
    check_whole(fl.run(resume=small_disk / "run"), straight(**FIELDS))


def test_a_run_that_finds_no_room_at_all_leaves_nothing(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 170_000)
    done = command(*FLAGS, "--out", str(small_disk / "run"))
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_output_that_nobody_can_take_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedloom", "list", "splits"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
