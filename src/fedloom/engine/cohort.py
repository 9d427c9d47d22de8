"""Which clients a round asks: a function of seed and round alone, so that server and nodes draw the same."""

from __future__ import annotations

from fedloom.keys import numpy_generator
from fedloom.recipe import Recipe


def drawn(recipe: Recipe, round: int) -> list[int]:
    """The clients of a round, in order."""
    if recipe.cohort_size == recipe.clients:
        return list(range(recipe.clients))
    chosen = numpy_generator(recipe.seed, "cohort", round).choice(recipe.clients, recipe.cohort_size, replace=False)
    return sorted(int(client) for client in chosen)
