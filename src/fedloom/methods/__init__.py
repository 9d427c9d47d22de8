"""Methods as sums of parts. Every module of this package is imported, so a new file registers its part by itself."""

import importlib
import pkgutil

from fedloom.methods.api.context import (
    Batch,
    ClientContext,
    Phase,
    Query,
    RunPlan,
    ServerContext,
    TaskInfo,
    Tensors,
    TrainSchedule,
    TrainSpec,
)
from fedloom.methods.api.grammar import list_methods, method
from fedloom.methods.api.part import Method, Part
from fedloom.methods.api.registry import alias

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Batch",
    "ClientContext",
    "Method",
    "Part",
    "Phase",
    "Query",
    "RunPlan",
    "ServerContext",
    "TaskInfo",
    "Tensors",
    "TrainSchedule",
    "TrainSpec",
    "alias",
    "list_methods",
    "method",
]
