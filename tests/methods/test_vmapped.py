"""Stacked clients do what they do alone: every part agrees with its unstacked run, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import checkpoint, distance, fedloom_parts, gap, memories, train

import fedloom as fl

# Unequal clients in unequal batches, so that some have to wait; two stacks, one smaller than the other.
FIELDS: dict[str, Any] = {"rounds": 2, "epochs": 2, "batch": 60, "clients": 6, "fraction": 0.84}
REFUSED = {
    "fedsol": "fedsol computes gradients in its own way",
    "perfedavg": "perfedavg computes gradients in its own way",
    "pfedme": "pfedme computes gradients in its own way",
    "apfl": "apfl works after every step",
    "sam": "sam computes gradients in its own way",
    "fedlesam": "fedlesam computes gradients in its own way",
    "fedgen": "the loss of fedgen asks for client.generator",
    "gela": "the net keeps running statistics",
    "agn": "the net keeps running statistics",
    "norm": "the net cannot be vmapped",  # torch cannot stack group normalization after a single convolution
    "fedbn": "the net cannot be vmapped",
}
GIVEN = {
    "feddf": "feddf(steps=2, lr=0.001)",
    "fedftg": "fedftg(iterations=1, width=4, batch=8)",
    "fedrep": "fedrep(head_epochs=2)",
    "fnr": "fnr(epochs=1)",
    "dp": "dp(noise=0.01)",
    "fedbn": "fedbn + norm",
}
NEEDS: dict[str, dict[str, Any]] = {
    "feddf": {"data": {"public": 0.1}},
    "decorr": {
        "lr": 0.01,
        "batch": 24,
    },  # features that hardly vary are divided by their deviation, which grows rounding
    "wn": {"model": "cnn", "lr": 1e-4, "batch": "full", "rounds": 1, "momentum": 0.0},  # losses are in the hundreds
    "agn": {"model": "cnn"},
    "norm": {"model": "cnn"},
    "fedbn": {"model": "cnn"},
}
NAMES = [part.name for part in fedloom_parts()]


@pytest.mark.parametrize("name", NAMES)
def test_a_part_works_stacked_or_is_refused_by_name(name: str) -> None:
    fields = {**FIELDS, **NEEDS.get(name, {}), "method": GIVEN.get(name, name)}
    if name in REFUSED:
        with pytest.raises(fl.FedloomError, match=f"vmap: {REFUSED[name]}.*; set vmap to off"):
            train(**fields, vmap=3)
        return
    alone, stacked = train(**fields), train(**fields, vmap=3)
    _same(alone, stacked)


@pytest.mark.parametrize(
    "method",
    [
        "scaffold + fn",
        "feddyn + babu",
        "dr + fd",
        "sphere + kd",
        "feddc + ntd + prox",
        "moon(projection=8) + scaffold",
        "fedper + kd + exp",
        "fedlc + fedcm + disco + fedacg",
        "fedrep(head_epochs=2) + moon + median",
        "etf + ld(beta=0.5) + ditto",
    ],
)
def test_sums_agree(method: str) -> None:
    _same(train(**FIELDS, method=method), train(**FIELDS, method=method, vmap=2))


@pytest.mark.parametrize(
    "fields",
    [
        {"clip": 0.5},
        {"augment": "flip"},
        {"momentum": 0.0, "weight_decay": 0.0},
        {"batch": "full"},
        {"model": "cnn", "lr": 0.01, "method": "kd", "batch": "full", "rounds": 1},
        {"split": "dirichlet:0.3+noise:0.3"},
        {"split": "shards:5"},
        {"weighting": "uniform", "schedule": "cosine"},
    ],
    ids=str,
)
def test_settings_agree(fields: dict[str, Any]) -> None:
    chosen = {**FIELDS, "method": "scaffold", **fields}
    _same(train(**chosen), train(**chosen, vmap=4))


def test_bf16_agrees_as_well_as_its_digits_allow() -> None:
    fields = {**FIELDS, "method": "fd", "precision": "bf16"}
    assert gap(train(**fields), train(**fields, vmap=3)) < 2e-2


def _same(alone: fl.Run, stacked: fl.Run) -> None:
    """The served weights, the server's and the clients' memory, what was counted and what it cost."""
    assert gap(alone, stacked) < 1e-5
    assert distance(stacked) > 1e-3 or alone.recipe.method.startswith(("local", "fedproto"))
    _close(checkpoint(alone), checkpoint(stacked))
    one, other = memories(alone), memories(stacked)
    assert one.keys() == other.keys()
    for client in one:
        _close(one[client], other[client])
    for a, b in zip(alone.rounds, stacked.rounds, strict=True):
        assert (a["cohort"], a["bytes_up"], a["bytes_down"]) == (b["cohort"], b["bytes_up"], b["bytes_down"])
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-5, abs=1e-5)
    assert stacked.recipe.vmap != "off"


def _close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )
