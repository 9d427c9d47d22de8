"""FedGELA."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reference
import torch
from reference_heads import GELA, Normalizer, counts, gela, hidden
from reference_personal import held_images, share_right
from reference_regularizers import divergence
from tiny import BODY_BYTES, agree, distance, problem, seen, traffic, train
from torch import Tensor

from fedloom.methods.gela import Gela

STATISTICS = ("body.1.running_mean", "body.1.running_var")
FIELDS = {"lr": 0.005, "epochs": 2}


def test_the_rows_of_the_head_are_a_simplex_and_features_are_normalized_by_the_batch() -> None:
    run = train("gela", rounds=1)
    rows = problem(run).initial["head.weight"]
    expected = torch.eye(10, dtype=torch.double) * (1 + 1 / 9) - 1 / 9
    torch.testing.assert_close(rows @ rows.T, expected, rtol=0, atol=1e-6)
    assert set(run.weights) == {*GELA, *STATISTICS, "head.weight"}


@pytest.mark.parametrize(("temperature", "batch"), [(0.2, "full"), (1.0, "full"), (1.0, 200)])
def test_a_clients_rows_are_scaled_by_its_class_counts(temperature: float, batch: int | str) -> None:
    run = train(f"gela(temperature={temperature})", batch=batch, workers=2, **FIELDS)
    told = problem(run)
    assert all(len(y) % 200 != 1 for _, y in told.data)  # a lone sample would join the batch before it
    agree(run, gela(told, temperature))
    assert all(distance(run, (name,)) > 1e-3 for name in GELA)


def test_a_class_that_a_client_does_not_hold_has_the_logit_zero() -> None:
    run = train("gela(temperature=1)", split="shards:2", **FIELDS)
    told = problem(run)
    assert all((counts(told, k) == 0).sum() > 0 for k in range(5))
    agree(run, gela(told, 1.0))
    z, y = torch.randn(4, 3), torch.tensor([0, 2, 2, 2])
    batch, client = seen(z, y=y)
    client.counts = torch.tensor([1.0, 0.0, 3.0])
    scaled = torch.stack([z[:, 0] * 3 / 4, torch.zeros(4), z[:, 2] * 9 / 4], 1) / 0.2
    torch.testing.assert_close(Gela().loss(batch, client), torch.nn.functional.cross_entropy(scaled, y))


def test_without_running_averages_the_batch_is_all_there_is() -> None:
    run = train("gela(temperature=1)", bn="batch", **FIELDS)
    assert set(run.weights) == {*GELA, "head.weight"}
    agree(run, gela(problem(run), 1.0))


def test_a_teacher_stands_on_the_running_averages_of_the_round_before() -> None:
    run = train("gela(temperature=1) + fd(beta=0.5)", **FIELDS)
    agree(run, gela(problem(run), 1.0, beta=0.5))


def _without(z: Tensor, y: Tensor) -> Tensor:
    return torch.stack([torch.cat([row[:c], row[c + 1 :]]) for row, c in zip(z, y.tolist(), strict=True)])


@pytest.mark.parametrize(
    ("other", "term"),
    [
        ("kd(beta=0.5)", lambda z, z_g, _: divergence(z_g, z, 1.0)),
        ("ld(beta=0.5)", lambda z, z_g, _: (z - z_g).square().mean()),
        ("ntd(beta=0.5)", lambda z, z_g, y: divergence(_without(z_g, y), _without(z, y), 1.0)),
    ],
)
def test_distillation_is_of_plain_simplex_logits_without_counts_and_temperature(
    other: str, term: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    run = train(f"gela(temperature=0.5) + {other}", split="shards:2", **FIELDS)
    agree(run, gela(problem(run), 0.5, beta=0.5, of_logits=term))


def test_the_global_model_is_tested_with_the_plain_simplex_and_running_averages() -> None:
    run = train("gela", split="shards:2", **FIELDS)
    x, y = held_images()
    w = reference.read(run.path / "final.safetensors")
    logits = Normalizer(w, "body.1").test(w, hidden(w, x)) @ w["head.weight"].T
    assert run.summary["test_accuracy"] == pytest.approx(share_right(logits, y), abs=1e-9)


def test_the_simplex_never_moves_and_never_travels() -> None:
    run = train("fedgela", weight_decay=0.1, **FIELDS)
    assert distance(run, ("head.weight",)) == 0
    bytes_ = BODY_BYTES + 4 * (2 * 64 + 2 * 64)  # scale and shift, mean and variance
    assert traffic(run) == {(bytes_, bytes_)}
    without = train("gela", bn="batch", rounds=1, **FIELDS)
    assert traffic(without) == {(BODY_BYTES + 4 * 2 * 64, BODY_BYTES + 4 * 2 * 64)}
