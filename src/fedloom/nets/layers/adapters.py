"""Low-rank adapters beside the layers of a frozen body, made by the peft library.

Which layers can have one is decided here: linear layers, convolutions and embeddings that the forward pass calls. A layer
whose weight is read without calling it (those inside nn.MultiheadAttention) would ignore its adapter.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError, shown
from fedloom.extras import install
from fedloom.nets.layers.surgery import exchange
from fedloom.nets.net import Net, is_normalizer
from fedloom.nets.registry import reason

ADAPTER = "default"  # the name that peft gives to a net's only adapter
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_ADAPTABLE = (nn.Linear, nn.Embedding, *_CONVOLUTIONS)


@dataclass(frozen=True)
class LowRank:
    """W + (alpha / rank) B A. `targets`: "auto" is all linear layers and convolutions; a text is a regular expression for a
    layer's name, or for its end after a dot.
    """

    rank: int
    alpha: float
    targets: str | tuple[str, ...] = "auto"
    dropout: float = 0.0

    def config(self, names: Sequence[str], **more: Any) -> Any:
        """peft's configuration for exactly these layers."""
        exactly = "|".join(re.escape(name) for name in names)
        values = {"r": self.rank, "lora_alpha": self.alpha, "lora_dropout": self.dropout}
        return library().LoraConfig(**values, target_modules=exactly, **more)


def library() -> Any:
    try:
        return import_module("peft")
    except ImportError:
        raise FedloomError(f"its adapters are made by the peft library, which is missing: {install('lora')}") from None


def inject(net: Net, how: LowRank, inputs: InputSpec, train_norm: bool) -> None:
    """Give layers of the body adapters and freeze all else there: weights, and statistics, which stay those of the base.

    `train_norm`: normalizers are trained and gather statistics as before. The head is left alone. A is drawn from torch's
    default generator.
    """
    names = chosen(net, how.targets, inputs)
    trained = {
        parameter
        for module in net.body.modules()
        if train_norm and is_normalizer(module)
        for parameter in module.parameters()
        if parameter.requires_grad
    }
    body = library().inject_adapter_in_model(how.config([name.removeprefix("body.") for name in names]), net.body)
    assert body is net.body
    for name in names:
        layer: Any = net.get_submodule(name)
        for part in layer.adapter_layer_names:
            getattr(layer, part).adapter = True
    for parameter in trained:
        parameter.requires_grad_(True)
    for module in net.body.modules():
        if not (train_norm and is_normalizer(module)):
            module.fixed_buffers = True
            if is_normalizer(module) and module._buffers:
                module.__class__ = _settled(type(module))  # type: ignore[arg-type]
    _use_plain_forward(net)
    _check_effect(net, inputs)


def adapted_layers(net: nn.Module) -> dict[str, Any]:
    """The layers that have an adapter, by name; none in a net without adapters."""
    return {
        name: module
        for name, module in net.named_modules()
        if any(getattr(child, "adapter", False) is True for child in module.children())
    }


def merge(net: nn.Module) -> None:
    """Make every adapted layer a plain one, with weight W + (alpha / rank) B A."""
    for layer in adapted_layers(net).values():
        with torch.no_grad():
            layer.merge()
        exchange(net, layer, layer.get_base_layer())


def unload(net: nn.Module) -> None:
    """Take the adapters out: every adapted layer is a plain one, with weight W."""
    for layer in adapted_layers(net).values():
        exchange(net, layer, layer.get_base_layer())


# which layers


def chosen(net: Net, targets: str | tuple[str, ...], inputs: InputSpec) -> list[str]:
    """The names of the layers that get an adapter, in the net's order; an unknown target is refused with a list."""
    layers = {f"body.{name}": m for name, m in net.body.named_modules() if name and isinstance(m, _ADAPTABLE)}
    called = _called(net, layers, inputs)
    obstacles = {name: _obstacle(name, layer, name in called) for name, layer in layers.items()}
    able = [name for name, obstacle in obstacles.items() if obstacle is None]
    if targets == "auto":
        for name, layer in layers.items():
            if _normalizes(layer):
                raise FedloomError(f"{obstacles[name]}; leave that part out, or name other targets")
        names = [name for name in able if not isinstance(layers[name], nn.Embedding)]
        if not names:
            raise FedloomError(
                f"the body of this net has no linear layer or convolution for adapters to join; {_has(able, layers)}"
            )
        return names
    names = []
    for text in (targets,) if isinstance(targets, str) else targets:
        pattern = _pattern(text)
        matching = [name for name in layers if pattern.fullmatch(name)]
        if not matching:
            raise FedloomError(f"targets={shown(text)} names no layer of the body; {_has(able, layers)}")
        for name in matching:
            if (obstacle := obstacles[name]) is not None:
                raise FedloomError(f"targets={shown(text)}: {obstacle}; {_has(able, layers)}")
        names += matching
    return [name for name in layers if name in names]


