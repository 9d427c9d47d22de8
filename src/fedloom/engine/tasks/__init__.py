"""Tasks: one class for each kind of work that a worker or a node performs.

Every module of this package is imported, so a new file registers its tasks by itself. A user's task is a subclass of `Task`
in a file that is named with `--parts`.
"""

import importlib
import pkgutil

from fedloom.engine.tasks.task import TASKS, Assignment, ClientTask, CohortTask, Report, Task

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TASKS", "Assignment", "ClientTask", "CohortTask", "Report", "Task"]
