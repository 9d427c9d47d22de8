"""fedloom: federated learning for clients whose data disagree. A method is a sum of parts."""

__version__ = "0.1.0"

from fedloom.api import compare, personalize, run, split
from fedloom.errors import FedloomError
from fedloom.methods import Method, Part, Phase, method
from fedloom.recipe import Recipe
from fedloom.run import Run

__all__ = [
    "FedloomError",
    "Method",
    "Part",
    "Phase",
    "Recipe",
    "Run",
    "compare",
    "method",
    "personalize",
    "run",
    "split",
]
