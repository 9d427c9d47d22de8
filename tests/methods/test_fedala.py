"""FedALA: how much of the received upper layers a client takes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import pstdev

import pytest
import torch
from reference import HEAD, ORDER, Problem, Weights, cross_entropy, features, flat, gradients, mean
from reference_personal import own_tests, share_right
from tiny import MODEL_BYTES, agree, gap, memories, problem, traffic, train
from torch import Tensor

from fedloom import FedloomError
from fedloom.rng import torch_generator


class Client:
    """What a client keeps, and its learning of W."""

    def __init__(self, w: Weights, names: Sequence[str]) -> None:
        self.old, self.names, self.begun = w, names, False
        self.shares = {n: torch.ones_like(w[n]) for n in names}

    def adapt(self, w: Weights, p: Problem, k: int, draws: torch.Generator, threshold: float, first: int) -> Weights:
        gaps = {n: w[n] - self.old[n] for n in self.names}
        if not any(bool(gap.any()) for gap in gaps.values()):
            return w
        x, y = p.data[k]
        chosen = torch.randperm(len(y), generator=draws)[: int(0.8 * len(y))]
        size = len(y) if p.recipe["batch"] == "full" else p.recipe["batch"]
        losses: list[float] = []
        while True:
            for piece in chosen.split(size):
                t = self.mixed(w, gaps)
                losses_before = float(cross_entropy(t, x[piece], y[piece]))
                g = gradients(cross_entropy, t, x[piece], y[piece], self.names)
                self.shares = {n: (self.shares[n] - g[n] * gaps[n]).clamp(0, 1) for n in self.names}
            losses.append(losses_before)
            if self.begun or len(losses) == first or (len(losses) >= 10 and pstdev(losses[-10:]) < threshold):
                break
        self.begun, self.epochs = True, len(losses)
        return self.mixed(w, gaps)

    def mixed(self, w: Weights, gaps: Weights) -> Weights:
        return {**w, **{n: self.old[n] + gaps[n] * self.shares[n] for n in self.names}}


def fedala(p: Problem, names: Sequence[str], threshold: float, first: int) -> tuple[Weights, list[Client]]:
    w, clients = p.initial, [Client(p.initial, names) for _ in p.data]
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            draws = p.shuffles(t, k)
            start = clients[k].adapt(w, p, k, draws, threshold, first)
            rows.append(p.local(start, t, k, cross_entropy, batches=p.batches(k, p.recipe["epochs"], draws)))
            clients[k].old = rows[-1]
        w = mean(rows, p.shares(cohort))
    return w, clients


def logits(w: Weights, x: Tensor) -> Tensor:
    return features(w, x) @ w["head.weight"].T + w["head.bias"]


@pytest.mark.parametrize(
    ("text", "names", "values", "batch"),
    [
        ("fedala(threshold=0.1)", HEAD, (0.1, 100), "full"),
        ("fedala(layers=all, threshold=0, first=3)", ORDER, (0.0, 3), 128),
    ],
)
def test_w_is_learned_before_training_and_kept(
    text: str, names: Sequence[str], values: tuple[float, int], batch: int | str
) -> None:
    run = train(text, batch=batch, epochs=2, rounds=4, lr=0.05)
    p = problem(run)
    w, clients = fedala(p, names, *values)
    agree(run, w)
    assert any(client.begun for client in clients)
    for k, tensors in memories(run).items():
        shares = {**{n: torch.ones_like(v) for n, v in p.initial.items()}, **clients[k].shares}
        torch.testing.assert_close(tensors["fedala.shares"].double(), flat(shares), rtol=0, atol=1e-4)
        torch.testing.assert_close(tensors["fedala.old"].double(), flat(clients[k].old), rtol=0, atol=1e-5)
    assert any(float((1 - tensors["fedala.shares"]).max()) > 0.01 for tensors in memories(run).values())
    accuracies = []
    for k, (x, y) in enumerate(own_tests(p)):  # the served model after a learning of W that is not kept
        own = clients[k].adapt(w, p, k, torch_generator(0, "tune", 0, k), *values)
        accuracies.append(share_right(logits(own, x), y))
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(accuracies, abs=1e-9)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_the_first_round_is_fedavg_s_and_without_a_rate_all_are() -> None:
    fields = {"epochs": 2, "rounds": 2, "fraction": 1.0}
    plain = train("fedavg", **fields)
    assert gap(train("fedala(rate=0, first=1)", **fields), plain) < 1e-6  # the draws of W change no batch that is full
    assert gap(train("fedala(first=20)", **fields), plain) > 1e-4
    first = {**fields, "rounds": 1}
    assert train("fedala", **first).summary["digest"] == train("fedavg", **first).summary["digest"]


def test_workers_change_no_bit_and_it_adds_to_other_parts() -> None:
    fields = {"rounds": 3, "epochs": 1}
    text = "prox(mu=0.1) + fedala(first=2) + fnr(epochs=1)"  # fnr's query leaves W as it was learned
    one, other = (train(text, workers=workers, **fields) for workers in (1, 3))
    assert one.summary["digest"] == other.summary["digest"]
    assert gap(one, train("fedala(first=2)", **fields)) > 1e-5
    learned = [tensors for tensors in memories(one).values() if float(tensors["fedala.begun"])]
    assert learned and all(float((1 - tensors["fedala.shares"]).max()) > 0 for tensors in learned)


def test_layers_that_clients_do_not_share_are_refused_by_name() -> None:
    with pytest.raises(FedloomError, match=r"fedala decides about body\.9, but this net has no such tensors"):
        train("fedala(layers=[body.9])")
    for text in ("fedala + fedper", "fedala + babu"):
        with pytest.raises(FedloomError, match=f"{text.replace(' +', ' and')} both decide what happens to the head"):
            train(text)
