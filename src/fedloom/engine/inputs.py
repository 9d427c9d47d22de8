"""The description of a run's inputs, so that its net can be rebuilt and used without them.

`inputs.json` in a run folder: shape and scale of the inputs, the statistics that normalize them, the names of classes and
clients, and the task that parts saw when the net was built.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedloom.data import Dataset, InputSpec, Partition, Pipeline, pipeline_of
from fedloom.data.split.client_names import client_names
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.program import Program, build_program
from fedloom.io.files import read_json, read_tensors
from fedloom.io.user_code import import_parts
from fedloom.methods import TaskInfo
from fedloom.recipe import Recipe


@dataclass(frozen=True)
class RunInputs:
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of the training samples / scale, by channel
    std: tuple[float, ...]
    data_digest: str
    task: TaskInfo
    client_names: tuple[str, ...] = ()  # where the data name their clients and the split keeps them apart

    @staticmethod
    def of(experiment: Experiment) -> RunInputs:
        dataset = experiment.data.dataset
        names = client_names(experiment.data.stages[0])
        return RunInputs(dataset.class_names, dataset.mean, dataset.std, dataset.digest, experiment.program.task, names)

    @property
    def spec(self) -> InputSpec:
        return self.task.inputs

    @property
    def scale(self) -> float:
        return self.spec.scale

    def to_json(self) -> dict[str, Any]:
        task = {f.name: getattr(self.task, f.name) for f in fields(TaskInfo) if f.name not in ("initial", "inputs")}
        task["inputs"] = self.spec.to_json()
        return {f.name: task if f.name == "task" else getattr(self, f.name) for f in fields(self)}

    @staticmethod
    def read(path: Path) -> RunInputs | None:
        stored = read_json(path)
        if not isinstance(stored, dict):
            return None
        task = {**stored["task"], "inputs": InputSpec.from_json(stored["task"]["inputs"])}
        return RunInputs(
            class_names=tuple(stored["class_names"]),
            mean=tuple(stored["mean"]),
            std=tuple(stored["std"]),
            data_digest=stored["data_digest"],
            task=TaskInfo(**task),
            client_names=tuple(stored.get("client_names", ())),
        )

    def program(self, recipe: Recipe, initial: Path) -> Program:
        """The net and method of a run, without any data."""
        import_parts(recipe.parts)
        return build_program(recipe, self.task, read_tensors(initial)[0])

    def pipeline(self, recipe: Recipe) -> Pipeline:
        return pipeline_of(self.spec, (self.mean, self.std), "the run's set", recipe.data.normalize)

    def experiment(self, recipe: Recipe, initial: Path, dataset: Dataset) -> Experiment:
        """The net and method of a run, with the samples of one client that was not in it."""
        plain = {"validation": 0.0, "public": 0.0, "public_from": None, "public_to_clients": False}
        plain |= {"images": None, "test_images": None}
        data = recipe.data.model_dump()
        alone = recipe.changed(clients=1, split="iid", data={**data, **{k: v for k, v in plain.items() if k in data}})
        train, test = len(dataset.train_y), len(dataset.test_y)
        everything = Partition(np.arange(train), np.array([0, train]), np.arange(test), np.array([0, test]))
        return prepare(alone, everything, read_tensors(initial)[0], dataset=dataset, task=self.task)

    def dataset(self, name: str, train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> Dataset:
        """New samples, to be normalized with the statistics of the run's."""
        return Dataset(
            name=name,
            inputs=self.spec,
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
            classes=len(self.class_names),
            class_names=self.class_names,
            mean=self.mean,
            std=self.std,
            digest="",
        )
