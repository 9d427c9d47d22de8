"""A round in a few numbers: norms and alignment of the clients' models, on classes they hold and on those they do not.

Each client's number is a mean over test images (of weight norms, over classes); the round's is the mean over clients,
each counting once, as in FedDr+. A client that holds every class has no unseen ones and is left out of that mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedloom.engine.setup import Experiment
from fedloom.measure.looking import Looked
from fedloom.measure.numbers import mean

Classes = npt.NDArray[np.bool_]


def train_counts(experiment: Experiment, client: int, round: int | None = None) -> npt.NDArray[np.int64]:
    """(C,) the client's training images of each class, as it calls them, in a round (the last one if none is given)."""
    number = experiment.recipe.rounds if round is None else round
    if experiment.pooled:
        labels = experiment.images.train_y.numpy()[experiment.training(client, number)]
    else:
        labels = experiment.at(number).train_labels()[client]
    return np.asarray(np.bincount(labels, minlength=experiment.images.classes), dtype=np.int64)


def seen_and_unseen(clients: Sequence[tuple[Classes, Looked]], name: str) -> tuple[float, float]:
    return (
        mean(looked.own.over(name, seen) for seen, looked in clients),
        mean(looked.own.over(name, ~seen) for seen, looked in clients),
    )


def norms(server: Looked | None, clients: Sequence[tuple[Classes, Looked]]) -> dict[str, float]:
    """FedFN, figures 2 and 3."""
    found = {}
    for kind in ("feature", "weight"):
        found[f"{kind}_global"] = server.own.over(f"{kind}_norm") if server else float("nan")
        found[f"{kind}_seen"], found[f"{kind}_unseen"] = seen_and_unseen(clients, f"{kind}_norm")
    return found


def alignment(server: Looked | None, clients: Sequence[tuple[Classes, Looked]]) -> dict[str, float]:
    """FedDr+, figures 2, 4 and 5."""
    found = {"global": server.own.over("alignment") if server else float("nan")}
    found["seen"], found["unseen"] = seen_and_unseen(clients, "alignment")
    for short, name in (("gap", "alignment_gap"), ("distance", "feature_distance"), ("angle", "feature_angle")):
        found[f"{short}_seen"], found[f"{short}_unseen"] = seen_and_unseen(clients, name)
    return found
