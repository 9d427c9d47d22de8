"""What a trained net must know of the images it was trained on, so that it can be used where they are not.

`inputs.json` in a run folder: shape and scale of the images, the statistics that normalise them, the names of the classes,
and the sizes that parts were told when the net was built.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.data import ImageSet, Partition
from fedloom.engine.files import read_json, read_tensors
from fedloom.engine.setup import Experiment, prepare
from fedloom.methods import Task
from fedloom.recipe import Recipe


@dataclass(frozen=True)
class Inputs:
    class_names: tuple[str, ...]
    scale: float  # the largest value of a pixel
    mean: tuple[float, ...]  # of the training images / scale, by channel
    std: tuple[float, ...]
    data_digest: str
    task: Task

    @staticmethod
    def of(experiment: Experiment) -> Inputs:
        images = experiment.images
        return Inputs(images.class_names, images.scale, images.mean, images.std, images.digest, experiment.task)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.task.shape

    def to_json(self) -> dict[str, Any]:
        task = {f.name: getattr(self.task, f.name) for f in fields(Task) if f.name != "initial"}
        return {f.name: task if f.name == "task" else getattr(self, f.name) for f in fields(self)}

    @staticmethod
    def read(path: Path) -> Inputs | None:
        told = read_json(path)
        if not isinstance(told, dict):
            return None
        task = {**told["task"], "shape": tuple(told["task"]["shape"])}
        return Inputs(
            class_names=tuple(told["class_names"]),
            scale=told["scale"],
            mean=tuple(told["mean"]),
            std=tuple(told["std"]),
            data_digest=told["data_digest"],
            task=Task(**task),
        )

    def experiment(self, recipe: Recipe, initial: Path, images: ImageSet | None = None) -> Experiment:
        """The net and method of a run, over the images of one client who was not in it, or over none."""
        channels, height, width = self.shape
        nothing = torch.empty(0, height, width, channels, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
        images = images or self.images("nothing", *nothing, *nothing)
        plain = {"validation": 0.0, "public": 0.0, "public_from": None, "public_to_clients": False, "images": None}
        data = recipe.data.model_dump()
        alone = recipe.changed(clients=1, split="iid", data={**data, **{k: v for k, v in plain.items() if k in data}})
        train, test = len(images.train_y), len(images.test_y)
        everything = Partition(np.arange(train), np.array([0, train]), np.arange(test), np.array([0, test]))
        return prepare(alone, everything, read_tensors(initial)[0], images=images, task=self.task)

    def images(self, name: str, train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor) -> ImageSet:
        """Somebody's images, to be normalised as those of the run were."""
        return ImageSet(
            name=name,
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
            classes=len(self.class_names),
            class_names=self.class_names,
            scale=self.scale,
            mean=self.mean,
            std=self.std,
            digest="",
        )
