"""The metrics of a run: refused before anything is written, and described in its folder."""

from __future__ import annotations

from fedloom.engine.backends import select as where
from fedloom.engine.backends.blueprint import refuse_uncarried_class
from fedloom.engine.experiment import Experiment
from fedloom.evaluation.metrics import METRICS, find_metric
from fedloom.io.files import read_json, write_json
from fedloom.io.user_code import import_parts
from fedloom.recipe import Recipe
from fedloom.runs.folder import RunFolder


def check_metrics(experiment: Experiment) -> list[str]:
    """Refuse unknown metrics, and a notebook's own where workers cannot see them; returns notes for the user.

    An experiment has imported the user's parts, so theirs are known.
    """
    metrics = [find_metric(name) for name in experiment.recipe.metrics]
    for metric in metrics:
        metric.load()
        if where.built_from_recipe(experiment.recipe):
            refuse_uncarried_class("metric", metric.name, type(metric))
    notes = (metric.note(experiment.data.dataset.classes) for metric in metrics)
    return [note for note in notes if note]


def import_metrics(recipe: Recipe) -> None:
    """Import the user's parts where a metric is not fedloom's own, so that a finished run can be shown."""
    if any(name not in METRICS for name in recipe.metrics):
        import_parts(recipe.parts)
    for name in recipe.metrics:
        find_metric(name).load()


def describe_metrics(folder: RunFolder, recipe: Recipe) -> None:
    """Write metrics.json, so that the page shows a user's metric without running the user's code."""
    if recipe.metrics == ("accuracy",):
        return
    metrics = [find_metric(name) for name in recipe.metrics]
    content = [{key: getattr(metric, key) for key in ("name", "title", "better", "format")} for metric in metrics]
    if read_json(folder.metrics) != content:
        write_json(folder.metrics, content)
