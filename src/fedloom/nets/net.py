"""A net is a body that makes features and a head that classifies them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

_NORMALIZERS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)


class Net(nn.Module):
    def __init__(self, body: nn.Module, head: nn.Module, dim: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.dim, self.classes = dim, classes
        self.constants: frozenset[str] = frozenset()  # names of float buffers that training never changes

    def features(self, x: Tensor) -> Tensor:
        f: Tensor = self.body(x)  # (B, dim)
        return f

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))  # (B, classes)
        return logits


def region_of(net: Net) -> dict[str, str]:
    """Every parameter and float buffer of the state dict -> "body", "norm" or "head".

    "norm" has the parameters and statistics of the body's feature normalizers, recognized by type or by a class attribute
    `normalizer = True`, including their submodules. A tensor with two names is listed
    under the first, as in named_parameters().
    """
    named = net.named_modules(remove_duplicate=False)
    norms = tuple(f"{name}." for name, module in named if is_normalizer(module))
    regions: dict[str, str] = {}
    seen: set[int] = set()
    for name, value in net.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            regions[name] = "head" if name.startswith("head.") else "norm" if name.startswith(norms) else "body"
    return regions


def is_normalizer(module: nn.Module) -> bool:
    return isinstance(module, _NORMALIZERS) or getattr(type(module), "normalizer", False) is True
