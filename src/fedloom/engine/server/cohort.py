"""Client sampling: a function of seed and round alone, so that the server and every node compute the same cohort."""

from __future__ import annotations

from fedloom.recipe import Recipe
from fedloom.rng import numpy_generator


def sample_clients(recipe: Recipe, round: int) -> list[int]:
    """The clients of a round, in ascending order. With `participation: bernoulli` there may be none."""
    if recipe.participation == "fixed" and recipe.cohort_size == recipe.clients:
        return list(range(recipe.clients))
    generator, size = numpy_generator(recipe.seed, "cohort", round), recipe.cohort_size
    if recipe.participation == "bernoulli":
        # independent draws for all clients, at the cost of the cohort: first their number, then who they are
        size = int(generator.binomial(recipe.clients, recipe.fraction))
    clients = generator.choice(recipe.clients, size, replace=False)
    return sorted(int(client) for client in clients)


def largest_cohort(recipe: Recipe) -> int:
    """The number of clients that the buffers of a run need room for."""
    if recipe.participation == "fixed":
        return recipe.cohort_size
    return max(1, *(len(sample_clients(recipe, round)) for round in range(1, recipe.rounds + 1)))
