"""The run folder: what is in it, where, and how it comes into being and is read again.

    recipe.yaml  initial.safetensors  partition.npz  rounds.jsonl  clients.jsonl  checkpoints/  final.safetensors  summary.json

It appears complete in one move, so a folder that exists can be resumed, whenever its run was ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from fedloom.data import Partition
from fedloom.engine.files import read_tensors, write, write_tensors
from fedloom.engine.setup import Experiment, prepare
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe, read_recipe, recipe


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_yaml = self.path / "recipe.yaml"
        self.initial = self.path / "initial.safetensors"
        self.final = self.path / "final.safetensors"
        self.partition = self.path / "partition.npz"
        self.rounds = self.path / "rounds.jsonl"
        self.clients = self.path / "clients.jsonl"
        self.summary = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoints"
        self.client_memory = self.checkpoints / "clients"

    @property
    def finished(self) -> bool:
        return self.summary.exists() and self.final.exists()

    def recipe(self) -> Recipe:
        if not self.recipe_yaml.is_file():
            raise FedloomError(f"{self.path} is not a run folder: it has no recipe.yaml")
        return recipe(read_recipe(self.recipe_yaml))

    def experiment(self) -> Experiment:
        """Everything the run needs, with its own partition and first weights; its data must be what they were."""
        stored = self.recipe()
        initial, told = read_tensors(self.initial)
        experiment = prepare(stored, Partition.load(self.partition), initial)
        if told.get("data") != experiment.images.digest:
            raise FedloomError(f"data: {stored.data.name} is no longer what {self.path} was trained on")
        return experiment


def create(experiment: Experiment, path: Path) -> RunFolder:
    """Write a new folder beside its place, then move it there."""
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        os.chmod(made, 0o755)
        folder = RunFolder(made)
        folder.client_memory.mkdir(parents=True)
        write(folder.recipe_yaml, experiment.recipe.to_yaml())
        experiment.partition.save(folder.partition)
        metadata = {"recipe": experiment.recipe.digest(), "data": experiment.images.digest}
        write_tensors(folder.initial, experiment.layout.tensors(experiment.initial), metadata)
        with contextlib.suppress(OSError):
            path.rmdir()  # an empty folder is no obstacle
        os.rename(made, path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return RunFolder(path)


def refuse_existing(path: Path) -> None:
    if (path / "recipe.yaml").exists():
        raise FedloomError(f"out: {path} holds a run already; carry it on with --resume {path}, or choose another name")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedloomError(f"out: {path} exists already and is not empty; choose another name")


def place(given: Recipe, method: str) -> Path:
    """Where a run goes: `out`, or runs/NAME, or a free name under runs/ that says what it is."""
    if given.out:
        return Path(given.out)
    if given.name:
        return Path("runs") / given.name
    words = [method, Path(given.data.name.replace(":", "-")).stem, given.split, given.model, f"seed{given.seed}"]
    base = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-") for word in words)[:120]
    path, number = Path("runs") / base, 2
    while path.exists():
        path, number = Path("runs") / f"{base}-{number}", number + 1
    return path
