"""A program and its data: all that a run needs. Errors in a recipe are found here, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedloom.data import Dataset, Partition
from fedloom.engine.federated_data import FederatedData, Public, all_clients, load_data
from fedloom.engine.program import Program, build_program
from fedloom.io.user_code import import_parts
from fedloom.methods import TaskInfo, method
from fedloom.recipe import Recipe


@dataclass(frozen=True)
class Experiment:
    program: Program
    data: FederatedData

    @property
    def recipe(self) -> Recipe:
        return self.program.recipe

    def with_recipe(self, recipe: Recipe) -> Experiment:
        """The same experiment with a recipe that would build the same program and data."""
        return replace(self, program=replace(self.program, recipe=recipe))

    def as_deployed(self) -> Experiment:
        """The same experiment in a deployment."""
        return replace(self, program=replace(self.program, deployed=True))

    def task_at(self, round: int) -> TaskInfo:
        task, data = self.program.task, self.data
        if len(data.stages) == 1:
            return task
        return replace(task, samples=len(data.at(round).partition.train_index))

    def training(self, client: int, round: int) -> np.ndarray:
        """Indices of the samples that a client of a round's cohort trains on: its own, or those of all clients if pooled."""
        partition = self.data.at(round).partition
        return all_clients(partition) if self.program.pooled else partition.train(client)


def prepare(
    recipe: Recipe,
    partition: Sequence[Partition] | Partition = (),
    initial: Mapping[str, Tensor] | None = None,
    *,
    dataset: Dataset | None = None,
    task: TaskInfo | None = None,
    samples: int | None = None,
    public: Public | None = None,
    validation: Sequence[Partition] = (),
) -> Experiment:
    """Load, split and build what the recipe names. Stored partitions (one per stage, and one of the clients' own validation
    samples) and initial weights are used as they are.

    To adopt a model: the `dataset` of a new client, and the `task` of the federation. On a Flower server: a `dataset` and
    `public` samples that stand for those on the nodes, and the number of `samples` of all nodes.
    """
    import_parts(recipe.parts)
    sum_of_parts = method(recipe.method)
    data = load_data(recipe, partition, dataset, public, validation)
    return Experiment(build_program(recipe, task or data.task(recipe, sum_of_parts, samples), initial), data)
