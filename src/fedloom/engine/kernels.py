"""`kernels: auto`: compiled kernels where they serve the net and can be built, by a fixed rule.

native if the net runs in float32 on the CPU, has layers for which there are compiled kernels, and the library of these
kernels is cached or can be compiled here; otherwise portable. Nothing is timed. The choice is made once, when a run starts,
and stored in its recipe.yaml. A net without such layers starts no compiler.

A run with `kernels: native` starts and resumes only where there are compiled kernels, since its bits depend on them. To
read a stored run, to export it or to evaluate it, portable kernels do: they agree to rounding.
"""

from __future__ import annotations

from fedloom.errors import FedloomError
from fedloom.nets import Net
from fedloom.nets.kernels.use import lacks_native, served
from fedloom.recipe import Recipe


def choose_kernels(recipe: Recipe, net: Net) -> tuple[str, str | None]:
    """native or portable, and why; no reason where there is nothing to choose."""
    layers = served(net)
    if not layers:
        return "portable", None
    if recipe.device != "cpu" or recipe.precision != "fp32":
        return "portable", f"compiled kernels are for float32 on the CPU, not {recipe.precision} on {recipe.device}"
    if reason := lacks_native(net):
        return "portable", f"compiled kernels are not available: {reason}"
    return "native", f"compiled kernels for {layers} layers"


def check_kernels(recipe: Recipe, net: Net) -> None:
    """Refuse to train without the compiled kernels that a recipe asks for."""
    if recipe.kernels == "native" and (reason := lacks_native(net)):
        raise FedloomError(f"kernels: native is not available here: {reason}; or use kernels: portable")
