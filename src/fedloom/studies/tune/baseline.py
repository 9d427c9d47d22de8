"""What a model that learned nothing would reach on the validation samples: always the same scores, the class frequencies."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedloom.engine.experiment import Experiment
from fedloom.evaluation.clients import personal_models
from fedloom.evaluation.metrics import compute


def baseline(experiment: Experiment, metric: str) -> float:
    """Of all validation samples; of methods with personal models the mean over clients, each with its own frequencies."""
    data = experiment.data
    stage, classes = data.validation_at(experiment.recipe.rounds), data.dataset.classes
    if stage is None:
        return _constant(metric, data.dataset.train_y[data.validation].numpy(), classes)
    if not personal_models(experiment.program):
        return _constant(metric, stage.held_labels(), classes)
    each = [_constant(metric, labels, classes) for labels in stage.train_labels() if len(labels)]
    known = [value for value in each if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _constant(metric: str, labels: npt.NDArray[np.int64], classes: int) -> float:
    counts = np.bincount(labels, minlength=classes) + 1e-9
    scores = np.tile(np.log(counts / counts.sum()), (len(labels), 1))
    return compute([metric], scores, labels)[metric]
