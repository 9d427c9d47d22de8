"""The run folder: its files, how it is created and how it is read.

    recipe.yaml  initial.safetensors  partition.npz  inputs.json  rounds.jsonl  clients.jsonl  checkpoints/
    final.safetensors  summary.json

A split that changes in round 30 adds partition-30.npz. The folder is created complete in one rename, so a folder that exists
can be resumed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedloom.data import Dataset, Partition, load, stage_rounds
from fedloom.engine.about import about
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.inputs import RunInputs
from fedloom.engine.sites import Counted, Sites
from fedloom.errors import DISK, FedloomError, Unwritable, shown
from fedloom.io.files import read_tensors, remove_leftovers, write, write_json, write_tensors
from fedloom.io.locks import AVAILABLE, lock
from fedloom.io.logs import RunLog
from fedloom.recipe import Recipe, read_recipe, recipe
from fedloom.runs.labels import FILE as LABELS
from fedloom.runs.labels import HERE

LONGEST_NAME = 240  # bytes: the limit of file systems, less the suffix of a temporary name
Kind = Literal["partition", "validation"]
PATIENCE = 5.0  # seconds: workers of a killed process hold its lock until they end


class RunFolder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_yaml = self.path / "recipe.yaml"
        self.initial = self.path / "initial.safetensors"
        self.final = self.path / "final.safetensors"
        self.partition = self.path / "partition.npz"
        self.validation = (
            self.path / "validation.npz"
        )  # the clients' own validation samples, in the form of a partition
        self.labels = (
            self.path / "labels.npz"
        )  # labels of partition.npz's training samples, for readers without the data
        self.inputs = self.path / "inputs.json"
        self.names = self.path / LABELS  # what the user called the method, where recipe.yaml spells it out
        self.schema = self.path / "schema.json"  # of tables and texts: how rows become inputs
        self.rounds = self.path / "rounds.jsonl"
        self.clients = self.path / "clients.jsonl"
        self.summary = self.path / "summary.json"
        self.metrics = self.path / "metrics.json"  # titles and directions, for readers without the user's code
        self.checkpoints = self.path / "checkpoints"
        self.client_memory = self.checkpoints / "clients"
        self.analysis = self.path / "analysis"
        self.sites = self.path / "sites.json"  # of a run on real machines
        self.nodes = self.path / "nodes.json"  # of a run on real machines: the public key of each client

    @property
    def finished(self) -> bool:
        return self.summary.exists() and self.final.exists()

    @property
    def resume_command(self) -> str:
        return f"fedloom run --resume {self.path}"

    def recipe(self) -> Recipe:
        if not self.recipe_yaml.is_file():
            raise FedloomError(f"{self.path} is not a run folder: it has no recipe.yaml")
        return recipe(read_recipe(self.recipe_yaml))

    def experiment(self, dataset: Dataset | None = None) -> Experiment:
        """The run's experiment, with its own partition and initial weights; refused if its data have changed.

        `dataset`: what stands for data that stay at sites, if the run is on sites.
        """
        stored = self.recipe()
        sites = Sites.read(self.sites)
        if dataset is None and sites is not None and sites.data == "sites":
            dataset = sites.dataset()
        initial, metadata = read_tensors(self.initial)
        if metadata.get("recipe") != stored.digest():
            raise FedloomError(
                f"{self.recipe_yaml} is no longer the recipe of this run; start a new run with it instead"
            )
        if dataset is None:
            with about("data"):
                dataset = load(stored.data.name, stored.data.resize, stored.data.test_every)
        if metadata.get("data") != dataset.digest:
            raise FedloomError(f"data: {stored.data.name} is no longer what {self.path} was trained on")
        at_sites = sites is not None and sites.data == "sites"
        partitions = [Counted.load(self.partition)] if at_sites else self.partitions(dataset)
        validation = self.partitions(dataset, "validation") if self.validation.exists() else []
        experiment = prepare(stored, partitions, initial, dataset=dataset, validation=validation)
        if "origin" in metadata:
            experiment = replace(experiment, program=replace(experiment.program, origin=json.loads(metadata["origin"])))
        return experiment

    def partitions(self, dataset: Dataset, kind: Kind = "partition") -> list[Partition]:
        """One per stage of the split; of training samples, or of the clients' own validation samples."""
        begins = stage_rounds(self.recipe().split)
        return [Partition.load(self.stage_partition(begin, kind), dataset) for begin in begins]

    def stage_partition(self, begin: int, kind: Kind = "partition") -> Path:
        """Of the stage that begins in this round."""
        return self.path / (f"{kind}.npz" if begin == 1 else f"{kind}-{begin}.npz")

    def known_inputs(self) -> RunInputs:
        """The net's inputs and classes, without the training samples where inputs.json has them."""
        inputs = RunInputs.read(self.inputs)
        return inputs if inputs is not None else RunInputs.of(self.experiment())

    def log(self) -> RunLog:
        return RunLog.read(self.rounds, self.clients)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one process works in a folder at a time; the lock ends with the process, however that ends."""
        descriptor = os.open(self.path if AVAILABLE else os.devnull, os.O_RDONLY)
        try:
            until = time.monotonic() + PATIENCE
            while not lock(descriptor):
                if time.monotonic() > until:
                    raise FedloomError(f"{self.path}: another process works on this run; wait for it or end it")
                time.sleep(0.05)
            for place in (self.path, self.checkpoints, self.client_memory, self.analysis):
                remove_leftovers(place)
            yield
        finally:
            os.close(descriptor)


def create(experiment: Experiment, path: Path, sites: Sites | None = None, called: str = "") -> RunFolder:
    """Write a new folder under a temporary name, then rename it. `called`: the method as the user wrote it."""
    refuse_existing(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        os.chmod(made, 0o755)
        folder = RunFolder(made)
        folder.client_memory.mkdir(parents=True)
        write(folder.recipe_yaml, experiment.recipe.to_yaml())
        if called not in ("", str(experiment.program.method), experiment.recipe.method):
            write_json(folder.names, {HERE: called})
        for stage in experiment.data.stages:
            stage.partition.save(folder.stage_partition(stage.begin))
        for stage in experiment.data.validation_stages:
            stage.partition.save(folder.stage_partition(stage.begin, "validation"))
        if sites is None:  # labels at sites stay there
            held = experiment.data.stages[0].held_labels()
            np.savez(folder.labels, train_labels=held.astype(np.int32))
        write_json(folder.inputs, RunInputs.of(experiment).to_json())
        if schema := experiment.data.dataset.schema:
            write(folder.schema, schema)
        if sites is not None:
            write(folder.sites, sites.to_json())
        metadata = {"recipe": experiment.recipe.digest(), "data": experiment.data.dataset.digest}
        if experiment.program.origin:
            metadata["origin"] = json.dumps(experiment.program.origin)
        write_tensors(folder.initial, experiment.program.layout.tensors(experiment.program.initial), metadata)
        os.rename(made, path)  # an empty folder may be there already
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        if isinstance(error, OSError):
            refuse_existing(path)  # another process was first
            raise _unwritable(path, error) from None
        raise
    return RunFolder(path)


def _unwritable(path: Path, error: OSError) -> FedloomError:
    kind = Unwritable if error.errno in DISK else FedloomError
    return kind(f"out: {path} cannot be written ({error.strerror}); choose another place")


def refuse_existing(path: Path) -> None:
    if long := [part for part in path.parts if len(part.encode()) > LONGEST_NAME]:
        raise FedloomError(
            f"out: {shown(long[0])} is too long for the name of a folder; at most {LONGEST_NAME} bytes fit"
        )
    try:
        _refuse_existing(path)
    except OSError as error:  # a name that is too long, links in a circle
        raise _unwritable(path, error) from None


def _refuse_existing(path: Path) -> None:
    if (path / "recipe.yaml").exists():
        raise FedloomError(f"out: {path} holds a run already; resume it with --resume {path}, or choose another name")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FedloomError(f"out: {path} exists already and is not empty; choose another name")


def place(given: Recipe, method: str) -> Path:
    """Where a run goes: `out`, or runs/NAME, or a free name under runs/ that says what it is."""
    if given.out:
        return Path(given.out)
    if given.name:
        return Path("runs") / given.name
    words = [
        method,
        Path(given.data.name.partition("?")[0].replace(":", "-")).stem,
        given.split,
        given.model,
        f"seed{given.seed}",
    ]
    base = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-") for word in words)[:120]
    path, number = Path("runs") / base, 2
    while not _reserved(path):
        path, number = Path("runs") / f"{base}-{number}", number + 1
    return path


def _reserved(path: Path) -> bool:
    """Whether the name was free; an empty folder now keeps it from others who start at the same time."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise _unwritable(path, error) from None
    return True
