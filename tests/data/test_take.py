"""take:N."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedloom as fl


def test_clients_hold_that_many_samples_each_once_and_all_test_samples_are_divided() -> None:
    (stage,) = fl.split(data="digits", split="take:30", clients=7).stages
    partition = stage.partition
    assert np.diff(partition.train_offsets).tolist() == [30] * 7
    assert len(set(partition.train_index.tolist())) == 210
    tests = partition.test_index.tolist()
    assert len(tests) == len(set(tests)) > 300


def test_each_domain_gives_as_many(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    domain = np.repeat([0, 1], [150, 90])
    x, y = draw.integers(0, 256, (240, 4, 4, 1), dtype=np.uint8), np.arange(240) % 3
    held = (np.arange(240) % 5 == 0).astype(np.uint8)
    np.savez(tmp_path / "two.npz", x=x, y=y, domain=domain, is_test=held, domain_names=np.array(["a", "b"]))
    (stage,) = fl.split(data=str(tmp_path / "two.npz"), split="domains+take:40", clients=2).stages
    assert np.diff(stage.partition.train_offsets).tolist() == [40, 40]
    assert len(stage.partition.test_index) == 48
    with pytest.raises(fl.FedloomError, match="80 training samples are needed and there are 72; take fewer"):
        fl.split(data=str(tmp_path / "two.npz"), split="domains+take:80", clients=2)
    with pytest.raises(fl.FedloomError, match="must be 1 or more"):
        fl.split(data="digits", split="take:0", clients=2)
