"""The names of clients: those that the data have, where each client holds the samples of one hospital, person or domain.

Clients that divide a domain among them are numbered: "photo 1", "photo 2". A split that mixes natural clients and domains, or
data without names, leaves clients with their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedloom.data.partition.partition import Index
from fedloom.data.split.view import ClientViews


def client_names(stage: ClientViews) -> tuple[str, ...]:
    """One name per client, all different; empty if clients have none."""
    dataset = stage.dataset
    holders = _held_group(stage, dataset.train_client) if dataset.client_names else None
    if holders is not None and len(np.unique(holders)) == len(holders):
        return _named(holders, dataset.client_names)
    domains = _held_group(stage, dataset.train_domain) if dataset.domain_names else None
    if domains is None:
        return ()
    names = _named(domains, dataset.domain_names)
    if len(set(names)) == len(names):
        return names
    return tuple(f"{name} {1 + names[:client].count(name)}" for client, name in enumerate(names))


def _named(groups: Index, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[group] for group in groups.tolist())


def _held_group(stage: ClientViews, group_of: Tensor | None) -> Index | None:
    """The group that all training samples of each client belong to; None if some client has none, or several."""
    if group_of is None:
        return None
    offsets, groups = stage.partition.train_offsets, group_of.numpy()[stage.partition.train_index]
    if (np.diff(offsets) == 0).any():
        return None
    first = groups[offsets[:-1]]
    return first if (groups == np.repeat(first, np.diff(offsets))).all() else None
