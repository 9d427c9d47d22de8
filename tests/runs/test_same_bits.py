"""Same recipe, same bits: for any number of workers and threads, and whatever the global random state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import untimed

import fedloom as fl
from fedloom.engine.experiment import prepare
from fedloom.recipe import recipe

SMALL = {"clients": 10, "fraction": 0.5, "rounds": 2, "workers": 1}
DROPOUT = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5)), nn.Linear(32, classes)
"""
WIDE = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(1, 2048)), nn.Linear(2048, classes)
"""


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "split": "dirichlet:0.3"},
        {"method": "scaffold"},
        {"method": "fedrep(head_epochs=2)"},
        {"method": "feddrplus", "lr": 0.3},
        {"method": "fedavg", "augment": "crop+flip"},
        {"method": "fedper", "model": "net.py:net"},
        {"method": "fedavg", "model": "cnn", "precision": "bf16", "clients": 20, "fraction": 0.1, "eval_every": 0},
        {
            "method": "fedavg",
            "model": "conv4",
            "bn": "running",
            "data": {"name": "digits", "resize": 16},
            "clients": 20,
            "fraction": 0.1,
            "eval_every": 0,
        },
    ],
    ids=["fedavg", "scaffold", "fedrep", "feddrplus", "augment", "dropout", "bf16", "batch-norm"],
)
def test_one_two_and_three_workers_give_the_same_bits(fields: dict[str, Any]) -> None:
    Path("net.py").write_text(DROPOUT)
    runs = [fl.run({**SMALL, **fields, "workers": workers, "name": f"workers-{workers}"}) for workers in (1, 2, 3)]
    assert [run.summary["workers"] for run in runs] == [1, 2, 3]
    assert len({run.summary["digest"] for run in runs}) == 1
    assert untimed(runs[0].rounds) == untimed(runs[1].rounds) == untimed(runs[2].rounds)
    assert runs[0].clients == runs[1].clients == runs[2].clients


def test_another_seed_gives_other_bits() -> None:
    runs = [fl.run(SMALL, seed=seed) for seed in (0, 1)]
    assert runs[0].summary["digest"] != runs[1].summary["digest"]
    assert runs[0].rounds[0]["cohort"] != runs[1].rounds[0]["cohort"]


def test_global_random_state_is_neither_used_nor_moved() -> None:
    Path("net.py").write_text(DROPOUT)
    digests = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        run = fl.run(SMALL, method="feddrplus", model="net.py:net", augment="crop+flip", split="dirichlet:1")
        after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
        digests.add(run.summary["digest"])
    assert len(digests) == 1


def test_threads_of_the_caller_change_nothing_and_are_given_back() -> None:
    alone = fl.run(SMALL, model="cnn", fraction=0.2)
    torch.set_num_threads(3)
    try:
        torch.randn(700, 700) @ torch.randn(700, 700)  # the pool of threads is there when workers are forked
        beside = fl.run(SMALL, model="cnn", fraction=0.2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert beside.summary["digest"] == alone.summary["digest"]


def test_a_net_is_built_by_one_thread() -> None:
    """A decomposition of a thousand rows comes out otherwise when four threads share it."""
    Path("net.py").write_text(WIDE)
    labels = np.arange(1000)
    pixels = np.zeros((1000, 1, 1, 1), np.uint8)
    np.savez("many.npz", train_x=pixels, train_y=labels, test_x=pixels, test_y=labels)
    given = recipe({"data": "many.npz", "split": "iid", "clients": 5, "model": "net.py:net", "method": "dr"})
    first = prepare(given).program.initial
    torch.set_num_threads(4)
    try:
        assert torch.equal(prepare(given).program.initial, first)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(1)
