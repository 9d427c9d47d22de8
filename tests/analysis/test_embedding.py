"""Two dimensions: the same every time, classes stay together, odd inputs fall back to principal components."""

from __future__ import annotations

import numpy as np

from fedloom.analysis.embedding import embed, principal


def test_t_sne_is_the_same_every_time_and_keeps_clusters_apart() -> None:
    draw = np.random.default_rng(0)
    labels = np.arange(60) % 3
    f = draw.normal(size=(60, 10)) + 20 * np.eye(10)[labels]
    made, kind = embed(f, seed=5)
    assert kind == "tsne"
    np.testing.assert_array_equal(made, embed(f, seed=5)[0])
    distance = np.linalg.norm(made[:, None] - made[None], axis=2) + 1e9 * np.eye(60)
    assert (labels[distance.argmin(1)] == labels).all()


def test_few_points_and_points_without_variance_are_projected() -> None:
    f = np.random.default_rng(1).normal(size=(5, 4))
    made, kind = embed(f, seed=0)
    assert kind == "pca" and made.shape == (5, 2)
    assert embed(np.ones((50, 4)), seed=0)[1] == "pca"
    assert embed(np.arange(50.0)[:, None], seed=0)[0][:, 1].tolist() == [0.0] * 50
    assert np.isfinite(embed(np.full((50, 4), np.nan), seed=0)[0]).all()


def test_principal_components_hold_the_most_variance() -> None:
    f = np.random.default_rng(2).normal(size=(40, 6)) * [1, 9, 2, 5, 1, 1]
    made = principal(f)
    values = np.linalg.eigvalsh(np.cov(f.T, bias=True))[::-1]
    np.testing.assert_allclose(made.var(0), values[:2])
    assert abs(np.corrcoef(made.T)[0, 1]) < 1e-9
