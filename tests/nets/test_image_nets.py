"""ResNets, MobileNetV2 and cnn1d: sizes of the papers, and torchvision's weights give torchvision's outputs.

The reference below computes torchvision's nets from a state dict with torchvision's names, by functions alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError
from fedloom.nets import Net, build, spelled_model
from fedloom.nets.foreign import our_names
from fedloom.rng import seeded

torch.set_num_threads(1)
Weights = Mapping[str, Tensor]

STEM = {"body.0": "conv1", "body.1": "bn1", "head": "fc"}
LAYER = {"main.0": "conv1", "main.1": "bn1", "main.3": "conv2", "main.4": "bn2", "main.6": "conv3", "main.7": "bn3"}


def torchvision_weights(net: Net, depths: tuple[int, ...]) -> dict[str, Tensor]:
    """The net's own tensors under torchvision's names, with random statistics."""
    names = {}
    blocks = [f"layer{stage + 1}.{block}" for stage, depth in enumerate(depths) for block in range(depth)]
    generator = torch.Generator().manual_seed(0)
    for name, value in net.state_dict().items():
        if "running" in name:
            value.uniform_(0.5, 1.5, generator=generator)
        module, _, leaf = name.rpartition(".")
        if match := re.match(r"body\.(\d+)\.(.*)", module):
            inner = match[2].replace("shortcut", "downsample")
            module = f"{blocks[int(match[1]) - 3]}.{LAYER.get(inner, inner)}"
        names[f"{STEM.get(module, module)}.{leaf}"] = value
    return names


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    mean, var, scale, shift = (w[f"{name}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, mean, var, scale, shift)


def torchvision_resnet(w: Weights, x: Tensor, depths: tuple[int, ...], convs: int) -> Tensor:
    x = F.max_pool2d(norm(w, "bn1", F.conv2d(x, w["conv1.weight"], stride=2, padding=3)).relu(), 3, 2, 1)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            name, stride, out = f"layer{stage + 1}.{block}", 2 if stage and not block else 1, x
            for number in range(1, convs + 1):
                weight = w[f"{name}.conv{number}.weight"]
                step = stride if number == convs - 1 else 1  # the first of two, the middle one of three
                out = F.conv2d(out, weight, stride=step, padding=weight.shape[2] // 2)
                out = norm(w, f"{name}.bn{number}", out)
                out = out.relu() if number < convs else out
            if f"{name}.downsample.0.weight" in w:
                x = norm(w, f"{name}.downsample.1", F.conv2d(x, w[f"{name}.downsample.0.weight"], stride=stride))
            x = (x + out).relu()
    return F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])


@pytest.mark.parametrize(
    ("model", "weights"),
    [("resnet18(stem=7)", 11_689_512), ("resnet50(stem=7)", 25_557_032), ("mobilenetv2(stride=2)", 3_504_872)],
)
def test_sizes_are_those_of_torchvision(model: str, weights: int) -> None:
    net = build(model, (3, 64, 64), 1000, "running")
    assert sum(weight.numel() for weight in net.parameters()) == weights


@pytest.mark.parametrize(("model", "depths", "convs"), [("resnet18", (2, 2, 2, 2), 2), ("resnet50", (3, 4, 6, 3), 3)])
def test_torchvisions_resnet_weights_give_its_outputs(model: str, depths: tuple[int, ...], convs: int) -> None:
    with seeded(0, model):
        net = build(f"{model}(stem=7)", (3, 64, 64), 5, "running").eval()
        x = torch.randn(2, 3, 64, 64)
    theirs = torchvision_weights(net, depths)
    renamed = our_names(theirs)
    assert {renamed[name]: id(value) for name, value in theirs.items()}.keys() == net.state_dict().keys()
    assert all(torch.equal(net.state_dict()[renamed[name]], value) for name, value in theirs.items())
    with torch.no_grad():
        torch.testing.assert_close(net(x), torchvision_resnet(theirs, x, depths, convs), rtol=1e-3, atol=1e-4)


def test_torchvisions_mobilenetv2_weights_give_its_outputs() -> None:
    with seeded(0, "mobile"):
        net = build("mobilenetv2(stride=2)", (3, 64, 64), 5, "running").eval()
        x = torch.randn(2, 3, 64, 64)
    theirs = {
        re.sub("^body", "features", re.sub("^head", "classifier.1", name)): value
        for name, value in net.state_dict().items()
    }
    assert list(our_names(theirs).values()) == list(net.state_dict())

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = theirs[f"{name}.weight"]
        groups = x.shape[1] if weight.shape[1] == 1 else 1
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2, groups=groups)

    out = F.relu6(norm(theirs, "features.0.1", conv(x, "features.0.0", 2)))
    table = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    number = 0
    for t, _, n, s in table:
        for place in range(n):
            number += 1
            name, before = f"features.{number}.conv", out
            for layer in range(2 if t > 1 else 1):
                last = layer == (1 if t > 1 else 0)
                out = conv(out, f"{name}.{layer}.0", s if last and not place else 1)
                out = F.relu6(norm(theirs, f"{name}.{layer}.1", out))
            end = 2 if t > 1 else 1
            out = norm(theirs, f"{name}.{end + 1}", conv(out, f"{name}.{end}"))
            out = out + before if out.shape == before.shape else out
    out = F.relu6(norm(theirs, "features.18.1", conv(out, "features.18.0"))).mean((2, 3))
    with torch.no_grad():
        expected = F.linear(out, theirs["classifier.1.weight"], theirs["classifier.1.bias"])
        torch.testing.assert_close(net(x), expected, rtol=1e-3, atol=1e-4)


def test_the_default_resnet18_draws_the_weights_that_it_always_had() -> None:
    with seeded(0, "init"):
        net = build("resnet18", (3, 32, 32), 10, "running")
    text = hashlib.sha256()
    for name, value in net.state_dict().items():
        text.update(name.encode() + value.contiguous().numpy().tobytes())
    assert text.hexdigest()[:16] == "7419e5497d7b8eae"


def test_group_normalization_leaves_no_batch_normalization_and_no_statistics() -> None:
    for model in ("resnet18(norm=group)", "resnet50(norm=group, groups=2)"):
        net = build(model, (3, 32, 32), 10, "running")
        assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
        assert not list(net.buffers())
        groups = {module.num_groups for module in net.modules() if isinstance(module, nn.GroupNorm)}
        assert groups == ({2} if "50" in model else {32})
    with pytest.raises(FedloomError, match="groups is 3; it must divide 64"):
        build("resnet18(norm=group, groups=3)", (3, 32, 32), 10, "running")


@pytest.mark.parametrize("model", ["resnet50", "mobilenetv2", "resnet18(stem=7)", "mobilenetv2(stride=2)"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 40)])
def test_images_of_any_size_give_logits(model: str, shape: tuple[int, ...]) -> None:
    net = build(model, shape, 7, "running")
    assert net(torch.randn(2, *shape).contiguous(memory_format=torch.channels_last)).shape == (2, 7)


def test_cnn1d_takes_signals_and_refuses_short_ones() -> None:
    for shape in ((3, 20), (16,)):
        net = build("cnn1d", InputSpec("features", shape), 4, "running")
        assert net(torch.randn(5, *shape)).shape == (5, 4)
        assert net.dim == 128
    with pytest.raises(FedloomError, match="cnn1d needs at least 8 steps; these have 6"):
        build("cnn1d", InputSpec("features", (9, 6)), 4, "running")
    with pytest.raises(FedloomError, match="cnn1d takes features inputs"):
        build("cnn1d", (3, 32, 32), 4, "running")


def test_vgg11_has_dropout_before_both_fully_connected_layers_where_asked_for() -> None:
    plain, dropping = (build(text, (3, 32, 32), 10, "running") for text in ("vgg11", "vgg11(dropout=0.5)"))
    after = [type(b) for a, b in zip(dropping.body, list(dropping.body)[1:], strict=False) if isinstance(a, nn.Dropout)]
    assert after == [nn.Linear, nn.Linear] and not any(isinstance(layer, nn.Dropout) for layer in plain.modules())
    count = [sum(weight.numel() for weight in net.parameters()) for net in (plain, dropping)]
    assert count == [9_750_922, 9_750_922]
    assert spelled_model("vgg11(dropout=0)") == "vgg11"
