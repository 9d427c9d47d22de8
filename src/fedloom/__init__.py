"""fedloom: federated learning for clients whose data disagree. A method is a sum of parts."""

__version__ = "0.1.0"

from fedloom.adopt import Adopted, adopt
from fedloom.api import analyze, compare, personalize, report, run, split, sweep
from fedloom.errors import FedloomError
from fedloom.export import Exported, export
from fedloom.measure.analyze import Analysis
from fedloom.methods import Method, Part, Phase, method
from fedloom.personal import Tuning, personalize_run
from fedloom.recipe import Recipe
from fedloom.run import Run

__all__ = [
    "Adopted",
    "Analysis",
    "Exported",
    "FedloomError",
    "Method",
    "Part",
    "Phase",
    "Recipe",
    "Run",
    "Tuning",
    "adopt",
    "analyze",
    "compare",
    "export",
    "method",
    "personalize",
    "personalize_run",
    "report",
    "run",
    "split",
    "sweep",
]
