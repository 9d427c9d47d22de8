"""The four factors: by hand, invariances, limits, and against plain numpy on real runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plainly import Plain, features_of, four_factors, scalars_of

import fedloom as fl
from fedloom.analysis.factors import NAMES, factors
from fedloom.nets.layers.heads import simplex_etf

FIELDS = {"clients": 10, "fraction": 0.3, "rounds": 2, "workers": 1, "eval_every": 0}


def some(classes: int = 5, dim: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    f = torch.randn(60, dim, generator=draw, dtype=torch.float64).relu()
    return f, torch.arange(60) % classes, torch.randn(classes, dim, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize(
    ("method", "model", "lr"), [("fedavg", "mlp", 0.1), ("dr + fd", "mlp", 0.3), ("fn", "cnn", 0.1)]
)
def test_factors_are_those_of_a_plain_forward_pass_over_the_stored_weights(method: str, model: str, lr: float) -> None:
    run = fl.run(FIELDS, method=method, model=model, lr=lr)
    found = fl.analyze(run, what="factors")
    plain, weights = Plain(run), run.weights
    f = features_of(model, weights, plain.x)
    like = four_factors(f, plain.y, weights["head.weight"].double().numpy())
    for name in NAMES:
        np.testing.assert_allclose(found.factors[name], like[name], atol=2e-5)
    told = found.summary["factors"]
    assert told["images"] == len(plain.y)
    assert {name: told[name] for name in NAMES} == pytest.approx(scalars_of(like), abs=1e-5)


def test_turning_the_feature_space_changes_nothing() -> None:
    f, y, v = some()
    q, _ = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64))
    before, after = factors(f, y, v, 5), factors(f @ q, y, v @ q, 5)
    for name in NAMES:
        torch.testing.assert_close(after.matrices()[name], before.matrices()[name])
    turned_apart = factors(f @ q, y, v, 5)
    assert not torch.allclose(turned_apart.prototype_weight, before.prototype_weight)


def test_only_directions_count() -> None:
    f, y, v = some()
    before = factors(f, y, v, 5)
    after = factors(f * 7, y, v * torch.linspace(0.1, 3, 5)[:, None], 5)
    for name in NAMES:
        torch.testing.assert_close(after.matrices()[name], before.matrices()[name])


@pytest.mark.parametrize("classes", [2, 10, 37])
def test_a_simplex_head_has_weight_similarity_minus_one_over_c_minus_one(classes: int) -> None:
    v = simplex_etf(torch.randn(classes, 40, generator=torch.Generator().manual_seed(classes)))
    found = factors(torch.ones(1, 40), torch.zeros(1, dtype=torch.long), v, classes)
    off = found.weight_similarity[~torch.eye(classes, dtype=torch.bool)]
    torch.testing.assert_close(off, torch.full_like(off, -1 / (classes - 1)), atol=1e-6, rtol=0)
    assert found.means()["weight_similarity"] == pytest.approx(-1 / (classes - 1), abs=1e-6)


def test_features_on_their_rows_are_the_perfect_case() -> None:
    """Neural collapse: every feature is its class's direction."""
    v = simplex_etf(torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    y = torch.arange(30) % 6
    found = factors(v[y] * torch.linspace(1, 4, 30, dtype=torch.float64)[:, None], y, v, 6)
    torch.testing.assert_close(found.inter_class, found.weight_similarity)
    assert found.means()["intra_class"] == pytest.approx(1)
    assert found.means()["prototype_weight"] == pytest.approx(1)


def test_a_class_without_images_is_unknown_and_left_out() -> None:
    f, y, v = some()
    kept = y != 2
    whole, found = factors(f, y, v, 5), factors(f[kept], y[kept], v, 5)
    others = [0, 1, 3, 4]
    for name in ("inter_class", "intra_class", "prototype_weight"):
        matrix = found.matrices()[name]
        assert matrix[2].isnan().all()
        torch.testing.assert_close(matrix[others][:, others], whole.matrices()[name][others][:, others])
    assert not found.weight_similarity.isnan().any()
    assert found.means()["intra_class"] == pytest.approx(float(whole.intra_class.diagonal()[others].mean()))


def test_zero_features_have_cosine_zero() -> None:
    f, y, v = some()
    f[y == 1] = 0
    found = factors(f, y, v, 5)
    assert float(found.intra_class[1, 1]) == 0
    assert float(found.prototype_weight[1, 1]) == 0
    assert all(matrix.isfinite().all() for matrix in found.matrices().values())


def test_a_head_without_rows_leaves_what_is_said_of_features() -> None:
    f, y, _ = some()
    found = factors(f, y, None, 5).means()
    assert np.isnan(found["weight_similarity"]) and np.isnan(found["prototype_weight"])
    assert 0 < found["inter_class"] < 1 and 0 < found["intra_class"] < 1
