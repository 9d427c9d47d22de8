"""Run folders as the page needs them: whatever is there is read, finished or not; what is missing is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.archives import read_arrays
from fedloom.engine import checkpoint, files
from fedloom.engine.files import read_lines
from fedloom.engine.folder import RunFolder
from fedloom.errors import FedloomError, shown
from fedloom.recipe import read_recipe

ASIDE = (
    *("name", "out", "lanes", "device", "checkpoint_seconds", "memory_mb"),
    *("eval_every", "eval_clients", "analyze_every", "track", "parts"),
)


@dataclass(frozen=True)
class Found:
    """One run folder."""

    path: Path

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The recipe, one level deep: data.name and so on."""
        flat: dict[str, Any] = {}
        for field, value in read_recipe(self.path / "recipe.yaml").items():
            if isinstance(value, dict):
                flat |= {f"{field}.{inner}": item for inner, item in value.items()}
            else:
                flat[field] = value
        return flat

    @cached_property
    def identity(self) -> str:
        """All that decides the result but the seed: runs that share it are one line on the page."""
        told = {name: value for name, value in self.fields.items() if name not in ASIDE and name != "seed"}
        return json.dumps(told, sort_keys=True, default=str)

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.path / "summary.json")

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "rounds.jsonl")

    @cached_property
    def clients(self) -> dict[str, Any]:
        """The last test on every client's own images."""
        lines = read_lines(self.path / "clients.jsonl")
        return lines[-1] if lines else {}

    @cached_property
    def tuned(self) -> list[dict[str, Any]]:
        """Every stored fine-tuning."""
        return [found for path in sorted((self.path / "personal").glob("*.json")) if (found := read_json(path))]

    @property
    def method(self) -> str:
        return str(self.summary.get("method") or self.fields.get("method", "?"))

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @cached_property
    def flaw(self) -> str | None:
        """What is wrong with the logs by the newest checkpoint; None if nothing is."""
        folder = RunFolder(self.path)
        return checkpoint.disagreement(folder.checkpoints, folder.log())

    def check(self) -> None:
        """Whether the page can rely on what it reads of the recipe and of the lines; one sentence if not."""
        for name, kind in (("method", str), ("split", str), ("data.name", str), ("seed", int), ("rounds", int)):
            if name in self.fields and not isinstance(self.fields[name], kind):
                raise FedloomError(f"{self.path}/recipe.yaml: {name} is {shown(self.fields[name])}")
        for line in self.rounds:
            for name in ("round", "seconds", "bytes_down", "bytes_up"):
                if not isinstance(line.get(name), int | float):
                    raise FedloomError(
                        f"{self.path}/rounds.jsonl: {name} of a line is {shown(line.get(name))}, not a number"
                    )

    def held(self) -> np.ndarray | None:
        """Training images by client (row) and class (column), from the folder alone; None where it does not tell."""
        try:
            offsets = read_arrays(self.path / "partition.npz", ["train_offsets"])["train_offsets"]
            labels = read_arrays(self.path / "labels.npz", ["train_labels"])["train_labels"]
            owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            told = read_json(self.path / "inputs.json")
            width = max(len(told.get("class_names", ())), int(labels.max(initial=0)) + 1)
            counts = np.zeros((len(offsets) - 1, width), dtype=np.int64)
            np.add.at(counts, (owner, labels), 1)
        except (OSError, KeyError, ValueError, IndexError, TypeError, OverflowError, MemoryError):
            return None
        return counts


def find(paths: Iterable[str | Path], some: bool = True) -> list[Found]:
    """The runs in these folders or anywhere below them, each once, in the order given; `some`: there must be any."""
    found: dict[Path, Found] = {}
    for given in paths:
        path = Path(given)
        if not path.is_dir():
            if not some:
                continue  # it was there when the page was opened
            raise FedloomError(f"report: there is no folder {path}")
        inside = [path] if (path / "recipe.yaml").is_file() else _below(path)
        if some and not inside:
            raise FedloomError(f"report: {path} holds no run: neither it nor a folder below has a recipe.yaml")
        for folder in inside:
            found.setdefault(folder.resolve(), Found(folder))
    return list(found.values())


def _below(path: Path) -> list[Path]:
    every = sorted(file.parent for file in path.rglob("recipe.yaml"))
    return [folder for folder in every if not any(n.startswith(".") for n in folder.relative_to(path).parts)]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where the file is missing or another writes it in place just now."""
    found = files.read_json(path)
    return found if isinstance(found, dict) else {}
