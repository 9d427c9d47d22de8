"""Where a net normalizes its features, or could: found by a forward pass of two blank inputs through a copy.

A module's type is known from its class, but its input only from a forward pass: number of channels, maps or vectors, and
which ReLU follows. So any net made of modules can be rebuilt.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.pooling import _AdaptiveMaxPoolNd, _MaxPoolNd

from fedloom.data.spec import InputSpec, Shape
from fedloom.errors import FedloomError
from fedloom.nets.layers.convs import follow
from fedloom.nets.net import Net, is_normalizer
from fedloom.nets.registry import reason


@dataclass(frozen=True)
class Place:
    """A module of the net that normalizes, or a convolution that a normalizer could follow."""

    name: str  # as in the net: body.conv1
    module: nn.Module
    shape: tuple[int, ...]  # of what is to be normalized, for two images: (2, C, H, W), or (2, C) for vectors
    relu: nn.ReLU | None  # that takes this place's output, itself or after max-pooling, and nothing else's

    @property
    def channels(self) -> int:
        return self.shape[1]

    @property
    def pixels(self) -> int:
        return torch.Size(self.shape[2:]).numel()


@dataclass
class _Seen:
    """What the forward pass shows about one module."""

    shapes: set[tuple[int, ...]] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)  # a ReLU's: who made its input, a call each


def places(net: Net, inputs: InputSpec | Shape) -> list[Place]:
    """Where the body normalizes features; if nowhere, its convolutions."""
    wanted: Callable[[nn.Module], bool] = is_normalizer
    if not any(is_normalizer(module) for module in net.body.modules()):
        wanted = _is_convolution
    seen = _watch(net, InputSpec.of(inputs), wanted)
    relus = _followers(net, seen)
    found_places = []
    for name, module in net.named_modules():
        if name in seen and wanted(module):
            if len(seen[name].shapes) > 1:
                raise FedloomError(f"{name} ({type(module).__name__}) is used on maps of different shapes")
            (maps,) = seen[name].shapes
            _check_axes(name, module, maps)
            found_places.append(Place(name, module, maps, relus.get(name)))
    if not found_places:
        raise FedloomError(
            "this net has no normalizer, and no convolution that one could follow: choose a model with convolutions, "
            "such as cnn or lenet for images, cnn1d for signals"
        )
    return found_places


def fill(net: Net, place: Place, norm: nn.Module) -> None:
    """Put a normalizer at this place: instead of the present one, or after the convolution."""
    if _is_convolution(place.module):
        follow(place.module, norm)  # type: ignore[arg-type]
    else:
        exchange(net, place.module, norm)


def exchange(net: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module under all of its names."""
    for name, module in list(net.named_modules(remove_duplicate=False)):
        if module is old:
            owner, _, leaf = name.rpartition(".")
            setattr(net.get_submodule(owner), leaf, new)


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, _ConvNd)


def _watch(net: Net, inputs: InputSpec, wanted: Callable[[nn.Module], bool]) -> dict[str, _Seen]:
    """Modules that were called, by name. Tensors are compared by identity, so all of them are kept to the end."""
    twin = copy.deepcopy(net).eval()
    seen: dict[str, _Seen] = {}
    maker: dict[int, str] = {}  # tensor -> the last module that made or changed it, looking through max-pooling
    kept: list[Any] = []

    def watch(name: str, module: nn.Module) -> None:
        def hook(_: nn.Module, given: tuple[Any, ...], made: Any) -> None:
            if not given or not isinstance(given[0], Tensor) or not isinstance(made, Tensor):
                return
            kept.extend((given[0], made))
            source = maker.get(id(given[0]), "")
            record = seen.setdefault(name, _Seen())
            record.sources.append(source)
            record.shapes.add(tuple(made.shape if _is_convolution(module) else given[0].shape))
            maker[id(made)] = source if isinstance(module, (_MaxPoolNd, _AdaptiveMaxPoolNd)) else name

        module.register_forward_hook(hook)

    for name, module in twin.named_modules():
        if wanted(module) or (not any(module.children()) and name.startswith("body")):
            watch(name, module)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            twin.body(inputs.blank(2))
        except Exception as error:  # a user's modules may raise anything
            raise FedloomError(f"the net fails on two blank images ({reason(error)})") from error
    return seen


def _followers(net: Net, seen: dict[str, _Seen]) -> dict[str, nn.ReLU]:
    """Module -> the ReLU that follows it, where that ReLU follows nothing else."""
    followers: dict[str, nn.ReLU] = {}
    for name, module in net.named_modules():
        if isinstance(module, nn.ReLU) and name in seen and len(set(seen[name].sources)) == 1:
            followers[seen[name].sources[0]] = module
    return followers


def _check_axes(name: str, module: nn.Module, maps: tuple[int, ...]) -> None:
    whole = getattr(module, "normalized_shape", None)  # of layer and root-mean-square normalization
    if whole is not None and tuple(whole) != maps[1:]:
        raise FedloomError(
            f"{name} ({type(module).__name__}) normalizes the last axes of {maps[1:]}, where channels are not the first "
            f"axis, so nothing that normalizes channels can replace it"
        )
    if len(maps) < 2:
        raise FedloomError(f"{name} ({type(module).__name__}) sees no channels")
