"""npz files of every kind of input: what is stored, what a net receives, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.data import load
from fedloom.errors import FedloomError

RANDOM = np.random.default_rng(0)
Y = np.arange(50) % 3


def saved(tmp_path: Path, **arrays: Any) -> str:
    np.savez(tmp_path / "set.npz", **arrays)
    return str(tmp_path / "set.npz")


@pytest.mark.parametrize(
    ("x", "kind", "shape", "dtype"),
    [
        (RANDOM.normal(size=(50, 7)), "features", (7,), "float32"),
        (RANDOM.normal(size=(50, 3, 20)).astype(np.float32), "features", (3, 20), "float32"),
        (RANDOM.integers(0, 2, (50, 5)).astype(bool), "features", (5,), "float32"),
        (RANDOM.integers(0, 9, (50, 12)), "tokens", (12,), "int32"),
        (RANDOM.random((50, 6, 5, 2), dtype=np.float32), "image", (2, 6, 5), "float32"),
        (RANDOM.integers(0, 256, (50, 6, 5, 4), dtype=np.uint8), "image", (4, 6, 5), "uint8"),
    ],
)
def test_kind_and_shape_follow_from_type_and_axes(
    x: np.ndarray, kind: str, shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    dataset = load(saved(tmp_path, x=x, y=Y))
    assert (dataset.inputs.kind, dataset.inputs.shape, dataset.inputs.dtype) == (kind, shape, dtype)
    held = np.arange(50) % 5 == 0
    assert np.array_equal(dataset.train_x.numpy(), x[~held].astype(dtype))
    assert np.array_equal(dataset.test_x.numpy(), x[held].astype(dtype))
    assert dataset.pipeline()(dataset.train_x, None).shape[1:] == shape


def test_features_are_standardized_by_column_and_signals_by_channel_of_training_samples(tmp_path: Path) -> None:
    for shape in ((4,), (4, 9)):
        x = RANDOM.normal(5, 3, (50, *shape))
        dataset = load(saved(tmp_path, x=x, y=Y))
        train = x[np.arange(50) % 5 != 0].astype(np.float32).astype(np.float64)
        axes = (0, *range(2, train.ndim))
        expected = (train - train.mean(axes, keepdims=True)) / train.std(axes, keepdims=True)
        received = dataset.pipeline()(dataset.train_x, None).numpy()
        assert np.allclose(received, expected, atol=1e-5)


def test_tokens_keep_their_vocabulary_and_padding(tmp_path: Path) -> None:
    x = RANDOM.integers(1, 9, (50, 12))
    dataset = load(saved(tmp_path, x=x, y=Y, vocabulary=np.array(100), padding=np.array(3)))
    assert (dataset.inputs.vocabulary, dataset.inputs.padding) == (100, 3)
    assert dataset.pipeline()(dataset.train_x, None).dtype == torch.int64
    assert load(saved(tmp_path, x=x, y=Y)).inputs.vocabulary == x.max() + 1
    whole = load(saved(tmp_path, x=x, y=Y, kind=np.array("features")), None)
    assert (whole.inputs.kind, whole.train_x.dtype) == ("features", torch.float32)


def test_named_clients_are_numbered_in_order_and_divided_with_the_samples(tmp_path: Path) -> None:
    client = np.array(["south", "north", "10", "9"])[np.arange(50) % 4]
    dataset = load(saved(tmp_path, x=RANDOM.normal(size=(50, 2)), y=Y, client=client))
    assert dataset.client_names == ("10", "9", "north", "south")
    assert dataset.train_client is not None
    held = np.arange(50) % 5 == 0
    names = np.array(dataset.client_names)
    assert np.array_equal(names[dataset.train_client.numpy()], client[~held])
    assert dataset.test_client is not None
    assert np.array_equal(names[dataset.test_client.numpy()], client[held])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": np.full((50, 2), np.nan)}, "40 of 40 samples of train_x hold a value that is not finite"),
        ({"x": np.zeros((50, 3), np.int64) - 1}, "holds the token -1; tokens are 0 to"),
        ({"x": np.full((50, 3), 7), "vocabulary": np.array(5)}, "a token is 7, but the vocabulary has 5 tokens"),
        ({"kind": np.array("sound")}, "kind is 'sound'; allowed are image, features, tokens"),
        ({"x": np.zeros((50, 3, 3), np.int64)}, r"train_x is int64 of shape \(40, 3, 3\); expected images"),
        ({"x": np.zeros((50, 3, 8, 8), np.float32)}, "channels first; expected N,H,W,C"),
        ({"x": np.zeros(50)}, r"x is float64 of shape \(50,\); expected images"),
        ({"client": np.zeros(3, np.int64)}, "client is int64 of shape .3,.; expected one number for each of the 50"),
    ],
)
def test_inputs_of_no_kind_are_refused_in_a_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=sentence):
        load(saved(tmp_path, **{"x": RANDOM.normal(size=(50, 4)), "y": Y, **change}))
