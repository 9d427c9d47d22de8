"""Splits of the user's own: index arrays and functions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.data import cache

FIELDS: dict[str, Any] = {"model": "linear", "rounds": 2, "workers": 1}
ROWS = [range(50), np.arange(50, 100), {100, 101, 102}]


def blocks(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(rng.permutation(len(labels)), clients)


def rows_of(split: Any) -> list[list[int]]:
    return [split.partition.train(client).tolist() for client in range(split.clients)]


def test_every_client_holds_its_own_array_and_test_samples_of_the_same_classes() -> None:
    split = fl.split(split=ROWS)
    assert rows_of(split) == [sorted(rows) for rows in ROWS]
    for client in range(3):
        held, tested = (set(split.samples(client, part)[1].tolist()) for part in ("train", "test"))
        assert tested <= held


@pytest.mark.parametrize("form", [dict(enumerate(ROWS)), {"train": ROWS}, np.arange(60).reshape(3, 20)])
def test_clients_may_be_a_mapping_or_the_rows_of_an_array(form: Any) -> None:
    split = fl.split(split=form)
    assert split.clients == 3
    assert split.partition.train(0)[:20].tolist() == list(range(20))


def test_given_test_samples_and_a_stored_partition_are_used_as_they_are() -> None:
    split = fl.split(split={"train": ROWS, "test": [[0, 1], [1], []]})
    assert [split.partition.test(client).tolist() for client in range(3)] == [[0, 1], [1], []]
    again = fl.split(split=split.partition)
    assert rows_of(again) == rows_of(split)


def test_clients_share_samples_only_where_that_is_allowed() -> None:
    with pytest.raises(fl.FedloomError, match="clients 0 and 2 both hold training sample 7; if that is meant"):
        fl.split(split=[[7, 8], [9], [7]])
    assert rows_of(fl.split(split={"train": [[7, 8], [9], [7]], "overlap": True})) == [[7, 8], [9], [7]]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ([[1, 1], [2]], "client 0 holds train sample 1 twice"),
        ([[1], [1437]], "client 1 holds train sample 1437, but digits has 1437, from 0 to 1436"),
        ([[1], [-1]], "client 1 holds train sample -1; an index is 0 or more"),
        ([[0.5], [1]], "train samples of client 0 are .0.5.; expected a list of whole numbers"),
        ([[], [1]], "client 0 has no training samples"),
        ({0: [1], 2: [2]}, "clients are numbered .0, 2.; expected 0, 1, 2"),
        ({"train": [[1]], "tests": [[1]]}, "the key 'tests' is unknown; allowed are train, test, overlap"),
        ({"train": [[1], [2]], "test": [[1]]}, "train has 2 arrays and test 1; expected one per client"),
        (3, "split is 3; allowed are a text, a list"),
        ([], "split is .*; allowed are a text, a list"),
    ],
)
def test_what_is_no_split_is_refused_in_a_sentence(form: Any, said: str) -> None:
    with pytest.raises(fl.FedloomError, match=said):
        fl.split(split=form)


def test_another_number_of_clients_is_refused() -> None:
    with pytest.raises(fl.FedloomError, match="split has 3 arrays, one per client, but clients is 4"):
        fl.split(split=ROWS, clients=4)
    with pytest.raises(fl.FedloomError, match="the function returned 1 arrays, but clients is 4"):
        fl.split(split=lambda labels, clients, rng: [[0]], clients=4)


def test_samples_held_for_validation_are_taken_away_from_the_clients() -> None:
    data = {"name": "digits", "validation": 0.5}
    listed = fl.split(data=data, split=ROWS)
    assert 0 < len(listed.partition.train_index) < 103
    called = fl.split(data=data, split=blocks, clients=3)
    assert len(called.partition.train_index) == 1437 - 718


def test_a_function_is_called_for_every_seed() -> None:
    comparison = fl.compare("fedavg; fn", seeds=2, split=blocks, clients=3, **FIELDS)
    splits = [result.cell.recipe.split for result in comparison.results]
    assert splits[0] == splits[2] != splits[1] == splits[3]
    assert all(split.startswith("indices:") for split in splits)


def test_a_run_with_a_split_of_its_own_resumes_without_the_cache() -> None:
    run = fl.run(FIELDS, split=ROWS, name="x", checkpoint_seconds=0)
    digest = run.summary["digest"]
    assert fl.run(FIELDS, split=ROWS, name="x").path == run.path
    max((run.path / "checkpoints").glob("*.safetensors")).unlink()
    (run.path / "summary.json").unlink()
    for folder in cache.root().glob("split-*"):
        shutil.rmtree(folder)
    assert fl.run(resume=run.path).summary["digest"] == digest
    with pytest.raises(fl.FedloomError, match="the cache no longer holds these arrays"):
        fl.split(split=run.recipe.split, clients=3)
    assert Path("runs/x/partition.npz").is_file()
