"""Which layers get an adapter, and that the adapted net is the plain one until it is trained."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError
from fedloom.nets import Net, build, fixed_tensors, region_of
from fedloom.nets.layers.adapters import LowRank, adapted_layers, chosen, inject, merge, unload

pytest.importorskip("peft")

IMAGES = InputSpec.image((3, 16, 16))
TOKENS = InputSpec("tokens", (12,), "int32", vocabulary=50)
LOW = LowRank(rank=2, alpha=4.0)


class Attending(nn.Module):
    """torch's own transformer layer on tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 1)
        self.unused = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(self.embed(x)).mean(1)
        return features


def attending() -> Net:
    return Net(Attending(), nn.Linear(16, 5), 16, 5)


def net(name: str, inputs: InputSpec) -> Net:
    torch.manual_seed(0)
    return attending() if name == "attending" else build(name, inputs, 5, "running")


def batch(inputs: InputSpec) -> Tensor:
    return inputs.random(3, generator=torch.Generator().manual_seed(1))


NETS = [
    ("mlp", IMAGES),
    ("cnn", IMAGES),
    ("lenet", IMAGES),
    ("resnet18", IMAGES),
    ("mobilenet", IMAGES),
    ("transformer", IMAGES),
    ("transformer", TOKENS),
    ("attending", TOKENS),
]


@pytest.mark.parametrize(("name", "inputs"), NETS, ids=lambda value: getattr(value, "kind", value))
def test_at_first_the_adapted_net_is_the_base_and_then_it_is_the_merged_one(name: str, inputs: InputSpec) -> None:
    plain, x = net(name, inputs), batch(inputs)
    with torch.no_grad():
        for module in plain.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        plain.train()(x)  # statistics of a pretrained net, without which deep features vanish
    adapted = copy.deepcopy(plain.eval())
    inject(adapted, LOW, inputs, train_norm=False)
    adapted.eval()
    with torch.no_grad():
        expected = plain(x)
        torch.testing.assert_close(adapted(x), expected, rtol=1e-5, atol=1e-6)  # sums of maps may be in another order
        for layer in adapted_layers(adapted).values():
            layer.lora_B["default"].weight.normal_(std=0.02)
        moved = adapted(x)
        assert float((moved - expected).abs().max()) > 1e-4
        with torch.enable_grad():
            torch.testing.assert_close(adapted(x).detach(), moved, rtol=1e-4, atol=1e-5)
        merged = copy.deepcopy(adapted)
        merge(merged)
        torch.testing.assert_close(merged(x), moved, rtol=1e-3, atol=1e-4)
        unload(adapted)
        torch.testing.assert_close(adapted(x), expected, rtol=1e-5, atol=1e-6)
        assert list(merged.state_dict()) == list(adapted.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize(("name", "inputs"), NETS, ids=lambda value: getattr(value, "kind", value))
def test_only_adapters_and_head_are_trained(name: str, inputs: InputSpec) -> None:
    adapted = net(name, inputs)
    inject(adapted, LOW, inputs, train_norm=False)
    regions, fixed = region_of(adapted), set(fixed_tensors(adapted))
    assert {region for n, region in regions.items() if n not in fixed} == {"adapter", "head"}
    assert {region for n, region in regions.items() if n in fixed} <= {"body", "norm"}
    adapted.train()
    before = {n: b.clone() for n, b in adapted.named_buffers()}
    adapted(batch(inputs)).sum().backward()
    assert all(torch.equal(b, before[n]) for n, b in adapted.named_buffers())
    assert all((p.grad is not None) == (n not in fixed) for n, p in adapted.named_parameters())


def test_draws_come_from_the_default_generator_alone() -> None:
    drawn = []
    for seed in (3, 3, 4):
        one = net("cnn", IMAGES)
        torch.manual_seed(seed)
        inject(one, LOW, IMAGES, train_norm=False)
        drawn.append(torch.cat([p.flatten() for n, p in one.named_parameters() if "lora_A" in n]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    ("name", "inputs", "targets", "expected"),
    [
        ("lenet", IMAGES, "auto", ["body.0", "body.3", "body.7", "body.9"]),
        ("lenet", IMAGES, "7", ["body.7"]),
        ("lenet", IMAGES, r"body\.[03]", ["body.0", "body.3"]),
        ("lenet", IMAGES, ("body.9", "0"), ["body.0", "body.9"]),
        (
            "transformer",
            TOKENS,
            "query|value",
            [f"body.blocks.{i}.attention.{n}" for i in (0, 1) for n in ("query", "value")],
        ),
        ("transformer", TOKENS, "body.embed.table", ["body.embed.table"]),
        ("attending", TOKENS, "auto", ["body.layer.layers.0.linear1", "body.layer.layers.0.linear2"]),
    ],
)
def test_targets_are_found_by_name_or_pattern(name: str, inputs: InputSpec, targets: Any, expected: list[str]) -> None:
    assert chosen(net(name, inputs), targets, inputs) == expected


def test_depthwise_convolutions_are_left_out() -> None:
    mobile = net("mobilenet", IMAGES)
    names = chosen(mobile, "auto", IMAGES)
    assert names and all(mobile.get_submodule(name).groups == 1 for name in names)


@pytest.mark.parametrize(
    ("name", "inputs", "targets", "sentence"),
    [
        ("attending", TOKENS, "out_proj", "out_proj is never called: its weight is read without it"),
        ("attending", TOKENS, "unused", r"body.unused is never called.*; it can be body.embed \(Embedding\)"),
        ("cnn", IMAGES, "body.1", r"names no layer of the body; it can be body.0 \(Conv2d\), body.3"),
        (
            "lstm",
            TOKENS,
            "auto",
            r"has no linear layer or convolution for adapters to join; it can be body\..* \(Embedding",
        ),
        ("linear", IMAGES, "auto", "it has none at all: leave lora out, or choose another model"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused_with_those_that_can(
    name: str, inputs: InputSpec, targets: str, sentence: str
) -> None:
    with pytest.raises(FedloomError, match=sentence):
        chosen(net(name, inputs), targets, inputs)


def test_an_embedding_can_be_adapted() -> None:
    adapted = net("transformer", TOKENS).eval()
    x = batch(TOKENS)
    before = adapted(x)
    inject(adapted, LowRank(2, 4.0, "table"), TOKENS, train_norm=False)
    assert torch.equal(adapted(x), before)
    assert [n for n, region in region_of(adapted).items() if region == "adapter"] == [
        "body.embed.table.lora_embedding_A.default",
        "body.embed.table.lora_embedding_B.default",
    ]


def test_a_forward_pass_that_passes_adapters_by_is_refused() -> None:
    class Sly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            called: Tensor = self.layer(x)
            return called if torch.is_grad_enabled() else nn.functional.linear(x, self.layer.weight, self.layer.bias)

    with pytest.raises(FedloomError, match="reads weights past their adapters"):
        inject(Net(Sly(), nn.Linear(8, 2), 8, 2), LOW, InputSpec("features", (8,)), train_norm=False)
