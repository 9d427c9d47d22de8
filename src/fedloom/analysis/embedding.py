"""Features in two dimensions: t-SNE (FedNN figures 6 and 7), or the first two principal components if there are too few
points or no variance. All models share one embedding, so they can be compared."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

POINTS = 1000  # of all models together
CLIENTS = 4  # clients' models, besides the global one
MIN_POINTS = 12  # for t-SNE

Points = npt.NDArray[np.float64]
Kind = Literal["tsne", "pca"]


def embed(features: npt.NDArray[np.floating], seed: int) -> tuple[Points, Kind]:
    """(N, d) -> (N, 2), and the kind of embedding. Features that are not finite count as zero."""
    f = np.nan_to_num(np.asarray(features, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    f = f - f.mean(0) if len(f) else f
    scale = np.abs(f).max() if f.size else 0.0
    if len(f) < MIN_POINTS or f.shape[1] < 2 or not scale:
        return principal(f), "pca"
    from sklearn.manifold import TSNE  # slow to import

    tsne = TSNE(perplexity=min(30.0, (len(f) - 1) / 3), init="pca", random_state=seed % 2**32)
    points = np.asarray(tsne.fit_transform((f / scale).astype(np.float32)), dtype=np.float64)
    return (points, "tsne") if np.isfinite(points).all() else (principal(f), "pca")


def principal(f: Points) -> Points:
    """The first two principal components; zeros if there is no second one."""
    points = np.zeros((len(f), 2))
    if len(f) and f.shape[1]:
        _, _, directions = np.linalg.svd(f - f.mean(0), full_matrices=False)
        count = min(2, len(directions))
        # the sign of a singular vector is arbitrary: its largest entry is made positive
        largest = np.abs(directions[:count]).argmax(1)
        directions = directions[:count] * np.sign(directions[np.arange(count), largest])[:, None]
        points[:, :count] = (f - f.mean(0)) @ directions.T
    return points
