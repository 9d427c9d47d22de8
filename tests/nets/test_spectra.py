"""Convolutions as products of spectra: torch's own numbers and derivatives, where shapes say that it pays."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from smooth_nets import smooth
from torch import Tensor, nn

from fedloom.nets.build import build
from fedloom.nets.kernels import spectra
from fedloom.nets.kernels.products import use_products

torch.set_num_threads(1)

# (inputs, outputs, kernel), padding, (height, width) of the image
CASES: dict[str, tuple[tuple[int, int, Any], Any, tuple[int, int]]] = {
    "without a border": ((3, 4, 3), 0, (6, 6)),
    "padded": ((3, 4, 3), 1, (5, 5)),
    "an odd oblong image": ((2, 3, 3), 1, (7, 4)),
    "an oblong kernel": ((2, 3, (2, 5)), (1, 0), (4, 7)),
    "a border wider than the kernel": ((2, 3, 3), 4, (3, 5)),
    "kernel larger than the image": ((2, 3, 5), 2, (2, 3)),
    "kernel as large as the image": ((2, 3, 4), 0, (4, 4)),
    "one pixel": ((2, 3, 3), 1, (1, 1)),
    "one pixel of one": ((2, 3, 1), 0, (1, 1)),
    "one table for rows and one for columns": ((2, 3, 3), 1, (11, 10)),
    "rows and columns of even and odd periods": ((2, 3, (5, 3)), (0, 2), (12, 9)),
    "a row": ((2, 3, (1, 3)), (0, 1), (1, 8)),
}


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "pays", lambda *_: True)


def _given(case: str, bias: bool = True, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None]:
    (inputs, out, kernel), _, size = CASES[case]
    high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    draw = torch.Generator().manual_seed(1)
    shapes = [(3, inputs, *size), (out, inputs, high, wide), (out,)]
    x, weight, shift = (torch.randn(shape, generator=draw, dtype=dtype) for shape in shapes)
    return x, weight, shift if bias else None


def _padding(case: str) -> tuple[int, int]:
    found = CASES[case][1]
    return found if isinstance(found, tuple) else (found, found)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_results_and_gradients_are_torch_s(case: str, bias: bool, layout: torch.memory_format) -> None:
    given = _given(case, bias)
    x, weight = (tensor.contiguous(memory_format=layout) for tensor in given[:2])
    ours = [tensor.clone().requires_grad_() for tensor in (x, weight, given[2]) if tensor is not None]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    shift = (None,) * (not bias)
    y = F.conv2d(*theirs, *shift, 1, _padding(case))
    z = spectra.convolve(*ours, *shift, _padding(case))
    torch.testing.assert_close(z, y, rtol=1e-12, atol=1e-12)
    pull = torch.randn_like(y)
    for made in (y, z):
        (made * pull).sum().backward()
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_first_and_second_derivatives_are_right(case: str) -> None:
    given = [tensor.requires_grad_() for tensor in _given(case) if tensor is not None]
    call = lambda *values: spectra.convolve(*values, _padding(case))  # noqa: E731
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_is_asked_for_is_found(wanted: tuple[int, ...]) -> None:
    given = _given("padded")
    tensors = [tensor.requires_grad_(place in wanted) for place, tensor in enumerate(given) if tensor is not None]
    asked = [tensors[place] for place in wanted]
    ours = torch.autograd.grad(spectra.convolve(*tensors, (1, 1)).square().sum(), asked)
    theirs = torch.autograd.grad(F.conv2d(*tensors, 1, (1, 1)).square().sum(), asked)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("everywhere")
def test_clients_can_be_stacked() -> None:
    plain = nn.Conv2d(3, 4, 3, padding=1).double()
    quick = copy.deepcopy(plain)
    use_products(quick)
    rows = {name: torch.randn(2, *value.shape, dtype=torch.float64) for name, value in plain.named_parameters()}
    images = torch.randn(2, 5, 3, 6, 6, dtype=torch.float64)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(quick, values, x)
        return made.square().sum()

    stacked = torch.func.vmap(torch.func.grad(loss))(rows, images)
    for row in (0, 1):
        values = {name: rows[name][row].clone().requires_grad_() for name in rows}
        torch.func.functional_call(plain, values, images[row]).square().sum().backward()
        for name in rows:
            torch.testing.assert_close(stacked[name][row], values[name].grad, rtol=1e-10, atol=1e-10)


def test_tables_made_under_inference_or_a_transform_serve_training() -> None:
    spectra.planned.cache_clear()
    x, weight, bias = (tensor for tensor in _given("padded") if tensor is not None)
    with torch.inference_mode():
        spectra.convolve(x, weight, bias, (1, 1))
    spectra.convolve(x, weight.requires_grad_(), bias, (1, 1)).sum().backward()
    assert weight.grad is not None
    spectra.planned.cache_clear()
    torch.func.grad(lambda w: spectra.convolve(x, w, bias, (1, 1)).sum())(weight.detach())
    found = torch.func.vmap(lambda one: spectra.convolve(one[None], weight, bias, (1, 1)))(x)
    torch.testing.assert_close(found[:, 0], F.conv2d(x, weight, bias, 1, 1))


@pytest.mark.parametrize("shape", [(64, 64, 5, 14, 0), (256, 256, 3, 8, 1), (64, 64, 3, 32, 1)])
def test_single_precision_is_as_exact_as_the_direct_sum(shape: tuple[int, int, int, int, int]) -> None:
    inputs, out, kernel, size, padding = shape
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(16, inputs, size, size, generator=draw).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(out, inputs, kernel, kernel, generator=draw).contiguous(memory_format=torch.channels_last)

    def results(double: bool, ours: bool) -> tuple[Tensor, ...]:
        given = [tensor.double() if double else tensor for tensor in (x, weight)]
        given = [tensor.detach().requires_grad_() for tensor in given]
        made = spectra.convolve(*given, None, (padding,) * 2) if ours else F.conv2d(*given, None, 1, padding)
        return made, *torch.autograd.grad(made.sum() + made.square().sum() / 2, given)

    for exact, direct, spectral in zip(results(True, False), results(False, False), results(False, True), strict=True):
        assert (spectral - exact).norm() < 1.5 * (direct - exact).norm()
        assert (spectral - exact).norm() < 1e-6 * exact.norm()


def test_a_weight_s_gradient_lies_in_memory_as_weights_are_stored() -> None:
    x, weight, bias = _given("padded")
    made = spectra.convolve(x, weight.requires_grad_(), bias, (1, 1))
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.autograd.grad(made.sum(), weight)[0].is_contiguous(memory_format=torch.channels_last)


def test_it_is_chosen_where_it_pays() -> None:
    five, three, none, one = (5, 5), (3, 3), (0, 0), (1, 1)
    assert spectra.pays(50, (64, 64), (14, 14), five, none, trained=True)
    assert spectra.pays(10, (64, 64), (14, 14), five, none, trained=True)
    assert spectra.pays(50, (64, 64), (32, 32), three, one, trained=True)
    assert spectra.pays(50, (512, 512), (4, 4), three, one, trained=True)
    assert not spectra.pays(50, (3, 64), (32, 32), five, none, trained=True)  # there and back costs more than is saved
    assert not spectra.pays(50, (32, 64), (14, 14), three, one, trained=True)  # few channels
    assert not spectra.pays(10, (64, 64), (16, 16), three, one, trained=True)  # few images
    assert not spectra.pays(10, (64, 64), (6, 6), five, none, trained=True)  # little work
    assert not spectra.pays(50, (64, 64), (2, 2), five, none, trained=True)  # no convolution at all
    assert spectra.pays(100, (64, 64), (14, 14), five, none, trained=False)
    assert not spectra.pays(100, (64, 64), (16, 16), three, one, trained=False)  # torch's forward pass is quick


@pytest.mark.usefixtures("everywhere")
def test_other_strides_groups_and_precisions_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("should not be called")

    monkeypatch.setattr(spectra, "convolve", refuse)
    x = torch.randn(20, 4, 9, 9)
    left = [nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 3, stride=(1, 2)), nn.Conv2d(4, 4, 3, groups=2)]
    for conv in left:
        use_products(conv)
        conv(x)
    conv = nn.Conv2d(4, 4, 3)
    use_products(conv)
    conv(x[0])
    with torch.autocast("cpu", torch.bfloat16):
        conv(x)
    with pytest.raises(AssertionError):
        conv(x)
    conv.bfloat16()(x.bfloat16())


@pytest.mark.parametrize("name", ["lenet", "vgg11", "resnet18"])
def test_nets_train_as_torch_would(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    y, found, calls = torch.arange(16) % 10, [], []
    convolve = spectra.convolve
    monkeypatch.setattr(spectra, "convolve", lambda *given: calls.append(1) or convolve(*given))
    for ours in (True, False):
        torch.manual_seed(1)
        net = smooth(build(name, (3, 32, 32), 10, "batch", "auto" if ours else "torch")).train()
        F.cross_entropy(net(x.contiguous(memory_format=torch.channels_last)), y).backward()
        assert bool(calls) == ours
        calls.clear()
        found.append([weight.grad for weight in net.parameters()])
    for quick, plain in zip(*found, strict=True):
        torch.testing.assert_close(quick, plain, rtol=1e-3, atol=2e-5 * float(plain.abs().max()))
