"""Heads without a bias, and the simplex of class directions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.errors import FedloomError
from fedloom.nets import FeatureNormHead, FixedHead, build, region_of, simplex_etf, weight_of

torch.set_num_threads(1)


def test_the_feature_norm_head_is_v_f_over_the_norm_of_f() -> None:
    head = FeatureNormHead(8, 3)
    f = torch.randn(5, 8)
    expected = torch.stack([head.weight @ (row / row.square().sum().sqrt()) for row in f])
    torch.testing.assert_close(head(f), expected)
    torch.testing.assert_close(head(100 * f), expected)
    assert not head(torch.zeros(1, 8)).any()
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    assert (head.in_features, head.out_features) == (8, 3)


def test_the_feature_norm_head_is_drawn_like_a_linear_layer() -> None:
    torch.manual_seed(4)
    head = FeatureNormHead(64, 10)
    torch.manual_seed(4)
    assert torch.equal(head.weight, nn.Linear(64, 10, bias=False).weight)


def test_the_feature_norm_head_keeps_a_linear_heads_weight_and_draws_nothing() -> None:
    linear = nn.Linear(8, 3)
    before = torch.random.get_rng_state()
    head = FeatureNormHead.from_linear(linear)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(head.weight, linear.weight)
    assert head.weight.data_ptr() != linear.weight.data_ptr()
    assert head.weight.requires_grad
    assert isinstance(head, FeatureNormHead)
    with pytest.raises(FedloomError, match="replaces a linear head; this net's head is a Sequential"):
        FeatureNormHead.from_linear(nn.Sequential(linear))


def test_a_fixed_head_is_part_of_the_state_but_gets_no_gradient() -> None:
    net = build("mlp", (1, 8, 8), 10, "running")
    net.head = FixedHead(simplex_etf(weight_of(net.head)))
    net(torch.randn(4, 1, 8, 8)).square().sum().backward()
    assert net.head.weight.grad is None
    assert all(weight.grad is not None for weight in net.body.parameters())
    assert region_of(net)["head.weight"] == "head"
    assert "head.bias" not in net.state_dict()
    assert (net.head.in_features, net.head.out_features) == (64, 10)


@pytest.mark.parametrize(("classes", "dim"), [(2, 2), (10, 64), (10, 10), (100, 1024)])
def test_the_simplex_has_unit_rows_at_equal_angles(classes: int, dim: int) -> None:
    v = simplex_etf(nn.Linear(dim, classes).weight)
    assert v.shape == (classes, dim)
    assert v.dtype == torch.float32
    assert not v.requires_grad
    expected = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1)
    torch.testing.assert_close(v @ v.T, expected, rtol=0, atol=1e-6)


def test_the_simplex_is_the_formula_with_the_gram_schmidt_basis() -> None:
    basis = torch.randn(4, 7, dtype=torch.float64)
    columns: list[torch.Tensor] = []  # classical Gram-Schmidt has a positive diagonal, so it is the same U
    for row in basis:
        rest = row - sum((torch.dot(row, u) * u for u in columns), torch.zeros(7, dtype=torch.float64))
        columns.append(rest / rest.norm())
    u = torch.stack(columns, 1)  # (d, C)
    expected = (4 / 3) ** 0.5 * (torch.eye(4, dtype=torch.float64) - 0.25) @ u.T
    torch.testing.assert_close(simplex_etf(basis), expected)


def test_too_narrow_features_are_refused() -> None:
    with pytest.raises(FedloomError, match="needs features of at least 10 dimensions; these have 8"):
        simplex_etf(torch.randn(10, 8))
    with pytest.raises(FedloomError, match="at least 2 classes"):
        simplex_etf(torch.randn(1, 8))


def test_the_weight_of_a_head_without_one_is_refused() -> None:
    linear = nn.Linear(8, 3)
    assert weight_of(linear) is linear.weight
    with pytest.raises(FedloomError, match="this net's head is a Sequential"):
        weight_of(nn.Sequential(linear))
