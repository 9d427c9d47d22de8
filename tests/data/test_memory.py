"""Objects in memory as data: arrays, torch Datasets, frames, Hugging Face Datasets; found again by their content."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedloom.data import Dataset, load, named_data
from fedloom.errors import FedloomError

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3


class Pictures(TorchDataset[Any]):
    classes = ["cat", "dog", "emu"]  # noqa: RUF012 torchvision's way

    def __init__(self, first: int = 0) -> None:
        self.x = torch.rand(30, 3, 8, 10, generator=torch.Generator().manual_seed(first))

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.x[number], number % 3


def test_arrays_of_numpy_and_torch_are_the_same_data_as_an_npz_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", x=X, y=Y)
    given = Dataset.from_arrays(X, Y)
    assert given.digest == load(str(tmp_path / "set.npz")).digest
    assert Dataset.from_arrays(torch.from_numpy(X), torch.from_numpy(Y)).source == given.source
    assert named_data((X, Y)) == named_data(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))) == given.source
    divided = Dataset.from_arrays(X[:40], Y[:40], X[40:], Y[40:], client=["a", "b"] * 20, test_client=["b", "c"] * 10)
    assert divided.client_names == ("a", "b", "c") and len(divided.test_y) == 20


def test_an_object_is_named_by_its_content_and_loaded_by_that_name() -> None:
    first = Dataset.from_arrays(X, Y, name="mine")
    assert first.source.startswith("memory:mine-") and load(first.source).digest == first.digest
    assert Dataset.from_arrays(X.copy(), Y, name="mine").source == first.source
    changed = X.copy()
    changed[3, 2] += 1e-6
    others = [
        Dataset.from_arrays(changed, Y, name="mine"),
        Dataset.from_arrays(X, Y, name="mine", class_names=["a", "b", "c"]),
        Dataset.from_arrays(X, Y, name="mine", client=["a", "b"] * 30),
    ]
    assert len({first.source, *(other.source for other in others)}) == 4


def test_an_object_that_left_the_cache_is_asked_for_again(cache: Path) -> None:
    source = Dataset.from_arrays(X, Y).source
    shutil.rmtree(cache)
    with pytest.raises(FedloomError, match=r"the cache no longer holds this object .* pass it again"):
        load(source)
    assert Dataset.from_arrays(X, Y).source == source and load(source).classes == 3


def test_images_of_torch_are_turned_and_a_pair_is_training_and_test() -> None:
    dataset = Dataset.from_torch(Pictures(), Pictures(1))
    assert dataset.inputs.shape == (3, 8, 10) and dataset.class_names == ("cat", "dog", "emu")
    assert torch.equal(dataset.test_x, Pictures(1).x.permute(0, 2, 3, 1))
    assert "channels first" in dataset.notes[0]
    assert named_data((Pictures(), Pictures(1))) == dataset.source
    small = load(dataset.source, 4)
    assert small.inputs.shape == (3, 4, 4) and small.class_names == dataset.class_names


def test_a_frame_is_the_same_data_as_its_csv_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": X[:, 0].astype(float), "b": np.where(X[:, 1] > 0, "up", "down"), "site": ["n", "s"] * 30, "y": Y}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = Dataset.from_frame(frame, "y", client="site")
    assert given.digest == load(f"table:{tmp_path}/t.csv?target=y&client=site").digest
    (tmp_path / "schema.json").write_text(given.schema)
    assert Dataset.from_frame(frame[:30], schema=tmp_path / "schema.json", drop=["site"]).schema == given.schema
    assert Dataset.from_frame(frame, "y", drop="site").digest == Dataset.from_frame(frame, "y", drop=["site"]).digest
    texts = Dataset.from_frame(frame, "y", text="b", length=3, vocabulary=10)
    assert texts.inputs.kind == "tokens" and texts.inputs.shape == (3,)


def test_hugging_face_sets_are_found_by_their_types() -> None:
    datasets = pytest.importorskip("datasets")
    texts = datasets.Dataset.from_dict({"sentence": ["a b", "b c", "c"] * 20, "label": Y})
    assert Dataset.from_hf(texts, length=5).inputs.shape == (5,)
    assert named_data(texts).startswith("memory:memory-")
    arrays = datasets.Dataset.from_dict({"signal": X.tolist(), "label": Y, "who": ["a", "b"] * 30}).with_format("torch")
    dataset = Dataset.from_hf(datasets.DatasetDict(train=arrays, test=arrays), client="who", array="signal")
    assert np.array_equal(dataset.test_x.numpy(), X) and dataset.client_names == ("a", "b")
    numbers = datasets.Dataset.from_dict({"age": Y, "label": Y})
    with pytest.raises(FedloomError, match=r"no column of images, texts or lists .*from_frame\(dataset.to_pandas"):
        named_data(numbers)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (pd.DataFrame({"a": [1], "sick": [0]}), r"fl.Dataset.from_frame\(frame, target='sick'\)"),
        (3, "data is 'int'; allowed are a text, an fl.Dataset"),
        (X, "data is 'ndarray'; allowed are"),
        (TensorDataset(torch.from_numpy(X)), "has 1 tensors; expected inputs and labels"),
        ((X, np.array([object()] * 60)), "train_y holds Python objects"),
        ((X, Y[:5]), "expected one number for each of the 60 samples"),
        ((X * np.nan, Y), "not finite"),
    ],
)
def test_other_objects_are_refused_in_a_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(FedloomError, match=sentence):
        named_data(value)


def test_names_and_halves_are_checked() -> None:
    with pytest.raises(FedloomError, match="name is 'a/b'; allowed are up to 60 letters"):
        Dataset.from_arrays(X, Y, name="a/b")
    with pytest.raises(FedloomError, match="test_x and test_y go together"):
        Dataset.from_arrays(X, Y, X)
    with pytest.raises(FedloomError, match="test_client goes with test_x"):
        Dataset.from_arrays(X, Y, test_client=Y)
    with pytest.raises(FedloomError, match="is not understood; it is written by fl"):
        load("memory:nonsense")


class Labeled(TorchDataset[Any]):
    def __init__(self, labels: np.ndarray) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[np.ndarray, Any]:
        return X[number], self.labels[number]


@pytest.mark.parametrize("kind", ["arrays", "torch", "frame", "hub", "npz", "csv"])
@pytest.mark.parametrize("labels", [("cat", "dog", "emu"), (1, 2, 3), (3, 5, 9), (1.0, 2.0, 3.0)])
def test_labels_of_any_kind_of_object_become_class_numbers_with_names(
    kind: str, labels: tuple[Any, ...], tmp_path: Path
) -> None:
    y = np.array(labels)[Y]
    frame = pd.DataFrame(X, columns=list("abcd")).assign(label=y)
    if kind == "arrays":
        dataset = Dataset.from_arrays(X, y)
    elif kind == "torch":
        dataset = Dataset.from_torch(Labeled(y))
    elif kind == "frame":
        dataset = Dataset.from_frame(frame, target="label")
    elif kind == "hub":
        hub = pytest.importorskip("datasets")
        dataset = Dataset.from_hf(hub.Dataset.from_dict({"x": X.tolist(), "label": y.tolist()}))
    elif kind == "npz":
        np.savez(tmp_path / "set.npz", x=X, y=y)
        dataset = load(str(tmp_path / "set.npz"))
    else:
        frame.to_csv(tmp_path / "set.csv", index=False)
        dataset = load(f"table:{tmp_path / 'set.csv'}?target=label")
    assert dataset.class_names == tuple(str(label).removesuffix(".0") for label in labels)
    assert sorted(set(dataset.train_y.tolist())) == [0, 1, 2]
