"""The public names of fedloom, which `import fedloom as fl` gives; a new one is added here."""

from fedloom.api import analyze, compare, personalize, protocols, report, reproduce, run, split, sweep, tune
from fedloom.data import Dataset
from fedloom.engine.server.callback import RunCallback
from fedloom.errors import FedloomError
from fedloom.evaluation.metrics import Metric
from fedloom.finished.adopt import Adopted, adopt
from fedloom.finished.analyze import Analysis
from fedloom.finished.export import Exported, export
from fedloom.finished.personalize import FineTuning, personalize_run
from fedloom.methods import Method, Part, Phase, Query, TrainSchedule, TrainSpec, method
from fedloom.methods.api.search import Choices, RateScale, Span
from fedloom.recipe import Recipe
from fedloom.runs.run import Run
from fedloom.runs.split import Split
from fedloom.studies.comparison import Comparison
from fedloom.studies.load import load
from fedloom.studies.reproduce import Reproduction
from fedloom.studies.tune.study import Study

__all__ = [
    "Adopted",
    "Analysis",
    "Choices",
    "Comparison",
    "Dataset",
    "Exported",
    "FedloomError",
    "FineTuning",
    "Method",
    "Metric",
    "Part",
    "Phase",
    "Query",
    "RateScale",
    "Recipe",
    "Reproduction",
    "Run",
    "RunCallback",
    "Span",
    "Split",
    "Study",
    "TrainSchedule",
    "TrainSpec",
    "adopt",
    "analyze",
    "compare",
    "export",
    "load",
    "method",
    "personalize",
    "personalize_run",
    "protocols",
    "report",
    "reproduce",
    "run",
    "split",
    "sweep",
    "tune",
]
