"""FedGen."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from reference_server import fedgen
from safetensors.torch import load_file
from tiny import BODY_BYTES, MODEL_BYTES, agree, checkpoint, gap, problem, traffic, train

import fedloom as fl

SMALL = "steps=4, hidden=16, noise=8, batch=24, lr=0.001"
FIELDS = {"lr": 0.03, "momentum": 0.0, "weight_decay": 0.0}
GENERATOR = (8 + 10) * 16 + 16 + 2 * 16 + 16 * 64 + 64


@pytest.mark.parametrize("batch", ["full", 100])
def test_the_server_trains_a_generator_that_regularizes_the_clients(batch: int | str) -> None:
    run = train(f"fedgen(alpha=2, beta=3, {SMALL})", batch=batch, workers=2, **FIELDS)
    w, g = fedgen(problem(run), 2, 3, steps=4, batch=24, noise=8, hidden=16, lr=0.001)
    agree(run, w, atol=1e-4)
    kept = checkpoint(run)
    weights = torch.cat([value.detach().reshape(-1) for value in g.net.parameters()])
    torch.testing.assert_close(kept["server.fedgen.weights"].double(), weights, rtol=0, atol=2e-4)
    statistics = torch.cat([g.net[1].running_mean, g.net[1].running_var])  # type: ignore[index, list-item]
    torch.testing.assert_close(kept["server.fedgen.statistics"].double(), statistics, rtol=0, atol=2e-4)
    assert float(kept["server.fedgen.moments"][-1]) == 3 * 4  # one Adam for the whole run


def test_without_its_terms_the_weights_are_fedavgs() -> None:
    assert train(f"fedgen(alpha=0, beta=0, {SMALL})").summary["digest"] == train("fedavg").summary["digest"]


def test_the_first_round_is_fedavgs_too_and_the_second_is_not() -> None:
    assert gap(train(f"fedgen({SMALL})", rounds=1), train("fedavg", rounds=1)) == 0
    assert gap(train(f"fedgen({SMALL})", rounds=2, **FIELDS), train("fedavg", rounds=2, **FIELDS)) > 1e-3


@pytest.mark.parametrize("terms", ["alpha=0", "beta=0"])
def test_each_term_does_something(terms: str) -> None:
    run = train(f"fedgen({terms}, {SMALL})", rounds=2, **FIELDS)
    assert gap(run, train("fedavg", rounds=2, **FIELDS)) > 1e-3


def test_the_generator_goes_down_and_class_counts_come_up() -> None:
    down = 4 * (GENERATOR + 2 * 16 + 10)
    assert traffic(train(f"fedgen({SMALL})", rounds=1)) == {(MODEL_BYTES + down, MODEL_BYTES + 40)}
    assert traffic(train(f"babu + fedgen({SMALL})", rounds=1)) == {(BODY_BYTES + down, BODY_BYTES + 40)}


@pytest.mark.parametrize("base", ["prox", "scaffold", "fn", "babu", "dr + fd", "moon(projection=12)"])
def test_it_stands_on_other_parts(base: str) -> None:
    alone, run = (train(method, rounds=2, epochs=1, **FIELDS) for method in (base, f"{base} + fedgen({SMALL})"))
    assert all(bool(value.isfinite().all()) for value in run.weights.values())
    assert gap(alone, run) > 1e-5


def test_labels_that_no_client_told_of_are_not_drawn() -> None:
    fields = {"split": "shards:2", "clients": 10, "fraction": 0.2, "rounds": 1}
    run = train(f"fedgen({SMALL})", **fields)
    held = set(chain.from_iterable(problem(run).data[k][1].tolist() for k in run.rounds[0]["cohort"]))
    assert checkpoint(run)["server.fedgen.labels"].nonzero().flatten().tolist() == sorted(held)
    assert len(held) < 10


def test_the_same_bits_for_any_lanes_and_after_a_stop() -> None:
    fields = {"rounds": 4, "clients": 5, "checkpoint_seconds": 0, **FIELDS}
    whole = train(f"fedgen({SMALL})", workers=2, out="whole", **fields)
    assert train(f"fedgen({SMALL})", workers=1, out="other", **fields).summary["digest"] == whole.summary["digest"]
    newest = max((whole.path / "checkpoints").glob("round-*.safetensors"))
    expected = load_file(newest)
    for path in (newest, whole.path / "summary.json", whole.path / "final.safetensors"):
        path.unlink()
    fl.run(resume="whole")
    found = load_file(newest)
    assert all(bool((found[name] == expected[name]).all()) for name in expected)


def test_it_learns_on_digits() -> None:
    fields = {"split": "shards:2", "clients": 20, "fraction": 0.25, "epochs": 2, "batch": 16, "eval_every": 0}
    run = fl.run(method="fedgen(hidden=64)", model="mlp", rounds=8, lr=0.02, momentum=0.0, workers=2, **fields)
    assert run.summary["test_accuracy"] > 0.4  # untrained: one in ten
