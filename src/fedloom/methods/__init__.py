"""Methods as sums of parts. Every module of this package is imported, so a new file registers its part by itself."""

import importlib
import pkgutil

from fedloom.methods.method import Method, alias, list_methods, method
from fedloom.methods.part import Part
from fedloom.methods.seen import Batch, Client, Memory, Phase, Plan, Server, Task

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Batch",
    "Client",
    "Memory",
    "Method",
    "Part",
    "Phase",
    "Plan",
    "Server",
    "Task",
    "alias",
    "list_methods",
    "method",
]
