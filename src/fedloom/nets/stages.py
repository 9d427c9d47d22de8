"""Stages of a body: the places between input and features whose values a method may look at.

A model marks the activations that end its stages; what enters them, averaged over positions, is a stage's output. A module of a
user's net is marked by an attribute `stage = True`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def stage(module: M) -> M:
    """Mark a module: what enters it is the output of a stage."""
    module.stage = True  # type: ignore[assignment]
    return module


def with_stages(body: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Features, and (B, channels) of every stage in the order of computation; the features alone where nothing is marked."""
    outputs: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        # a copy in either case, since an activation may work in place
        outputs.append(inputs[0].flatten(2).mean(2) if inputs[0].dim() > 2 else inputs[0].clone())

    marked = [module for module in body.modules() if getattr(module, "stage", False) is True]
    handles = [module.register_forward_pre_hook(keep) for module in marked]
    try:
        features: Tensor = body(x)
    finally:
        for handle in handles:
            handle.remove()
    return features, outputs or [features]
