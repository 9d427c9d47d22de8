"""Normalizers against torch's own, and against their equations."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from fedloom.nets import Net, set_batch_norm, use_test_batch
from fedloom.nets.layers.adaptive import AdaptiveGroupNorm
from fedloom.nets.layers.moments import moments
from fedloom.nets.layers.norms import FilterResponseNorm, RepresentativeBatchNorm, SwitchableNorm, ThresholdedUnit

torch.set_num_threads(1)
LAST = torch.channels_last


def maps(seed: int = 0, channels: int = 6) -> Tensor:
    drawn = torch.randn(5, channels, 4, 3, generator=torch.Generator().manual_seed(seed))
    return (drawn * torch.arange(1, channels + 1).view(-1, 1, 1) + 7).contiguous(memory_format=LAST)


def like(norm: Any, other: Any) -> None:
    """The same scale and shift for both, and no trivial ones."""
    with torch.no_grad():
        for leaf, low in (("weight", 0.5), ("bias", -0.5)):
            value = torch.linspace(low, low + 1, len(norm.weight))
            getattr(norm, leaf).copy_(value)
            getattr(other, leaf).copy_(value)


def saturated(choice: Literal["bn", "gn"], **given: Any) -> AdaptiveGroupNorm:
    norm = AdaptiveGroupNorm(6, groups=2, **given)
    with torch.no_grad():
        norm.selector.copy_(torch.tensor([1e4, -1e4] if choice == "bn" else [-1e4, 1e4]))
    norm.tau = 1.0
    return norm


def run(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What it makes of x, and the gradient of a sum that no normalizer makes constant."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = norm(x)
    (y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("format", [LAST, torch.contiguous_format])
@pytest.mark.parametrize("mix", ["std", "var"])
def test_adaptive_with_a_saturated_selector_is_torchs_batch_normalization(
    mix: Any, format: torch.memory_format
) -> None:
    ours, torchs = saturated("bn", mix=mix), nn.BatchNorm2d(6)
    like(ours, torchs)
    for seed in range(3):
        x = maps(seed).contiguous(memory_format=format)
        for a, b in zip(run(ours, x), run(torchs, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.weight.grad, torchs.weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(ours.running_mean, torchs.running_mean)
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    torch.testing.assert_close(ours.eval()(maps(9)), torchs.eval()(maps(9)))


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("mix", ["std", "var"])
def test_adaptive_with_a_saturated_selector_is_torchs_group_normalization(mix: Any, mode: bool) -> None:
    ours, torchs = saturated("gn", mix=mix).train(mode), nn.GroupNorm(2, 6)
    like(ours, torchs)
    for a, b in zip(run(ours, maps()), run(torchs, maps()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


def test_adaptive_mixes_deviations_or_variances() -> None:
    x = maps()
    m_b, v_b = x.mean((0, 2, 3)).view(1, 6, 1, 1), x.var((0, 2, 3), correction=0).view(1, 6, 1, 1)
    cut = x.contiguous().view(5, 2, 36)
    m_g, v_g = (v.repeat_interleave(3, 1).view(5, 6, 1, 1) for v in (cut.mean(2), cut.var(2, correction=0)))
    share = torch.tensor([0.2, -0.5]).softmax(0)
    for mix in ("std", "var"):
        norm = AdaptiveGroupNorm(6, groups=2, mix=mix)  # type: ignore[arg-type]
        with torch.no_grad():
            norm.selector.copy_(torch.tensor([0.4, -1.0]))
        norm.tau = 2.0
        norm.eval()
        use_test_batch([norm])
        std = share[0] * (v_b + 1e-5).sqrt() + share[1] * (v_g + 1e-5).sqrt()
        sigma = std if mix == "std" else (share[0] * v_b + share[1] * v_g + 1e-5).sqrt()
        torch.testing.assert_close(norm(x), (x - share[0] * m_b - share[1] * m_g) / sigma, rtol=1e-5, atol=1e-5)


def test_adaptive_draws_in_training_and_not_in_evaluation_unless_told() -> None:
    norm, x = AdaptiveGroupNorm(6), maps()
    torch.manual_seed(1)
    first, second = norm(x), norm(x)
    assert not torch.allclose(first, second)
    torch.manual_seed(1)
    assert torch.equal(norm(x), first)
    norm.eval()
    assert torch.equal(norm(x), norm(x))
    use_test_batch([norm])
    assert torch.equal(norm(x), norm(x))
    noisy = AdaptiveGroupNorm(6, eval_noise=True).eval()
    assert not torch.allclose(noisy(x), noisy(x))


def test_adaptive_draws_follow_the_softmax_of_logits_and_noise() -> None:
    """At any temperature the larger of two shares belongs to the larger logit as often as the plain softmax says."""
    norm = AdaptiveGroupNorm(6, tau=0.3)
    with torch.no_grad():
        norm.selector.copy_(torch.tensor([1.0, 0.0]))
    torch.manual_seed(0)
    draws = torch.stack([norm.shares() for _ in range(4000)])
    assert float((draws[:, 0] > 0.5).float().mean()) == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=0.03)
    torch.testing.assert_close(draws.sum(1), torch.ones(4000))


def test_adaptive_freezes_a_draw_that_is_one_hot_and_thaws_when_not_all_had_it() -> None:
    norm, x = AdaptiveGroupNorm(6, tau=1e-6, freeze=True), maps()
    torch.manual_seed(0)
    norm(x)
    assert norm.frozen is not None
    chosen = norm.frozen.tolist()
    assert sorted(chosen) == [0, 1]
    for _ in range(10):
        norm(x)
        assert norm.shares().tolist() == norm.frozen.tolist() == chosen
    norm.eval()
    assert norm.shares().tolist() == chosen
    norm.frozen.mul_(0.5)  # an average with a client that had not frozen this layer
    norm.tau = 5.0
    assert norm.shares().tolist() == pytest.approx([0.5, 0.5])


def test_adaptive_takes_vectors() -> None:
    x = torch.randn(8, 6)
    for choice, torchs in (("bn", nn.BatchNorm1d(6)), ("gn", nn.GroupNorm(2, 6))):
        ours = saturated(choice)  # type: ignore[arg-type]
        torch.testing.assert_close(ours(x), torchs(x), rtol=1e-5, atol=1e-5)


def switchable(x: Tensor, norm: SwitchableNorm, batch: tuple[Tensor, Tensor]) -> Tensor:
    means = x.mean((2, 3), keepdim=True), x.mean((1, 2, 3), keepdim=True), batch[0].view(1, -1, 1, 1)
    variances = (
        x.var((2, 3), keepdim=True, correction=0),
        x.var((1, 2, 3), keepdim=True, correction=0),
        batch[1].view(1, -1, 1, 1),
    )
    m, v = norm.mean_selector.softmax(0), norm.var_selector.softmax(0)
    mu, var = (s[0] * values[0] + s[1] * values[1] + s[2] * values[2] for s, values in ((m, means), (v, variances)))
    return norm.weight.view(-1, 1, 1) * (x - mu) / (var + 1e-5).sqrt() + norm.bias.view(-1, 1, 1)


def test_switchable_is_the_mixture_of_three_in_training_and_evaluation() -> None:
    norm, x = SwitchableNorm(6), maps()
    like(norm, norm)
    with torch.no_grad():
        norm.mean_selector.copy_(torch.tensor([0.3, -1.0, 2.0]))
        norm.var_selector.copy_(torch.tensor([1.0, 0.0, -0.5]))
    expected = switchable(x, norm, (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)))
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-5)
    kept = 0.1 * x.mean((0, 2, 3)), 0.9 + 0.1 * x.var((0, 2, 3))
    torch.testing.assert_close((norm.running_mean, norm.running_var), kept)
    torch.testing.assert_close(norm.eval()(maps(1)), switchable(maps(1), norm, kept), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("chosen", "torchs"), [(0, nn.InstanceNorm2d(6)), (1, nn.GroupNorm(1, 6)), (2, nn.BatchNorm2d(6))]
)
def test_switchable_with_saturated_selectors_is_one_of_torchs(chosen: int, torchs: nn.Module) -> None:
    norm = SwitchableNorm(6)
    with torch.no_grad():
        for selector in (norm.mean_selector, norm.var_selector):
            selector.fill_(-1e4)[chosen] = 1e4
    for a, b in zip(run(norm, maps()), run(torchs, maps()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(norm.eval()(maps(1)), torchs.eval()(maps(1)), rtol=1e-5, atol=1e-5)


def test_representative_begins_as_scaled_batch_normalization_and_then_calibrates() -> None:
    ours, torchs, x = RepresentativeBatchNorm(6), nn.BatchNorm2d(6), maps()
    torch.testing.assert_close(ours(x), torchs(x) * torch.sigmoid(torch.tensor(1.0)))
    torch.testing.assert_close((ours.running_mean, ours.running_var), (torchs.running_mean, torchs.running_var))
    torch.testing.assert_close(ours.eval()(x), torchs.eval()(x) * torch.sigmoid(torch.tensor(1.0)))
    like(ours, ours)
    with torch.no_grad():
        ours.center_weight.copy_(torch.linspace(-1, 1, 6))
        ours.scale_weight.copy_(torch.linspace(2, 1, 6))
        ours.scale_bias.copy_(torch.linspace(0, 1, 6))
    moved = x + ours.center_weight.view(-1, 1, 1) * x.mean((2, 3), keepdim=True)
    plain = nn.BatchNorm2d(6)
    plain.load_state_dict({**plain.state_dict(), "running_mean": ours.running_mean, "running_var": ours.running_var})
    for mode in (False, True):
        normal = plain.train(mode)(moved)
        gate = ours.scale_weight.view(-1, 1, 1) * normal.mean((2, 3), keepdim=True) + ours.scale_bias.view(-1, 1, 1)
        expected = ours.weight.view(-1, 1, 1) * normal * gate.sigmoid() + ours.bias.view(-1, 1, 1)
        torch.testing.assert_close(ours.train(mode)(x), expected, rtol=1e-5, atol=1e-5)


def test_filter_response_divides_by_the_root_mean_square_of_each_map() -> None:
    norm, x = FilterResponseNorm(6), maps()
    like(norm, norm)
    expected = norm.weight.view(-1, 1, 1) * x / (x.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), expected + norm.bias.view(-1, 1, 1))
    assert torch.equal(norm(x), norm.eval()(x))
    assert "eps" not in norm.state_dict()
    single = FilterResponseNorm(6, learn_eps=True)
    x = x[:, :, :1, :1]
    torch.testing.assert_close(single(x), x / (x.square() + 1e-4).sqrt())
    with torch.no_grad():
        single.eps.fill_(-0.5)  # type: ignore[union-attr]
    torch.testing.assert_close(single(x), x / (x.square() + 0.5).sqrt())


def test_the_thresholded_unit_is_a_maximum() -> None:
    unit, x = ThresholdedUnit(6), maps() - 7
    assert torch.equal(unit(x), x.relu())
    with torch.no_grad():
        unit.threshold.copy_(torch.linspace(-2, 2, 6))
    expected = torch.maximum(x, unit.threshold.view(-1, 1, 1))
    torch.testing.assert_close(unit(x), expected)
    for a, b in zip(
        *(torch.autograd.grad(y.square().sum(), [unit.threshold]) for y in (unit(x), expected)), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("format", [LAST, torch.contiguous_format])
def test_moments_have_exact_gradients_of_first_and_second_order(format: torch.memory_format) -> None:
    x = maps(channels=2)[:2].double().contiguous(memory_format=format).requires_grad_()
    mean, var = moments(x)
    torch.testing.assert_close((mean, var), (x.mean((2, 3)), x.var((2, 3), correction=0)))
    assert torch.autograd.gradcheck(moments, (x,))
    assert torch.autograd.gradgradcheck(moments, (x,))


def test_large_means_cost_no_precision() -> None:
    x = maps() + 3000
    expected = nn.BatchNorm2d(6).double()(x.double())
    for norm in (saturated("bn"), RepresentativeBatchNorm(6)):
        made = norm(x) if isinstance(norm, AdaptiveGroupNorm) else norm(x) / torch.sigmoid(torch.tensor(1.0))
        torch.testing.assert_close(made.double(), expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    "norm", [AdaptiveGroupNorm(6), SwitchableNorm(6), RepresentativeBatchNorm(6), FilterResponseNorm(6)]
)
def test_half_precision_goes_in_and_out_and_statistics_are_whole(norm: nn.Module) -> None:
    x = maps()
    torch.manual_seed(0)
    whole = copy.deepcopy(norm)(x)
    torch.manual_seed(0)
    half = norm(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), whole, rtol=0.05, atol=0.05)
    assert all(value.dtype != torch.bfloat16 for value in norm.state_dict().values())


@pytest.mark.parametrize("make", [AdaptiveGroupNorm, SwitchableNorm, RepresentativeBatchNorm])
def test_the_recipes_bn_gives_and_takes_running_statistics(make: Any) -> None:
    net = Net(nn.Sequential(make(6), nn.Flatten()), nn.Linear(72, 2), 72, 2)
    set_batch_norm(net, "batch")
    assert not any("running" in name for name in net.state_dict())
    together, alone = net.eval().body(maps()), torch.cat([net.body(one[None]) for one in maps()])
    assert not torch.allclose(together, alone, atol=1e-3)
    set_batch_norm(net, "running")
    assert float(net.state_dict()["body.0.running_var"].min()) == 1
    together, alone = net.eval().body(maps()), torch.cat([net.body(one[None]) for one in maps()])
    torch.testing.assert_close(together, alone)
    assert all(value.is_floating_point() for value in net.state_dict().values())
