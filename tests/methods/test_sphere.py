"""SphereFed."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from reference import BODY
from reference_heads import on_sphere, squares_on_sphere
from reference_personal import held_images
from tiny import BODY_BYTES, agree, distance, problem, traffic, train

import fedloom as fl
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
    run = train(f"sphere(scale={scale})", lr=lr, batch=batch, workers=2)
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


def test_the_name_of_the_paper_is_the_mean_squared_form_without_calibration() -> None:
    assert str(fl.method("spherefed")) == "sphere(loss=mse)"
    run = train("spherefed", lr=2.0)
    agree(run, reference.fedavg(problem(run), squares_on_sphere, BODY))
    assert str(fl.method("spherefed(loss=ce, scale=15)")) == "sphere(scale=15.0)"


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


# closed-form calibration


def test_calibration_solves_the_ridge_regression_of_all_clients_images() -> None:
    run = train("sphere(calibrate=true, ridge=0.01)", lr=0.5, rounds=2, workers=2)
    w, p = run.weights, problem(run)
    x, y = (np.concatenate([own[i].numpy() for own in p.data]) for i in (0, 1))
    assert len(y) == len(reference.training_images()[1])  # also of clients that no round met
    f = np.maximum(x @ w["body.1.weight"].double().numpy().T + w["body.1.bias"].double().numpy(), 0)
    z = f / np.linalg.norm(f, axis=1, keepdims=True)
    gram, cross = z.T @ z, z.T @ np.eye(10)[y]
    expected = np.linalg.solve(gram + 0.01 * np.trace(gram) / 64 * np.eye(64), cross).T
    np.testing.assert_allclose(w["head.weight"].numpy(), expected, rtol=0, atol=1e-4)
    right = (held_images()[0].numpy() @ w["body.1.weight"].double().numpy().T + w["body.1.bias"].double().numpy()).clip(
        0
    )
    accuracy = float(((right @ expected.T).argmax(1) == held_images()[1].numpy()).mean())
    assert run.summary["test_accuracy"] == pytest.approx(accuracy, abs=0.005)


def test_before_the_end_it_changes_nothing_and_its_bytes_are_counted_once() -> None:
    plain, run = train("sphere", rounds=2), train("sphere(calibrate=true)", rounds=2)
    for name in BODY:
        torch.testing.assert_close(run.weights[name], plain.weights[name], rtol=0, atol=0)
    assert distance(run, ("head.weight",)) > 0.01
    first, last = run.rounds
    assert (first["bytes_down"], first["bytes_up"]) == (3 * BODY_BYTES, 3 * BODY_BYTES)
    told = 5 * 4 * (64 * 64 + 64 * 10)
    assert (last["bytes_down"], last["bytes_up"]) == (8 * BODY_BYTES, 3 * BODY_BYTES + told)
