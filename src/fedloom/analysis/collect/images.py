"""The test samples that quantities are measured on: all of them, or a class-balanced subset."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.experiment import Experiment
from fedloom.rng import numpy_generator


def select_images(experiment: Experiment, limit: int | None) -> Tensor:
    """Sorted indices of at most `limit` test samples (None: all), as equally distributed over classes as possible."""
    tested = experiment.data.tested
    labels = experiment.data.dataset.test_y.numpy()[tested]
    if limit is None or limit >= len(labels):
        return torch.from_numpy(tested)
    order = numpy_generator(experiment.recipe.seed, "analysis", limit).permutation(len(labels))
    rank = np.empty(len(labels), dtype=np.int64)  # position of an image among those of its class
    for label in np.unique(labels):
        own = order[labels[order] == label]
        rank[own] = np.arange(len(own))
    selected = order[np.argsort(rank[order], kind="stable")][:limit]
    return torch.from_numpy(tested[np.sort(selected)])
