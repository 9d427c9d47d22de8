"""Which test images a quantity is measured on: all of them, or a smaller number with all classes alike."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.setup import Experiment
from fedloom.keys import numpy_generator


def chosen(experiment: Experiment, most: int | None) -> Tensor:
    """Indices of test images, rising. At most `most` of them: from each class in turn one more, until there are enough."""
    labels = experiment.images.test_y.numpy()
    if most is None or most >= len(labels):
        return torch.arange(len(labels))
    order = numpy_generator(experiment.recipe.seed, "analysis", most).permutation(len(labels))
    turn = np.empty(len(labels), dtype=np.int64)  # the how-manieth of its class an image is in that order
    for label in np.unique(labels):
        own = order[labels[order] == label]
        turn[own] = np.arange(len(own))
    first = order[np.argsort(turn[order], kind="stable")][:most]
    return torch.from_numpy(np.sort(first))
