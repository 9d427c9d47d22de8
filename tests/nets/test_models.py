"""Each net: its size, its shapes, its memory layout, and that it learns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets import Net, build, list_models
from fedloom.rng import seeded

torch.set_num_threads(1)

MODELS = ("linear", "mlp", "cnn", "lenet", "conv4", "vgg11", "mobilenet", "resnet18")
SMALL = ("linear", "mlp", "cnn", "lenet", "conv4")
TRUNKS = ("cnn", "lenet", "conv4", "vgg11", "mobilenet", "resnet18")
SHAPES = ((1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64))
DIMS = {  # features for each of the shapes; None where the net refuses the image
    "linear": (64, 784, 3072, 12288),
    "mlp": (64, 64, 64, 64),
    "cnn": (128, 128, 128, 128),
    "lenet": (None, 192, 192, 192),
    "conv4": (None, 64, 256, 1024),
    "vgg11": (None, None, 512, 512),
    "mobilenet": (1024, 1024, 1024, 1024),
    "resnet18": (512, 512, 512, 512),
}


def size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def images(count: int, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    return torch.randn(count, height, width, channels).permute(0, 3, 1, 2)  # channels-last, as the data come


@pytest.mark.parametrize(
    ("model", "classes", "body", "total"),
    [
        ("linear", 10, 0, 3072 * 10 + 10),
        ("mlp", 10, 3072 * 64 + 64, 3072 * 64 + 64 + 650),
        ("cnn", 10, 896 + 18_496 + 73_856, 94_538),
        ("lenet", 10, 797_962 - 1_930, 797_962),
        ("conv4", 10, 115_658 - 2_570, 115_658),
        ("vgg11", 10, 9_750_922 - 5_130, 9_750_922),
        ("mobilenet", 100, 3_206_976, 3_309_476),
        ("resnet18", 10, 11_173_962 - 5_130, 11_173_962),
    ],
)
def test_sizes_are_those_of_the_papers_code(model: str, classes: int, body: int, total: int) -> None:
    net = build(model, (3, 32, 32), classes, "running")
    assert size(net.body) == body
    assert size(net) == total


def test_resnet18_has_the_size_that_counting_by_hand_gives() -> None:
    def block(inputs: int, out: int) -> int:
        shortcut = inputs * out + 2 * out if inputs != out else 0
        return 9 * inputs * out + 2 * out + 9 * out * out + 2 * out + shortcut

    stages = sum(block(i, o) + block(o, o) for i, o in ((64, 64), (64, 128), (128, 256), (256, 512)))
    by_hand = 9 * 3 * 64 + 2 * 64 + stages + 512 * 10 + 10
    assert size(build("resnet18", (3, 32, 32), 10, "batch")) == by_hand == 11_173_962


@pytest.mark.parametrize("model", MODELS)
def test_features_and_logits_have_their_shapes_for_every_image_size(model: str) -> None:
    for shape, dim in zip(SHAPES, DIMS[model], strict=True):
        if dim is None:
            with pytest.raises(FedloomError, match=f"{model} needs images of at least"):
                build(model, shape, 7, "batch")
            continue
        net = build(model, shape, 7, "batch")
        x = images(2, shape)
        with torch.no_grad():
            f = net.features(x)
            assert f.shape == (2, dim) == (2, net.dim)
            assert net(x).shape == (2, 7)
            assert torch.equal(net(x), net.head(f))


@pytest.mark.parametrize("model", MODELS)
def test_the_smallest_image_works_and_a_smaller_one_is_refused(model: str) -> None:
    smallest = int(next(row["smallest"] for row in list_models() if row["name"] == model))
    net = build(model, (1, smallest, smallest + 3), 2, "running")
    assert net.features(images(3, (1, smallest, smallest + 3))).shape == (3, net.dim)
    if smallest > 1:
        with pytest.raises(FedloomError):
            build(model, (1, smallest + 3, smallest - 1), 2, "running")


def test_conv4_keeps_the_last_maps_as_features() -> None:
    assert build("conv4", (3, 48, 32), 10, "batch").dim == 64 * 3 * 2


@pytest.mark.parametrize("model", TRUNKS)
@pytest.mark.parametrize("channels", [1, 3])
def test_maps_stay_channels_last_through_the_body(model: str, channels: int) -> None:
    net = build(model, (channels, 32, 32), 10, "running")
    strays: list[str] = []

    def look(name: str) -> None:
        def hook(_module: nn.Module, _inputs: tuple[Tensor, ...], out: Tensor) -> None:
            if out.dim() == 4 and not out.is_contiguous(memory_format=torch.channels_last):
                strays.append(name)

        net.body.get_submodule(name).register_forward_hook(hook)

    for name, _ in net.body.named_modules():
        look(name)
    net(images(2, (channels, 32, 32)))
    assert strays == []


@pytest.mark.parametrize(("model", "side"), [("linear", 8), ("mlp", 8), ("cnn", 8), ("lenet", 32), ("conv4", 32)])
def test_a_few_steps_on_one_batch_of_digits_lower_the_loss(model: str, side: int) -> None:
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels[:20], dtype=torch.float32).view(20, 1, 8, 8)
    x = ((x - x.mean()) / x.std()).repeat_interleave(side // 8, 2).repeat_interleave(side // 8, 3)
    y = torch.tensor(labels[:20])
    with seeded(0, "test"):
        net = build(model, (1, side, side), 10, "running")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        losses.append(F.cross_entropy(net(x), y))
        torch.autograd.backward(losses[-1])
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("model", ["vgg11", "mobilenet", "resnet18"])
def test_every_weight_of_a_deep_net_gets_a_gradient_and_the_input_is_left_alone(model: str) -> None:
    net = build(model, (3, 32, 32), 10, "batch")
    x = images(3, (3, 32, 32))
    before = x.clone()
    gradients = torch.autograd.grad(F.cross_entropy(net(x), torch.arange(3)), list(net.parameters()))
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    assert torch.equal(x, before)


@pytest.mark.parametrize("model", ["lenet", "conv4", "vgg11"])
def test_pooling_before_relu_gives_the_bits_of_relu_before_pooling(model: str) -> None:
    net = build(model, (3, 32, 32), 10, "batch")
    x, y = images(3, (3, 32, 32)), torch.arange(3)
    layers = list(net.body.children())
    pools = [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
    for i in pools:
        layers[i], layers[i + 1] = layers[i + 1], layers[i]
    textbook = Net(nn.Sequential(*layers), net.head, net.dim, net.classes)
    weights = list(net.parameters())
    mine = torch.autograd.grad(F.cross_entropy(net(x), y), weights)
    theirs = torch.autograd.grad(F.cross_entropy(textbook(x), y), weights)
    assert all(isinstance(layers[i], nn.ReLU) for i in pools)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_mobilenets_pointwise_layer_is_a_1x1_convolution() -> None:
    net = build("mobilenet", (3, 32, 32), 10, "batch")
    pointwise = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(pointwise) == 13
    for memory in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 32, 5, 4).contiguous(memory_format=memory)
        torch.testing.assert_close(pointwise[0](x), F.conv2d(x, pointwise[0].weight))


def test_vgg11_draws_its_convolutions_from_its_own_normal() -> None:
    net = build("vgg11", (3, 32, 32), 10, "batch")
    for conv in (m for m in net.modules() if isinstance(m, nn.Conv2d)):
        assert conv.bias is not None
        assert not conv.bias.any()
        expected = (2 / (9 * conv.out_channels)) ** 0.5
        assert conv.weight.std().item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("model", SMALL)
def test_nets_can_be_stacked_with_vmap(model: str) -> None:
    nets = [build(model, (1, 16, 16), 3, "batch") for _ in range(2)]
    x, y = images(8, (1, 16, 16)).reshape(2, 4, 1, 16, 16), torch.tensor([[0, 1, 2, 0], [1, 1, 2, 0]])

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(nets[0], weights, (x,)), y)

    weights, _ = torch.func.stack_module_state(nets)
    stacked = torch.func.vmap(torch.func.grad(loss))(weights, x, y)
    for i, net in enumerate(nets):
        torch.autograd.backward(F.cross_entropy(net(x[i]), y[i]))
        for name, weight in net.named_parameters():
            torch.testing.assert_close(stacked[name][i], weight.grad, rtol=1e-3, atol=1e-5)


def test_building_depends_on_the_generator_alone() -> None:
    def draw() -> Tensor:
        with seeded(3, "initial"):
            net = build("lenet", (1, 28, 28), 10, "running")
            return torch.cat([*(w.flatten() for w in net.parameters()), torch.rand(1)])

    assert torch.equal(draw(), draw())


def test_the_list_names_every_model_with_its_size_and_uses_no_randomness() -> None:
    before = torch.random.get_rng_state()
    rows = {row["name"]: row for row in list_models()}
    assert torch.equal(before, torch.random.get_rng_state())
    assert set(MODELS) <= set(rows)
    assert rows["lenet"]["parameters"] == 797_962
    assert all(row["line"] and row["origin"] for row in rows.values())
