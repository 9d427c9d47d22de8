"""Any nn.Module as body and head: cut in front of the linear layer that makes its output.

The module runs once on a few inputs; hooks see which linear layers make which tensors. The head is the one whose output is the
module's output (a tensor, or the `logits` of a dataclass or dict, or the first of a tuple), or the submodule that `head=NAME`
names. In the body the head's place is taken by an identity, so the module returns what the head would have received. That is
checked: head(body(x)) must be module(x) in evaluation mode.

Layers that do not require gradients stay frozen: neither trained nor sent. Float buffers that a training step does not change
are constants and are not sent either; the others are statistics, averaged like weights. Weights shared inside the body are one
tensor. Refused in a sentence: a head that shares weights with the body, features that are no vector, modules that cannot be
copied, and outputs that no linear layer makes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.data.spec import InputSpec
from fedloom.errors import FedloomError, shown
from fedloom.nets.registry import reason

SAMPLES = 3
REMEDY = "write a function (shape, classes) -> (body, head), or name the layer with head=NAME"


class Split(nn.Module):
    """The body of a module whose output is not a plain tensor."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.net(x))


@dataclass(frozen=True)
class _Calls:
    """What the linear layers of a module made, in the order in which they were last called, and its own result."""

    outputs: dict[str, Tensor]
    result: Tensor
    plain: bool  # whether the module returns the result itself, and not an object that holds it


def split(model: str, module: nn.Module, inputs: InputSpec, head: str | None = None) -> tuple[nn.Module, nn.Module]:
    """Body and head of a copy of the module. `model`: its name in sentences."""
    module = _copied(model, module)
    x = inputs.random(SAMPLES, generator=torch.Generator().manual_seed(0))
    calls = _run(model, module, x)
    if head is not None:
        modules = dict(module.named_modules())
        head = f"net.{head}" if head not in modules else head  # inside of a wrapper of ours
        if head not in modules:
            head = head.removeprefix("net.")
            inner = modules.get("net", module)
            known = ", ".join(name for name, _ in inner.named_children()) or "none"
            raise FedloomError(
                f"{model}: it has no submodule {shown(head)}, which head names; its submodules are {known}"
            )
        names = [head]
    else:
        names = _candidates(calls)
        if not names:
            raise FedloomError(f"{model}: it has no linear layer that could be its head; {REMEDY}")
    for name in names:
        if _fits(module, name, x, calls.result):
            return _cut(model, module, name, calls.plain)
    if head is not None:
        raise FedloomError(f"{model}: {head} is not its head: what it makes is not the output; name the last layer")
    raise FedloomError(
        f"{model}: its output is not made by a linear layer ({names[0]} is the last one, and something follows it, such as a "
        f"softmax): return the logits of the last layer, or {REMEDY}"
    )


def logits_of(output: Any) -> Tensor:
    """The logits in a module's output: itself, `.logits`, ["logits"], or the first of a tuple."""
    first = output[0] if isinstance(output, tuple | list) and output else None
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    for logits in (output, named, first):
        if isinstance(logits, Tensor):
            return logits
    raise FedloomError(
        f"it returns a {type(output).__name__}; a tensor of logits is expected, or an object with `logits`"
    )


def constants(net: nn.Module, inputs: InputSpec) -> frozenset[str]:
    """Names of the float buffers that a training step leaves as they are: positions, masks, frequencies."""
    names = [name for name, buffer in net.named_buffers() if buffer.is_floating_point()]
    if not names:
        return frozenset()
    twin = copy.deepcopy(net).train()
    before = {name: buffer.clone() for name, buffer in twin.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            twin(inputs.random(SAMPLES, generator=torch.Generator().manual_seed(0)))
        except Exception as error:  # a user's module may raise anything
            raise FedloomError(f"it fails in training mode, on {SAMPLES} samples of noise ({reason(error)})") from error
    after = dict(twin.named_buffers())
    return frozenset(name for name in names if torch.equal(before[name], after[name]))


def _copied(model: str, module: nn.Module) -> nn.Module:
    """A copy: workers and teachers are copies of the net, and the user's own object stays as it is."""
    try:
        twin = copy.deepcopy(module)
    except Exception as error:  # a user's attributes may raise anything
        raise FedloomError(
            f"{model}: it cannot be copied ({reason(error)}), which teachers and workers need; leave out attributes that "
            "copy.deepcopy refuses, such as weights made by torch.nn.utils.weight_norm"
        ) from error
    for name, buffer in twin.named_buffers():
        if buffer.is_floating_point() and buffer.dtype != torch.float32:
            raise FedloomError(
                f"{model}: its buffer {name} is {buffer.dtype}; fedloom keeps float32: call .float() on it"
            )
    return twin


def _run(model: str, module: nn.Module, x: Tensor) -> _Calls:
    twin = copy.deepcopy(module).eval()
    outputs: dict[str, Tensor] = {}

    def watch(name: str, layer: nn.Module) -> None:
        def hook(_: nn.Module, given: Any, made: Any) -> None:
            if isinstance(made, Tensor):
                outputs.pop(name, None)
                outputs[name] = made

        layer.register_forward_hook(hook)

    for name, layer in twin.named_modules():
        if isinstance(layer, nn.Linear):
            watch(name, layer)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            output = twin(x)
            result = logits_of(output)
        except FedloomError as error:
            raise FedloomError(f"{model}: {error}") from None
        except Exception as error:  # a user's module may raise anything
            raise FedloomError(f"{model}: it fails on {SAMPLES} samples of noise ({reason(error)})") from error
    return _Calls(outputs, result, isinstance(output, Tensor))


def _candidates(calls: _Calls) -> list[str]:
    """First the layers whose output is the module's output itself, then all others, the last one first."""
    names = list(reversed(calls.outputs))
    return sorted(names, key=lambda name: calls.outputs[name] is not calls.result)


def _fits(module: nn.Module, name: str, x: Tensor, result: Tensor) -> bool:
    """Whether the module is this submodule after the rest of it."""
    twin = copy.deepcopy(module).eval()
    head = twin.get_submodule(name)
    body = _replaced(twin, head)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            logits = head(logits_of(body(x)))
        except Exception:  # without its head, a module may fail in any way: then this is not the head
            return False
    if not isinstance(logits, Tensor) or logits.shape != result.shape:
        return False
    return torch.allclose(logits, result, rtol=1e-4, atol=1e-5 * float(result.abs().max().clamp(min=1e-3)))


def _cut(model: str, module: nn.Module, name: str, plain: bool) -> tuple[nn.Module, nn.Module]:
    head = module.get_submodule(name)
    body = _replaced(module, head)
    shared = {id(weight): tied for tied, weight in body.named_parameters()}
    for leaf, weight in head.named_parameters():
        if id(weight) in shared:
            raise FedloomError(
                f"{model}: its head {name or 'itself'} shares {leaf} with {shared[id(weight)]} of the body; give the head "
                "a weight of its own"
            )
    return body if plain else Split(body), head


def _replaced(module: nn.Module, head: nn.Module) -> nn.Module:
    """The module with an identity in place of its head, under all names of the head; returns its features as a tensor."""
    if module is head:
        return nn.Identity()
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if layer is head:
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, nn.Identity())
    return module
