"""Shifts and splits of inputs that are not images: what works for all kinds, and what refuses them by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.data import Dataset, load, split, stages
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator

SPLITS = [
    "iid",
    "shards:1",
    "dirichlet:0.5",
    "quantity:0.5",
    "dirichlet-client:0.5",
    "shards:1+quantity:0.5",
    "writers",
]


def made(path: Path, kind: str) -> Dataset:
    """120 training and 30 test samples of three classes and five clients."""
    random = numpy_generator(0, "kinds")
    y = np.arange(150) % 3
    x = {
        "table": random.normal(3, 2, (150, 4)) + y[:, None],
        "signal": random.normal(0, 5, (150, 2, 16)).astype(np.float32),
        "tokens": random.integers(0, 40, (150, 9)),
        "floats": random.random((150, 6, 5, 7)).astype(np.float32),
    }[kind]
    np.savez(path / f"{kind}.npz", x=x, y=y, writer=np.arange(150) % 7 % 5)
    return load(str(path / f"{kind}.npz"))


@pytest.mark.parametrize("kind", ["table", "signal", "tokens", "floats"])
@pytest.mark.parametrize("spec", SPLITS)
def test_every_partitioner_works_for_every_kind(tmp_path: Path, kind: str, spec: str) -> None:
    partition = split(spec, made(tmp_path, kind), 3, seed=0)
    assert partition.clients == 3
    assert len(np.unique(partition.train_index)) == len(partition.train_index) > 0


@pytest.mark.parametrize(("kind", "dtype"), [("table", "float32"), ("signal", "float32"), ("tokens", "int32")])
def test_label_shifts_work_for_every_kind(tmp_path: Path, kind: str, dtype: str) -> None:
    dataset = made(tmp_path, kind)
    (stage,) = stages("iid+permute:1", dataset, 4, seed=0)
    view = stage.train(0)
    index = stage.partition.train(0)
    assert str(view.x.dtype) == f"torch.{dtype}"
    assert (view.x[view.rows] == dataset.train_x[index]).all()
    assert (view.y != dataset.train_y[index]).any()


def test_noise_of_features_is_in_units_of_their_deviation(tmp_path: Path) -> None:
    """The last client has the full deviation; each column is disturbed in proportion to its own."""
    random = numpy_generator(0, "noise")
    x = random.normal(0, 1, (4000, 3)) * [1, 100, 0.01] + [0, 1000, 5]
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(4000) % 2)
    dataset = load(str(tmp_path / "a.npz"))
    (stage,) = stages("iid+noise:0.5", dataset, 2, seed=0)
    views = [stage.train(client) for client in range(2)]
    moved = [
        (view.x[view.rows] - dataset.train_x[stage.partition.train(client)]).std(0).numpy()
        for client, view in enumerate(views)
    ]
    assert moved[0] == pytest.approx([0, 0, 0], abs=1e-4)
    assert moved[1] == pytest.approx(0.5 * np.array(dataset.std), rel=0.05)


@pytest.mark.parametrize("shift", ["rotate:90", "color", "corrupt:3"])
@pytest.mark.parametrize(("kind", "noun"), [("table", "features"), ("signal", "features"), ("tokens", "tokens")])
def test_shifts_of_pixels_refuse_other_kinds_by_name(tmp_path: Path, kind: str, noun: str, shift: str) -> None:
    name = shift.partition(":")[0]
    with pytest.raises(FedloomError, match=rf"split {name}.* changes images; {kind} holds {noun}: choose"):
        stages(f"iid+{shift}", made(tmp_path, kind), 3, seed=0)


def test_noise_refuses_tokens_by_name(tmp_path: Path) -> None:
    with pytest.raises(FedloomError, match=r"split noise:0.1 changes images or features; tokens holds tokens: choose"):
        stages("iid+noise:0.1", made(tmp_path, "tokens"), 3, seed=0)


def test_images_of_floats_are_rotated_and_disturbed_as_they_are(tmp_path: Path) -> None:
    dataset = made(tmp_path, "floats")
    assert dataset.inputs.kind == "image"
    assert dataset.shape == (7, 6, 5)
    (stage,) = stages("iid+noise:0.1", dataset, 2, seed=0)
    view = stage.train(1)
    difference = view.x[view.rows] - dataset.train_x[stage.partition.train(1)]
    assert difference.std().item() == pytest.approx(0.1, rel=0.05)
