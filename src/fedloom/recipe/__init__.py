"""The recipe: an experiment as one validated value."""

from fedloom.recipe.fields import FLAGS, NO_EFFECT_FIELDS, Data, Deploy, Recipe, SecAgg, recipe
from fedloom.recipe.read import assign, read_recipe

__all__ = ["FLAGS", "NO_EFFECT_FIELDS", "Data", "Deploy", "Recipe", "SecAgg", "assign", "read_recipe", "recipe"]