def _has(able: Sequence[str], layers: Mapping[str, nn.Module]) -> str:
    if not able:
        return "it has none at all: leave lora out, or choose another model"
    shown_layers = [f"{name} ({_plain_type(layers[name])})" for name in able[:12]]
    more = f" and {len(able) - 12} more" if len(able) > 12 else ""
    return f"it can be {', '.join(shown_layers)}{more}"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        re.compile(text)
    except re.error as error:
        raise FedloomError(f"targets={shown(text)} is no regular expression ({error})") from None
    return re.compile(rf"(?:.*\.)?(?:{text})")


def _obstacle(name: str, layer: nn.Module, called: bool) -> str | None:
    """Why a layer cannot have an adapter, or None."""
    if _normalizes(layer):
        return f"{name} is a convolution that another part has made normalize, so W + BA is not its weight"
    if isinstance(layer, _CONVOLUTIONS) and (layer.groups, {*layer.dilation}, layer.padding_mode) != (1, {1}, "zeros"):
        return f"{name} is a convolution with groups, dilation or another padding than zeros, to which peft cannot add"
    return None if called else f"{name} is never called: its weight is read without it, or it is not used"


def _normalizes(layer: nn.Module) -> bool:
    """Whether a convolution standardizes its weight or normalizes its maps (convs.py)."""
    return isinstance(layer, _CONVOLUTIONS) and (hasattr(layer, "standard") or hasattr(layer, "norm"))


def _plain_type(layer: nn.Module) -> str:
    return next(kind.__name__ for kind in type(layer).__mro__ if kind.__module__.startswith("torch."))


def _called(net: Net, layers: Mapping[str, nn.Module], inputs: InputSpec) -> set[str]:
    """The layers that a forward pass of two blank inputs calls."""
    twin = copy.deepcopy(net).eval()
    called: set[str] = set()
    for name in layers:
        twin.get_submodule(name).register_forward_hook(lambda *_, name=name: called.add(name))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            twin.body(inputs.blank(2))
        except Exception as error:  # a user's modules may raise anything
            raise FedloomError(f"the net fails on two blank inputs ({reason(error)})") from error
    return called


# what frozen and adapted layers do


@cache
def _settled(base: type[nn.Module]) -> type[nn.Module]:
    """A normalizer that stays in evaluation mode, so that its statistics remain those of the base."""

    def train(self: Any, mode: bool = True) -> Any:
        return base.train(self, False)

    return type(f"Settled{base.__name__}", (base,), {"train": train, "__module__": __name__})


def _use_plain_forward(net: Net) -> None:
    """In evaluation torch's transformer layers may use a fused kernel that reads weights without calling their layers."""
    for module in net.body.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and adapted_layers(module):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and adapted_layers(module):
            module.use_nested_tensor = False


def _check_effect(net: Net, inputs: InputSpec) -> None:
    """Refuse a net that has another forward pass without gradients in which adapters are ignored."""
    twin = copy.deepcopy(net).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in adapted_layers(twin).values():
            for part in layer.adapter_layer_names:
                for parameter in getattr(layer, part).parameters():
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    x = inputs.random(2, generator=generator)
    with torch.random.fork_rng(devices=[]):
        with torch.no_grad():
            without = twin.body(x)
        with torch.enable_grad():
            usual: Tensor = twin.body(x).detach()
    if not torch.allclose(without, usual, rtol=1e-3, atol=1e-4 * float(1 + usual.abs().max())):
        raise FedloomError(
            "this net computes evaluation in another way than training, and there reads weights past their adapters; "
            "name other targets"
        )
