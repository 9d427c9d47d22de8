"""Dot-regression on a frozen simplex ETF."""

from __future__ import annotations

import reference
import torch
from reference import BODY, dot_regression
from tiny import BODY_BYTES, agree, distance, problem, traffic, train


def test_the_rows_of_the_head_are_a_simplex() -> None:
    rows = problem(train("dr", rounds=1)).initial["head.weight"]
    gram = rows @ rows.T  # unit length, pairwise cosine -1/(C-1)
    expected = torch.eye(10, dtype=torch.double) * (1 + 1 / 9) - 1 / 9
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-6)


def test_the_simplex_lies_in_the_span_of_the_drawn_head() -> None:
    rows = problem(train("dr", rounds=1)).initial["head.weight"]
    drawn = problem(train("fedavg", rounds=1)).initial["head.weight"]
    rest = rows.T - drawn.T @ torch.linalg.lstsq(drawn.T, rows.T).solution
    assert rest.abs().max() < 1e-6


def test_features_are_pulled_to_their_class_by_definition_of_the_loss() -> None:
    run = train("dr", lr=1.0)
    told = problem(run)
    agree(run, reference.fedavg(told, dot_regression, BODY))
    initial, final = told.initial, reference.read(run.path / "final.safetensors")
    x, y = reference.training_images()
    assert dot_regression(final, x, y) < 0.9 * dot_regression(initial, x, y)


def test_the_reported_loss_is_the_dot_regression() -> None:
    run = train("dr", rounds=1, epochs=1, fraction=1.0)
    x, y = reference.training_images()
    loss = dot_regression(problem(run).initial, x, y)
    assert abs(run.rounds[0]["train_loss"] - float(loss)) < 1e-6


def test_the_head_never_moves_and_never_travels() -> None:
    run = train("dr", lr=1.0, weight_decay=0.1)
    assert distance(run, ("head.weight",)) == 0
    assert traffic(run) == {(BODY_BYTES, BODY_BYTES)}
