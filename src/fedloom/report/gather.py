"""Run folders as the page needs them: whatever is there is read, finished or not; what is missing is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.engine.files import read_lines
from fedloom.errors import FedloomError
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

    def held(self) -> np.ndarray | None:
        """Training images by client (row) and class (column), from the folder alone; None where it does not tell."""
        try:
            with np.load(self.path / "partition.npz", allow_pickle=False) as stored:
                offsets = stored["train_offsets"]
            with np.load(self.path / "labels.npz", allow_pickle=False) as stored:
                labels = stored["train_labels"]
            owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            told = read_json(self.path / "inputs.json")
            width = max(len(told.get("class_names", ())), int(labels.max(initial=0)) + 1)
            counts = np.zeros((len(offsets) - 1, width), dtype=np.int64)
            np.add.at(counts, (owner, labels), 1)
        except (OSError, KeyError, ValueError, IndexError):
            return None
        return counts


def find(paths: Iterable[str | Path], some: bool = True) -> list[Found]:
    """The runs in these folders or anywhere below them, each once, in the order given; `some`: there must be any."""
    found: dict[Path, Found] = {}
    for given in paths:
        path = Path(given)
        if not path.is_dir():
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
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
