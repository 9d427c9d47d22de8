"""Sets with a plain name: from $FEDLOOM_DATA, else from the hub; and folders with domains as their first level."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedloom.data import list_sets, load
from fedloom.data.sources.hub_names import HUB_NAMES
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator

datasets = pytest.importorskip("datasets")


def pixels(seed: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return numpy_generator(seed, "ready").integers(0, 256, shape, dtype=np.uint8)


def table(split: str, count: int, begin: int, columns: dict[str, Any], shape: tuple[int, ...]) -> Any:
    """Rows with the columns of a repository: pictures, class labels with names, texts, or numbers."""
    rows = range(begin, begin + count)
    values: dict[str, list[Any]] = {}
    for name, kind in columns.items():
        if isinstance(kind, datasets.Image):
            values[name] = [Image.fromarray(pixels(row, shape)) for row in rows]
        elif isinstance(kind, datasets.ClassLabel):
            values[name] = [row % kind.num_classes for row in rows]
        elif kind.dtype == "string":
            values[name] = [f"{name}{row % 3}" for row in rows]
        else:
            values[name] = [row % 5 for row in rows]
    return datasets.Dataset.from_dict(values, features=datasets.Features(columns), split=split)


def labels(count: int) -> Any:
    return datasets.ClassLabel(names=[f"n{k}" for k in range(count)])


IMAGE, TEXT, NUMBER = datasets.Image(), datasets.Value("string"), datasets.Value("int64")
SCHEMAS: dict[str, tuple[dict[str, Any], tuple[str, ...], str | None]] = {  # columns, splits and config on the hub
    "cifar10": ({"img": IMAGE, "label": labels(10)}, ("train", "test"), None),
    "cifar100": ({"img": IMAGE, "fine_label": labels(100), "coarse_label": labels(20)}, ("train", "test"), None),
    "cinic10": ({"image": IMAGE, "label": labels(10)}, ("train", "validation", "test"), None),
    "tiny_imagenet": ({"image": IMAGE, "label": labels(200)}, ("train", "valid"), None),
    "mnist": ({"image": IMAGE, "label": labels(10)}, ("train", "test"), None),
    "fashion_mnist": ({"image": IMAGE, "label": labels(10)}, ("train", "test"), None),
    "mnist_m": ({"image": IMAGE, "label": labels(10)}, ("train", "test"), None),
    "svhn": ({"image": IMAGE, "label": labels(10)}, ("train", "test", "extra"), "cropped_digits"),
    "usps": ({"image": IMAGE, "label": labels(10)}, ("train", "test"), None),
    "femnist": (
        {"image": IMAGE, "writer_id": TEXT, "hsf_id": NUMBER, "character": labels(62)},
        ("train",),
        None,
    ),
    "pacs": ({"image": IMAGE, "domain": TEXT, "label": labels(7)}, ("train",), None),
    "office_home": ({"image": IMAGE, "domain": TEXT, "label": labels(65)}, ("train",), None),
    "domainnet": ({"image": IMAGE, "label": labels(345), "domain": labels(6)}, ("train", "test"), None),
    "fairface": (
        {"image": IMAGE, "age": labels(9), "gender": labels(2), "race": labels(7), "service_test": NUMBER},
        ("train", "validation"),
        "0.25",
    ),
    "imagenet100_cmc": ({"image": IMAGE, "label": labels(100)}, ("train", "validation"), None),
    "imagenet": ({"image": IMAGE, "label": labels(1000)}, ("train", "test", "validation"), None),
    "fed_isic2019": ({"image": IMAGE, "center": NUMBER, "label": labels(8)}, ("train", "test"), None),
}


@pytest.mark.parametrize("name", sorted(HUB_NAMES))
def test_a_plain_name_is_read_from_the_hub_by_its_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, splits, config = SCHEMAS[name]
    parts = {split: table(split, 10, 10 * k, columns, (6, 6, 3)) for k, split in enumerate(splits)}
    asked = []

    def load_dataset(repository: str, configuration: str | None, revision: str | None) -> Any:
        asked.append((repository, configuration, revision))
        return datasets.DatasetDict(parts)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    images = load(name)
    assert asked == [(HUB_NAMES[name].repository, config, None)]
    assert images.name == name
    usual = ("test", "validation", "valid") if name != "imagenet" else ("validation",)  # its test labels are secret
    tested = next((split for split in usual if split in splits), None)
    assert images.classes == columns[HUB_NAMES[name].label].num_classes
    if tested:
        begin = 10 * splits.index(tested)
        assert np.array_equal(images.train_x, np.stack([pixels(row, (6, 6, 3)) for row in range(10)]))
        assert np.array_equal(images.test_x, np.stack([pixels(begin + row, (6, 6, 3)) for row in range(10)]))
    else:
        assert np.array_equal(images.test_x, np.stack([pixels(row, (6, 6, 3)) for row in (0, 5)]))
        assert len(images.train_y) == 8
    if name in ("domainnet", "fairface"):
        count = columns[HUB_NAMES[name].domain].num_classes
        assert images.domain_names == tuple(f"n{k}" for k in range(count))
        assert images.train_domain is not None and images.test_domain is not None
        assert images.train_domain.tolist() == [row % count for row in range(10)]
    elif "domain" in columns:
        assert images.domain_names == ("domain0", "domain1", "domain2")
        assert images.train_domain is not None
        assert images.train_domain.tolist() == [1, 2, 0, 1, 0, 1, 2, 0]
    if "writer_id" in columns:
        assert images.train_client is not None
        assert images.train_client.tolist() == [1, 2, 0, 1, 0, 1, 2, 0]
    if "center" in columns:
        assert images.train_domain is not None
        assert images.train_domain.tolist() == [row % 5 for row in range(10)]


def test_another_split_can_be_named_for_testing(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"image": IMAGE, "label": labels(2)}
    parts = {
        split: table(split, size, 0, columns, (4, 4, 3)) for split, size in (("train", 6), ("test", 2), ("dev", 3))
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.DatasetDict(parts))
    assert (len(load("hf:a/b").test_y), len(load("hf:a/b?test=dev").test_y)) == (2, 3)
    with pytest.raises(FedloomError, match="has the splits train, test, dev; expected one called val"):
        load("hf:a/b?test=val")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: parts["train"])
    with pytest.raises(FedloomError, match="hf:a/c has no splits, so none is called dev; leave test= out"):
        load("hf:a/c?test=dev")
    assert len(load("hf:a/c", test_every=3).test_y) == 2


def test_a_file_of_that_name_goes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = pixels(0, (10, 4, 4, 1)), np.arange(10) % 2
    np.savez(tmp_path / "usps.npz", x=x, y=y)
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert len(load("usps").train_y) == 8
    with pytest.raises(
        FedloomError, match=r'pip install -e ".*\[hub\]".* or put svhn\.npz into the folder that FEDLOOM'
    ):
        load("svhn")
    listed = {row["name"]: row["file"] for row in list_sets()}
    assert listed["usps"] == str(tmp_path / "usps.npz")
    assert listed["svhn"] == "hf:ufldl-stanford/svhn"
    assert set(HUB_NAMES) <= set(listed)


def test_a_hub_that_cannot_be_reached_says_what_else_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(FedloomError, match=r"hf:flwrlabs/pacs cannot be loaded: no route; or put pacs\.npz"):
        load("pacs")


def place(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed, (4, 4, 3))).save(path)


def test_folders_may_have_domains_as_their_first_level(tmp_path: Path) -> None:
    names = [f"{d}/{c}/{k}.png" for d in ("sketch", "art") for c in ("dog", "cat") for k in range(3)]
    for seed, name in enumerate(names):
        place(tmp_path / "set" / name, seed)
    images = load(f"folder:{tmp_path / 'set'}")
    order = sorted(range(12), key=lambda seed: names[seed])
    assert images.class_names == ("cat", "dog")
    assert images.domain_names == ("art", "sketch")
    test, train = order[::5], [seed for k, seed in enumerate(order) if k % 5]
    assert np.array_equal(images.test_x, np.stack([pixels(seed, (4, 4, 3)) for seed in test]))
    assert images.train_domain is not None
    assert images.train_domain.tolist() == [int(names[seed].startswith("sketch")) for seed in train]
    assert images.train_y.tolist() == [int("dog" in names[seed]) for seed in train]


def test_folders_with_train_and_test_may_have_domains(tmp_path: Path) -> None:
    names = ["train/b/x/0", "train/a/x/0", "train/a/y/0", "test/b/y/0"]
    for seed, name in enumerate(names):
        place(tmp_path / f"{name}.png", seed)
    images = load(f"folder:{tmp_path}")
    assert images.domain_names == ("a", "b")
    assert images.train_domain is not None
    assert images.test_domain is not None
    assert (images.train_domain.tolist(), images.train_y.tolist()) == ([0, 0, 1], [0, 1, 0])
    assert (images.test_domain.tolist(), images.test_y.tolist()) == ([1], [1])
