"""Build a net by its name: a registered one or a user's function. The result is checked before training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedloom.data.spec import InputSpec, Shape
from fedloom.errors import FedloomError
from fedloom.nets.kernels.products import use_products
from fedloom.nets.kernels.use import Kernels
from fedloom.nets.layers.batchnorm import BatchNormMode, set_batch_norm
from fedloom.nets.net import Net
from fedloom.nets.registry import BodyHead, Model, all_models, find_model, reason
from fedloom.nets.split import constants, split


def build(model: str, inputs: InputSpec | Shape, classes: int, bn: BatchNormMode, kernels: Kernels = "auto") -> Net:
    """The named net for these inputs; weights are initialized from torch's default generator.

    A shape alone means images (channels, height, width). `kernels`: "torch" leaves every layer to torch; all others select
    convolution algorithms by shape (products.py). Compiled kernels are for finished nets (`use_native`).
    """
    entry, inputs = find_model(model), InputSpec.of(inputs)
    if inputs.kind not in entry.kinds:
        suited = ", ".join(name for name, other in all_models().items() if inputs.kind in other.kinds)
        raise FedloomError(f"{model} takes {' or '.join(entry.kinds)} inputs; these are {inputs}: choose {suited}")
    if inputs.kind == "image" and min(inputs.shape[1:]) < entry.smallest:
        size, (_, height, width) = entry.smallest, inputs.shape
        raise FedloomError(
            f"{model} needs images of at least {size}x{size}; these are {height}x{width}: "
            f"choose mlp or linear, or set data.resize to {size} or more"
        )
    made = _make(entry, inputs, classes)
    body, head = split(entry.name, made, inputs, entry.head) if isinstance(made, nn.Module) else made
    net = Net(body, head, _measure(entry, body, head, inputs, classes), classes)
    set_batch_norm(net, bn)
    if isinstance(made, nn.Module):
        net.constants = constants(net, inputs)
    if kernels != "torch":
        use_products(net)
    for weight in net.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return net


EXAMPLES = {
    "image": InputSpec.image((3, 32, 32)),
    "features": InputSpec("features", (32,)),
    "tokens": InputSpec("tokens", (64,), "int32", vocabulary=5000),
}


def list_models() -> list[dict[str, str | int]]:
    """One row per net: name, line, origin, kinds of inputs, its options, smallest image, and the number of its parameters
    for `EXAMPLES` and 10 classes."""
    rows: list[dict[str, str | int]] = []
    for entry in all_models().values():
        with torch.device("meta"):  # sizes only: no memory, no randomness
            made = entry.make(EXAMPLES[entry.kinds[0]], 10)
        modules = made if isinstance(made, tuple) else (made,)
        count = sum(weight.numel() for module in modules for weight in module.parameters())
        row: dict[str, str | int] = {"name": entry.name, "line": entry.line, "origin": entry.origin}
        row |= {"inputs": ", ".join(entry.kinds), "options": ", ".join(map(str, entry.parameters.values()))}
        rows.append({**row, "smallest": entry.smallest, "parameters": count})
    return rows


def spelled_model(text: str) -> str:
    """The canonical text of a net: what a stored recipe holds."""
    return find_model(text).spelled


def _make(entry: Model, inputs: InputSpec, classes: int) -> BodyHead | nn.Module:
    try:
        made = entry.make(inputs, classes)
    except FedloomError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise FedloomError(f"model {entry.name} failed for {inputs} ({reason(error)})") from error
    match made:
        case nn.Module():
            return made
        case (nn.Module() as body, nn.Module() as head):
            if entry.head is not None:
                raise FedloomError(f"model {entry.name} returns a body and a head; leave out head={entry.head}")
            return body, head
    raise FedloomError(f"model {entry.name} must return a module, or two: (body, head); it returned {_describe(made)}")


def _measure(entry: Model, body: nn.Module, head: nn.Module, inputs: InputSpec, classes: int) -> int:
    """The number of features, from two blank inputs through a copy: statistics and generators stay unchanged."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        part = "body"
        try:
            f = copy.deepcopy(body).eval()(inputs.blank(2))
            if not isinstance(f, Tensor) or f.dim() != 2 or len(f) != 2:
                raise FedloomError(
                    f"model {entry.name}: its body must make one row of features per sample, (2, dim) for two samples; "
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
            sentence = f"model {entry.name}: its {part} fails on {inputs} ({reason(error)})"
            raise FedloomError(sentence) from error
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        raise FedloomError(
            f"model {entry.name}: its head must make one row of {classes} logits per sample, (2, {classes}) for two "
            f"samples; it made {_describe(logits)}"
        )
    return dim


def _describe(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
