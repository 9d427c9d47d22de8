"""A new partitioner, shift or data source is one file of the user's own, imported as `--parts` imports it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedloom as fl
from fedloom.data import Dataset, check_spec, list_sets, list_splits, load, stages
from fedloom.data.scheme import SCHEMES
from fedloom.data.sources.source import FORMATS, NAMES
from fedloom.errors import FedloomError
from fedloom.io.user_code import import_parts

PARTITIONER = '''
"""Clients hold consecutive images, in blocks of a given size."""
from dataclasses import dataclass

import numpy as np

from fedloom.data.partition.iid import equal_offsets
from fedloom.data.partition.partition import Partition
from fedloom.data.partition.partitioner import Partitioner
from fedloom.data.scheme import register


@register
@dataclass(frozen=True)
class Blocks(Partitioner):
    size: int

    name = "blocks"
    summary = "consecutive images, SIZE per client"
    example = "blocks:10"
    divides_domains = True

    def partition(self, request):
        count = self.size * request.clients
        offsets = np.arange(0, count + 1, self.size)
        return Partition(
            request.pool[:count], offsets, request.test_pool, equal_offsets(len(request.test_pool), request.clients)
        )
'''
SHIFT = '''
"""Every second client sees inverted images and the next class."""
from dataclasses import dataclass

from fedloom.data.scheme import register
from fedloom.data.shifts.shift import Shift


@register
@dataclass(frozen=True)
class Invert(Shift):
    name = "invert"
    summary = "odd clients see inverted images and the next class"
    example = "invert"
    step = "color"

    def apply(self, x, index, viewer):
        return 1 - x if viewer.client % 2 else x

    def relabel(self, y, classes, viewer):
        return (y + 1) % classes if viewer.client % 2 else y

    def describe(self, viewer, images):
        return "inverted" if viewer.client % 2 else "plain"
'''
SOURCE = '''
"""Constant images: image k has the value k."""
import numpy as np

from fedloom.data.sources.source import DataSource, data_format, data_name


@data_format("ramp:COUNT", "COUNT constant images")
def open_ramp(text):
    count = int(text)
    x = np.arange(count, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    return DataSource("ramp", f"ramp:{text}", ("ramp", text), lambda _: {"x": x, "y": np.arange(count) % 2})


@data_name("ten", "ten constant images")
def open_ten():
    return open_ramp("10")
'''


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers is removed after it."""
    before = dict(SCHEMES), dict(FORMATS), dict(NAMES)
    yield
    for registry, entries in zip((SCHEMES, FORMATS, NAMES), before, strict=True):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(entries)  # type: ignore[attr-defined]


def imported(tmp_path: Path, code: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(code)
    import_parts((str(path),))
    return str(path)


def test_a_partitioner_is_one_file(tmp_path: Path, digits: Dataset) -> None:
    imported(tmp_path, PARTITIONER)
    assert check_spec("noise:0.1 + blocks:7") == "blocks:7+noise:0.1"
    (stage,) = stages("blocks:7", digits, clients=3, seed=0)
    assert [stage.partition.train(k).tolist() for k in range(3)] == [list(range(7 * k, 7 * k + 7)) for k in range(3)]
    assert next(row for row in list_splits() if row["name"] == "blocks")["kind"] == "who holds what"
    with pytest.raises(FedloomError, match="blocks needs an integer; write blocks:10"):
        check_spec("blocks:x")


def test_a_shift_is_one_file_and_may_change_images_and_labels(tmp_path: Path, digits: Dataset) -> None:
    imported(tmp_path, SHIFT)
    assert check_spec("noise:0.1+invert+iid+rotate") == "iid+rotate+invert+noise:0.1"
    (stage,) = stages("shards:1+invert", digits, clients=10, seed=0)
    for client, part in ((2, "train"), (3, "train"), (3, "test")):
        seen = stage.train(client) if part == "train" else stage.test(client)
        index = stage.partition.train(client) if part == "train" else stage.partition.test(client)
        x, y = (digits.train_x, digits.train_y) if part == "train" else (digits.test_x, digits.test_y)
        expected = 16 - x[index].float() if client % 2 else x[index].float()
        assert np.array_equal(seen.x[seen.rows].float(), expected)
        assert np.array_equal(seen.y, (y[index] + client % 2) % 10)


def test_a_data_source_is_one_file(tmp_path: Path) -> None:
    imported(tmp_path, SOURCE)
    for text in ("ramp:10", "ten"):
        images = load(text)
        assert images.test_x[:, 0, 0, 0].tolist() == [0, 5]
    rows = {row["name"]: row["summary"] for row in list_sets()}
    assert (rows["ramp:COUNT"], rows["ten"]) == ("COUNT constant images", "ten constant images")
    with pytest.raises(FedloomError, match=r"allowed: NAME .*list data.* ramp:COUNT"):
        load("unknown:10")


def test_a_run_takes_all_three_from_the_parts_of_its_recipe(tmp_path: Path) -> None:
    files = []
    for name, code in (("partitioner", PARTITIONER), ("shift", SHIFT), ("source", SOURCE)):
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(code)
    run = fl.run(
        parts=[str(path) for path in files],
        data="ramp:40",
        split="invert+blocks:8",
        clients=4,
        fraction=1.0,
        model="linear",
        rounds=1,
        workers=1,
        out=str(tmp_path / "run"),
    )
    assert run.recipe.split == "blocks:8+invert"
    assert np.load(tmp_path / "run" / "partition.npz")["train_offsets"].tolist() == [0, 8, 16, 24, 32]


def test_fl_split_takes_a_partitioner_from_parts(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PARTITIONER)
    made = fl.split(parts=[str(path)], split="blocks:5", clients=2)
    assert made.partition.train_offsets.tolist() == [0, 5, 10]


def test_an_edited_file_replaces_its_terms_and_another_file_may_not(tmp_path: Path) -> None:
    imported(tmp_path, PARTITIONER)
    imported(tmp_path, PARTITIONER.replace("SIZE per client", "in order"))
    assert SCHEMES["blocks"].summary == "consecutive images, in order"
    other = tmp_path / "other.py"
    other.write_text(PARTITIONER)
    with pytest.raises(FedloomError, match="parts: two split terms are called 'blocks'"):
        import_parts((str(other),))
    with pytest.raises(FedloomError, match="parts: two split terms are called 'iid'"):
        imported(tmp_path, PARTITIONER.replace('"blocks"', '"iid"'))
