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
from fedloom.cli.main import main
from fedloom.errors import TooFew
from fedloom.io.files import read_tensors
from fedloom.recipe import recipe
from fedloom.runs.folder import RunFolder
from fedloom.runs.run import federation

NAMES = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
FIELDS = {"clients": 5, "fraction": 1.0, "rounds": 2, "workers": 1, "eval_every": 0}  # one client holds a class

PATIENT = {**FIELDS, "deploy": {"min_cohort": 0}}  # rounds without uploads are passed over


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
    partition = RunFolder(run.path).experiment().data.partition
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
def test_a_run_stops_where_every_upload_of_a_round_is_lost_and_can_be_resumed(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    fields = {**FIELDS, "method": f"scaffold + poison(only=2, unless={mended})", "split": "iid", "rounds": 3}
    with pytest.raises(TooFew) as stopped:
        fl.run(fields, out="stopped")
    assert str(stopped.value) == (
        "round 2: all 5 uploads are lost, so there is nothing to aggregate (client 0: w is not finite; client 1: w is not "
        "finite; client 2: w is not finite; client 3: w is not finite; client 4: w is not finite); training has diverged: "
        "lower lr or clip gradients"
    )
    assert not Path("stopped/summary.json").exists()
    assert [line["round"] for line in fl.Run(Path("stopped")).rounds] == [1]
    mended.touch()
    again, straight = fl.run(resume="stopped"), fl.run(fields, out="straight")
    assert again.summary["digest"] == straight.summary["digest"]
    assert [line["lost"] for line in again.rounds] == [0, 0, 0]


@pytest.mark.usefixtures("odd_parts")
def test_the_command_line_says_in_one_sentence_why_a_run_without_uploads_stops(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "fedloom run --split iid --clients 7 --fraction 1 --rounds 2 --lr 1e30"
    monkeypatch.setattr("sys.argv", given.split())
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert "round 1: all 7 uploads are lost" in said
    assert "and 2 more); training has diverged: lower lr or clip gradients" in said


@pytest.mark.usefixtures("odd_parts")
def test_where_the_recipe_allows_it_a_round_that_loses_everybody_leaves_the_weights_alone_and_the_run_goes_on() -> None:
    run = fl.run(PATIENT, method="scaffold + poison", split="iid", rounds=1)
    assert run.rounds[0]["lost"] == 5
    assert set(run.rounds[0]["lost_clients"].values()) == {"w is not finite"}
    assert run.rounds[0]["train_loss"] is None
    initial, _ = read_tensors(run.path / "initial.safetensors")
    assert all(torch.equal(run.weights[name], tensor) for name, tensor in initial.items())
    assert not remembered(run.path)

    longer = fl.run(PATIENT, method="scaffold + poison(only=1)", split="iid")
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
def test_weights_that_overflow_when_aggregated_end_the_run_with_a_sentence() -> None:
    with pytest.raises(fl.FedloomError, match="no longer finite after aggregation in round 1; lower lr or clip"):
        fl.run(FIELDS, method="bursts")


@pytest.mark.parametrize("value", [3e38, 1e20, -1e9])
@pytest.mark.parametrize("method", ["fedavg", "feddyn", "feddc", "fnr(epochs=1)", "nova", "exp", "scaffold"])
@pytest.mark.usefixtures("odd_parts")
def test_weights_that_are_finite_and_absurd_are_lost_by_name_and_spoil_nothing(method: str, value: float) -> None:
    run = fl.run(FIELDS, method=f"{method} + poison(label=3, only=1, value={value})")
    bad = holder(run, 3)
    first, second = run.rounds
    reason = "w is too large to compute with" if abs(value) > 1e18 else "w is 1e+09 away from what was broadcast, and"
    assert list(first["lost_clients"]) == [str(bad)]
    assert first["lost_clients"][str(bad)].startswith(reason)
    assert second["lost"] == 0
    missed = fl.run(FIELDS, method=f"{method} + poison(label=3, only=1)")
    assert run.summary["digest"] == missed.summary["digest"]


@pytest.mark.parametrize(("value", "reason"), [("3e38", "too large"), ("1e9", "1e+09 away from zero")])
@pytest.mark.usefixtures("odd_parts")
def test_what_a_part_uploads_beside_the_weights_is_held_to_the_same_bounds(value: str, reason: str) -> None:
    run = fl.run(FIELDS, method=f"poison(label=3, where=upload, value={value})", rounds=1)
    assert reason in run.rounds[0]["lost_clients"][str(holder(run, 3))]


@pytest.mark.usefixtures("odd_parts")
def test_the_bound_may_be_set_or_lifted_and_is_part_of_the_digest_only_then() -> None:
    fields = {**FIELDS, "method": "poison(label=3, only=1, value=1e9)", "rounds": 1}
    assert fl.run(fields, deploy={"max_distance": None}).summary["lost"] == 0
    assert fl.run(fields, deploy={"max_distance": 1e12}).summary["lost"] == 0
    known = {value: recipe({"deploy": {"max_distance": value}}).digest() for value in (1000.0, None, 2.0)}
    assert known[1000.0] == recipe({}).digest()
    assert len(set(known.values())) == 3


HONEST: list[dict[str, Any]] = [
    {"split": "quantity:0.1", "clients": 6, "batch": 1, "lr": 0.01},  # sizes of 10 to hundreds: as many steps apart
    {"split": "quantity:0.1", "clients": 2, "lr": 20.0, "momentum": 0.0, "model": "linear"},
    {"split": "shards:1", "clients": 10, "lr": 3.0, "momentum": 0.0},
    {"split": "iid", "clients": 1, "lr": 50.0, "momentum": 0.0, "model": "linear"},
    {"split": "dirichlet:0.1", "clients": 5, "lr": 1e-9, "method": "scaffold"},
    {"split": "noise:5+quantity:0.2", "clients": 5, "model": "cnn", "method": "feddc", "rounds": 2},
]


@pytest.mark.parametrize("fields", HONEST, ids=str)
def test_no_honest_upload_is_lost_however_unequal_clients_are_and_no_bit_changes(fields: dict[str, Any]) -> None:
    bounded, free = (
        fl.run({**FIELDS, "rounds": 3, **fields}, deploy={"max_distance": value}) for value in (1000.0, None)
    )
    assert bounded.summary["lost"] == 0
    assert bounded.summary["digest"] == free.summary["digest"]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("swells", "swells.kept at the server is too large to go on with after aggregation in round 1"),
        ("swells(value=.nan)", "swells.kept at the server is no longer finite after aggregation in round 1"),
        ("swells(where=weights)", "the weights are too large to go on with after aggregation in round 1; lower lr"),
    ],
)
@pytest.mark.usefixtures("odd_parts")
def test_a_state_that_the_next_round_could_not_compute_with_ends_the_run(part: str, said: str) -> None:
    with pytest.raises(fl.FedloomError) as stopped:
        fl.run(FIELDS, method=part)
    assert said in str(stopped.value)


@pytest.mark.usefixtures("odd_parts")
def test_a_part_may_remember_an_infinity_that_it_began_with() -> None:
    assert fl.run(FIELDS, method="swells(where=best, value=.inf)").summary["lost"] == 0


@pytest.mark.usefixtures("odd_parts")
def test_a_message_of_a_query_must_be_what_was_declared() -> None:
    with pytest.raises(fl.FedloomError, match="mumbles declares a message of loud, clear, but sends loud"):
        fl.run(FIELDS, method="mumbles")


def test_bytes_are_those_of_what_is_shared() -> None:
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
