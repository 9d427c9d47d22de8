"""A recipe of the fields that a person gave.

Data that name their clients decide split and number of clients by default. A split that is a function is called here, since it
depends on data, number of clients and seed; the recipe names the index arrays that it returns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedloom.data import call_function, is_function, load
from fedloom.engine.about import about
from fedloom.engine.federated_data import hold_back
from fedloom.io.user_code import import_parts
from fedloom.recipe import Recipe, recipe

NATURAL = "natural"


def given_recipe(fields: Mapping[str, Any]) -> Recipe:
    """Where neither split nor clients is given and the data name their clients, each of those is a client.

    `split: natural` without `clients` also means all of them.
    """
    made = recipe(fields)
    if is_function(made.split):
        return _with_called_split(made)
    if fields.get("clients") is not None or ("split" in fields and not _names_natural(made.split)):
        return made
    import_parts(made.parts)
    with about("data"):
        dataset = load(made.data.name, made.data.resize, made.data.test_every)
    if dataset.train_client is None or not ("split" in fields or dataset.client_names):
        return made
    pool = hold_back(dataset, made)[0]
    clients = dataset.train_client if pool is None else dataset.train_client[pool]
    split = made.split if "split" in fields else NATURAL
    return made.changed(split=split, clients=len(np.unique(clients.numpy())))


def _with_called_split(made: Recipe) -> Recipe:
    import_parts(made.parts)
    with about("data"):
        dataset = load(made.data.name, made.data.resize, made.data.test_every)
    return made.changed(split=call_function(made.split, dataset, made.clients, made.seed, hold_back(dataset, made)[0]))


def _names_natural(split: str) -> bool:
    return NATURAL in re.split(r"[+;:\s]+", split)
