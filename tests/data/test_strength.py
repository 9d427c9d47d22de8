"""Numbers on disagreement, against loops that follow their definitions."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from making import made_set
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, wasserstein_distance_nd

from fedloom.data import stages
from fedloom.data.split.strength import overlap, strength


def test_numbers_are_those_of_their_definitions() -> None:
    images = made_set([90, 60, 30], [20, 20, 20], domains=2)
    stage = stages("dirichlet:0.5", images, 5, 2)[0]
    measured = strength(stage)
    y, domain = images.train_y.numpy(), images.train_domain
    assert domain is not None
    held = [stage.partition.train(k) for k in range(5)]
    p = [np.bincount(y[index], minlength=3) / len(index) for index in held]
    pooled = np.array([90, 60, 30]) / 180
    sizes = [len(index) for index in held]
    assert measured.class_entropy == pytest.approx(np.mean([entropy(each, base=2) for each in p]))
    assert measured.pooled_entropy == pytest.approx(entropy(pooled, base=2))
    assert measured.jensen_shannon == pytest.approx(np.mean([jensenshannon(each, pooled, base=2) for each in p]))
    corners = np.eye(3) / 2**0.5  # any two are at distance 1
    moved = [wasserstein_distance_nd(corners, corners, each, pooled) for each in p]
    assert measured.earth_mover == pytest.approx(np.mean(moved))
    pairs = sum(abs(a - b) for a in sizes for b in sizes)
    assert measured.size_gini == pytest.approx(pairs / (2 * 5 * sum(sizes)))
    assert measured.size_ratio == max(sizes) / min(sizes)
    q = [np.bincount(domain.numpy()[index], minlength=2) / len(index) for index in held]
    shared = [np.minimum(q[i], q[j]).sum() for i in range(5) for j in range(i)]
    assert measured.domain_overlap == pytest.approx(np.mean(shared))
    assert (measured.unheld, measured.shared_tests > 0) == (0, True)


def test_limits() -> None:
    images = made_set([100] * 4, [20] * 4, domains=4, writers=40)
    even, one = (strength(stages(spec, images, 4, 0)[0]) for spec in ("dirichlet:100000", "shards:1"))
    assert even.jensen_shannon < 0.05
    assert even.earth_mover < 0.05
    assert (one.class_entropy, one.pooled_entropy, one.classes_a_client) == (0, log2(4), 1)
    assert one.earth_mover == pytest.approx(0.75)
    assert one.size_gini == 0
    assert strength(stages("domains", images, 4, 0)[0]).domain_overlap == 0
    assert strength(stages("writers", images, 10, 0)[0]).unheld > 0
    assert overlap(np.array([[0.5, 0.5]])) == 1
    assert strength(stages("iid+permute:1", images, 4, 0)[0]).domain_overlap is not None
