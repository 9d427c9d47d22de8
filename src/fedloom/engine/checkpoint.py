"""Checkpoints: the state of the server after a round, with a checksum; two are kept, a damaged newest one is passed
over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedloom.engine.files import read_metadata, read_tensors, write_tensors
from fedloom.engine.logs import RunLog
from fedloom.engine.memory import ClientMemory
from fedloom.engine.state import State
from fedloom.errors import FedloomError

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    tensors: dict[str, Tensor]

    @property
    def manifest(self) -> dict[str, Tensor]:
        return {"clients": self.tensors["clients"], "versions": self.tensors["versions"]}


def save(folder: Path, state: State, memory: ClientMemory, recipe_digest: str, log_seal: str) -> None:
    """`log_seal`: the checksum of what is written down of all rounds so far."""
    tensors = {**state.tensors(), **memory.checkpoint()}
    metadata = {"round": str(state.round), "recipe": recipe_digest, "log": log_seal}
    write_tensors(_path(folder, state.round), tensors, metadata, durable=True)
    for path in _found(folder)[KEPT:]:
        path.unlink()
    memory.settle(state.round)


def newest(folder: Path) -> Checkpoint | None:
    """The newest sound checkpoint of the server alone; nothing is changed."""
    for path in _found(folder):
        try:
            tensors, metadata = read_tensors(path)
        except FedloomError:
            continue
        return Checkpoint(int(metadata["round"]), tensors)
    return None


def restore(
    folder: Path, state: State, memory: ClientMemory, recipe_digest: str, log: RunLog | None = None
) -> list[str]:
    """Bring state and memory to the newest sound checkpoint, if there is any; returns what had to be passed over.

    `log`: what is written down; a checkpoint that saw other lines is passed over, and the rounds since are made again.
    """
    passed: list[str] = []
    sound: list[Checkpoint] = []
    for path in _found(folder):
        try:
            tensors, metadata = read_tensors(path)
        except FedloomError as error:
            passed.append(str(error))
            path.unlink()
            continue
        if metadata.get("recipe") != recipe_digest:
            raise FedloomError(f"{path} belongs to another recipe than the folder's recipe.yaml")
        found = Checkpoint(int(metadata["round"]), tensors)
        if log is not None and (flaw := log.flaw(found.round, metadata.get("log"))):
            ahead = "is ahead of the log" if found.round > len(log.rounds) else "does not agree with the log"
            passed.append(f"{path} {ahead}: {flaw}")
            path.unlink()
            continue
        sound.append(found)
    while sound:
        newest = sound.pop(0)
        try:
            memory.restore(newest.manifest, newest.round, [older.manifest for older in sound])
        except FedloomError as error:
            passed.append(str(error))
            _path(folder, newest.round).unlink()
            continue
        state.load(newest.tensors, newest.round)
        return passed
    memory.clear()
    return passed


def disagreement(folder: Path, log: RunLog) -> str | None:
    """What is wrong with a log by the newest checkpoint beside it; None where nothing is, or nothing can be said."""
    for path in _found(folder):
        told = read_metadata(path)
        if told.get("round", "").isdecimal() and "log" in told:
            return log.flaw(int(told["round"]), told["log"])
    return None


def _path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.safetensors"


def _found(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
