"""`precision: auto`: bfloat16 where it is known to pay, by a fixed rule.

bf16 if the processor multiplies bfloat16 in hardware (AVX512-BF16, AMX, or ARM's bf16) and at least half of the net's
multiply-adds are in dense convolutions: one group, a kernel of more than one pixel, 16 channels or more in and out.
Otherwise fp32: casting costs more than it gains in small nets and depthwise layers, and a processor without the
instructions is an order of magnitude slower with them emulated. On other devices than the CPU it is fp32.

Nothing is timed, since a run must have the same bits twice. The choice is made once, when a run begins, and stands in
its recipe.yaml; so a run that is carried on elsewhere keeps it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from fedloom.nets import Net, Shape
from fedloom.recipe import Recipe

INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")  # names of Linux, the last one of ARM
CHANNELS = 16  # a convolution with fewer is bound by memory, not by products
SHARE = 0.5


def resolved(recipe: Recipe, net: Net, shape: Shape) -> Recipe:
    """The recipe with fp32 or bf16 in place of auto."""
    return recipe if recipe.precision != "auto" else recipe.changed(precision=decide(recipe, net, shape)[0])


def decide(recipe: Recipe, net: Net, shape: Shape, flags: Collection[str] | None = None) -> tuple[str, str]:
    """fp32 or bf16, and why. `flags`: of the processor, if not this one's."""
    if recipe.device != "cpu":
        return "fp32", f"the rule knows processors, not {recipe.device}"
    known = processor_flags() if flags is None else flags
    found = next((name for name in INSTRUCTIONS if name in known), None)
    if found is None:
        return "fp32", "this processor does not multiply bfloat16"
    share = dense_share(net, shape)
    words = f"{100 * share:.0f} % of the multiply-adds are in dense convolutions"
    return ("bf16", f"{found}, and {words}") if share >= SHARE else ("fp32", f"only {words}")


def processor_flags(info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the processor can do, in Linux's names; elsewhere as torch tells it, if it does."""
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(words.split())
        return frozenset()
    told: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every version of torch
    return frozenset(name for name, able in told.items() if able is True)


def dense_share(net: Net, shape: Shape) -> float:
    """The share of dense convolutions in the multiply-adds of convolutions and linear layers."""
    dense = total = 0

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        nonlocal dense, total
        products = out.numel() * layer.get_parameter("weight")[0].numel()
        total += products
        dense += products * _is_dense(layer)

    twin = copy.deepcopy(net).eval()  # no statistic moves and no hook stays
    for layer in twin.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        twin(torch.zeros(2, *shape))
    return dense / total if total else 0.0


def _is_dense(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and layer.groups == 1
        and max(layer.kernel_size) > 1
        and min(layer.in_channels, layer.out_channels) >= CHANNELS
    )
