"""The server optimizers of Reddi et al. 2021, Algorithm 2, in numpy: one array for all weights, written from the paper."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from reference import Problem, Weights, cross_entropy, flat

Row = npt.NDArray[np.float64]
Moved = Callable[[Row, Row], Row]  # v, the update -> the new v
Aggregate = Callable[[list[Row], list[float]], Row]  # updates and shares -> one update


def adaptive(
    p: Problem, lr: float, beta1: float, tau: float, moved: Moved, aggregate: Aggregate | None = None
) -> tuple[Weights, Row, Row]:
    """Weights, m and v after the last round."""
    w, names = p.initial, list(p.initial)
    sizes = np.cumsum([w[name].numel() for name in names])[:-1]
    m = np.zeros(sum(w[name].numel() for name in names))
    v = np.full_like(m, tau**2)
    for t, cohort in p.rounds:
        before = flat(w, names).numpy()
        updates = [flat(p.local(w, t, k, cross_entropy), names).numpy() - before for k in cohort]
        shares = p.shares(cohort)
        update = np.average(updates, axis=0, weights=shares) if aggregate is None else aggregate(updates, shares)
        m = beta1 * m + (1 - beta1) * update
        v = moved(v, update)
        pieces = np.split(before + lr * m / (np.sqrt(v) + tau), sizes)
        w = {n: torch.from_numpy(piece).view(w[n].shape) for n, piece in zip(names, pieces, strict=True)}
    return w, m, v


def in_order(vector: Row, p: Problem) -> torch.Tensor:
    """A vector over the tensors of the run folder, in the order of the net's own vector."""
    sizes = np.cumsum([value.numel() for value in p.initial.values()])[:-1]
    pieces = zip(p.initial.items(), np.split(vector, sizes), strict=True)
    return flat({n: torch.from_numpy(piece).view(value.shape) for (n, value), piece in pieces})
