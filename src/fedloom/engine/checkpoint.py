"""Checkpoints: the state of the server after a round, with a checksum; two are kept, a damaged newest one is passed
over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedloom.engine.files import read_tensors, write_tensors
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


def save(folder: Path, state: State, memory: ClientMemory, recipe_digest: str) -> None:
    tensors = {**state.tensors(), **memory.checkpoint()}
    metadata = {"round": str(state.round), "recipe": recipe_digest}
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
    folder: Path, state: State, memory: ClientMemory, recipe_digest: str, logged: int | None = None
) -> list[str]:
    """Bring state and memory to the newest sound checkpoint, if there is any; returns what had to be passed over.

    `logged`: the last round that is written down; a checkpoint of a later one would leave a gap.
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
        if logged is not None and found.round > logged:
            passed.append(f"{path} is ahead of the log, which ends with round {logged}")
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


def _path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.safetensors"


def _found(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
