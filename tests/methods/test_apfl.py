"""APFL: a mixture of the client's model and the global one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from reference import Problem, Weights, cross_entropy, features, flat, gradients, mean
from reference_personal import NORMED, own_tests, share_right
from tiny import MODEL_BYTES, agree, memories, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError, method


def apfl(p: Problem, alpha: float, adaptive: bool) -> tuple[Weights, list[tuple[Weights, float, Weights] | None]]:
    """The global model; everybody's v, alpha and mixture."""
    w_g, names = p.initial, list(p.initial)
    own: list[tuple[Weights, float, Weights] | None] = [None for _ in p.data]
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            v, a, _ = own[k] or (p.initial, alpha, {})
            w, velocity = dict(w_g), {n: torch.zeros_like(w_g[n]) for n in names}
            for x, y in p.batches(k, p.recipe["epochs"], p.shuffles(t, k)):
                g = gradients(cross_entropy, w, x, y, names)
                for n in names:
                    velocity[n] = p.recipe["momentum"] * velocity[n] + g[n] + p.recipe["weight_decay"] * w[n]
                    w[n] = w[n] - p.rate(t) * velocity[n]
                mixed = {n: a * v[n] + (1 - a) * w[n] for n in names}
                g = gradients(cross_entropy, mixed, x, y, names)
                slope = sum(float(((v[n] - w[n]) * g[n]).sum()) for n in names)
                v = {n: v[n] - p.rate(t) * a * g[n] for n in names}
                a = min(max(a - p.rate(t) * slope, 0.0), 1.0) if adaptive else a
            own[k] = v, a, {n: a * v[n] + (1 - a) * w[n] for n in names}
            rows.append(w)
        w_g = mean(rows, p.shares(cohort))
    return w_g, own


@pytest.mark.parametrize(("alpha", "adaptive", "batch"), [(0.5, False, "full"), (0.25, True, 128)])
def test_v_follows_the_gradient_at_the_mixture(alpha: float, adaptive: bool, batch: int | str) -> None:
    text = f"apfl(alpha={alpha}, adaptive={str(adaptive).lower()})"
    run = train(text, batch=batch, fraction=0.4, lr=0.05, epochs=2, schedule="step")
    p = problem(run)
    w, own = apfl(p, alpha, adaptive)
    agree(run, w)
    remembered, accuracies = memories(run), []
    assert set(remembered) == {k for k, kept in enumerate(own) if kept} != set(range(5))
    for k, (x, y) in enumerate(own_tests(p)):
        model = w  # of a client without a model of its own
        if kept := own[k]:
            v, a, model = kept
            torch.testing.assert_close(remembered[k]["apfl.v"].double(), flat(v), rtol=0, atol=1e-5)
            torch.testing.assert_close(remembered[k]["apfl.mixed"].double(), flat(model), rtol=0, atol=1e-5)
            assert float(remembered[k]["apfl.alpha"]) == pytest.approx(a, abs=1e-5)
            assert (abs(a - alpha) > 1e-3) == adaptive
        accuracies.append(share_right(features(model, x) @ model["head.weight"].T + model["head.bias"], y))
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(accuracies, abs=1e-9)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_the_global_stream_is_to_the_bit_that_of_the_same_sum_without_it() -> None:
    dropping = NORMED.replace("nn.ReLU())", "nn.ReLU(), nn.Dropout(0.3))").replace("normed", "dropping")
    Path("dropping.py").write_text(dropping)
    fields = {"model": "dropping.py:dropping", "batch": 128, "rounds": 2, "epochs": 1}
    without = train("scaffold", **fields)
    for run in (train("scaffold + apfl", workers=3, **fields), train("apfl + scaffold", **fields)):
        assert run.summary["digest"] == without.summary["digest"]
        assert [line["train_loss"] for line in run.rounds] == [line["train_loss"] for line in without.rounds]


def test_at_the_ends_v_stays_or_is_trained_alone() -> None:
    fields = {"momentum": 0.0, "weight_decay": 0.0, "rounds": 2, "epochs": 1}
    still = train("apfl(alpha=0)", **fields)
    for tensors in memories(still).values():
        assert torch.equal(tensors["apfl.v"].double(), flat(problem(still).initial))
    alone = memories(train("local", **fields))
    for k, tensors in memories(train("apfl(alpha=1)", **fields)).items():
        torch.testing.assert_close(tensors["apfl.v"], alone[k]["personal"], rtol=0, atol=1e-5)


def test_it_goes_on_in_a_query_that_trains() -> None:
    """The extra epochs of fnr continue v from where training left it."""
    fields = {"rounds": 1, "momentum": 0.0, "weight_decay": 0.0}
    short, longer = (memories(train(text, **fields)) for text in ("apfl", "apfl + fnr(epochs=2, strength=0)"))
    moved = [float((longer[k]["apfl.v"] - short[k]["apfl.v"]).abs().max()) for k in short]
    assert max(moved) > 1e-4 and min(moved) == 0  # only the clients that were asked


def test_refusals_are_by_name() -> None:
    with pytest.raises(FedloomError, match="apfl acts on what clients share, and with local they share nothing"):
        method("apfl + local")
    with pytest.raises(FedloomError, match="vmap: apfl works after every step, one client at a time; set vmap to off"):
        fl.run(data="digits", method="apfl", vmap=2, rounds=1)
