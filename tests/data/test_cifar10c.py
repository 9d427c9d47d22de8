"""scripts/cifar10c.py: FedNN's scheme from the archive's files, and without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedloom as fl

pytestmark = pytest.mark.slow  # every call is a process of its own

SCRIPT = Path(__file__).parents[2] / "scripts" / "cifar10c.py"


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)


def test_the_archive_becomes_one_domain_a_kind_with_500_test_images_each(tmp_path: Path) -> None:
    folder, target = tmp_path / "CIFAR-10-C", tmp_path / "cifar10c.npz"
    folder.mkdir()
    labels = np.tile(np.arange(10_000) % 10, 5)
    np.save(folder / "labels.npy", labels)
    for value, kind in enumerate(("fog", "snow")):
        images = np.zeros((50_000, 2, 2, 3), dtype=np.uint8)
        for severity in range(5):
            images[10_000 * severity : 10_000 * (severity + 1)] = 10 * value + severity + 1
        np.save(folder / f"{kind}.npy", images)
    assert make(str(folder), str(target)).returncode == 0
    with np.load(target) as made:
        assert made["domain_names"].tolist() == ["fog", "snow"] and np.bincount(made["domain"]).tolist() == [10_000] * 2
        assert set(made["x"][made["domain"] == 1].ravel().tolist()) == {14}  # severity 4
        assert [int(made["is_test"][made["domain"] == k].sum()) for k in (0, 1)] == [500, 500]
        np.testing.assert_array_equal(made["y"][:10_000], labels[:10_000])
    (stage,) = fl.split(data=str(target), split="domains", clients=2).stages
    assert np.diff(stage.partition.train_offsets).tolist() == [9500, 9500]
    assert np.diff(stage.partition.test_offsets).tolist() == [500, 500]


def test_without_the_archive_fifteen_kinds_are_made_and_named(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8), np.arange(60) % 10
    np.savez(tmp_path / "cifar10.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    done = make(str(tmp_path / "cifar10.npz"), str(tmp_path / "c.npz"), "--images", "40")
    assert done.returncode == 0 and "15 kinds of 40 images" in done.stderr and "gaussian_noise" in done.stderr
    with np.load(tmp_path / "c.npz") as made:
        assert made["x"].shape == (600, 32, 32, 3) and int(made["is_test"].sum()) == 15 * 2


@pytest.mark.parametrize("words", [("nowhere", "x.npz"), (str(Path(__file__).parent), "x.npz")])
def test_a_wrong_source_is_one_sentence(words: tuple[str, str]) -> None:
    done = make(*words)
    assert done.returncode == 2 and ("there is no nowhere" in done.stderr or "has no labels.npy" in done.stderr)
