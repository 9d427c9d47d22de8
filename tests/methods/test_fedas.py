"""FedAS: aligned bodies, weighed by information."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference import BODY, HEAD, Problem, Weights, cross_entropy, features, flat, gradients, mean, square
from reference_personal import own_tests, share_right
from tiny import BODY_BYTES, agree, gap, memories, problem, traffic, train
from torch import Tensor

from fedloom import FedloomError, method
from fedloom.methods.fedas import FedAS
from fedloom.rng import torch_generator


def aligned(p: Problem, w: Weights, own: Weights, t: int, k: int, rate: float, size: int) -> Weights:
    x, y = p.data[k]
    f = features(own, x)
    means = {int(c): f[y == c].mean(0) for c in y.unique()}

    def loss(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f = features(w, x)
        return sum((f[y == c] - means[int(c)]).square().mean() for c in y.unique())  # type: ignore[return-value]

    order = torch.randperm(len(y), generator=torch_generator(p.recipe["seed"], "aside", "fedas", t, k))
    for chosen in order.split(size):
        g = gradients(loss, w, x[chosen], y[chosen], BODY)
        w = {**w, **{n: w[n] - rate * g[n] for n in BODY}}
    return w


def information(p: Problem, w: Weights, k: int) -> float:
    x, y = p.data[k]
    size = len(y) if p.recipe["batch"] == "full" else p.recipe["batch"]
    return sum(
        square(gradients(cross_entropy, w, a, b, list(w))) for a, b in zip(x.split(size), y.split(size), strict=True)
    )


def fedas(p: Problem, rate: float, size: int) -> tuple[Weights, list[Weights | None]]:
    w = p.initial
    own: list[Weights | None] = [None for _ in p.data]
    for t, cohort in p.rounds:
        weights, rows = [], []
        for k in cohort:
            before = own[k] or p.initial
            start = aligned(p, {**w, **{n: before[n] for n in HEAD}}, before, t, k, rate, size)
            row = p.local(start, t, k, cross_entropy)
            weights.append(information(p, row, k))
            rows.append(row)
            own[k] = row
        body = mean(rows, [weight / sum(weights) for weight in weights])
        w = {**w, **{n: body[n] for n in BODY}}
    return w, own


@pytest.mark.parametrize(("rate", "size", "batch"), [(0.01, 16, "full"), (0.05, 50, 128)])
def test_bodies_are_aligned_first_and_averaged_by_information(rate: float, size: int, batch: int | str) -> None:
    run = train(f"fedas(rate={rate}, batch={size})", batch=batch, epochs=2, fraction=0.4, lr=0.05)
    p = problem(run)
    w, own = fedas(p, rate, size)
    agree(run, w)
    remembered, accuracies = memories(run), []
    assert set(remembered) == {k for k, model in enumerate(own) if model} != set(range(5))
    for k, (x, y) in enumerate(own_tests(p)):
        model = own[k] or w  # the served body with the initial head
        if k in remembered:
            torch.testing.assert_close(remembered[k]["fedas.own"].double(), flat(model), rtol=0, atol=1e-5)
        accuracies.append(share_right(features(model, x) @ model["head.weight"].T + model["head.bias"], y))
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(accuracies, abs=1e-9)
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES + 4)}


def test_without_alignment_and_weights_it_is_fedper_and_either_moves_the_body() -> None:
    plain = train("fedper")
    assert train("fedas(rate=0, weigh=false)").summary["digest"] == plain.summary["digest"]
    assert gap(train("fedas(rate=0)"), plain) > 1e-3
    assert gap(train("fedas(weigh=false)"), plain) > 1e-3


def test_uploads_count_as_much_as_their_information() -> None:
    server: Any = SimpleNamespace(extras=lambda name: [torch.tensor([value]) for value in (1.0, 3.0, 4.0)])
    assert list(FedAS().weigh_uploads([0.5, 0.3, 0.2], server)) == [1.0, 3.0, 4.0]
    assert not method("fedas(weigh=false)").hooked("weigh_uploads")
    assert method("fedas(weigh=false) + krum").parts  # which counts all uploads alike


def test_workers_change_no_bit_and_it_adds_to_other_parts() -> None:
    fields = {"rounds": 2, "epochs": 1}
    one, other = (train("prox(mu=0.1) + fedas + fedavgm", workers=workers, **fields) for workers in (1, 3))
    assert one.summary["digest"] == other.summary["digest"]
    assert gap(one, train("fedas", **fields)) > 1e-4


def test_a_second_weighing_or_head_is_refused_by_name() -> None:
    with pytest.raises(FedloomError, match="fedas and disco both decide how much each upload counts; keep one"):
        method("fedas + disco")
    with pytest.raises(FedloomError, match="fedas and babu both decide what happens to the head; keep one"):
        train("fedas + babu")
