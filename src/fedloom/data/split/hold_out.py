"""Validation samples that clients hold out from their own training samples, so that they are distributed as the split is.

A sample that is held out by one client is trained on by none: where several clients hold it, or where it moves to another
client in a later stage, it is a validation sample of each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedloom.data.partition.partition import Index, Partition, offsets_of
from fedloom.data.split.view import ClientViews
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator

Stages = tuple[ClientViews, ...]


def hold_out(stages: Sequence[ClientViews], share: float, public: Index) -> tuple[Stages, Stages]:
    """Every stage without the validation samples, and every stage of them alone. `public` samples are never held out."""
    first = stages[0]
    held = np.zeros(len(first.dataset.train_y), dtype=bool)
    for client in range(first.partition.clients):
        held[_drawn(np.setdiff1d(first.partition.train(client), public), share, first.seed, client)] = True
    if not held.any():
        raise FedloomError(
            f"data.validation: {share:g} of the clients' samples is no sample at all; hold out a larger share"
        )
    trained = [stage.of(_kept(stage.partition, ~held)) for stage in stages]
    for whole, stage in zip(stages, trained, strict=True):
        lost = np.diff(whole.partition.train_offsets).astype(bool) & (np.diff(stage.partition.train_offsets) == 0)
        if lost.any():
            raise FedloomError(
                f"data.validation: client {int(lost.argmax())} would have no training sample left; hold out a smaller share"
            )
    return tuple(trained), tuple(stage.of(_without_test(_kept(stage.partition, held))) for stage in stages)


def _drawn(samples: Index, share: float, seed: int, client: int) -> Index:
    """A share of a client's samples. What is left of whole numbers is drawn, so that small clients count too."""
    generator = numpy_generator(seed, "validation", client)
    count = min(int(share * len(samples) + generator.random()), len(samples) - 1)
    return generator.permutation(samples)[: max(count, 0)]


def _kept(partition: Partition, chosen: np.ndarray) -> Partition:
    """Only these samples of the data set; a client's samples keep their order."""
    kept = chosen[partition.train_index]
    before = np.concatenate(([0], np.cumsum(kept)))
    offsets = before[partition.train_offsets]
    return Partition(partition.train_index[kept], offsets, partition.test_index, partition.test_offsets)


def _without_test(partition: Partition) -> Partition:
    nothing = np.empty(0, dtype=np.int64)
    return Partition(
        partition.train_index, partition.train_offsets, nothing, offsets_of(np.zeros(partition.clients, dtype=np.int64))
    )
