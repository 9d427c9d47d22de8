"""Build a net by its name: a registered one or a user's function. The result is checked before training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedloom.errors import FedloomError
from fedloom.nets.kernels.products import Kernels, use_products
from fedloom.nets.layers.batchnorm import BatchNormMode, set_batch_norm
from fedloom.nets.net import Net
from fedloom.nets.registry import BodyHead, Model, Shape, all_models, find_model, reason


def build(model: str, shape: Shape, classes: int, bn: BatchNormMode, kernels: Kernels = "auto") -> Net:
    """The named net for images of `shape` = (channels, height, width); weights are initialized from torch's default generator.

    `kernels`: "auto" selects convolution algorithms by shape (products.py), "torch" uses torch's own.
    """
    entry = find_model(model)
    _, height, width = shape
    if min(height, width) < entry.smallest:
        size = entry.smallest
        raise FedloomError(
            f"{model} needs images of at least {size}x{size}; these are {height}x{width}: "
            f"choose mlp or linear, or set data.resize to {size} or more"
        )
    body, head = _make(entry, shape, classes)
    net = Net(body, head, _measure(entry, body, head, shape, classes), classes)
    set_batch_norm(net, bn)
    if kernels == "auto":
        use_products(net)
    for weight in net.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return net


def list_models() -> list[dict[str, str | int]]:
    """One row per net: name, line, origin, smallest image, parameters at 32x32x3 with 10 classes."""
    rows: list[dict[str, str | int]] = []
    for entry in all_models().values():
        with torch.device("meta"):  # sizes only: no memory, no randomness
            body, head = entry.make((3, 32, 32), 10)
        count = sum(weight.numel() for part in (body, head) for weight in part.parameters())
        row = {"name": entry.name, "line": entry.line, "origin": entry.origin}
        rows.append({**row, "smallest": entry.smallest, "parameters": count})
    return rows


def _make(entry: Model, shape: Shape, classes: int) -> BodyHead:
    try:
        made = entry.make(shape, classes)
    except FedloomError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise FedloomError(f"model {entry.name} failed for images of {_size(shape)} ({reason(error)})") from error
    match made:
        case (nn.Module() as body, nn.Module() as head):
            return body, head
    raise FedloomError(f"model {entry.name} must return two modules, (body, head); it returned {_describe(made)}")


def _measure(entry: Model, body: nn.Module, head: nn.Module, shape: Shape, classes: int) -> int:
    """The number of features, from two blank images through a copy: statistics and generators stay unchanged."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        part = "body"
        try:
            f = copy.deepcopy(body).eval()(torch.zeros(2, *shape))
            if not isinstance(f, Tensor) or f.dim() != 2 or len(f) != 2:
                raise FedloomError(
                    f"model {entry.name}: its body must make one row of features per image, (2, dim) for two images; "
                    f"it made {_describe(f)}"
                )
            dim = f.shape[1]
            if isinstance(head, nn.Linear) and head.in_features != dim:
                raise FedloomError(
                    f"model {entry.name}: its body makes {dim} features, its head takes {head.in_features}"
                )
            part = "head"
            logits = copy.deepcopy(head).eval()(f)
        except FedloomError:
            raise
        except Exception as error:  # a user's modules may raise anything
            sentence = f"model {entry.name}: its {part} fails on images of {_size(shape)} ({reason(error)})"
            raise FedloomError(sentence) from error
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        raise FedloomError(
            f"model {entry.name}: its head must make one row of {classes} logits per image, (2, {classes}) for two "
            f"images; it made {_describe(logits)}"
        )
    return dim


def _size(shape: Shape) -> str:
    channels, height, width = shape
    return f"{height}x{width}x{channels}"


def _describe(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
