"""Strength of heterogeneity. p_k: class shares of client k; p: class shares of all images that clients hold.

    class entropy       H_k = - sum_c p_kc log2 p_kc, in bits: 0 (one class) to log2 C (all classes equally often)
    Jensen-Shannon      sqrt(JSD(p_k, p)), with JSD = H((p_k + p)/2) - (H(p_k) + H(p))/2 in bits: 0 (equal) to 1
    earth mover's       sum_c |p_kc - p_c| / 2. Classes have no order, so moving a share to any other class costs 1, and
                        the distance is the total variation: 0 to 1 - min_c p_c
    Gini of sizes       sum_ij |n_i - n_j| / (2 N sum_i n_i): 0 (equal sizes) towards 1 (one client holds everything)
    domain overlap      sum_d min(q_id, q_jd), averaged over all pairs of clients i, j; q_i: domain shares of client i:
                        1 (the same mix everywhere) to 0 (no two clients share a domain)

Means are over clients with equal weight. Labels are as clients see them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fedloom.data.partition.partition import Index
from fedloom.data.split.view import ClientViews

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Strength:
    class_entropy: float
    pooled_entropy: float
    jensen_shannon: float
    earth_mover: float
    classes_a_client: float
    smallest: int
    largest: int
    size_gini: float
    size_ratio: float  # largest over smallest
    domain_overlap: float | None
    unheld: int  # training samples that no client holds
    shared_tests: int  # test samples that several clients hold

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def strength(views: ClientViews) -> Strength:
    partition, dataset = views.partition, views.dataset
    counts, sizes = class_counts(views), np.diff(partition.train_offsets)
    pooled = counts.sum(0) / counts.sum()
    return Strength(
        class_entropy=float(entropies(counts).mean()),
        pooled_entropy=float(entropies(counts.sum(0)[None])[0]),
        jensen_shannon=float(jensen_shannon(counts, pooled).mean()),
        earth_mover=float(earth_mover(counts, pooled).mean()),
        classes_a_client=float((counts > 0).sum(1).mean()),
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
        size_gini=gini(sizes),
        size_ratio=float(sizes.max() / max(sizes.min(), 1)),
        domain_overlap=_domain_overlap(views),
        unheld=len(dataset.train_y) - len(np.unique(partition.train_index)),
        shared_tests=int((np.bincount(partition.test_index, minlength=1) > 1).sum()),
    )


def class_counts(views: ClientViews) -> Index:
    """Numbers of training samples by client and class."""
    classes = views.dataset.classes
    return np.stack([np.bincount(y, minlength=classes) for y in views.train_labels()])


def shares(counts: Index) -> Floats:
    return np.asarray(counts / np.maximum(counts.sum(-1, keepdims=True), 1))


def entropies(counts: Index) -> Floats:
    return _bits(shares(counts))


def jensen_shannon(counts: Index, pooled: Floats) -> Floats:
    p = shares(counts)
    divergence = _bits((p + pooled) / 2) - (_bits(p) + _bits(pooled[None])) / 2
    return np.sqrt(np.maximum(divergence, 0))


def earth_mover(counts: Index, pooled: Floats) -> Floats:
    return np.asarray(np.abs(shares(counts) - pooled).sum(1) / 2)


def gini(sizes: Index) -> float:
    ordered, n = np.sort(sizes), len(sizes)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * max(int(ordered.sum()), 1)))


def overlap(p: Floats) -> float:
    """Mean over pairs of rows of sum min(p_i, p_j). In a sorted column, a value is the minimum of its pairs with later ones."""
    n = len(p)
    if n < 2:
        return 1.0
    later = n - 1 - np.arange(n)
    return float((np.sort(p, axis=0) * later[:, None]).sum() / (n * (n - 1) / 2))


def _domain_overlap(views: ClientViews) -> float | None:
    domain, partition = views.dataset.train_domain, views.partition
    if domain is None:
        return None
    numbers = domain.numpy()
    rows = [np.bincount(numbers[partition.train(k)], minlength=numbers.max() + 1) for k in range(partition.clients)]
    return overlap(shares(np.stack(rows)))


def _bits(p: Floats) -> Floats:
    return np.asarray((p * np.log2(1 / np.where(p > 0, p, 1))).sum(-1))
