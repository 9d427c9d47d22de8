"""The round loop: who takes part, what is dropped, what becomes of the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import holder, remembered
from oddities import Seen

import fedloom as fl
from fedloom.engine.files import read_tensors
from fedloom.engine.folder import RunFolder
from fedloom.recipe import recipe
from fedloom.run import federation

NAMES = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
FIELDS = {"clients": 5, "fraction": 1.0, "rounds": 2, "lanes": 1, "eval_every": 0}  # one client holds a class


def cohorts(rounds: int, **fields: Any) -> list[list[int]]:
    path = fl.run({**FIELDS, "rounds": 1, "name": "cohorts", **fields}).path
    folder = RunFolder(path)
    with federation(folder.experiment(), folder) as fed:
        found = [fed.cohort(number) for number in range(1, rounds + 1)]
    shutil.rmtree(path)
    return found


def test_cohorts_are_a_function_of_seed_and_round_alone() -> None:
    first = cohorts(20, clients=50, fraction=0.1)
    assert first == cohorts(20, clients=50, fraction=0.1, method="scaffold", split="iid", lr=0.5, model="linear")
    assert first != cohorts(20, clients=50, fraction=0.1, seed=1)
    assert len({tuple(cohort) for cohort in first}) > 15
    for cohort in first:
        assert len(cohort) == len(set(cohort)) == 5
        assert cohort == sorted(cohort)
        assert set(cohort) <= set(range(50))
    assert {client for cohort in cohorts(60, clients=50, fraction=0.1) for client in cohort} == set(range(50))


def test_everybody_takes_part_when_the_fraction_is_one() -> None:
    assert cohorts(3) == [[0, 1, 2, 3, 4]] * 3


@pytest.mark.parametrize(
    ("fraction", "clients", "size"),
    [(0.29, 100, 29), (0.57, 100, 57), (1.0, 7, 7), (0.1, 10, 1), (0.99, 10, 9), (0.01, 10, 1), (0.7, 10, 7)],
)
def test_a_cohort_is_the_whole_part_of_its_fraction_and_never_empty(fraction: float, clients: int, size: int) -> None:
    assert recipe({"fraction": fraction, "clients": clients}).cohort_size == size


@pytest.mark.parametrize(
    ("where", "value", "reason"),
    [
        ("weights", ".nan", "w is not finite"),
        ("weights", "-.inf", "w is not finite"),
        ("upload", ".inf", "poison.sent is not finite"),
        ("memory", ".nan", "poison.kept is not finite"),
    ],
)
def test_an_upload_that_is_not_finite_is_dropped_and_the_others_are_averaged(
    where: str, value: str, reason: str, odd_parts: Seen
) -> None:
    method = f"watch + poison(label=3, only=1, where={where}, value={value})"
    run = fl.run(FIELDS, method=method)
    bad = holder(run, 3)
    assert run.rounds[0]["lost"] == 1
    assert run.rounds[0]["lost_clients"] == {str(bad): reason}
    assert run.rounds[1]["lost"] == 0
    assert "lost_clients" not in run.rounds[1]
    assert run.summary["lost"] == 1
    assert odd_parts.cohorts == [[k for k in range(5) if k != bad], [0, 1, 2, 3, 4]]


def test_the_average_without_a_dropped_client_is_that_of_the_others(odd_parts: Seen) -> None:
    fields = {**FIELDS, "rounds": 1}
    fl.run(fields, method="watch")
    run = fl.run(fields, method="watch + poison(label=3)")
    bad = holder(run, 3)
    whole, rest = odd_parts.uploads
    others = [upload for client, upload in enumerate(whole) if client != bad]
    assert all(torch.equal(a, b) for a, b in zip(rest, others, strict=True))  # the rest trained as always
    partition = RunFolder(run.path).experiment().partition
    sizes = [len(partition.train(client)) for client in range(5) if client != bad]
    assert len(set(sizes)) > 1
    mean = sum(size / sum(sizes) * w.double() for size, w in zip(sizes, others, strict=True))
    final = torch.cat([run.weights[name].reshape(-1) for name in NAMES])
    assert torch.allclose(final.double(), mean, rtol=0, atol=1e-6)


def test_equal_shares_when_the_recipe_says_uniform(odd_parts: Seen) -> None:
    run = fl.run(FIELDS, rounds=1, method="watch", weighting="uniform")
    mean = sum(w.double() for w in odd_parts.uploads[0]) / 5
    final = torch.cat([run.weights[name].reshape(-1) for name in NAMES])
    assert torch.allclose(final.double(), mean, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("odd_parts")
def test_the_memory_of_a_dropped_client_is_as_it_was() -> None:
    run = fl.run(FIELDS, rounds=3, method="scaffold + poison(label=3, only=2)", checkpoint_seconds=0)
    bad = holder(run, 3)
    kept = {}
    for name in remembered(run.path):
        if name.endswith("round-000003.safetensors"):
            tensors, _ = read_tensors(run.path / "checkpoints" / "clients" / name)
            kept[int(name.split("-")[1])] = tensors["poison.kept"].tolist()
    assert kept == {client: [2.0, 2.0] if client == bad else [3.0, 3.0] for client in range(5)}


@pytest.mark.usefixtures("odd_parts")
def test_a_dropped_client_leaves_no_trace_in_a_method_with_memory() -> None:
    """As if it had not been there: neither its weights nor its control, on either side."""
    run = fl.run(FIELDS, method="scaffold + poison(label=3)", checkpoint_seconds=0)
    bad = holder(run, 3)
    assert run.summary["lost"] == 2
    assert not [name for name in remembered(run.path) if name.startswith(f"client-{bad:06d}")]
    tensors, _ = read_tensors(sorted((run.path / "checkpoints").glob("*.safetensors"))[-1])
    assert tensors["clients"].tolist() == [client for client in range(5) if client != bad]
    assert all(tensor.isfinite().all() for tensor in tensors.values())


@pytest.mark.usefixtures("odd_parts")
def test_a_round_that_loses_everybody_leaves_the_weights_alone_and_the_run_goes_on() -> None:
    run = fl.run(FIELDS, method="scaffold + poison", split="iid", rounds=1)
    assert run.rounds[0]["lost"] == 5
    assert set(run.rounds[0]["lost_clients"].values()) == {"w is not finite"}
    assert run.rounds[0]["train_loss"] is None
    initial, _ = read_tensors(run.path / "initial.safetensors")
    assert all(torch.equal(run.weights[name], tensor) for name, tensor in initial.items())
    assert not remembered(run.path)

    longer = fl.run(FIELDS, method="scaffold + poison(only=1)", split="iid")
    assert [line["lost"] for line in longer.rounds] == [5, 0]
    assert any(not torch.equal(longer.weights[name], tensor) for name, tensor in initial.items())


@pytest.mark.usefixtures("odd_parts")
def test_a_resumed_run_drops_the_same_clients(straight: Callable[..., fl.Run]) -> None:
    fields = {**FIELDS, "method": "scaffold + poison(label=3, only=2)"}
    run = fl.run(fields, out="whole")
    shutil.copytree("whole", "again")
    for path in (Path("again/summary.json"), *Path("again/checkpoints").glob("*.safetensors")):
        path.unlink()
    again = fl.run(resume="again")
    assert again.summary["digest"] == run.summary["digest"]
    assert again.rounds[1]["lost_clients"] == run.rounds[1]["lost_clients"]


@pytest.mark.usefixtures("odd_parts")
def test_weights_that_overflow_when_combined_end_the_run_with_a_sentence() -> None:
    with pytest.raises(fl.FedloomError, match="no longer finite after combining in round 1; lower lr or clip"):
        fl.run(FIELDS, method="bursts")


@pytest.mark.usefixtures("odd_parts")
def test_a_message_of_a_second_act_must_be_what_was_declared() -> None:
    with pytest.raises(fl.FedloomError, match="mumbles declares a message of loud, clear, but sends loud"):
        fl.run(FIELDS, method="mumbles")


def test_bytes_are_those_of_what_is_exchanged() -> None:
    body, head = 4 * (64 * 64 + 64), 4 * (64 * 10 + 10)
    for method, down, up in [
        ("fedavg", body + head, body + head),
        ("fedper", body, body),
        ("fedbabu", body, body),
        ("scaffold", 2 * (body + head), 2 * (body + head)),
    ]:
        run = fl.run(FIELDS, method=method, rounds=2, fraction=0.6)
        assert [(line["bytes_down"], line["bytes_up"]) for line in run.rounds] == [(3 * down, 3 * up)] * 2
        assert (run.summary["bytes_down"], run.summary["bytes_up"]) == (6 * down, 6 * up)
