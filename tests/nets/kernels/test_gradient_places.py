"""Kernels write gradients of weights into the memory that is kept for them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedloom.nets.build import build
from fedloom.nets.kernels.native.gradients import gradients_in
from fedloom.nets.kernels.native.library import native_reason
from fedloom.nets.kernels.use import use_native
from fedloom.nets.net import region_of
from fedloom.weights import Layout, Regions, Weights

pytestmark = pytest.mark.skipif(native_reason() is not None, reason="no compiled kernels on this machine")

IMAGES = {"lenet": (3, 32, 32), "cnn": (1, 28, 28), "mobilenet": (3, 32, 32), "resnet18": (3, 32, 32)}


def energy(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().mean()


@pytest.mark.parametrize("name", IMAGES)
def test_the_flat_gradient_has_the_bits_of_autograd_s(name: str) -> None:
    torch.manual_seed(0)
    net = build(name, IMAGES[name], 10, "batch")
    use_native(net)
    twin = copy.deepcopy(net)
    weights = Weights(net, Layout(net, Regions.of(net, region_of(net), {})))
    for _ in range(2):
        x = torch.rand(4, *IMAGES[name]).contiguous(memory_format=torch.channels_last)
        weights.backward(energy(net, x), [slice(0, weights.layout.parameters)])
        twin.zero_grad()
        energy(twin, x).backward()
        for parameter, own in zip(twin.named_parameters(), net.parameters(), strict=True):
            assert torch.equal(weights.layout.entries[parameter[0]].view(weights.gradient), parameter[1].grad)
            assert own.grad is None


def convolution() -> tuple[nn.Conv2d, Tensor, dict[int, Tensor]]:
    torch.manual_seed(0)
    net = build("cnn", (1, 28, 28), 10, "batch")
    use_native(net)
    layer = next(module for module in net.modules() if isinstance(module, nn.Conv2d) and module.in_channels == 32)
    place = torch.full((layer.weight.numel(),), torch.nan)
    return (
        layer,
        torch.rand(10, 32, 14, 14).contiguous(memory_format=torch.channels_last),
        {layer.weight.data_ptr(): place},
    )


def test_a_gradient_is_written_to_its_place_and_stays_there() -> None:
    layer, x, places = convolution()
    (place,) = places.values()
    with gradients_in(places):
        layer(x).square().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.data_ptr() == place.data_ptr()
    (expected,) = torch.autograd.grad(layer(x).square().sum(), [layer.weight])
    assert expected.data_ptr() != place.data_ptr() and torch.equal(layer.weight.grad, expected)


def test_gradients_of_a_weight_that_is_used_twice_are_added() -> None:
    layer, x, places = convolution()

    def twice(layer: nn.Conv2d) -> Tensor:
        return layer(x).square().sum() + layer(x.flip(0) + 1).square().sum()

    (expected,) = torch.autograd.grad(twice(layer), [layer.weight])
    with gradients_in(places):
        twice(layer).backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, expected)


def test_places_serve_one_pass_even_if_it_fails() -> None:
    layer, x, places = convolution()
    with pytest.raises(RuntimeError), gradients_in(places):
        layer(x).backward()  # no scalar
    layer(x).sum().backward()
    (place,) = places.values()
    assert bool(place.isnan().all())
