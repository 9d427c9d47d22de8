"""What the folder of a run must look like, whatever happened to the run; and folders for caches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fedloom as fl
from fedloom.io.files import read_tensors
from fedloom.runs.folder import RunFolder


def check_whole(run: fl.Run, like: fl.Run) -> None:
    """A finished run left the same behind as one that nobody disturbed."""
    assert run.summary["digest"] == like.summary["digest"]
    assert [line["round"] for line in run.rounds] == list(range(1, like.recipe.rounds + 1))
    assert untimed(run.rounds) == untimed(like.rounds)
    assert run.clients == like.clients
    assert not drafts(run.path)
    assert spoken(run.path) == remembered(run.path)


def untimed(rounds: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.endswith("seconds")} for line in rounds]


def drafts(path: Path) -> list[Path]:
    """Half-written files."""
    return [found for found in path.rglob(".*") if found.is_file()]


def checkpoints(path: Path) -> list[Path]:
    """Oldest first."""
    return sorted((path / "checkpoints").glob("*.safetensors"))


def remembered(path: Path) -> set[str]:
    """The files of clients' memory."""
    return {found.name for found in (path / "checkpoints" / "clients").iterdir()}


def spoken(path: Path) -> set[str]:
    """The files of clients' memory that the checkpoints speak of."""
    found = set()
    for checkpoint in checkpoints(path):
        tensors, _ = read_tensors(checkpoint)
        for client, version in zip(tensors["clients"].tolist(), tensors["versions"].tolist(), strict=True):
            found.add(f"client-{client:06d}-round-{version:06d}.safetensors")
    return found


def logged(path: Path) -> int:
    """Rounds that a run has written down so far."""
    log = path / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def holder(run: fl.Run, label: int) -> int:
    """The one client that holds training samples of a class."""
    experiment = RunFolder(run.path).experiment()
    labels = experiment.data.dataset.train_y.numpy()
    found = [k for k in range(experiment.data.partition.clients) if label in labels[experiment.data.partition.train(k)]]
    assert len(found) == 1
    return found[0]


class Notes(fl.RunCallback):
    """A callback that keeps what it receives."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.said: list[str] = []
        self.rounds: list[int] = []

    def run_started(self, experiment: object, folder: Path, done: int) -> None:
        self.begun.append(done)

    def client_done(self, done: int) -> None: ...

    def round_ended(self, line: dict[str, Any]) -> None:
        self.rounds.append(line["round"])

    def note(self, text: str) -> None:
        self.said.append(text)


def share_kernels(cache: Path) -> None:
    """Compiled kernels of a new cache folder are those of this machine: compiling takes longer than most tests."""
    compiled = Path("~/.cache/fedloom/native").expanduser()
    compiled.mkdir(parents=True, exist_ok=True)
    cache.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (cache / "native").symlink_to(compiled)
