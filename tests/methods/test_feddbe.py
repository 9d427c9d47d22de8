"""FedDBE: a personal shift of the features, and a common mean."""

from __future__ import annotations

import pytest
import torch
from reference import ORDER, Loss, Problem, Weights, features, mean
from reference_personal import own_tests, share_right
from tiny import MODEL_BYTES, agree, gap, memories, problem, train
from torch import Tensor

import fedloom as fl
from fedloom import FedloomError
from fedloom.rng import torch_generator

SHIFT = "head.shift"


class Dbe:
    """The loss with a running mean; the mean of the latest batch has a gradient."""

    def __init__(self, kappa: float, mu: float, common: Tensor | None) -> None:
        self.kappa, self.mu, self.common, self.running = kappa, mu, common, torch.zeros(64, dtype=torch.float64)

    def __call__(self, w: Weights, x: Tensor, y: Tensor) -> Tensor:
        f = features(w, x)
        logits = (f + w.get(SHIFT, torch.zeros(64))) @ w["head.weight"].T + w["head.bias"]
        m = (1 - self.mu) * self.running + self.mu * f.mean(0)
        self.running = m.detach()
        term = 0.0 if self.common is None else 0.5 * (m - self.common).square().mean()
        return -logits.log_softmax(1)[torch.arange(len(y)), y].mean() + self.kappa * term


def common_mean(p: Problem, mu: float) -> Tensor:
    """After a round's plain training of every client, without shifts."""
    total, count, plain = torch.zeros(64, dtype=torch.float64), 0, {name: p.initial[name] for name in ORDER}
    for k, (_, y) in enumerate(p.data):
        loss: Loss = Dbe(0.0, mu, None)
        draws = torch_generator(p.recipe["seed"], "aside", "feddbe", 1, k)
        p.local(plain, 1, k, loss, batches=p.batches(k, p.recipe["epochs"], draws))
        total, count = total + len(y) * loss.running, count + len(y)  # type: ignore[attr-defined]
    return total / count


def feddbe(p: Problem, kappa: float, mu: float) -> tuple[Weights, list[Tensor], Tensor]:
    w, common = p.initial, common_mean(p, mu)
    shifts = [w[SHIFT] for _ in p.data]
    for t, cohort in p.rounds:
        rows = [p.local({**w, SHIFT: shifts[k]}, t, k, Dbe(kappa, mu, common)) for k in cohort]
        for k, row in zip(cohort, rows, strict=True):
            shifts[k] = row[SHIFT]
        w = {**w, **mean([{n: row[n] for n in ORDER} for row in rows], p.shares(cohort))}
    return w, shifts, common


@pytest.mark.parametrize(("kappa", "mu", "batch"), [(50.0, 1.0, "full"), (5.0, 0.3, 64)])
def test_means_are_pulled_to_a_common_one_and_shifts_stay_with_clients(
    kappa: float, mu: float, batch: int | str
) -> None:
    run = train(f"feddbe(kappa={kappa}, mu={mu})", batch=batch, lr=0.05, fraction=0.4, rounds=2)
    p = problem(run)
    w, shifts, common = feddbe(p, kappa, mu)
    agree(run, w)
    remembered = memories(run)
    for k, tensors in remembered.items():
        torch.testing.assert_close(tensors["personal"].double(), shifts[k], rtol=0, atol=1e-5)
    assert len(remembered) < 5 and all(float(tensors["personal"].abs().max()) > 1e-3 for tensors in remembered.values())
    expected = [
        share_right((features(w, x) + b) @ w["head.weight"].T + w["head.bias"], y)
        for b, (x, y) in zip(shifts, own_tests(p), strict=True)
    ]
    assert run.clients[-1]["personal_accuracy"] == pytest.approx(expected, abs=1e-9)
    vector, first, second = 4 * 64, *run.rounds
    assert [line["bytes_up"] for line in run.rounds] == [2 * MODEL_BYTES + 5 * (vector + 4), 2 * MODEL_BYTES]
    assert (first["bytes_down"], second["bytes_down"]) == (7 * (MODEL_BYTES + vector), 2 * (MODEL_BYTES + vector))
    assert float((common - features(p.initial, p.data[0][0]).mean(0)).abs().max()) > 1e-3


def test_without_pull_and_shift_it_is_fedavg_and_either_moves_the_weights() -> None:
    plain = train("fedavg")
    assert train("feddbe(kappa=0, bias=false)").summary["digest"] == plain.summary["digest"]
    assert gap(train("feddbe(kappa=5, bias=false)", lr=0.05), train("fedavg", lr=0.05)) > 1e-3
    shifted = train("feddbe(kappa=0)")
    assert max(float((shifted.weights[n] - plain.weights[n]).abs().max()) for n in ORDER) > 1e-4
    assert shifted.rounds[0]["bytes_down"] == plain.rounds[0]["bytes_down"]  # nobody is asked


def test_workers_change_no_bit_and_any_head_can_be_shifted() -> None:
    fields = {"rounds": 2, "epochs": 1, "lr": 0.05}
    for text in ("scaffold + feddbe(kappa=5) + fn", "feddbe(kappa=5, mu=0.5) + dr"):
        one, other = (train(text, workers=workers, **fields) for workers in (1, 3))
        assert one.summary["digest"] == other.summary["digest"]
    resumed = fl.personalize(one, epochs=0)
    assert resumed.accuracy == [one.clients[-1]["personal_accuracy"]]


def test_refusals_are_by_name() -> None:
    with pytest.raises(FedloomError, match=r"vmap: the loss of feddbe asks for client\.steps"):
        train("feddbe(mu=0.5)", vmap=2)
    with pytest.raises(FedloomError, match="feddbe and fedper both decide what happens to the head; keep one"):
        train("feddbe + fedper")
