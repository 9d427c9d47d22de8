"""FedETF."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import BODY
from reference_heads import averaged, balanced, counts, entropy, projected
from reference_personal import held_images, share_right
from tiny import BODY_BYTES, agree, distance, problem, seen, traffic, train

from fedloom.methods.etf import ETF

TRAINED = (*BODY, "head.scale", "head.projection.weight")


def test_the_fixed_directions_are_a_simplex() -> None:
    rows = problem(train("etf", rounds=1)).initial["head.weight"]
    expected = torch.eye(10, dtype=torch.double) * (1 + 1 / 9) - 1 / 9
    torch.testing.assert_close(rows @ rows.T, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("gamma", "batch"), [(1.0, "full"), (0.5, "full"), (1.0, 64)])
def test_projection_scale_and_body_are_trained_by_the_balanced_softmax(gamma: float, batch: int | str) -> None:
    run = train(f"etf(gamma={gamma})", lr=0.3, batch=batch, workers=2)
    told = problem(run)
    assert told.initial["head.scale"].tolist() == [1.0]
    assert any((counts(told, k) == 0).any() for cohort in told.cohorts for k in cohort)
    agree(run, averaged(told, lambda k: balanced(counts(told, k), gamma), TRAINED))
    assert all(distance(run, (name,)) > 1e-3 for name in TRAINED)


def test_classes_that_a_client_does_not_hold_take_no_part() -> None:
    run = train("etf", split="shards:2", lr=0.3)
    told = problem(run)
    assert all((counts(told, k) == 0).sum() > 0 for k in range(5))
    assert all(line["lost"] == 0 and line["train_loss"] is not None for line in run.rounds)
    assert all(tensor.isfinite().all() for tensor in run.weights.values())
    agree(run, averaged(told, lambda k: balanced(counts(told, k), 1.0), TRAINED))


def test_their_logits_have_no_gradient_and_the_others_a_finite_one() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    batch, client = seen(z, y=torch.tensor([0, 2, 2, 0]))
    client.counts = torch.tensor([2.0, 0.0, 2.0])
    ETF().loss(batch, client).backward()
    assert z.grad is not None and z.grad.isfinite().all()
    assert z.grad[:, 1].abs().max() == 0 < z.grad[:, 0].abs().min()


def test_without_balancing_it_is_cross_entropy() -> None:
    run = train("etf(gamma=0)", split="shards:2", lr=0.3)
    agree(run, reference.fedavg(problem(run), lambda w, x, y: entropy(projected(w, x), y), TRAINED))


def test_classes_in_equal_numbers_balance_nothing() -> None:
    z, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    batch, client = seen(z, y=y)
    client.counts = torch.tensor([40.0, 40.0, 40.0])
    torch.testing.assert_close(ETF(gamma=1).loss(batch, client), ETF(gamma=0).loss(batch, client))


def test_predictions_use_the_logits_alone() -> None:
    run = train("etf", split="shards:2", lr=0.3)
    x, y = held_images()
    logits = projected(reference.read(run.path / "final.safetensors"), x)
    assert run.summary["test_accuracy"] == pytest.approx(share_right(logits, y), abs=1e-9)


def test_the_simplex_never_moves_and_never_travels() -> None:
    run = train("fedetf", lr=0.3, weight_decay=0.1)
    assert distance(run, ("head.weight",)) == 0
    assert set(run.weights) == {*TRAINED, "head.weight"}
    bytes_ = BODY_BYTES + 4 * (10 * 64 + 1)
    assert traffic(run) == {(bytes_, bytes_)}
