"""Norms and alignment of the clients' models as a few numbers, on seen and on unseen classes.

A client's number is a mean over test samples (of weight norms, over classes). The result is the mean over clients, each
with the same weight, as in FedDr+. A client that has seen every class is left out of the mean over unseen classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedloom.analysis.by_class import ClassMask
from fedloom.analysis.collect.probe import ModelReport
from fedloom.analysis.numbers import mean
from fedloom.engine.experiment import Experiment

ClientReport = tuple[ClassMask, ModelReport]  # the classes that the client has seen, and its model


def train_counts(experiment: Experiment, client: int, round: int | None = None) -> npt.NDArray[np.int64]:
    """(C,) number of the client's training samples by class (as labeled for it) in a round, by default the last one."""
    number = experiment.recipe.rounds if round is None else round
    if experiment.program.pooled:
        labels = experiment.data.dataset.train_y.numpy()[experiment.training(client, number)]
    else:
        labels = experiment.data.at(number).train_labels()[client]
    return np.asarray(np.bincount(labels, minlength=experiment.data.dataset.classes), dtype=np.int64)


def seen_and_unseen(clients: Sequence[ClientReport], name: str) -> tuple[float, float]:
    return (
        mean(report.own.mean_over(name, seen) for seen, report in clients),
        mean(report.own.mean_over(name, ~seen) for seen, report in clients),
    )


def norms(server: ModelReport | None, clients: Sequence[ClientReport]) -> dict[str, float]:
    """FedFN, figures 2 and 3."""
    values = {}
    for kind in ("feature", "weight"):
        values[f"{kind}_global"] = server.own.mean_over(f"{kind}_norm") if server else float("nan")
        values[f"{kind}_seen"], values[f"{kind}_unseen"] = seen_and_unseen(clients, f"{kind}_norm")
    return values


def alignment(server: ModelReport | None, clients: Sequence[ClientReport]) -> dict[str, float]:
    """FedDr+, figures 2, 4 and 5."""
    values = {"global": server.own.mean_over("alignment") if server else float("nan")}
    values["seen"], values["unseen"] = seen_and_unseen(clients, "alignment")
    for short, name in (("gap", "alignment_gap"), ("distance", "feature_distance"), ("angle", "feature_angle")):
        values[f"{short}_seen"], values[f"{short}_unseen"] = seen_and_unseen(clients, name)
    return values
