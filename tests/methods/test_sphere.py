"""SphereFed."""

from __future__ import annotations

import pytest
import reference
import torch
from reference import BODY
from reference_heads import on_sphere, squares_on_sphere
from tiny import BODY_BYTES, agree, distance, problem, traffic, train

from fedloom import FedloomError


def test_the_rows_of_the_head_are_orthonormal() -> None:
    rows = problem(train("sphere", rounds=1)).initial["head.weight"]
    torch.testing.assert_close(rows @ rows.T, torch.eye(10, dtype=torch.double), rtol=0, atol=1e-6)


def test_they_are_gram_schmidts_of_the_drawn_head() -> None:
    rows = problem(train("sphere", rounds=1)).initial["head.weight"]
    drawn = problem(train("fedavg", rounds=1)).initial["head.weight"]
    made: list[torch.Tensor] = []
    for row in drawn:
        rest = row - sum(((row @ v) * v for v in made), start=torch.zeros_like(row))
        made.append(rest / rest.square().sum().sqrt())
    torch.testing.assert_close(rows, torch.stack(made), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("scale", "lr", "batch"), [(1.0, 0.5, "full"), (15.0, 0.1, "full"), (10.0, 0.1, 64)])
def test_cross_entropy_of_scaled_cosines_is_trained(scale: float, lr: float, batch: int | str) -> None:
    run = train(f"sphere(scale={scale})", lr=lr, batch=batch, lanes=2)
    agree(run, reference.fedavg(problem(run), on_sphere(scale), BODY))


def test_or_the_mean_square_over_batch_and_classes() -> None:
    run = train("sphere(loss=mse)", lr=2.0)
    agree(run, reference.fedavg(problem(run), squares_on_sphere, BODY))


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_the_reported_loss_is_the_one_that_is_trained(loss: str) -> None:
    run = train(f"sphere(loss={loss}, scale=5)", rounds=1, epochs=1, fraction=1.0)
    x, y = reference.training_images()
    expected = (on_sphere(5.0) if loss == "ce" else squares_on_sphere)(problem(run).initial, x, y)
    assert run.rounds[0]["train_loss"] == pytest.approx(float(expected), abs=1e-6)


def test_the_head_never_moves_and_never_travels() -> None:
    run = train("spherefed", lr=1.0, weight_decay=0.1)
    assert distance(run, ("head.weight",)) == 0
    assert set(run.weights) == {*BODY, "head.weight"}
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}


def test_too_few_dimensions_are_refused() -> None:
    with pytest.raises(
        FedloomError, match="method: sphere: 10 orthonormal class directions need features of at least 10"
    ):
        train("moon(projection=9) + sphere")
