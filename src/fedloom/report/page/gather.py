"""Run folders as the page reads them. A run may be unfinished; missing files are empty values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.engine.store import checkpoint
from fedloom.errors import FedloomError, shown
from fedloom.evaluation.metrics import METRICS
from fedloom.io import files
from fedloom.io.archives import read_arrays
from fedloom.io.files import read_lines
from fedloom.recipe import NO_EFFECT_FIELDS, read_recipe
from fedloom.runs.folder import RunFolder
from fedloom.runs.labels import FILE as LABELS
from fedloom.runs.labels import HERE, is_method, name_of, names_in, stored_names
from fedloom.studies.tune.record import ASKED


@dataclass(frozen=True)
class RunFiles:
    """The files of one run folder, each read once."""

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
        """All fields that decide the result, except the seed. Runs that share it are one series of the page."""
        deciding = {
            name: value for name, value in self.fields.items() if name not in NO_EFFECT_FIELDS and name != "seed"
        }
        return json.dumps(deciding, sort_keys=True, default=str)

    @cached_property
    def metrics(self) -> list[dict[str, str]]:
        """Its metrics with title, direction and format, the headline first. The user's own code is not run for that."""
        names = self.fields.get("metrics") or ["accuracy"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        stored = files.read_json(self.path / "metrics.json")
        listed = stored if isinstance(stored, list) else []
        described = {item.get("name"): item for item in listed if isinstance(item, dict)}
        return [_metric(str(name), described.get(name, {})) for name in names]

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.path / "summary.json")

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "rounds.jsonl")

    @cached_property
    def clients(self) -> dict[str, Any]:
        """The latest evaluation on every client's own test samples."""
        lines = read_lines(self.path / "clients.jsonl")
        return lines[-1] if lines else {}

    @cached_property
    def fine_tunings(self) -> list[dict[str, Any]]:
        """Every stored fine-tuning."""
        paths = sorted((self.path / "personal").glob("*.json"))
        return [stored for path in paths if (stored := read_json(path))]

    @property
    def method(self) -> str:
        return str(self.summary.get("method") or self.fields.get("method", "?"))

    @cached_property
    def name(self) -> str:
        return name_of(self.path, self.method)

    @property
    def row(self) -> str:
        """The method as it was typed, of which `--label` gives the name."""
        return next(filter(is_method, stored_names(self.path)), self.method)

    @cached_property
    def class_names(self) -> list[str]:
        names = read_json(self.path / "inputs.json").get("class_names")
        return [str(name) for name in names] if isinstance(names, list) else []

    @cached_property
    def client_names(self) -> list[str]:
        """Empty where clients have numbers only."""
        names = read_json(self.path / "inputs.json").get("client_names")
        return [str(name) for name in names] if isinstance(names, list) else []

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @cached_property
    def log_problem(self) -> str | None:
        """How the logs contradict the newest checkpoint; None if they agree."""
        folder = RunFolder(self.path)
        return checkpoint.disagreement(folder.checkpoints, folder.log())

    def check(self) -> None:
        """Refuse a recipe or a log whose values have types that the page cannot show."""
        for name, kind in (("method", str), ("split", str), ("data.name", str), ("seed", int), ("rounds", int)):
            if name in self.fields and not isinstance(self.fields[name], kind):
                raise FedloomError(f"{self.path}/recipe.yaml: {name} is {shown(self.fields[name])}")
        for line in self.rounds:
            for name in ("round", "seconds", "bytes_down", "bytes_up"):
                if not isinstance(line.get(name), int | float):
                    raise FedloomError(
                        f"{self.path}/rounds.jsonl: {name} of a line is {shown(line.get(name))}, not a number"
                    )

    def class_counts(self) -> np.ndarray | None:
        """Training samples by client (row) and class (column); None if the folder has no labels."""
        try:
            offsets = read_arrays(self.path / "partition.npz", ["train_offsets"])["train_offsets"]
            labels = read_arrays(self.path / "labels.npz", ["train_labels"])["train_labels"]
            clients = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            classes = max(len(self.class_names), int(labels.max(initial=0)) + 1)
            counts = np.zeros((len(offsets) - 1, classes), dtype=np.int64)
            np.add.at(counts, (clients, labels), 1)
        except (OSError, KeyError, ValueError, IndexError, TypeError, OverflowError, MemoryError):
            return None
        return counts


def _metric(name: str, stored: dict[str, Any]) -> dict[str, str]:
    known = METRICS.get(name)
    usual = {"title": name.replace("_", " "), "better": "higher", "format": "number"}
    if known is not None:
        usual = {key: getattr(known, key) for key in usual}
    return {"name": name, **{key: str(stored.get(key, value)) for key, value in usual.items()}}


def find_runs(paths: Iterable[str | Path], required: bool = True) -> list[RunFiles]:
    """The runs in these folders or anywhere below them, each once, in the order given.

    `required`: a folder that is missing or holds no run is refused.
    """
    runs: dict[Path, RunFiles] = {}
    for given in paths:
        path = Path(given)
        if not path.is_dir():
            if not required:
                continue  # deleted after the page was opened
            raise FedloomError(f"report: there is no folder {path}")
        inside = [path] if (path / "recipe.yaml").is_file() else _below(path)
        if required and not inside and not tuning_folders([path]):
            raise FedloomError(f"report: {path} holds no run: neither it nor a folder below has a recipe.yaml")
        for folder in inside:
            runs.setdefault(folder.resolve(), RunFiles(folder))
    return list(runs.values())


def _below(path: Path) -> list[Path]:
    every = _ordered(path, [file.parent for file in path.rglob("recipe.yaml")])
    tuned = tuning_folders([path])  # their trials are shown together, not as runs
    return [
        folder
        for folder in every
        if not any(n.startswith(".") for n in folder.relative_to(path).parts)
        and not any(other in folder.parents for other in tuned)
    ]


def _ordered(path: Path, folders: list[Path]) -> list[Path]:
    """Methods in the order in which a comparison was given them, all else by name, with numbers by their value."""
    listed = {
        file.parent / folder: place
        for file in path.rglob(LABELS)
        for place, folder in enumerate(names_in(file.parent))
        if folder != HERE
    }

    def key(folder: Path) -> list[tuple[int, list[tuple[float, str]]]]:
        steps = [*reversed(folder.relative_to(path).parents), folder.relative_to(path)][1:]
        return [(listed.get(path / step, len(listed)), _by_value(step.name)) for step in steps]

    return sorted(folders, key=key)


def _by_value(name: str) -> list[tuple[float, str]]:
    """lr=3 comes before lr=10."""
    return [(float(n), "") if n else (math.inf, text) for n, text in re.findall(r"(\d+(?:\.\d+)?)|(\D+)", name)]


def tuning_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The tunings in these folders or below them, each once."""
    asked = (file for path in paths if Path(path).is_dir() for file in sorted(Path(path).rglob(ASKED)))
    return list({file.resolve(): file.parent for file in asked if file.is_file()}.values())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or incomplete."""
    stored = files.read_json(path)
    return stored if isinstance(stored, dict) else {}
