"""Fed-RoD: a generic and a personal head."""

from __future__ import annotations

import pytest
import torch
from reference import HEAD, ORDER, Loss, Problem, Weights, features, mean
from reference_personal import own_tests, share_right
from tiny import MODEL_BYTES, agree, distance, gap, memories, problem, traffic, train
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError, method

OWN = ("head.personal.weight", "head.personal.bias")


def log_loss(logits: Tensor, y: Tensor) -> Tensor:
    return -logits.log_softmax(1)[torch.arange(len(y)), y].mean()


def fedrod(p: Problem, gamma: float) -> tuple[Weights, list[Weights]]:
    """The generic model, and everybody's personal head."""
    w = p.initial
    own = [{name: w[name] for name in OWN} for _ in p.data]
    for t, cohort in p.rounds:
        rows = [p.local({**w, **own[k]}, t, k, two_losses(p, k, gamma)) for k in cohort]
        for k, row in zip(cohort, rows, strict=True):
            own[k] = {name: row[name] for name in OWN}
        w = {**w, **mean([{n: row[n] for n in ORDER} for row in rows], p.shares(cohort))}
    return w, own


def two_losses(p: Problem, k: int, gamma: float) -> Loss:
    counts = torch.bincount(p.data[k][1], minlength=10).double()

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f = features(w, x)
        z = f @ w["head.weight"].T + w["head.bias"]
        held = counts > 0
        balanced = torch.where(held, z + gamma * counts.where(held, torch.ones(())).log(), z - 1e9 * (gamma > 0))
        both = z.detach() + f.detach() @ w[OWN[0]].T + w[OWN[1]]
        return log_loss(balanced, y) + log_loss(both, y)

    return loss


@pytest.mark.parametrize(("gamma", "batch"), [(1.0, "full"), (0.5, 64)])
def test_a_balanced_loss_trains_what_is_shared_and_a_plain_one_the_personal_head(
    gamma: float, batch: int | str
) -> None:
    run = train(f"fedrod(gamma={gamma})", batch=batch, split="dirichlet:0.3", fraction=0.4)
    p = problem(run)
    w, own = fedrod(p, gamma)
    assert any(bool((torch.bincount(y, minlength=10) == 0).any()) for _, y in p.data)  # somebody misses a class
    agree(run, w)
    for k, tensors in memories(run).items():
        expected = torch.cat([own[k][name].flatten() for name in OWN])
        torch.testing.assert_close(tensors["personal"].double(), expected, rtol=0, atol=1e-5)
    accuracies = []
    for mine, (x, y) in zip(own, own_tests(p), strict=True):
        weight, bias = (w[name] + mine[other] for name, other in zip(HEAD, OWN, strict=True))
        accuracies.append(share_right(features(w, x) @ weight.T + bias, y))
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(accuracies, abs=1e-9)
    absent = [k for k in range(5) if k not in memories(run)]
    assert absent  # and has the generic model
    assert all(run.clients[-1]["personal_accuracy"][k] == run.clients[-1]["accuracy"][k] for k in absent)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}  # the personal head is never sent


def test_without_the_prior_the_generic_model_is_fedavg_s() -> None:
    plain = train("fedavg")
    run = train("fedrod(gamma=0)")
    generic, other = run.weights, plain.weights
    assert max(float((generic[name] - other[name]).abs().max()) for name in ORDER) < 1e-6
    assert max(float(generic[name].abs().max()) for name in OWN) == 0
    moved = train("fedrod").weights
    assert max(float((moved[name] - other[name]).abs().max()) for name in ORDER) > 1e-3
    assert run.summary["personal_accuracy"]["mean"] > run.summary["client_accuracy"]["mean"]
    assert fl.personalize(run, epochs=0).accuracy == [run.clients[-1]["personal_accuracy"]]


def test_controls_cover_what_is_shared_and_workers_change_no_bit() -> None:
    one, other = (train("scaffold + fedrod", workers=workers) for workers in (1, 3))
    assert one.summary["digest"] == other.summary["digest"]
    assert gap(one, train("fedrod")) > 1e-3 and distance(one) > 1e-3
    for k, tensors in memories(one).items():
        assert all(torch.equal(value, memories(other)[k][name]) for name, value in tensors.items())


@pytest.mark.parametrize(
    ("sum_of_parts", "reason"),
    [
        ("fedrod + fedlc", "fedrod and fedlc both decide what the local loss is; keep one"),
        ("fn + fedrod", "fn and fedrod both replace the head; keep one"),
    ],
)
def test_a_second_loss_or_head_is_refused_by_name(sum_of_parts: str, reason: str) -> None:
    with pytest.raises(FedloomError, match=reason):
        method(sum_of_parts)
    with pytest.raises(FedloomError, match="fedrod and fedper both decide what happens to the head; keep one"):
        train("fedrod + fedper")
