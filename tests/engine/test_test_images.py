"""`data.test_images`: some of the test samples, drawn by class in proportion; training stays the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedloom as fl
from fedloom.data import Partition, load
from fedloom.engine.federated_data import load_data
from fedloom.recipe import recipe

FIELDS = {"clients": 5, "rounds": 2, "model": "linear", "workers": 1, "metrics": "accuracy,macro_f1"}


def limited(count: int, **fields: object) -> dict[str, object]:
    return {**FIELDS, **fields, "data": {"name": "digits", "test_images": count}}


def test_a_run_is_tested_on_that_many_samples_and_trained_as_before() -> None:
    whole, some = fl.run(FIELDS, out="whole"), fl.run(limited(100), out="some")
    assert some.summary["digest"] == whole.summary["digest"]
    dataset = load("digits")
    tested = load_data(some.recipe).tested
    assert len(tested) == len(np.unique(tested)) == 100
    counts, all_counts = (np.bincount(y, minlength=10) for y in (dataset.test_y[tested], dataset.test_y))
    assert np.abs(counts - 100 * all_counts / len(dataset.test_y)).max() < 1

    weights = some.weights
    x = dataset.pipeline()(dataset.test_x, None).flatten(1)
    hits = (x @ weights["head.weight"].T + weights["head.bias"]).argmax(1) == dataset.test_y
    assert some.summary["test_accuracy"] == pytest.approx(hits[tested].float().mean().item())
    assert whole.summary["test_accuracy"] == pytest.approx(hits.float().mean().item())
    partition = Partition.load("some/partition.npz", dataset)  # indices of the data set, not of the drawn samples
    assert set(partition.test_index) <= set(tested.tolist())
    own = [hits[partition.test(client)].float().mean().item() for client in range(5)]
    assert some.clients[-1]["accuracy"] == pytest.approx(own)


def test_shifted_and_stored_splits_have_the_same_test_samples() -> None:
    made = load_data(recipe(limited(60, split="iid+noise:0.1")))
    assert len(made.tested) == 60 and set(made.partition.test_index) == set(made.tested)
    pooled, clean = made.stages[0].pooled(0, 60), made.stages[0].clean(0, 60)
    assert pooled.y.tolist() == clean.y.tolist() == made.dataset.test_y[made.tested].tolist()
    load_data(recipe({**FIELDS, "split": "iid"})).partition.save("all.npz")
    stored = load_data(recipe(limited(60, split="file:all.npz")))
    assert sorted(stored.partition.test_index) == made.tested.tolist()


def test_more_test_samples_than_there_are_are_refused() -> None:
    with pytest.raises(fl.FedloomError, match=r"data\.test_images: digits has 360 test samples \(wanted: 361\)"):
        fl.run(limited(361), out="none")
    assert not Path("none").exists()


def test_recipes_without_it_keep_their_digest() -> None:
    plain = recipe(FIELDS)
    assert plain.digest() == recipe({**FIELDS, "data": {"test_images": None}}).digest()
    assert plain.digest() != recipe(limited(100)).digest()
