"""The tasks that evaluate models, beside those of the engine.

Every module of this package is imported, so `TASKS` has all tasks that fedloom brings.
"""

import importlib
import pkgutil

from fedloom.engine.tasks import TASKS

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TASKS"]
