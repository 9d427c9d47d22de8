"""Compiled kernels find torch's numbers, values and gradients, at least as exactly, and step aside where they do not apply."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.nets.build import build
from fedloom.nets.kernels.native import applies
from fedloom.nets.kernels.native.library import native_reason
from fedloom.nets.kernels.products import use_products
from fedloom.nets.kernels.use import served, use_native
from fedloom.nets.layers.residual import Residual
from fedloom.nets.stages import stage

pytestmark = pytest.mark.skipif(native_reason() is not None, reason="no compiled kernels on this machine")
torch.set_num_threads(1)
LAST = torch.channels_last
Shape = tuple[int, int, int, int]


def norm(channels: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())


def plain_norm(channels: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(channels))


def depthwise(channels: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels))


def block(channels: int, stride: int) -> nn.Module:
    conv = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)
    first = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
    return nn.Sequential(first, nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)))


def separable(channels: int, stride: int) -> nn.Module:
    return nn.Sequential(*block(channels, stride), nn.Conv2d(channels, channels + 3, 1, bias=False))


def separables(channels: int, stride: int) -> nn.Module:
    """Three blocks that are one operation; the last without a 1x1 convolution."""
    return nn.Sequential(separable(channels, stride), separable(channels + 3, 1), block(channels + 6, 1))


def same_size(channels: int, stride: int) -> nn.Module:
    """A residual block whose input is added as it is."""
    main = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
    return nn.Sequential(Residual(main, channels, channels, 1, nn.BatchNorm2d))


def other_size(channels: int, stride: int) -> nn.Module:
    """A residual block whose input is convolved and normalized, too."""
    main = nn.Sequential(nn.Conv2d(channels, channels + 3, 1, stride, bias=False), nn.BatchNorm2d(channels + 3))
    return nn.Sequential(Residual(main, channels, channels + 3, stride, nn.BatchNorm2d))


LAYERS = (norm, plain_norm, depthwise, block, separable, separables, same_size, other_size)
NODES = dict.fromkeys(LAYERS, "_Block") | {norm: "_BatchNorm", plain_norm: "_BatchNorm", depthwise: "_Depthwise"}
NODES |= {same_size: "_Residual", other_size: "_Residual"}


def drawn(make: Callable[[int, int], nn.Module], channels: int, stride: int) -> nn.Module:
    """With scales and shifts that differ from channel to channel."""
    torch.manual_seed(0)
    net = make(channels, stride)
    for parameter in net.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return net


def native(net: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    made = copy.deepcopy(net).to(dtype)
    use_products(made)
    use_native(made)
    return made


def maps(shape: Shape, dtype: torch.dtype = torch.float64) -> Tensor:
    x = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
    return x.float().to(dtype).contiguous(memory_format=LAST)


def passes(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Output, gradients and statistics of a forward and a backward pass."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = net(x)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).float().to(y.dtype)
    wanted = [x, *net.parameters()]
    gradients = torch.autograd.grad(y, wanted, g.contiguous(memory_format=LAST))
    names = ["x", *(name for name, _ in net.named_parameters())]
    averages = {name: value for name, value in net.named_buffers() if value.is_floating_point()}
    return {"y": y.detach(), **dict(zip(names, gradients, strict=True)), **averages}


def operations(made: Tensor) -> set[str]:
    names, todo = set(), [made.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            names.add(type(node).__name__.removesuffix("Backward"))
            todo += [parent for parent, _ in node.next_functions]
    return names


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((3, 20, 5, 7), 1),
        ((3, 33, 6, 7), 2),
        ((2, 16, 1, 3), 1),
        ((2, 5, 3, 1), 2),
        ((1, 48, 9, 8), 1),
        ((1, 130, 2, 2), 1),
        ((9, 8, 2, 2), 2),
        ((33, 7, 4, 4), 1),
        ((2, 3, 1, 2), 2),
        ((50, 3, 8, 8), 1),
        ((4, 400, 3, 3), 1),
    ],
)
def test_values_and_gradients_are_torch_s(make: Any, shape: Shape, stride: int, training: bool) -> None:
    net = drawn(make, shape[1], stride).double().train(training)
    x = maps(shape)
    expected, made = passes(copy.deepcopy(net), x), passes(native(net, torch.float64), x)
    assert list(made) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            made[name], value, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert NODES[make] in operations(native(net, torch.float64)(x.requires_grad_()))


@pytest.mark.parametrize(
    ("shape", "stride"), [((10, 32, 32, 32), 1), ((10, 64, 32, 32), 2), ((50, 128, 8, 8), 2), ((50, 1024, 2, 2), 1)]
)
@pytest.mark.parametrize("make", [norm, depthwise, block, separable, separables, same_size, other_size])
def test_errors_are_no_larger_than_torch_s(make: Any, shape: Shape, stride: int) -> None:
    """Relative root mean square, against float64. Where rounding makes a ReLU pass or not, both err by as much as a pixel."""
    net, x = drawn(make, shape[1], stride), maps(shape, torch.float32)
    exact = passes(copy.deepcopy(net).double(), x.double())
    torchs, ours = passes(copy.deepcopy(net), x), passes(native(net), x)
    for name, value in exact.items():
        size = value.norm()
        assert (ours[name].double() - value).norm() / size <= 1.1 * (
            torchs[name].double() - value
        ).norm() / size + 1e-7, name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", LAYERS)
def test_gradients_and_gradients_of_gradients_match_finite_differences(make: Any, training: bool) -> None:
    net = native(drawn(make, 3, 2).train(training), torch.float64)
    names = [name for name, _ in net.named_parameters()]
    x = torch.randn(2, 3, 4, 3, dtype=torch.float64, requires_grad=True)

    def call(x: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))

    inputs = (x, *net.parameters())
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("make", LAYERS)
def test_other_layouts_transforms_and_types_have_the_same_numbers(make: Any) -> None:
    net = drawn(make, 6, 1)
    ours, x = native(net), maps((4, 6, 5, 5), torch.float32)
    expected = net(x)
    near = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(ours(x.contiguous()), expected, **near)
    torch.testing.assert_close(ours(x[:, :, :, :4]), net(x[:, :, :, :4]), **near)
    net.eval(), ours.eval()
    if make is not depthwise:
        state = {name: value.clone() for name, value in net.state_dict().items()}
        ours.load_state_dict(state)
    stacked = torch.stack([x, 2 * x])
    torch.testing.assert_close(torch.func.vmap(ours)(stacked), torch.stack([net(one) for one in stacked]), **near)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "_Block" not in operations(ours(x.clone().requires_grad_()))
    assert torch.export.export(ours, (x,)).module()(x).shape == expected.shape
    traced = torch.jit.trace(ours, (x,))
    torch.testing.assert_close(traced(x), net(x), **near)


@pytest.mark.parametrize("make", LAYERS)
def test_weights_under_transforms_have_the_same_numbers(make: Any) -> None:
    net = drawn(make, 6, 1).eval()
    ours, x = native(net).eval(), maps((4, 6, 5, 5), torch.float32)
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    doubled = {name: torch.stack([weight, 2 * weight]) for name, weight in weights.items()}

    def squared(module: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
        return lambda values: torch.func.functional_call(module, values, (x,)).square().mean()

    for transform, given in ((torch.func.grad, weights), (torch.func.vmap, doubled)):
        expected = transform(squared(net))(given)
        torch.testing.assert_close(transform(squared(ours))(given), expected, rtol=1e-4, atol=1e-5)


def test_who_looks_at_a_module_sees_what_enters_and_leaves_it() -> None:
    net = drawn(block, 6, 1)
    ours, x = native(net), maps((4, 6, 5, 5), torch.float32)
    before: dict[str, list[Tensor]] = {"torch": [], "ours": []}
    for name, module in (("torch", net), ("ours", ours)):
        for place in ("0.0", "0.1", "1.0", "1.1", "1.2", "1"):
            module.get_submodule(place).register_forward_pre_hook(
                lambda _, given, name=name: before[name].append(given[0].clone())
            )
    torch.testing.assert_close(ours(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(before["ours"]) == 6
    for expected, seen in zip(before["torch"], before["ours"], strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


def test_a_stage_s_output_is_what_enters_its_activation() -> None:
    from fedloom.nets.stages import with_stages

    net = nn.Sequential(nn.BatchNorm2d(4), stage(nn.ReLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = maps((5, 4, 3, 3), torch.float32)
    (_, (expected,)), (_, (seen,)) = with_stages(net, x), with_stages(native(net), x)
    assert expected.min() < 0
    torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


def test_names_of_tensors_stay_and_a_copy_computes_the_same() -> None:
    net = build("mobilenet", (3, 8, 8), 4, "running")
    ours = copy.deepcopy(net)
    use_native(ours)
    assert list(ours.state_dict()) == list(net.state_dict())
    assert served(net) == served(ours) == 53
    x = maps((4, 3, 8, 8), torch.float32)
    twin = copy.deepcopy(ours)
    assert torch.equal(ours(x), twin(x))
    torch.testing.assert_close(dict(ours.named_buffers()), dict(twin.named_buffers()), rtol=0, atol=0)
    assert {type(module) for module in build("mlp", (3, 8, 8), 4, "running").modules()} == {
        type(module) for module in native(build("mlp", (3, 8, 8), 4, "running")).modules()
    } - {type(native(nn.Sequential()))} | {nn.Sequential}


def test_what_is_not_a_number_stays_one() -> None:
    x = maps((4, 6, 5, 5), torch.float32)
    x[0, 0, 0, 0] = float("nan")
    for make in LAYERS:
        assert native(drawn(make, 6, 1))(x).isnan().any()


CONVOLUTIONS = {"_Convolution", "ConvolutionBackward0", "MmBackward0"}


@pytest.mark.parametrize("channels", [64, 300])
def test_a_1x1_convolution_belongs_to_the_block_before_it(channels: int) -> None:
    ours, x = native(drawn(separable, channels, 1)), maps((4, channels, 6, 6), torch.float32).requires_grad_()
    assert operations(ours(x)) & CONVOLUTIONS == set()
    ours[-1].register_forward_hook(lambda *_: None)  # someone looks at what enters it
    assert operations(ours(x)) & CONVOLUTIONS == {"_Convolution"}


def nodes(made: Tensor) -> int:
    """Operations of a chain."""
    count, node = 0, made.grad_fn
    while node is not None:
        count += 1
        node = node.next_functions[0][0] if node.next_functions else None
    return count


def test_blocks_one_behind_the_other_are_one_operation_unless_someone_looks_in_between() -> None:
    net = drawn(separables, 6, 1)
    ours, x = native(net), maps((4, 6, 6, 6), torch.float32).requires_grad_()
    assert nodes(ours(x)) == 2  # with the one that accumulates
    seen: list[Tensor] = []
    ours.get_submodule("1.0.0").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    made = ours(x)
    assert nodes(made) > 2
    torch.testing.assert_close(made, net(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen[0], net[0](x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_block_among_others_may_keep_its_statistics(frozen: int) -> None:
    net = drawn(separables, 5, 2).double()
    net[frozen].eval()
    x = maps((4, 5, 6, 6))
    expected, made = passes(copy.deepcopy(net), x), passes(native(net, torch.float64), x)
    for name, value in expected.items():
        torch.testing.assert_close(made[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [same_size, other_size])
@pytest.mark.parametrize("hooked", ["0", "0.total", "0.main", "0.main.1", "0.shortcut"])
def test_a_residual_block_has_the_same_numbers_where_someone_looks(make: Any, hooked: str) -> None:
    net = drawn(make, 6, 2)
    ours, x = native(net), maps((4, 6, 6, 6), torch.float32)
    seen: dict[str, Tensor] = {}
    for name, module in (("torch", net), ("ours", ours)):
        module.get_submodule(hooked).register_forward_pre_hook(
            lambda _, given, name=name: seen.update({name: given[0].clone()})
        )
    torch.testing.assert_close(ours(x), net(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen["ours"], seen["torch"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", ["0.main", "0.shortcut"])
def test_one_side_of_a_residual_block_may_keep_its_statistics(frozen: str) -> None:
    net = drawn(other_size, 5, 2).double()
    net.get_submodule(frozen).eval()
    x = maps((4, 5, 6, 6))
    expected, made = passes(copy.deepcopy(net), x), passes(native(net, torch.float64), x)
    for name, value in expected.items():
        torch.testing.assert_close(made[name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [same_size, other_size])
def test_a_residual_block_of_which_nothing_but_the_norm_is_trained(make: Any) -> None:
    net, x = drawn(make, 5, 1), maps((4, 5, 6, 6), torch.float32)
    for parameter in net[0].main[0].parameters():
        parameter.requires_grad_(False)
    ours, wanted = native(net), "0.main.1.weight"
    (expected,) = torch.autograd.grad(net(x).square().sum(), [net.get_parameter(wanted)])
    (made,) = torch.autograd.grad(ours(x).square().sum(), [ours.get_parameter(wanted)])
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (7, 65, 33, 31), (50, 1024, 1, 1), (40_000, 1, 2, 3)])
def test_room_for_maps_begins_at_a_cache_line_and_is_nobody_else_s(shape: Shape, dtype: torch.dtype) -> None:
    batch, channels, high, wide = shape
    x = torch.empty(batch, 1, 1, 1, dtype=dtype)
    made = [applies.maps(x, channels, (high, wide)), applies.like(torch.empty(shape, dtype=dtype))]
    for number, room in enumerate(made):
        assert (room.shape, room.dtype, room.data_ptr() % 64) == (shape, dtype, 0)
        assert room.is_contiguous(memory_format=LAST)
        assert not room._is_view()
        room.fill_(number)
    assert [float(room.mean()) for room in made] == [0, 1]


def test_maps_that_shrink_to_a_pixel_have_torch_s_answer() -> None:
    net = drawn(separables, 5, 2)
    ours, x = native(net), maps((1, 5, 2, 2), torch.float32)
    for module in (net, ours):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            module(x)
