"""Client sampling: a function of seed and round alone, so that the server and every node compute the same cohort."""

from __future__ import annotations

from fedloom.recipe import Recipe
from fedloom.rng import numpy_generator


def sample_clients(recipe: Recipe, round: int) -> list[int]:
    """The clients of a round, in ascending order."""
    if recipe.cohort_size == recipe.clients:
        return list(range(recipe.clients))
    clients = numpy_generator(recipe.seed, "cohort", round).choice(recipe.clients, recipe.cohort_size, replace=False)
    return sorted(int(client) for client in clients)
