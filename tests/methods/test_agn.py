"""agn and fednn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_norms import MAPS, Normalized, accuracy, federated
from tiny import agree, distance, gap, memories, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError
from fedloom.methods import ClientContext, ServerContext, TaskInfo
from fedloom.methods.agn import AGN
from fedloom.nets import Net

FIELDS: dict[str, Any] = {"model": "maps.py:maps", "lr": 0.05, "rounds": 2}


@pytest.fixture(autouse=True)
def _net() -> None:
    Path("maps.py").write_text(MAPS)


@pytest.mark.parametrize("mix", ["std", "var"])
def test_fednn_trains_averages_and_is_tested_as_its_equations_say(mix: str) -> None:
    run = train(f"fednn(mix={mix})", workers=2, **{**FIELDS, "rounds": 3})
    told, net = problem(run), Normalized("agn", wn=True, mix=mix)
    w = federated(told, net)
    agree(run, w, atol=1e-4)
    assert distance(run, ("body.0.norm.selector", "body.2.norm.selector")) > 1e-3
    assert run.summary["test_accuracy"] == pytest.approx(accuracy(told, net, w), abs=1e-9)


def test_the_temperature_falls_with_the_round_as_in_the_published_code() -> None:
    part = AGN()
    assert [part.temperature(t, 200) for t in (1, 2, 200)] == pytest.approx([5.000025, 4.975025, 0.025025])
    assert part.temperature(0, 200) == part.temperature(1, 200)


def test_what_layers_choose_is_logged_as_evaluation_uses_it() -> None:
    run = train("agn(tau=0.1)", **FIELDS)
    for t, line in enumerate(run.rounds, 1):
        assert set(line["selectors"]) == {"body.0.norm", "body.2.norm"}
        assert all(sum(shares) == pytest.approx(1, abs=1e-5) for shares in line["selectors"].values())
        tau = 0.1 * (2.001 - (t - 1)) / 2
    pi = run.weights["body.2.norm.selector"]
    by_batch = 1 / (1 + math.exp(float(pi[1] - pi[0]) / tau))
    assert run.rounds[-1]["selectors"]["body.2.norm"] == pytest.approx([by_batch, 1 - by_batch], abs=1e-5)


def test_fedbn_keeps_selectors_and_statistics_with_their_client() -> None:
    run = train("fedbn + agn(freeze=true)", **FIELDS)
    own = tuple(name for name in run.weights if ".norm." in name)
    assert {name.rpartition(".")[2] for name in own} >= {"selector", "frozen", "running_mean", "weight"}
    assert distance(run, own) == 0
    shared = 4 * sum(value.numel() for name, value in run.weights.items() if name not in own)
    assert traffic(run) == {(shared, shared)}
    assert all("selectors" not in line for line in run.rounds)
    assert all(tensors["statistics"].std() > 0 for tensors in memories(run).values())


@pytest.mark.parametrize(
    "text", ["fedexp + wn + agn", "scaffold + fednn", "feddyn + fednn", "feddc + fednn", "babu + agn"]
)
def test_sums_with_other_methods_train(text: str) -> None:
    run = train(text, **{**FIELDS, "momentum": 0.0})
    assert all(line["lost"] == 0 for line in run.rounds)
    assert distance(run, ("body.0.norm.selector",)) > 0


@pytest.mark.parametrize("bn", ["batch", "local"])
def test_statistics_of_the_test_batch_are_used_without_noise(bn: str) -> None:
    run = train("agn", bn=bn, **FIELDS)
    assert any("running" in name for name in run.weights) == (bn == "local")
    told, net = problem(run), Normalized("agn")
    for name, count in (("body.0.norm", 4), ("body.2.norm", 6)):
        told.initial |= {f"{name}.running_mean": torch.zeros(count), f"{name}.running_var": torch.ones(count)}
    w = federated(told, net)
    for name, value in run.weights.items():
        if "running" not in name:
            torch.testing.assert_close(value.double(), w[name], rtol=0, atol=5e-5)
    assert run.summary["test_accuracy"] == pytest.approx(accuracy(told, net, w, by_test_batch=True), abs=1e-9)


class AgnElsewhere(fl.Part):
    """Looks at a gradient elsewhere once training is done."""

    def after_training(self, client: ClientContext) -> None:
        client.gradient_of(at=client.global_weights)


@pytest.mark.parametrize("other", ["kd(weight=0)", "moon(weight=0)", "agnelsewhere"])
def test_neither_teachers_nor_looks_elsewhere_move_statistics(other: str) -> None:
    assert gap(train(f"agn(freeze=true) + {other}", **FIELDS), train("agn(freeze=true)", **FIELDS)) == 0


def test_noise_in_evaluation_changes_what_is_tested_and_nothing_else() -> None:
    quiet, noisy = (train(f"agn(tau=0.5, eval_noise={on})", eval_every=1, **FIELDS) for on in ("false", "true"))
    assert gap(quiet, noisy) == 0
    again = train("agn(tau=0.5, eval_noise=true)", eval_every=1, **{**FIELDS, "workers": 2})
    assert again.clients == noisy.clients
    assert [line["test_accuracy"] for line in again.rounds] == [line["test_accuracy"] for line in noisy.rounds]
    assert noisy.clients != quiet.clients


def test_frozen_layers_are_those_that_all_clients_froze() -> None:
    """At so small a temperature every draw is one-hot, so every client freezes every layer in its first step."""
    run = train("agn(tau=1e-6, freeze=true)", **FIELDS)
    for layer in ("body.0.norm", "body.2.norm"):
        frozen = run.weights[f"{layer}.frozen"]
        assert float(frozen.sum()) == pytest.approx(1, abs=1e-5)
        assert run.rounds[-1]["selectors"][layer] == pytest.approx(frozen.tolist(), abs=1e-5)
    assert distance(run, ("body.0.norm.selector",)) < 1e-2  # frozen layers learn no more: only decay moves them
    assert "body.0.norm.frozen" not in train("agn", **FIELDS).weights


# the hooks that it needs


class AgnRounds(fl.Part):
    """Writes down which round the net is told."""

    def at_round(self, net: Net, round: int, task: TaskInfo) -> None:
        with Path("told").open("a") as file:
            file.write(f"{round} ")


class AgnLogs(fl.Part):
    """Adds to the line of a round."""

    key: str = "spread"

    def log(self, server: ServerContext) -> Mapping[str, Any]:
        return {self.key: [server.round, float(server.tensors()["head.weight"].std())]}


def test_a_net_is_told_its_round_in_training_tests_and_fine_tuning() -> None:
    run = train("agnrounds", fraction=0.2, clients=5, eval_every=1, rounds=3)
    told = Path("told").read_text().split()
    assert told == sorted(told)
    assert set(told) == {"1", "2", "3"}
    assert told.count("2") == 2  # one client that trains, one test
    Path("told").unlink()
    fl.personalize(run.path, epochs=1, lr=0.01)
    assert set(Path("told").read_text().split()) == {"3"}


def test_parts_add_to_the_line_of_a_round() -> None:
    run = train("agnlogs", rounds=2)
    assert [line["spread"][0] for line in run.rounds] == [1, 2]
    assert run.rounds[-1]["spread"][1] == pytest.approx(float(run.weights["head.weight"].std()))
    with pytest.raises(FedloomError, match="method: agnlogs logs 'lr', which the line of a round has already"):
        train("agnlogs(key=lr)", rounds=1, out="again")
