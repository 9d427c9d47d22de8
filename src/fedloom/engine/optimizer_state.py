"""The state of a client's local optimizer between rounds, where the recipe keeps it (`optimizer.keep`)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.recipe import Recipe
from fedloom.weights import Layout

# names in a client's state; a name without a dot is no part's
MOMENTUM, FIRST, SECOND, STEPS = "optimizer_momentum", "optimizer_first", "optimizer_second", "optimizer_steps"


def kept_state(recipe: Recipe, layout: Layout) -> dict[str, Tensor]:
    """What every client keeps, with the initial values: SGD's momentum, or Adam's moments and its steps by tensor."""
    if not recipe.optimizer.keep:
        return {}
    if recipe.optimizer.name == "sgd":
        return {MOMENTUM: torch.zeros(layout.trained)} if recipe.momentum else {}
    steps = torch.zeros(len(trained_names(layout)), dtype=torch.int64)
    return {FIRST: torch.zeros(layout.trained), SECOND: torch.zeros(layout.trained), STEPS: steps}


def trained_names(layout: Layout) -> list[str]:
    """The tensors that the method trains, in the order of the vector."""
    wanted = set(layout.trainable())
    return [name for name in layout.entries if name in wanted]
