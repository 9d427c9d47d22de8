"""No method is another one by a new name: all of them, trained on one problem, end with different weights."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from tiny import memories, train
from torch import Tensor

# Six clients a round, some of which lack classes and come back; large enough steps for every bound to matter.
FIELDS: dict[str, Any] = {
    "split": "dirichlet:0.2",
    "clients": 8,
    "fraction": 0.75,
    "rounds": 2,
    "epochs": 2,
    "batch": 128,
}
FIELDS |= {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.001}
BASES = (
    "fedavg",
    "local",
    "prox",
    "scaffold",
    "feddyn(alpha=0.1)",
    "fedavgm",
    "exp",
    "median",
    "trimmed",
    "clipped(largest=0.2)",
    "fr",
)
NEIGHBOURS = (
    *("fedrs", "fedrs(mode=counts)", "fedlc", "fedlc(absent=keep)", "decorr", "feduv", "fedrcl", "ccvr", "fedproto"),
    *("fedsam", "sam(adaptive=true)", "fedlesam", "fedcm", "mofedsam", "fedspeed", "fedacg", "disco"),
    *("krum", "multikrum", "rfa", "cclip(radius=0.2)"),
    *("ditto", "fedper", "fedrep(head_epochs=1)", "pfedme", "apfl", "fedrod", "fedpac", "fedala(first=2)", "fedas"),
    *("feddbe(kappa=5)", "pfedfda"),
)


MODELS = ("personal", "ditto.own", "apfl.mixed", "pfedme.theta", "fedas.own")  # what a client's own model is kept as


def outcome(method: str) -> dict[str, Tensor]:
    """What the server hands out, and the models that clients keep to themselves."""
    run = train(method, **FIELDS)
    kept = {f"client {k}": t for k, state in memories(run).items() for n, t in state.items() if n in MODELS}
    return {**run.weights, **kept}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("neighbours"))
        return {method: outcome(method) for method in (*BASES, *NEIGHBOURS)}


def test_each_moves_the_weights_differently(outcomes: dict[str, dict[str, Tensor]]) -> None:
    for one, other in combinations(outcomes, 2):
        a, b = outcomes[one], outcomes[other]
        if {n: t.shape for n, t in a.items()} == {n: t.shape for n, t in b.items()}:
            apart = max(float((a[n] - b[n]).abs().max()) for n in a)
            assert apart > 1e-5, f"{one} and {other} end with the same weights"


def test_all_of_them_move_and_stay_finite(outcomes: dict[str, dict[str, Tensor]]) -> None:
    for method, tensors in outcomes.items():
        assert all(bool(torch.isfinite(t).all()) for t in tensors.values()), method
    alone = outcomes["local"]
    for method in NEIGHBOURS:
        if method != "fedproto":  # whose server keeps its initial weights, as that of `local`
            assert any(float((outcomes[method][n] - alone[n]).abs().max()) > 1e-3 for n in outcomes[method]), method
