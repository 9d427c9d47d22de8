"""`kernels: auto`: compiled kernels where they serve the net and can be built, by a fixed rule.

native if the net runs in float32 on the CPU, has layers for which there are compiled kernels, and the library of these
kernels is cached or can be compiled here; otherwise portable. Nothing is timed. The choice is made once, when a run starts,
and stored in its recipe.yaml. A net without such layers starts no compiler.
"""

from __future__ import annotations

from fedloom.nets import Net
from fedloom.nets.kernels.native.library import native_reason
from fedloom.nets.kernels.use import served
from fedloom.recipe import Recipe


def choose_kernels(recipe: Recipe, net: Net) -> tuple[str, str | None]:
    """native or portable, and why; no reason where there is nothing to choose."""
    layers = served(net)
    if not layers:
        return "portable", None
    if recipe.device != "cpu" or recipe.precision != "fp32":
        return "portable", f"compiled kernels are for float32 on the CPU, not {recipe.precision} on {recipe.device}"
    if reason := native_reason():
        return "portable", f"compiled kernels are not available: {reason}"
    return "native", f"compiled kernels for {layers} layers"
