"""Validation samples from the clients' own training samples."""

from __future__ import annotations

import numpy as np
import pytest

import fedloom as fl
from fedloom.engine.experiment import prepare
from fedloom.engine.federated_data import FederatedData
from fedloom.recipe import recipe


def data_of(validation: float = 0.2, source: str = "clients", **fields: object) -> FederatedData:
    data = {"validation": validation, "validation_from": source}
    return prepare(recipe({"clients": 10, "split": "dirichlet:0.3", **fields, "data": data})).data


def test_every_client_holds_out_its_share_and_nobody_trains_on_it() -> None:
    whole, data = data_of(0.0), data_of()
    (stage,), (held,) = data.stages, data.validation_stages
    for client in range(10):
        before, trained, kept = (part.partition.train(client) for part in (whole.stages[0], stage, held))
        assert sorted([*trained, *kept]) == sorted(before)
        assert abs(len(kept) - 0.2 * len(before)) <= 1
    assert np.array_equal(stage.partition.test_index, whole.stages[0].partition.test_index)
    assert data.validation.tolist() == sorted(held.partition.train_index.tolist())
    with pytest.raises(fl.FedloomError, match="held back"):  # no part of a method sees them
        data_of(method="fnr(mode=held)")


def test_a_sample_that_moves_to_another_client_is_held_out_there_too() -> None:
    data = data_of(split="shards:2; 3: dirichlet:0.3", rounds=4)
    trained = {index for stage in data.stages for index in stage.partition.train_index.tolist()}
    assert len(data.stages) == 2
    for held in data.validation_stages:
        assert set(held.partition.train_index.tolist()) == set(data.validation.tolist())
    assert not trained & set(data.validation.tolist())


def test_clients_see_their_validation_samples_as_their_training_samples() -> None:
    data = data_of(split="iid+permute:1", clients=4)
    (stage,), (held,) = data.stages, data.validation_stages
    assert held.shifts == stage.shifts
    labels = data.dataset.train_y.numpy()[held.partition.train_index]
    assert (held.held_labels() != labels).any()


def test_a_share_that_holds_no_sample_out_is_refused() -> None:
    with pytest.raises(fl.FedloomError, match=r"data\.validation: 1e-09 .* hold out a larger share"):
        data_of(1e-9)
