"""The experiment as one site sees it: its own data, and what the server reported about the rest of the federation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedloom.data import Dataset, load
from fedloom.deploy.messages.schema import FederationInfo
from fedloom.deploy.site.config import NodeConfig
from fedloom.deploy.site.private import Refusal
from fedloom.engine.experiment import Experiment, prepare
from fedloom.engine.federated_data import Public
from fedloom.engine.sites import alone, fitted
from fedloom.errors import FedloomError
from fedloom.nets.kernels.use import lacks_native
from fedloom.recipe import Recipe


def absolute(source: str) -> str:
    """The text of a site's data with an absolute path, so that it has the same meaning in any folder."""
    path, question, options = source.partition("?")
    prefix, colon, rest = path.partition(":")
    if not colon:
        return str(Path(path).expanduser().resolve()) + question + options
    known = prefix in ("table", "folder")
    return (f"{prefix}:{Path(rest).expanduser().resolve()}" if known else path) + question + options


def own_dataset(recipe: Recipe, node: NodeConfig) -> Dataset:
    if node.data is None:
        raise Refusal("node config: data is missing; every site of this federation needs its own")
    source = node.data
    if Path(source).expanduser().is_dir():
        source = f"folder:{source}"
    return load(source, recipe.data.resize, recipe.data.test_every)


def site_experiment(
    recipe: Recipe, node: NodeConfig, info: FederationInfo, initial: Mapping[str, Tensor] | None
) -> Experiment:
    """The server's experiment with the data of this site only. Without `initial`, weights are initialized here.

    A site without the compiled kernels that the recipe asks for computes portably, to the same numbers but for rounding.
    """
    experiment = _site_experiment(recipe, node, info, initial)
    if recipe.kernels == "native" and (reason := lacks_native(experiment.program.net)):
        warnings.warn(f"kernels: native is not available at this node: {reason}; it uses portable ones", stacklevel=2)
    return experiment


def _site_experiment(
    recipe: Recipe, node: NodeConfig, info: FederationInfo, initial: Mapping[str, Tensor] | None
) -> Experiment:
    if info.sites.data == "split":
        if node.data is not None:
            raise Refusal("node config: data is given, but this federation is a trial on the recipe's own data")
        return prepare(recipe, initial=initial)
    dataset = own_dataset(recipe, node)  # not in the block below: why loading failed is not for the server to know
    try:
        dataset = fitted(dataset, info.sites)
    except FedloomError as error:
        raise Refusal(str(error)) from None
    public = None
    if info.public:  # public samples are at the server; a site needs only their number
        labels = torch.full((info.public,), 0 if info.labeled else -1)
        public = Public(dataset.train_x[:0], labels, dataset.pipeline(recipe.data.normalize))
        recipe = recipe.changed(data={**recipe.data.model_dump(), "public_from": None})
    partition = alone(node.client, recipe.clients, dataset)
    return prepare(recipe, partition, initial, dataset=dataset, samples=info.samples, public=public)
