"""Compiled convolutions, alone and with pooling and ReLU: torch's own numbers and derivatives, where shapes say so."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import fedloom as fl
from fedloom.nets.build import build
from fedloom.nets.kernels.native import convolution, im2col, spectral, stem, winograd
from fedloom.nets.kernels.native.convolution import Geometry, directly
from fedloom.nets.kernels.native.convolve import convolve
from fedloom.nets.kernels.native.library import native_reason
from fedloom.nets.kernels.native.pool import pool_relu
from fedloom.nets.kernels.products import use_products
from fedloom.nets.kernels.use import use_native
from fedloom.nets.stages import with_stages

torch.set_num_threads(1)
LAST = torch.channels_last

# batch, (inputs, outputs, kernel), padding, (height, width) of the image
TILED: dict[str, tuple[int, tuple[int, int, int], tuple[int, int], tuple[int, int]]] = {
    "padded": (3, (16, 32, 3), (1, 1), (6, 6)),
    "without a border": (2, (8, 8, 3), (0, 0), (6, 8)),
    "odd maps": (2, (5, 19, 3), (1, 1), (7, 5)),
    "one image": (1, (33, 3, 3), (1, 1), (5, 4)),
    "one window": (2, (4, 4, 3), (1, 1), (2, 2)),
    "a border on one side": (2, (7, 40, 3), (0, 1), (5, 3)),
    "a wide border": (1, (6, 5, 3), (2, 2), (3, 4)),
    "several blocks of tiles": (7, (9, 10, 3), (1, 1), (15, 14)),
    "large tiles": (2, (260, 131, 3), (1, 1), (7, 8)),
    "large tiles without a border": (2, (130, 257, 3), (0, 1), (6, 9)),
    "large tiles of many pixels": (13, (17, 20, 3), (1, 1), (16, 18)),
    "maps of 2x2 pixels": (3, (20, 70, 3), (1, 1), (2, 2)),
}
STEMS: dict[str, tuple[int, tuple[int, int, int], tuple[int, int], tuple[int, int]]] = {
    "grey": (3, (1, 32, 3), (1, 1), (8, 7)),
    "colors": (2, (3, 70, 5), (0, 0), (9, 10)),
    "odd maps": (1, (2, 5, 3), (0, 1), (6, 5)),
    "an even kernel": (2, (3, 17, 4), (2, 1), (5, 6)),
    "one pixel wide": (2, (4, 9, 1), (0, 0), (4, 5)),
}
SPECTRA: dict[str, tuple[int, tuple[int, int, int], tuple[int, int], tuple[int, int]]] = {
    "without a border": (3, (16, 32, 5), (0, 0), (14, 14)),
    "padded": (2, (20, 19, 5), (2, 2), (9, 8)),
    "an even kernel": (2, (17, 16, 4), (1, 0), (12, 9)),
    "one window": (1, (5, 3, 5), (0, 0), (6, 6)),
    "a wide border": (2, (4, 33, 5), (4, 4), (3, 4)),
}
# the same, with strides
UNFOLDED: dict[str, tuple[int, tuple[int, int, int], tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    "pixel by pixel": (3, (16, 70, 1), (0, 0), (9, 5), (1, 1)),
    "pixels of many channels": (2, (270, 300, 1), (0, 0), (7, 5), (1, 1)),
    "every other pixel": (3, (70, 33, 1), (0, 0), (9, 8), (2, 2)),
    "halved": (2, (40, 50, 3), (1, 1), (8, 10), (2, 2)),
    "odd maps": (3, (9, 37, 3), (1, 1), (7, 9), (2, 2)),
    "strides of its own": (2, (20, 19, 4), (2, 0), (8, 11), (3, 1)),
    "one image": (1, (33, 3, 3), (1, 1), (5, 4), (1, 1)),
    "a wide border": (1, (6, 5, 3), (3, 4), (2, 3), (2, 2)),
    "more places than are added up in one precision": (9, (5, 6, 3), (1, 1), (32, 31), (2, 1)),
}
CASES = [*((winograd, case) for case in TILED.values()), *((stem, case) for case in STEMS.values())]
CASES += [(spectral, case) for case in SPECTRA.values()]
NAMES = [*(f"tiles: {name}" for name in TILED), *(f"stem: {name}" for name in STEMS)]
NAMES += [f"spectra: {name}" for name in SPECTRA]


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if reason := native_reason():
        pytest.skip(reason)


def given(case: Any, dtype: torch.dtype = torch.float64, image: bool = False) -> list[Tensor]:
    batch, (inputs, out, side), _, size = case
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(batch, inputs, *size, generator=draw, dtype=dtype).contiguous(memory_format=LAST)
    weight = torch.randn(out, side, side, inputs, generator=draw, dtype=dtype).permute(0, 3, 1, 2)
    bias = torch.randn(out, generator=draw, dtype=dtype)
    return [x.requires_grad_(not image), weight.requires_grad_(), bias.requires_grad_()]


def results(call: Any, tensors: list[Tensor], pull: Tensor | None = None) -> list[Tensor]:
    """The output and all gradients, of a sum whose weights are drawn."""
    made = call(*tensors)
    if pull is None:
        pull = torch.randn(made.shape, generator=torch.Generator().manual_seed(2), dtype=made.dtype)
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    return [made.detach(), *torch.autograd.grad(made, wanted, pull)]


@pytest.mark.parametrize(("kernel", "case"), CASES, ids=NAMES)
@pytest.mark.parametrize("pooled", [False, True])
def test_results_and_gradients_are_torch_s(kernel: Any, case: Any, pooled: bool) -> None:
    tensors = given(case, image=kernel is stem)
    ours = results(lambda *given: convolution.convolve(kernel, *given, Geometry((1, 1), case[2]), pooled), tensors)
    for one, other in zip(
        ours, results(lambda *given: directly(*given, Geometry((1, 1), case[2]), pooled), tensors), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
        assert one.dim() < 4 or one.is_contiguous(memory_format=LAST)
    with torch.no_grad():
        assert torch.equal(convolution.convolve(kernel, *tensors, Geometry((1, 1), case[2]), pooled), ours[0])


@pytest.mark.parametrize("case", UNFOLDED.values(), ids=UNFOLDED)
@pytest.mark.parametrize("biased", [False, True])
def test_strided_convolutions_and_their_gradients_are_torch_s(case: Any, biased: bool) -> None:
    tensors = given(case[:4])[: 2 + biased]
    geometry = Geometry(case[4], case[2])

    def by(call: Any) -> list[Tensor]:
        return results(lambda *given: call(*(*given, None)[:3], geometry, False), tensors)

    for one, other in zip(by(partial(convolution.convolve, im2col)), by(directly), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
        assert one.dim() < 4 or one.shape[1] == 1 or one.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("kernel", [winograd, stem, spectral])
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_other_layouts_and_layers_without_bias_have_the_same_results(kernel: Any, layout: torch.memory_format) -> None:
    case = {winograd: TILED["padded"], stem: STEMS["colors"], spectral: SPECTRA["padded"]}[kernel]
    x, weight, _ = given(case, image=kernel is stem)
    x, weight = (t.detach().contiguous(memory_format=layout).requires_grad_(t.requires_grad) for t in (x, weight))
    ours = results(
        lambda x, weight: convolution.convolve(kernel, x, weight, None, Geometry((1, 1), case[2]), True), [x, weight]
    )
    theirs = results(lambda x, weight: directly(x, weight, None, Geometry((1, 1), case[2]), True), [x, weight])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


SMALL = {"tiles": (winograd, 3), "stem": (stem, 3), "spectra": (spectral, 4), "im2col": (im2col, 2)}


@pytest.mark.parametrize("which", SMALL)
@pytest.mark.parametrize("pooled", [False, True])
def test_first_and_second_derivatives_are_right(which: str, pooled: bool) -> None:
    kernel, side = SMALL[which]
    if kernel is im2col and pooled:
        pytest.skip("strided convolutions are not pooled")
    tensors = given((1, (2, 3, side), (1, 1), (3, 4)), image=kernel is stem)
    geometry = Geometry((2, 2) if kernel is im2col else (1, 1), (1, 1))
    call = lambda *values: convolution.convolve(kernel, *values, geometry, pooled)  # noqa: E731
    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


def test_pooling_with_relu_and_its_derivatives_are_right() -> None:
    for size in ((4, 6), (5, 7), (2, 3)):
        x = torch.randn(2, 19, *size, dtype=torch.float64).contiguous(memory_format=LAST).requires_grad_()
        ours, theirs = results(pool_relu, [x]), results(lambda x: F.max_pool2d(x, 2).relu(), [x])
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(pool_relu, x)
    assert torch.autograd.gradgradcheck(pool_relu, x)


def test_what_is_not_a_number_is_not_lost_in_pooling() -> None:
    x = torch.randn(1, 16, 6, 6).contiguous(memory_format=LAST)
    for row, column in ((0, 0), (1, 2), (2, 5), (5, 5)):
        x[0, :, row, column] = torch.nan
    assert torch.equal(pool_relu(x).isnan(), F.max_pool2d(x, 2).isnan())
    weight = torch.randn(16, 16, 3, 3)
    assert convolution.convolve(winograd, x, weight, None, Geometry((1, 1), (1, 1)), True).isnan().any()


SINGLE = [(10, 32, 64, 3, 14, 1), (10, 64, 128, 3, 7, 1), (50, 64, 64, 3, 8, 1), (10, 1, 32, 3, 28, 1)]
SINGLE += [(13, 256, 128, 3, 16, 1), (50, 64, 64, 3, 32, 1), (50, 256, 256, 3, 4, 1), (50, 256, 256, 3, 2, 1)]
SINGLE += [(20, 512, 512, 3, 4, 1), (50, 128, 128, 3, 16, 1), (25, 64, 64, 3, 32, 1)]
STRIDED = [(50, 64, 128, 3, 32, 2), (50, 256, 512, 3, 8, 2), (50, 64, 128, 1, 32, 2), (50, 512, 512, 1, 4, 1)]


def errors(kernel: Any, case: Any, geometry: Geometry) -> list[tuple[float, float]]:
    """Ours and torch's against double precision, of the output and of all gradients."""
    single = given(case, torch.float32, image=kernel is stem)
    double = [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in single]
    exact = results(lambda *given: directly(*given, geometry, False), double)
    pull = torch.randn(exact[0].shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    exact = results(lambda *given: directly(*given, geometry, False), double, pull)
    theirs = results(lambda *given: directly(*given, geometry, False), single, pull.float())
    ours = results(lambda *given: convolution.convolve(kernel, *given, geometry, False), single, pull.float())
    return [
        (float((mine - right).norm()), float((direct - right).norm()))
        for right, direct, mine in zip(exact, theirs, ours, strict=True)
    ]


@pytest.mark.parametrize("shape", [*SINGLE, (16, 64, 64, 5, 14, 0)])
def test_single_precision_is_as_exact_as_torch_s(shape: tuple[int, int, int, int, int, int]) -> None:
    batch, inputs, out, side, size, padding = shape
    kernel = stem if inputs < 5 else winograd if side == 3 else spectral
    case = (batch, (inputs, out, side), None, (size, size))
    for ours, theirs in errors(kernel, case, Geometry((1, 1), (padding, padding))):
        assert ours < 1.05 * theirs


@pytest.mark.parametrize("shape", STRIDED)
def test_single_precision_of_strided_convolutions_is_as_exact_as_torch_s(shape: tuple[int, ...]) -> None:
    batch, inputs, out, side, size, stride = shape
    geometry = Geometry((stride, stride), (side // 2, side // 2))
    for ours, theirs in errors(im2col, (batch, (inputs, out, side), None, (size, size)), geometry):
        assert ours < 1.05 * theirs


def test_shapes_alone_choose() -> None:
    def chosen(batch: int, inputs: int, out: int, side: int, size: int, padding: int = 1, **more: Any) -> str:
        x, weight = torch.zeros(batch, inputs, size, size), torch.zeros(out, inputs, side, side, requires_grad=True)
        made = convolve(x, weight, None, more.get("stride", (1, 1)), (padding, padding), more.get("groups", 1))
        return "" if made is None else made.grad_fn.way.__name__.rpartition(".")[2]

    assert chosen(10, 32, 64, 3, 14) == chosen(10, 64, 128, 3, 7) == chosen(50, 64, 64, 3, 4) == "winograd"
    assert chosen(10, 1, 32, 3, 28) == chosen(50, 3, 64, 5, 32, 0) == "stem"
    assert chosen(2, 32, 64, 3, 4) == ""  # few tiles
    assert chosen(10, 8, 64, 3, 14) == ""  # few channels
    assert chosen(50, 256, 256, 3, 8) == chosen(16, 64, 64, 3, 2) == "winograd"
    assert chosen(10, 32, 64, 5, 14, 2) == chosen(50, 64, 64, 5, 14, 0) == "spectral"
    assert chosen(1, 32, 64, 5, 14, 0) == ""  # transforms of kernels serve one image
    assert chosen(10, 32, 64, 3, 14, stride=(2, 2)) == ""
    assert chosen(10, 3, 64, 3, 2, 0) == ""  # no convolution at all


def test_large_tiles_are_used_where_they_are_as_exact_as_torch() -> None:
    def ways(*shape: int, instructions: str = "AVX2") -> tuple[int, int, int]:
        batch, inputs, out, size = shape
        return winograd.ways((batch, inputs, size, size), out, (1, 1), instructions)

    two, four, whole = winograd.TWO, winograd.FOUR, winograd.WHOLE
    assert ways(50, 64, 64, 32) == ways(50, 64, 64, 32, instructions="AVX512") == (two, two, four)  # few channels
    assert ways(50, 128, 128, 16) == (two, four, four)
    assert ways(50, 256, 256, 8) == (four, four, four)
    assert ways(50, 512, 512, 4) == (four, four, two)  # few pixels
    assert ways(50, 128, 128, 16, instructions="AVX512") == (two, two, two)
    assert ways(50, 256, 256, 16, instructions="AVX512") == (four, four, two)
    assert ways(50, 512, 512, 2) == (whole, whole, whole)
    assert ways(50, 512, 512, 6) == (two, two, two)  # as many multiplications


@pytest.fixture
def nets() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = build("cnn", (1, 16, 16), 10, "batch", "portable")
    native = copy.deepcopy(plain)
    use_native(native)
    return plain, native


def operations(made: Tensor) -> set[str]:
    names, waiting = set(), [made.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            names.add(type(node).__name__)
            waiting += [parent for parent, _ in node.next_functions]
    return names


def test_a_net_computes_convolution_pooling_and_relu_together(nets: tuple[nn.Module, nn.Module]) -> None:
    x = torch.rand(20, 1, 16, 16)
    ours, theirs = nets[1](x), nets[0](x)
    assert "_ConvolutionBackward" in operations(ours)
    assert not any("MaxPool" in name or "Relu" in name for name in operations(ours))
    torch.testing.assert_close(ours, theirs)


def test_what_follows_a_convolution_may_work_in_place() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True))
    use_products(plain)
    native = copy.deepcopy(plain)
    use_native(native)
    x = torch.rand(20, 16, 8, 8)
    ours, theirs = (results(net, [x.clone().requires_grad_()]) for net in (native, plain))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_hooks_see_what_passes_between_modules(nets: tuple[nn.Module, nn.Module]) -> None:
    x = torch.rand(20, 1, 16, 16)
    (features, stages), (expected, of_plain) = (with_stages(net.body, x) for net in reversed(nets))  # type: ignore[arg-type]
    torch.testing.assert_close(features, expected)
    assert len(stages) == len(of_plain) == 3
    for one, other in zip(stages, of_plain, strict=True):
        torch.testing.assert_close(one, other)


def test_clients_can_be_stacked_and_other_precisions_are_left_to_torch(nets: tuple[nn.Module, nn.Module]) -> None:
    plain, native = nets
    weights = {name: torch.stack([value, 2 * value]).detach() for name, value in native.named_parameters()}
    x = torch.rand(2, 20, 1, 16, 16)

    def loss(net: nn.Module, values: dict[str, Tensor], x: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(net, values, x)
        return made.square().sum()

    stacked, expected = (
        torch.func.vmap(torch.func.grad(lambda values, x: loss(net, values, x)))(weights, x)  # noqa: B023
        for net in (native, plain)
    )
    alone = torch.func.grad(lambda values: loss(native, values, x[0]))({name: w[0] for name, w in weights.items()})
    for name in weights:
        torch.testing.assert_close(stacked[name], expected[name])
        torch.testing.assert_close(alone[name], expected[name][0], rtol=1e-3, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert not any("_Convolution" in name for name in operations(native(x[0])))
    assert native.bfloat16()(x[0].bfloat16()).dtype == torch.bfloat16


def test_gradients_of_images_are_torch_s(nets: tuple[nn.Module, nn.Module]) -> None:
    of_images = []
    for net in nets:
        x = torch.rand(20, 1, 16, 16, generator=torch.Generator().manual_seed(3)).requires_grad_()
        of_images += torch.autograd.grad(net(x).square().sum(), x)
    torch.testing.assert_close(*of_images, rtol=1e-3, atol=1e-5)


def test_a_run_agrees_with_portable_kernels_and_has_its_own_bits(tmp_path: Path) -> None:
    fields = {"data": {"name": "digits", "images": 200}, "split": "iid", "clients": 2, "fraction": 1.0, "model": "cnn"}
    fields |= {"rounds": 2, "batch": 20, "lr": 0.05, "eval_every": 0, "workers": 1}
    final = {}
    for name, more in {"native": {}, "portable": {}, "two": {"workers": 2}}.items():
        kernels = "native" if name == "two" else name
        run = fl.run(fields, kernels=kernels, out=str(tmp_path / name), **more)
        final[name] = load_file(run.path / "final.safetensors")
    for name, weight in final["native"].items():
        torch.testing.assert_close(weight, final["portable"][name], rtol=0, atol=1e-4)
        assert torch.equal(weight, final["two"][name])
    assert any(not torch.equal(weight, final["portable"][name]) for name, weight in final["native"].items())
