"""pFedMe: proximal personal models."""

from __future__ import annotations

import pytest
import torch
from reference import ORDER, Problem, Weights, cross_entropy, features, flat, gradients, mean
from reference_personal import own_tests, share_right
from tiny import MODEL_BYTES, agree, gap, memories, problem, traffic, train

import fedloom as fl
from fedloom import FedloomError, method


def pfedme(
    p: Problem, lam: float, steps: int, alpha: float, mu: float = 0.0, beta: float = 1.0
) -> tuple[Weights, list[Weights | None]]:
    """The global model and everybody's theta, tensor by tensor."""
    w_g, names = p.initial, list(p.initial)
    own: list[Weights | None] = [None for _ in p.data]
    for t, cohort in p.rounds:
        rows = []
        for k in cohort:
            w, theta = dict(w_g), dict(w_g)
            velocity = {n: torch.zeros_like(w[n]) for n in names}
            for x, y in p.batches(k, p.recipe["epochs"], p.shuffles(t, k)):
                for _ in range(steps):
                    g = gradients(cross_entropy, theta, x, y, names)
                    theta = {n: theta[n] - alpha * (g[n] + lam * (theta[n] - w[n]) + mu * theta[n]) for n in names}
                for n in names:
                    g_n = lam * (w[n] - theta[n]) + p.recipe["weight_decay"] * w[n]
                    velocity[n] = p.recipe["momentum"] * velocity[n] + g_n
                    w[n] = w[n] - p.rate(t) * velocity[n]
            own[k] = theta
            rows.append(w)
        average = mean(rows, p.shares(cohort))
        w_g = {n: (1 - beta) * w_g[n] + beta * average[n] for n in names}
    return w_g, own


@pytest.mark.parametrize(
    ("text", "values", "fields"),
    [
        ("pfedme", {"lam": 15, "steps": 5, "alpha": 0.09}, {"momentum": 0.0}),
        (
            "pfedme(lam=4, steps=2, alpha=0.1, mu=0.01) + fedavgm(beta=0, lr=1.5)",
            {"lam": 4, "steps": 2, "alpha": 0.1, "mu": 0.01, "beta": 1.5},
            {"batch": 128},
        ),
    ],
)
def test_personal_models_take_proximal_steps_and_the_global_one_follows(
    text: str, values: dict[str, float], fields: dict[str, object]
) -> None:
    run = train(text, **{"lr": 0.03, "epochs": 2, "fraction": 0.4, **fields})
    p = problem(run)
    w, own = pfedme(p, **values)  # type: ignore[arg-type]
    agree(run, w)
    remembered = memories(run)
    assert set(remembered) == {k for k, theta in enumerate(own) if theta is not None} != set(range(5))
    accuracies = []
    for k, (x, y) in enumerate(own_tests(p)):
        theta = own[k] or w  # a client without one has the global model
        if k in remembered:
            torch.testing.assert_close(remembered[k]["pfedme.theta"].double(), flat(theta), rtol=0, atol=1e-5)
        accuracies.append(share_right(features(theta, x) @ theta["head.weight"].T + theta["head.bias"], y))
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(accuracies, abs=1e-9)
    assert traffic(run) == {(MODEL_BYTES, MODEL_BYTES)}


def test_untied_the_global_model_stays_and_at_rate_one_over_lam_clients_upload_theta() -> None:
    fields = {"momentum": 0.0, "weight_decay": 0.0, "rounds": 1, "epochs": 2}
    still = train("pfedme(lam=0, alpha=0.01)", **fields)
    initial = problem(still).initial
    assert (
        max(float((still.weights[n].double() - initial[n]).abs().max()) for n in ORDER) < 1e-6
    )  # rounding of the mean
    run = train("pfedme(lam=10, alpha=0.05)", lr=0.1, **fields)
    shares = problem(run).shares(problem(run).cohorts[0])
    thetas = [memories(run)[k]["pfedme.theta"].double() for k in problem(run).cohorts[0]]
    expected = sum(share * theta for share, theta in zip(shares, thetas, strict=True))
    final = flat({n: v.double() for n, v in run.weights.items()})
    torch.testing.assert_close(final, expected, rtol=0, atol=1e-5)
    assert gap(run, train("fedavg", **fields)) > 1e-3


def test_workers_change_no_bit_and_controls_apply() -> None:
    fields = {"lr": 0.03, "rounds": 2, "epochs": 1}
    one, other = (train("scaffold + pfedme(steps=2)", workers=workers, **fields) for workers in (1, 3))
    assert one.summary["digest"] == other.summary["digest"]
    assert gap(one, train("pfedme(steps=2)", **fields)) > 1e-5


def test_a_second_gradient_is_refused_by_name() -> None:
    with pytest.raises(FedloomError, match="pfedme and perfedavg both decide how the gradient is computed; keep one"):
        method("pfedme + perfedavg")
    with pytest.raises(FedloomError, match="vmap: pfedme computes gradients in its own way"):
        fl.run(data="digits", method="pfedme", vmap=2, rounds=1)
