"""Checkpoints: the server's state after a round, with a checksum. Two are kept; a damaged newest one is skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedloom.engine.store.client_state import ClientStateStore
from fedloom.engine.store.state import State
from fedloom.errors import FedloomError
from fedloom.io.files import read_metadata, read_tensors, write_tensors
from fedloom.io.logs import RunLog

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    tensors: dict[str, Tensor]

    @property
    def manifest(self) -> dict[str, Tensor]:
        return {"clients": self.tensors["clients"], "versions": self.tensors["versions"]}


def save(folder: Path, state: State, client_state: ClientStateStore, recipe_digest: str, log_seal: str) -> None:
    """`log_seal`: the checksum of the log of all rounds so far."""
    tensors = {**state.tensors(), **client_state.checkpoint()}
    metadata = {"round": str(state.round), "recipe": recipe_digest, "log": log_seal}
    write_tensors(_path(folder, state.round), tensors, metadata, durable=True)
    for path in _newest_first(folder)[KEPT:]:
        path.unlink()
    client_state.settle(state.round)


def newest(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint. Reads only the server's state, and changes nothing."""
    for path in _newest_first(folder):
        try:
            tensors, metadata = read_tensors(path)
        except FedloomError:
            continue
        return Checkpoint(int(metadata["round"]), tensors)
    return None


def restore(
    folder: Path, state: State, client_state: ClientStateStore, recipe_digest: str, log: RunLog | None = None
) -> list[str]:
    """Load the newest intact checkpoint, if there is any; returns why others were skipped.

    `log`: the run's log. A checkpoint that was made with other lines is skipped, and its rounds are repeated.
    """
    skipped: list[str] = []
    intact: list[Checkpoint] = []
    for path in _newest_first(folder):
        try:
            tensors, metadata = read_tensors(path)
        except FedloomError as error:
            skipped.append(str(error))
            path.unlink()
            continue
        if metadata.get("recipe") != recipe_digest:
            raise FedloomError(f"{path} belongs to another recipe than the folder's recipe.yaml")
        candidate = Checkpoint(int(metadata["round"]), tensors)
        if log is not None and (flaw := log.flaw(candidate.round, metadata.get("log"))):
            ahead = "is ahead of the log" if candidate.round > len(log.rounds) else "does not agree with the log"
            skipped.append(f"{path} {ahead}: {flaw}")
            path.unlink()
            continue
        intact.append(candidate)
    while intact:
        newest = intact.pop(0)
        try:
            client_state.restore(newest.manifest, newest.round, [older.manifest for older in intact])
        except FedloomError as error:
            skipped.append(str(error))
            _path(folder, newest.round).unlink()
            continue
        state.load(newest.tensors, newest.round)
        return skipped
    client_state.clear()
    return skipped


def disagreement(folder: Path, log: RunLog) -> str | None:
    """What is wrong with a log, judged by the newest checkpoint beside it; None if nothing is, or no checkpoint can tell."""
    for path in _newest_first(folder):
        metadata = read_metadata(path)
        if metadata.get("round", "").isdecimal() and "log" in metadata:
            return log.flaw(int(metadata["round"]), metadata["log"])
    return None


def _path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.safetensors"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
