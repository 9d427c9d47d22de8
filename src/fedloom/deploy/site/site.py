"""A site answers the server's orders. Only what `Site.answer` returns leaves the site; `plan.py` lists it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedloom.data import Dataset
from fedloom.deploy.messages.checked import Tensors
from fedloom.deploy.messages.schema import (
    NAME_LENGTH,
    FederationInfo,
    HelloOrder,
    JoinOrder,
    KeepOrder,
    Order,
    TaskOrder,
)
from fedloom.deploy.messages.wire import ArrivedTensors
from fedloom.deploy.site import private
from fedloom.deploy.site.base import own_base
from fedloom.deploy.site.config import NodeConfig
from fedloom.deploy.site.local_data import absolute, own_dataset
from fedloom.deploy.site.private import Refusal
from fedloom.deploy.site.worker import Answer, SiteWorker, read_expected
from fedloom.engine.tasks import ClientTask
from fedloom.errors import cleaned, shown
from fedloom.recipe import Recipe
from fedloom.version import __version__


class Site:
    """One node, with the recipe that it agreed to."""

    def __init__(self, recipe: Recipe, node: NodeConfig) -> None:
        self.digest = recipe.digest()
        self.recipe = recipe if node.device is None else recipe.changed(device=node.device)
        self.node = node

    def check_recipe(self, order: Order) -> None:
        """Refuse an order for another recipe."""
        if self.node.recipe is not None and self.node.recipe != self.digest:
            raise Refusal(f"takes part in recipe {self.node.recipe} only, and this is {self.digest}")
        if order.digest != self.digest:
            raise Refusal(f"has recipe {self.digest}, the server {order.digest}")

    def answer(self, order: Order, arrived: ArrivedTensors) -> Answer:
        self.check_recipe(order)
        if isinstance(order, HelloOrder):
            dataset = own_dataset(self.recipe, self.node)
            return self.facts(dataset, len(dataset.train_y), len(dataset.test_y)), {}
        if isinstance(order, JoinOrder):
            info, initial = order.info.value(), _only(read_expected(arrived, None), "initial")
            if order.base is not None:
                initial |= own_base(self.recipe, self.node, info, order.base)
            return self.join(info, initial)
        if isinstance(order, TaskOrder):
            task = self.task(order)
            if task.outputs and self.recipe.deploy.secure_aggregation is not None:
                raise Refusal(f"was asked to {task.kind} without masks, and its recipe has secure aggregation")
            return self.worker(order.federation).perform(task, order, arrived)
        if isinstance(order, KeepOrder):
            return self.worker(order.federation).keep(order, arrived)
        raise Refusal(f"was asked for {order.kind} without masks")

    def worker(self, federation: str) -> SiteWorker:
        return SiteWorker.of(self.recipe, self.node, federation)

    def task(self, order: TaskOrder) -> ClientTask:
        task = order.task_for(self.node.client)
        assert isinstance(task, ClientTask)
        return task

    def join(self, info: FederationInfo, initial: Tensors) -> Answer:
        home = self.node.home(info.sites.federation)
        private.make(home, self.node.root)
        private.write_tensors(home / "initial.safetensors", initial)
        node = {"data": absolute(self.node.data) if self.node.data else None, "name": self.node.name}
        content = {"info": info.to_json(), "client": self.node.client, "recipe": self.recipe.to_yaml(), **node}
        private.write(home / "site.json", json.dumps(content, indent=2) + "\n")
        experiment = self.worker(info.sites.federation).replica.experiment
        if unknown := set(initial) - set(experiment.program.layout.entries):
            raise Refusal(f"got initial weights with {shown(min(unknown))}, which the recipe's net does not have")
        partition, client = experiment.data.partition, self.node.client
        return self.facts(experiment.data.dataset, len(partition.train(client)), len(partition.test(client))), {}

    def facts(self, dataset: Dataset, train: int, test: int) -> dict[str, Any]:
        """All that a site reports about itself and its data."""
        return {
            "name": cleaned(self.node.name, NAME_LENGTH),
            "train": train,
            "test": test,
            "inputs": dataset.inputs.to_json(),
            "schema_digest": hashlib.sha256(dataset.schema.encode()).hexdigest()[:16] if dataset.schema else "",
            "class_names": list(dataset.class_names),
            "version": __version__,
        }


def _only(groups: dict[str, Tensors], name: str) -> Tensors:
    if unknown := set(groups) - {name}:
        raise Refusal(f"got a message with {shown(min(unknown))}, which it does not know")
    return groups.get(name, {})
