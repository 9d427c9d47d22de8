"""The recipe: an experiment as one validated value."""

from fedloom.recipe.fields import (
    FLAGS,
    NAMED_GROUPS,
    NO_EFFECT_FIELDS,
    Data,
    Deploy,
    LocalOptimizer,
    Recipe,
    SecAgg,
    recipe,
)
from fedloom.recipe.read import assign, merged, read_recipe
from fedloom.recipe.work import span

__all__ = [
    "FLAGS",
    "NAMED_GROUPS",
    "NO_EFFECT_FIELDS",
    "Data",
    "Deploy",
    "LocalOptimizer",
    "Recipe",
    "SecAgg",
    "assign",
    "merged",
    "read_recipe",
    "recipe",
    "span",
]
