"""A net is a body that makes features and a head that classifies them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedloom.nets.stages import with_stages

_NORMALIZERS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)


class Net(nn.Module):
    def __init__(self, body: nn.Module, head: nn.Module, dim: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.dim, self.classes = dim, classes
        self.constants: frozenset[str] = frozenset()  # names of float buffers that training never changes
        self.staged = False  # whether a method looks at the body's stages

    def features(self, x: Tensor) -> Tensor:
        f: Tensor = self.body(x)  # (B, dim)
        return f

    def staged_features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features, and the outputs of the body's stages."""
        return with_stages(self.body, x)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))  # (B, classes)
        return logits


def region_of(net: Net) -> dict[str, str]:
    """Every parameter and float buffer of the state dict -> "body", "norm", "adapter" or "head".

    "norm" has the parameters and statistics of the body's feature normalizers, recognized by type or by a class attribute
    `normalizer = True`, including their submodules; "adapter" those of modules with an attribute `adapter = True`, which are
    trained beside a frozen body. A tensor with two names is listed under the first, as in named_parameters().
    """
    named = list(net.named_modules(remove_duplicate=False))
    norms = tuple(f"{name}." for name, module in named if is_normalizer(module))
    adapters = tuple(f"{name}." for name, module in named if getattr(module, "adapter", False) is True)
    regions: dict[str, str] = {}
    seen: set[int] = set()
    for name, value in net.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            if name.startswith("head."):
                regions[name] = "head"
            elif name.startswith(adapters):
                regions[name] = "adapter"
            else:
                regions[name] = "norm" if name.startswith(norms) else "body"
    return regions


def fixed_tensors(net: nn.Module) -> list[str]:
    """Names of the tensors that are never trained: parameters that require no gradient, and buffers of modules with an
    attribute `fixed_buffers = True`.
    """
    names = [name for name, parameter in net.named_parameters() if not parameter.requires_grad]
    for name, module in net.named_modules():
        if getattr(module, "fixed_buffers", False) is True:
            names += [f"{name}.{leaf}" for leaf, buffer in module._buffers.items() if buffer is not None]
    return names


def is_normalizer(module: nn.Module) -> bool:
    return isinstance(module, _NORMALIZERS) or getattr(type(module), "normalizer", False) is True
