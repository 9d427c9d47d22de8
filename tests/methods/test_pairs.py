"""Every pair of parts either trains, both taking part, or is refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from reference_personal import NORMED
from tiny import distance, fedloom_parts, memories, problem, train
from torch import Tensor

from fedloom import FedloomError, Run

# Two unequal clients and two rounds: the least in which controls, last models and numbers of steps make a difference.
FIELDS: dict[str, Any] = {"split": "dirichlet:1", "clients": 2, "fraction": 1.0, "rounds": 2, "epochs": 1, "batch": 128}
# Where the default would take long, or change nothing in so little training (cclip, clipped).
GIVEN = {
    "cclip": "cclip(radius=0.3)",
    "ccvr": "ccvr(samples=20, epochs=1)",
    "clipped": "clipped(largest=0.3)",
    "feddf": "feddf(steps=2, lr=0.01)",
    "fedftg": "fedftg(iterations=1, width=4, batch=8)",
    "fedgen": "fedgen(steps=2, hidden=8, alpha=1, beta=1)",
    "fedrep": "fedrep(head_epochs=2)",
    "fedrs": "fedrs(mode=counts)",  # no class is absent
    "fnr": "fnr(epochs=1)",
}
NEEDS: dict[str, dict[str, Any]] = {"feddf": {"data": {"public": 0.1}}}  # images that belong to no client

# Sums that are no different from one of the two: which one, and why that is as it should be.
EQUAL = {
    ("fedproto", "moon"): ("fedproto", "the weights that the round begins with are the client's own last ones"),
    ("lg", "moon"): ("lg", "features are those of the client's own body, so the round begins with its last ones"),
    ("local", "moon"): ("local", "the weights that the round begins with are the client's own last ones"),
}


def pair(one: str, other: str) -> Any:
    """A sixteenth of the pairs is tried in the ordinary suite, the same ones every time; the others by `make test-pairs`."""
    name = f"{one}+{other}"
    often = crc32(name.encode()) % 16 == 0 or (one, other) in EQUAL
    return pytest.param(one, other, id=name, marks=() if often else pytest.mark.pairs)


PAIRS = [pair(one.name, other.name) for one, other in combinations(fedloom_parts(), 2)]
Train = Callable[..., Run]  # names of parts -> the run of their sum


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains a sum on a net that is small and has normalizers, which some parts are about; each sum once."""
    folder = tmp_path_factory.mktemp("sums")
    (folder / "normed.py").write_text(NORMED)

    def run(*names: str, bn: str = "running", like: tuple[str, ...] = ()) -> Run:
        """`like`: on the data that these parts need as well."""
        text = " + ".join(GIVEN.get(name, name) for name in names)
        more: dict[str, Any] = {"bn": bn}
        for name in (*names, *like):
            more.update(NEEDS.get(name, {}))
        out = str(folder / bn / f"{text} {sorted(more)}")
        if (Path(out) / "summary.json").exists():
            return Run(Path(out))
        return train(text, model=f"{folder}/normed.py:normed", out=out, **{**FIELDS, **more})

    return run


def outcome(run: Run) -> dict[str, Tensor]:
    """What the server hands out, and what every client keeps of its model."""
    kept = {
        f"{client}.{name}": tensor
        for client, tensors in memories(run).items()
        for name, tensor in tensors.items()
        if "." not in name
        or name in ("ditto.own", "apfl.mixed")  # a part's own memory is "part.name"; these are models
    }
    return {**run.weights, **kept}


def apart(one: Run, other: Run) -> float:
    """The largest difference between two outcomes; without limit if they are not of the same tensors."""
    a, b = outcome(one), outcome(other)
    if {n: t.shape for n, t in a.items()} != {n: t.shape for n, t in b.items()}:
        return float("inf")
    return max(float((a[n] - b[n]).abs().max()) for n in a)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_pair_trains_or_is_refused_with_a_reason(one: str, other: str, sums: Train) -> None:
    text = f"{one} + {other}"
    bn = "batch" if "dp" in (one, other) else "running"  # dp does not share statistics
    try:
        run = sums(one, other, bn=bn)
    except FedloomError as error:
        said = str(error)
        assert "Traceback" not in said, said
        assert said.startswith("method: ") and len(said.split()) > 6, said
        assert one in said or other in said, said
        with pytest.raises(FedloomError):
            sums(other, one, bn=bn)
        return
    assert all(line["train_loss"] is not None and line["lost"] == 0 for line in run.rounds)
    assert all(bool(tensor.isfinite().all()) for tensor in outcome(run).values())
    alike, why = EQUAL.get((one, other), ("", ""))
    needy = tuple(name for name in (one, other) if name in NEEDS)
    for name in (one, other):
        alone = sums(name, bn=bn, like=needy)
        if name == alike:
            assert apart(run, alone) < 1e-6, f"{text} is different from {name}, although {why}"
        else:
            assert apart(run, alone) > 1e-6, f"{text} is no different from {name}"


def test_the_clients_take_different_numbers_of_steps(sums: Train) -> None:
    """Else a part that counts steps would change nothing, and its sums would be no test."""
    told = problem(sums("prox"))
    assert told.steps(0) != told.steps(1)


def test_all_of_the_parts_that_fit_together_train_together() -> None:
    text = "prox(mu=0.1) + scaffold + nova + dr + fd + kd(weight=0.1) + moon(weight=0.1) + fr(mu=0.001)"
    run = train(text, batch=64, epochs=2, rounds=2, lr=0.5)
    assert distance(run) > 1e-4
    assert run.rounds[-1]["train_loss"] < run.rounds[0]["train_loss"]


# FedDr+'s grid: every head with every regularizer

BASES = ("fedavg", "babu", "sphere", "etf", "gela", "dr")
REGULARISERS = (
    "",
    "prox(beta=0.99)",
    "kd(beta=0.5)",
    "ntd(beta=0.5)",
    "ld(beta=0.5)",
    "moon(beta=0.9)",
    "fd(beta=0.9)",
)
RATES = {"gela": 0.005, "dr": 1.0, "sphere": 0.5}


@pytest.mark.parametrize("regularizer", REGULARISERS, ids=lambda text: text or "none")
@pytest.mark.parametrize("base", BASES)
def test_every_recipe_of_feddrplus_grid_trains(base: str, regularizer: str) -> None:
    text = f"{base} + {regularizer}" if regularizer else base
    fields = {**FIELDS, "rounds": 1, "split": "shards:2", "lr": RATES.get(base, 0.1)}
    run = train(text, **{**fields, "clients": 5, "fraction": 0.4})
    (line,) = run.rounds
    assert line["lost"] == 0 and math.isfinite(line["train_loss"])
    assert all(bool(tensor.isfinite().all()) for tensor in run.weights.values())
    assert distance(run) > 1e-3
