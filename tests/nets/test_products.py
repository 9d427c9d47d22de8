"""Convolutions over small maps as matrix products: torch's own numbers, by other kernels, where shapes say so."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from smooth_nets import smooth
from torch import Tensor, nn

from fedloom.nets.build import build
from fedloom.nets.kernels import products, spectra
from fedloom.nets.kernels.products import Conv2d, use_products

torch.set_num_threads(1)

# (inputs, outputs, kernel), options of the layer, (height, width) of the image, which way it goes
CASES: dict[str, tuple[tuple[int, int, Any], dict[str, Any], tuple[int, int], str]] = {
    "padded": ((4, 6, 3), {"padding": 1}, (5, 4), "product"),
    "without a border": ((4, 6, 3), {}, (6, 7), "product"),
    "strided": ((4, 6, 3), {"stride": 2, "padding": 1}, (9, 8), "product"),
    "strided unevenly": ((4, 6, 3), {"stride": (2, 1), "padding": (0, 2)}, (8, 5), "product"),
    "an oblong kernel": ((4, 6, (2, 5)), {"padding": (1, 0)}, (4, 7), "product"),
    "kernel larger than the image": ((4, 6, 5), {"padding": 2, "bias": False}, (2, 2), "product"),
    "strided pointwise": ((4, 6, 1), {"stride": (2, 3)}, (6, 7), "linear"),
    "pointwise": ((4, 6, 1), {}, (4, 4), "linear"),
    "pointwise without bias": ((4, 6, 1), {"bias": False}, (3, 1), "linear"),
    "depthwise on a tiny map": ((4, 4, 3), {"padding": 1, "groups": 4}, (2, 2), "padded"),
    "depthwise twofold, strided": ((4, 8, 3), {"padding": (1, 2), "groups": 4, "stride": 2}, (2, 3), "padded"),
    "depthwise": ((4, 4, 3), {"padding": 1, "groups": 4}, (5, 5), "own"),
    "grouped": ((4, 6, 3), {"padding": 1, "groups": 2}, (2, 2), "own"),
    "a large map": ((4, 6, 3), {"padding": 1}, (9, 9), "own"),
    "a large map, pointwise": ((4, 6, 1), {}, (9, 9), "own"),
}


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "WORTH", 0)
    monkeypatch.setattr(products, "WIDE", 0)
    monkeypatch.setattr(spectra, "pays", lambda *_: False)


def _pair(case: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Conv2d, nn.Conv2d, Tensor]:
    (inputs, out, kernel), options, size, _ = CASES[case]
    torch.manual_seed(0)
    plain = nn.Conv2d(inputs, out, kernel, **options).to(dtype)
    quick = copy.deepcopy(plain)
    use_products(quick)
    return plain, quick, torch.randn(3, inputs, *size, dtype=dtype).contiguous(memory_format=torch.channels_last)


def _names(y: Tensor) -> str:
    """The operations behind a result, from its graph."""
    found, waiting = [], [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            found.append(type(node).__name__)
            waiting += [parent for parent, _ in node.next_functions]
    return " ".join(found)


def _way(y: Tensor) -> str:
    names = _names(y)
    ways = {
        "_ConvolveBackward": "product",
        "_SpectralBackward": "spectra",
        "ConstantPad": "padded",
        "ConvolutionBackward": "own",
    }
    return next((way for text, way in ways.items() if text in names), "linear")


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_results_and_gradients_are_torch_s(case: str, layout: torch.memory_format) -> None:
    plain, quick, x = _pair(case)
    x = x.contiguous(memory_format=layout)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    y, z = plain(inputs[0]), quick(inputs[1])
    assert _way(z) == CASES[case][3]
    torch.testing.assert_close(z, y, rtol=1e-12, atol=1e-12)
    pull = torch.randn_like(y)
    for made in (y, z):
        (made * pull).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-11, atol=1e-11)
    for one, other in zip(plain.parameters(), quick.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("case", [case for case, found in CASES.items() if found[3] != "own"])
def test_first_and_second_derivatives_are_right(case: str) -> None:
    _, quick, x = _pair(case)
    weights = dict(quick.named_parameters())

    def call(x: Tensor, *values: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(quick, dict(zip(weights, values, strict=True)), x)
        return made

    given = (x.requires_grad_(), *(value.detach().requires_grad_() for value in weights.values()))
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("case", ["padded", "pointwise", "depthwise on a tiny map"])
def test_clients_can_be_stacked(case: str) -> None:
    plain, quick, x = _pair(case)
    names = [name for name, _ in plain.named_parameters()]
    rows = {name: torch.randn(2, *value.shape, dtype=x.dtype) for name, value in plain.named_parameters()}
    images = torch.randn(2, *x.shape, dtype=x.dtype)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(quick, values, x)
        return made.square().sum()

    stacked = torch.func.vmap(torch.func.grad(loss))(rows, images)
    for row in (0, 1):
        values = {name: rows[name][row].clone().requires_grad_() for name in names}
        torch.func.functional_call(plain, values, images[row]).square().sum().backward()
        for name in names:
            torch.testing.assert_close(stacked[name][row], values[name].grad, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("any_size")
def test_a_weight_s_gradient_lies_in_memory_as_weights_are_stored() -> None:
    _, quick, x = _pair("padded")
    weight = quick.weight.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(torch.func.functional_call(quick, {"weight": weight}, x).sum(), weight)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_small_work_is_left_to_torch_and_large_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = nn.Conv2d(64, 128, 3, padding=1)
    use_products(conv)
    assert _way(conv(torch.zeros(50, 64, 7, 7))) == "spectra"
    monkeypatch.setattr(spectra, "pays", lambda *_: False)
    assert _way(conv(torch.zeros(10, 64, 7, 7))) == "own"  # 36 million multiply-adds
    assert _way(conv(torch.zeros(50, 64, 7, 7))) == "product"
    narrow = nn.Conv2d(64, 64, 3, padding=1)
    use_products(narrow)
    assert _way(narrow(torch.zeros(100, 64, 7, 7))) == "own"
    assert _way(conv(torch.zeros(300, 64, 7, 7))) == "own"  # its unfolded input would fill 34 MB


@pytest.mark.usefixtures("any_size")
def test_other_precisions_and_nets_without_gradients_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("should not be called")

    _, quick, x = _pair("padded", torch.float32)
    monkeypatch.setattr(products._Convolve, "apply", refuse)
    with torch.no_grad():
        quick(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert quick(x).dtype == torch.bfloat16
    with pytest.raises(AssertionError):
        quick(x)


def test_irregular_convolutions_stay_what_they_are() -> None:
    class Mine(nn.Conv2d):
        pass

    kept = [
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        Mine(4, 4, 3),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
    ]
    before = [type(conv) for conv in kept]
    use_products(nn.Sequential(*kept))
    assert [type(conv) for conv in kept] == before


def test_one_image_without_a_batch_works() -> None:
    plain, quick, x = _pair("padded")
    torch.testing.assert_close(quick(x[0]), plain(x[0]))


def test_deep_nets_train_as_torch_would() -> None:
    x, y = torch.randn(20, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.arange(20) % 10
    found = []
    for changed in (True, False):
        torch.manual_seed(1)
        net = smooth(build("vgg11", (3, 32, 32), 10, "batch", "auto" if changed else "torch")).train()
        nn.functional.cross_entropy(net(x), y).backward()
        found.append([weight.grad for weight in net.parameters()])
        assert any(type(module) is Conv2d for module in net.modules()) == changed
    for quick, plain in zip(*found, strict=True):
        assert quick is not None and plain is not None
        torch.testing.assert_close(quick, plain, rtol=1e-3, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("name", ["cnn", "lenet", "conv4"])
def test_grey_images_make_maps_whose_channels_lie_together(name: str) -> None:
    x = torch.randn(4, 1, 28, 28)
    net = build(name, (1, 28, 28), 10, "batch")
    layouts = []
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(
        lambda _, __, made: layouts.append(made.is_contiguous(memory_format=torch.channels_last))
    )
    net(x)
    with torch.no_grad():
        net(x)
    assert layouts == [True, True]
