"""`precision: auto`: bfloat16 where it is known to be faster, by a fixed rule.

bf16 if the processor multiplies bfloat16 in hardware (AVX512-BF16, AMX, or ARM's bf16) and at least half of the net's
multiply-adds are in dense convolutions: one group, a kernel of more than one pixel, 16 channels or more in and out.
Otherwise fp32: in small nets and depthwise layers casting costs more than it saves, and a processor without the
instructions emulates them an order of magnitude slower. On devices other than the CPU it is fp32.

Nothing is timed, so that the same recipe gives the same bits. The choice is made once, when a run starts, and stored in its
recipe.yaml, so a run that is resumed on another machine keeps it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from fedloom.data.spec import InputSpec, Shape
from fedloom.nets import Net
from fedloom.recipe import Recipe

INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")  # flags in /proc/cpuinfo, the last one on ARM
CHANNELS = 16  # a convolution with fewer is bound by memory, not by arithmetic
SHARE = 0.5


def choose_precision(
    recipe: Recipe, net: Net, inputs: InputSpec | Shape, flags: Collection[str] | None = None
) -> tuple[str, str]:
    """fp32 or bf16, and why. `flags`: of the processor, if not this one's."""
    if recipe.device != "cpu":
        return "fp32", f"the rule knows processors, not {recipe.device}"
    available = processor_flags() if flags is None else flags
    instruction = next((name for name in INSTRUCTIONS if name in available), None)
    if instruction is None:
        return "fp32", "this processor does not multiply bfloat16"
    share = dense_share(net, inputs)
    reason = f"{100 * share:.0f} % of the multiply-adds are in dense convolutions"
    return ("bf16", f"{instruction}, and {reason}") if share >= SHARE else ("fp32", f"only {reason}")


def processor_flags(info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The processor's instruction sets, by their names on Linux; on other systems as torch reports them."""
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, values = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(values.split())
        return frozenset()
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every version of torch
    return frozenset(name for name, available in capabilities.items() if available is True)


def dense_share(net: Net, inputs: InputSpec | Shape) -> float:
    """The share of dense convolutions in the multiply-adds of convolutions and linear layers."""
    dense = total = 0

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        nonlocal dense, total
        products = out.numel() * layer.get_parameter("weight")[0].numel()
        total += products
        dense += products * _is_dense(layer)

    twin = copy.deepcopy(net).eval()  # leaves statistics and hooks of the net alone
    for layer in twin.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        twin(InputSpec.of(inputs).blank(2))
    return dense / total if total else 0.0


def _is_dense(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and layer.groups == 1
        and max(layer.kernel_size) > 1
        and min(layer.in_channels, layer.out_channels) >= CHANNELS
    )
