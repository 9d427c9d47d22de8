"""Convolutions that standardize their weight, or are followed by a normalizer."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets.kernels.products import Conv2d
from fedloom.nets.layers.convs import Standard, follow, standardize

torch.set_num_threads(1)


def images() -> Tensor:
    return torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "conv", [nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 3, groups=4), Conv2d(4, 8, 1), nn.Conv1d(4, 5, 3)]
)
def test_rows_have_mean_zero_and_deviation_one(conv: nn.Conv2d) -> None:
    raw = conv.weight.detach().clone()
    standardize(conv, Standard())
    rows = conv.weight.detach().flatten(1)
    torch.testing.assert_close(rows.mean(1), torch.zeros(len(rows)), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.std(1, correction=0), torch.ones(len(rows)), atol=1e-5, rtol=0)
    assert torch.equal(conv.state_dict()["weight"], raw)
    assert [name for name, _ in conv.named_parameters()] == ["weight", "bias"]


def test_shift_and_scale_of_the_raw_weight_do_not_matter() -> None:
    conv = nn.Conv2d(4, 8, 3)
    standardize(conv, Standard())
    moved = copy.deepcopy(conv)
    with torch.no_grad():
        moved._parameters["weight"].mul_(3).add_(2)  # type: ignore[union-attr]
    torch.testing.assert_close(moved(images()), conv(images()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("ddof", "outside"), [(0, False), (1, True), (1, False), (0, True)])
def test_both_published_forms_are_as_written(ddof: int, outside: bool) -> None:
    theta, eps = torch.randn(8, 4, 3, 3) * 0.1, 0.01
    rows = theta.flatten(1).double()
    centerd = rows - rows.mean(1, keepdim=True)
    var = centerd.square().sum(1, keepdim=True) / (36 - ddof)
    deviation = var.sqrt() + eps if outside else (var + eps).sqrt()
    made = Standard(ddof, eps, outside)(theta)
    torch.testing.assert_close(made.flatten(1).double(), centerd / deviation, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", [Standard(), Standard(1, 1e-5, True)])
def test_rows_without_any_deviation_are_finite_and_so_is_their_gradient(how: Standard) -> None:
    theta = torch.full((2, 4, 3, 3), 0.5, requires_grad=True)
    made = how(theta)
    (made * torch.randn(2, 4, 3, 3)).sum().backward()
    assert theta.grad is not None
    assert bool(made.isfinite().all()) and bool(theta.grad.isfinite().all())


def test_gradients_reach_the_raw_weight() -> None:
    conv = nn.Conv2d(4, 8, 3)
    theta = conv.weight.detach().clone().requires_grad_()
    standardize(conv, Standard())
    conv(images()).square().sum().backward()
    F.conv2d(images(), Standard()(theta), conv.bias).square().sum().backward()
    torch.testing.assert_close(conv._parameters["weight"].grad, theta.grad)  # type: ignore[union-attr]


def test_a_convolution_may_be_changed_in_both_ways_in_any_order_and_copied() -> None:
    made = []
    for order in (0, 1):
        torch.manual_seed(0)
        conv = Conv2d(4, 8, 1)
        steps = [lambda c: standardize(c, Standard()), lambda c: follow(c, nn.GroupNorm(2, 8))]
        for step in steps[::-1] if order else steps:
            step(conv)
        twin = copy.deepcopy(conv)
        with torch.no_grad():
            conv._parameters["weight"].zero_()  # type: ignore[union-attr]
        assert isinstance(twin, Conv2d)
        assert set(twin.state_dict()) == {"weight", "bias", "norm.weight", "norm.bias"}
        made.append(twin(images()))
    assert torch.equal(*made)


def test_what_cannot_be_changed_is_refused() -> None:
    with pytest.raises(FedloomError, match="has a weight that something else makes"):
        standardize(nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 8, 3)), Standard())
    conv = nn.Conv2d(4, 8, 3)
    follow(conv, nn.GroupNorm(2, 8))
    with pytest.raises(FedloomError, match="has something called `norm` already"):
        follow(conv, nn.GroupNorm(2, 8))
