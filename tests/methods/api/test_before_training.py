"""The hook `before_training`: a part adapts the received model before the first local step, with state of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from folders import check_whole, logged
from processes import Child, until
from reference import HEAD, Problem, Weights, cross_entropy, flat, mean
from tiny import agree, gap, memories, problem, train
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError, Part, method
from fedloom.methods import ClientContext, TaskInfo, Tensors


class BeforeRetain(Part):
    """Each client starts between the received weights and those it ended its last round with (a fixed-weight FedALA)."""

    share: float = 0.5

    def client_state(self, weights: Tensor, task: TaskInfo) -> Tensors:
        return {"last": weights.clone(), "visits": torch.zeros(())}

    def before_training(self, client: ClientContext) -> None:
        if client.state["visits"] > 0:
            client.weights.lerp_(client.state["last"].to(client.weights.device), self.share)

    def extra_training(self, hook: str) -> tuple[()]:
        return ()

    def after_training(self, client: ClientContext) -> None:
        client.state["last"] = client.weights
        client.state["visits"] = client.state["visits"] + 1


class BeforeDouble(Part):
    def before_training(self, client: ClientContext) -> None:
        client.weights.mul_(2)


class BeforeShift(Part):
    def before_training(self, client: ClientContext) -> None:
        client.weights.add_(0.01)


class BeforeNoise(Part):
    """Starts near the received weights, at a place of the client's own."""

    scale: float = 0.01

    def before_training(self, client: ClientContext) -> None:
        noise = torch.randn(client.weights.shape, generator=client.generator)
        client.weights.add_(noise.to(client.weights.device), alpha=self.scale)


class BeforeHead(Part):
    """Clears the bias of the client's own head: all of `storage` may be adapted."""

    def before_training(self, client: ClientContext) -> None:
        client.storage[len(client.weights) :][640:650].zero_()


def retained(p: Problem, share: float, mu: float = 0.0) -> tuple[Weights, dict[int, Weights]]:
    w, last = p.initial, dict[int, Weights]()
    for t, cohort in p.rounds:
        for k in cohort:
            begin = {n: w[n] + share * (last[k][n] - w[n]) if k in last else w[n] for n in w}
            last[k] = p.local(begin, t, k, cross_entropy, extra=lambda n, value, w=w: mu * (value - w[n]))
        w = mean([last[k] for k in cohort], p.shares(cohort))
    return w, last


def test_clients_start_where_the_part_puts_them_and_it_remembers_their_weights() -> None:
    run = train("beforeretain(share=0.3)", rounds=4, workers=2)
    p = problem(run)
    assert any(sum(k in cohort for cohort in p.cohorts) > 1 for k in range(5))  # somebody returns
    w, last = retained(p, 0.3)
    agree(run, w)
    for k, state in memories(run).items():
        torch.testing.assert_close(state["beforeretain.last"].double(), flat(last[k]), rtol=0, atol=1e-5)
        assert state["beforeretain.visits"] == sum(k in cohort for cohort in p.cohorts)
    assert gap(run, train("fedavg", rounds=4)) > 1e-3


def test_global_weights_stay_those_that_were_broadcast() -> None:
    run = train("beforeretain + prox(mu=2)", rounds=4, lr=0.05)
    agree(run, retained(problem(run), 0.5, mu=2.0)[0])


def test_a_part_that_adapts_nothing_changes_no_bit() -> None:
    assert train("beforeretain(share=0)").summary["digest"] == train("fedavg").summary["digest"]


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("beforedouble + beforeshift", lambda w: 2 * w + 0.01),
        ("beforeshift + beforedouble", lambda w: 2 * (w + 0.01)),
    ],
)
def test_parts_adapt_in_the_order_of_the_sum(text: str, begin: Callable[[Tensor], Tensor]) -> None:
    run = train(text, lr=0.01)
    p = problem(run)
    w = p.initial
    for t, cohort in p.rounds:
        start = {n: begin(value) for n, value in w.items()}
        w = mean([p.local(start, t, k, cross_entropy) for k in cohort], p.shares(cohort))
    agree(run, w)


def test_a_client_s_own_head_may_be_adapted() -> None:
    run = train("fedper + beforehead", rounds=3)
    p = problem(run)
    w, heads = p.initial, [{n: p.initial[n] for n in HEAD} for _ in p.data]
    for t, cohort in p.rounds:
        rows = [
            p.local({**w, **heads[k], "head.bias": torch.zeros(10, dtype=torch.double)}, t, k, cross_entropy)
            for k in cohort
        ]
        for k, row in zip(cohort, rows, strict=True):
            heads[k] = {n: row[n] for n in HEAD}
        w = {**mean(rows, p.shares(cohort)), **{n: p.initial[n] for n in HEAD}}
    agree(run, w)
    for k, state in memories(run).items():
        torch.testing.assert_close(state["personal"].double(), flat(heads[k], HEAD), rtol=0, atol=1e-5)


def test_draws_are_keyed_by_round_and_client_and_not_by_workers() -> None:
    one, three = train("beforenoise", workers=1), train("beforenoise", workers=3)
    assert one.summary["digest"] == three.summary["digest"] != train("fedavg").summary["digest"]
    assert train("beforenoise", seed=1).summary["digest"] != one.summary["digest"]


@pytest.mark.parametrize("text", ["beforeretain", "beforeretain + beforenoise + scaffold"])
def test_killed_and_resumed_it_has_the_same_bits(text: str, straight: Callable[..., fl.Run]) -> None:
    fields = {"method": text, "clients": 5, "rounds": 8, "workers": 2, "batch": 24, "lr": 0.05, "checkpoint_seconds": 0}
    like, path = straight(**fields), Path("killed")
    for moment in (2, 5):
        child = Child(lambda: fl.run(resume=path) if path.exists() else fl.run(fields, out=str(path)))
        until(lambda moment=moment: logged(path) >= moment)
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    check_whole(fl.run(resume=path), like)


@pytest.mark.parametrize("text", ["beforeretain", "beforedouble + beforeshift", "beforeretain + scaffold + fedper"])
def test_under_vmap_clients_start_where_they_do_alone(text: str) -> None:
    fields = {"rounds": 3, "epochs": 2, "batch": 24, "clients": 6, "fraction": 0.84, "lr": 0.02}
    alone, together = train(text, **fields), train(text, **fields, vmap=3)
    assert gap(alone, together) < 1e-5
    one, other = memories(alone), memories(together)
    assert one.keys() == other.keys()
    for k in one:
        for name, value in one[k].items():
            torch.testing.assert_close(other[k][name], value, rtol=1e-5, atol=1e-5)


def test_it_is_not_called_before_a_query_that_trains() -> None:
    """The client continues from what it uploaded; adapting it again would undo its training."""
    run = train("beforeshift + fnr(epochs=1, share=1, strength=0)", rounds=2, lr=0.05)
    p = problem(run)
    w = p.initial
    for t, cohort in p.rounds:
        start = {n: value + 0.01 for n, value in w.items()}
        rows = [p.local(start, t, k, cross_entropy) for k in cohort]
        rows = [
            p.local(row, t, k, cross_entropy, batches=iter([p.data[k]])) for k, row in zip(cohort, rows, strict=True)
        ]
        w = mean(rows, p.shares(cohort))
    agree(run, w)


def test_central_training_refuses_it_by_name() -> None:
    with pytest.raises(FedloomError, match="method: beforeshift adapts weights before training, and with central"):
        method("central + beforeshift")
